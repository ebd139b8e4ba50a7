"""A request's bits depend on nothing but the request: not on chunks, neighbours, prefix reuse or preemption, nor on the ISA."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import taut
from taut.api import Model
from taut.engine.batch import Part, concatenate
from taut.engine.budget import PROCESS_BYTES
from taut.engine.kv_cache import BLOCK_TOKENS, blocks_for
from taut.scheduler.request import FinishedEvent, GenerateRequest, SamplingParams, TextEvent
from taut.testing import pydoc_text

pytestmark = pytest.mark.native
NEIGHBOURS = 7


@pytest.fixture(scope="module", params=["int8", "int4-g64", "fp32"])
def model(request: pytest.FixtureRequest) -> Model:
    return taut.load("smollm2-135m", precision=request.param, memory_bytes=3 << 30)


def prompts(model: Model, count: int, length: int) -> list[list[int]]:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(pydoc_text()[: 40 * count * length])
    return [ids[i * length : (i + 1) * length] for i in range(count)]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def chunked(model: Model, ids: list[int], sizes: list[int], neighbours: list[list[int]]) -> np.ndarray:
    """All logit rows of `ids` computed in chunks, beside sequences that advance in chunks of their own."""
    pool = model.loaded.scheduler.pool
    tables = [pool.take(blocks_for(len(x))) for x in (ids, *neighbours)]
    done, rows = [0] * len(tables), []
    rng = random.Random(0)
    try:
        for size in sizes:
            parts = []
            for index, sequence in enumerate((ids, *neighbours)):
                count = min(size if index == 0 else rng.choice([1, 5, 40]), len(sequence) - done[index])
                if count:
                    tokens = sequence[done[index] : done[index] + count]
                    parts.append(Part(tokens, done[index], tables[index], wants_row=False, all_rows=index == 0))
                    done[index] += count
            rng.shuffle(parts)
            rows.append(model.engine.logits(concatenate(parts)))
    finally:
        for table in tables:
            pool.release(table)
    assert done[0] == len(ids)
    return np.concatenate(rows)


def test_logits_by_any_chunking_and_neighbours(model: Model) -> None:
    own, *others = prompts(model, 1 + NEIGHBOURS, 70)
    whole = model.logits(own)
    assert same_bits(chunked(model, own, [1] * 70, []), whole), "token by token, alone"
    for sizes in ([7] * 10, [32, 32, 32], [33, 1, 2, 34], [69, 1]):
        assert same_bits(chunked(model, own, sizes, others), whole), f"chunks {sizes} among {NEIGHBOURS} others"


def run_together(model: Model, requests: list[GenerateRequest]) -> dict[str, tuple[list[int], FinishedEvent]]:
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    ended: dict[str, FinishedEvent] = {}
    for request in requests:
        model.loop.submit(request)
    while model.loop.has_work:
        for event in model.loop.step():
            if isinstance(event, TextEvent):
                tokens[event.request_id] += event.token_ids
            else:
                ended[event.request_id] = event
        model.loop.check_integrity()
    return {name: (tokens[name], ended[name]) for name in tokens}


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.9, 50, 0.95, 0.01, seed=42)], ids=["greedy", "seeded"])
def test_tokens_alone_among_others_and_after_prefix_reuse(model: Model, sampling: SamplingParams) -> None:
    count = 16 if model.plan.precision == "int8" else 6
    requests = [GenerateRequest(str(i), tuple(ids), count, sampling) for i, ids in enumerate(prompts(model, 8, 70))]
    model.loaded.scheduler.pool.clear_cache()
    alone = {}
    for request in requests:
        alone.update(run_together(model, [request]))
    again = run_together(model, requests)
    assert all(event.usage.cached_tokens == 64 for _, event in again.values()), "the second run finds the first one's blocks"
    model.loaded.scheduler.pool.clear_cache()
    together = run_together(model, requests)
    assert all(event.usage.cached_tokens == 0 for _, event in together.values())
    for name in alone:
        assert alone[name][0] == again[name][0] == together[name][0], f"request {name}"


def test_preemption_changes_nothing() -> None:
    """A cache that two of three sequences outgrow."""
    roomy = taut.load("smollm2-135m", memory_bytes=1 << 30)
    requests = [GenerateRequest(str(i), tuple(ids), 40, ignore_eos=True) for i, ids in enumerate(prompts(roomy, 3, 100))]
    want = run_together(roomy, requests)
    blocks = 2 * blocks_for(101) + 1  # two prompts fit, but not what they grow to
    layout = roomy.engine.kv.layout  # type: ignore[union-attr]
    used = roomy.loaded.budget
    tight = taut.load(
        "smollm2-135m", memory_bytes=PROCESS_BYTES + used.weight_bytes + used.activation_bytes + blocks * layout.block_bytes
    )
    got = run_together(tight, requests)
    assert tight.loop.stats().preemptions > 0
    assert {name: tokens for name, (tokens, _) in got.items()} == {name: tokens for name, (tokens, _) in want.items()}


DIGEST = """
import hashlib, taut, sys
from taut.testing import pydoc_text
model = taut.load("smollm2-135m", precision=sys.argv[1], memory_bytes=2 << 30, threads=int(sys.argv[2]))
ids = model.tokenizer.encode(pydoc_text()[:400])[:40]
print(model.describe()["isa"], hashlib.sha256(model.logits(ids).tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_every_isa_gives_the_same_bits(precision: str) -> None:
    from taut.kernels import native

    seen = {}
    for isa in native.runnable_isas():
        for threads in (1, 2):
            run = subprocess.run(
                [sys.executable, "-c", DIGEST, precision, str(threads)],
                env={**os.environ, "TAUT_ISA": isa}, capture_output=True, text=True, check=True,
            )  # fmt: skip
            used, digest = run.stdout.split()
            assert used == isa, "the forced ISA ran"
            seen[isa, threads] = digest
    assert len(seen) >= 4 and len(set(seen.values())) == 1, seen


def test_stale_cache_bytes_do_not_matter(model: Model) -> None:
    """What an earlier owner left in a block, NaN included, never reaches a result."""
    (own,) = prompts(model, 1, 70)
    whole = model.logits(own)
    kv = model.engine.kv
    assert kv is not None
    kv.memory[: 8 * kv.layout.block_bytes] = 0xFF
    assert same_bits(model.logits(own), whole)
    assert BLOCK_TOKENS * blocks_for(len(own)) > len(own), "the last block has unwritten slots"


def test_digest_is_of_the_bits() -> None:
    """The check above would notice one flipped bit."""
    x = np.ones(4, np.float32)
    y = x.copy()
    y.view(np.uint32)[0] ^= 1
    assert hashlib.sha256(x.tobytes()).digest() != hashlib.sha256(y.tobytes()).digest() and not same_bits(x, y)
