"""Buffers that live together never share bytes, and the placement is not wasteful."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from builders import graphs
from taut import passes, plan
from taut.plan.memory import Lifetime, place
from taut.quant.schemes.int8 import round_up

LIVES = st.lists(
    st.tuples(st.sampled_from(["tokens", "rows"]), st.integers(1, 40), st.integers(0, 20), st.integers(0, 6)), max_size=25
)


@given(LIVES)
def test_no_overlap(lives: list[tuple[str, int, int, int]]) -> None:
    lifetimes = {str(i): Lifetime(s, 64 * size, first, first + span) for i, (s, size, first, span) in enumerate(lives)}  # type: ignore[arg-type]
    buffers, spaces = place(lifetimes)
    for a, b in itertools.combinations(lifetimes, 2):
        together = lifetimes[a].space == lifetimes[b].space
        together &= lifetimes[a].first <= lifetimes[b].last and lifetimes[b].first <= lifetimes[a].last
        apart = (
            buffers[a].offset + buffers[a].row_bytes <= buffers[b].offset
            or buffers[b].offset + buffers[b].row_bytes <= buffers[a].offset
        )
        assert not together or apart
    for name, buffer in buffers.items():
        assert buffer.offset % 64 == 0 and buffer.offset + buffer.row_bytes <= spaces[lifetimes[name].space]


def test_llama_activations_are_reused() -> None:
    """Two layers need no more than one, and both less than the sum of their values."""
    graph = passes.optimize(graphs()["llama"], passes.Options("int8"))
    made = plan.make(graph, plan.Target("avx2"), "int8")
    total = sum(round_up(4 * graph.signature(name).features, 64) for name in graph.values)
    assert made.space_bytes["tokens"] < total / 4
    for step in made.steps:
        for out, other in itertools.product(step.outputs, step.inputs):
            same = out.buffer == other.buffer
            disjoint = out.buffer.space != other.buffer.space or (
                out.buffer.offset + out.buffer.row_bytes <= other.buffer.offset
                or other.buffer.offset + other.buffer.row_bytes <= out.buffer.offset
            )
            assert same or disjoint, f"{step.op} would overwrite its input"


def test_digest_follows_the_decisions() -> None:
    def digest(precision: str, disabled: tuple[str, ...] = ()) -> str:
        graph = passes.optimize(graphs()["llama"], passes.Options(precision, disabled))  # type: ignore[arg-type]
        return plan.make(graph, plan.Target(), precision).digest

    assert digest("int8") == digest("int8")
    assert len({digest("int8"), digest("fp32"), digest("int8", ("fuse_qkv",))}) == 3
