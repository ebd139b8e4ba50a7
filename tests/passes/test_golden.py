"""Each family's graph after the whole pipeline equals the text in tests/golden; each pass can be left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import graphs
from taut import passes
from taut.errors import UsageError
from taut.graph import to_text, verify

# Passes that work on what others leave.
NEEDED = {
    "fuse_qkv_attention": ("fuse_qkv", "quantize"),
    "fuse_gate": ("fuse_gate_up", "quantize"),
    "fuse_requantize": ("fuse_gate_up", "fuse_gate", "fuse_bias_act", "quantize"),
    "fuse_residual": ("quantize",),
    "guard": ("narrow_weights",),
}
GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("family", ["llama", "qwen3", "bert", "roberta"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4-g32"])
def test_pipeline(family: str, precision: str, request: pytest.FixtureRequest) -> None:
    text = to_text(passes.optimize(graphs()[family], passes.Options(precision)))  # type: ignore[arg-type]
    assert text == (GOLDEN / f"{family}-{precision}.txt").read_text()


@pytest.mark.parametrize("name", [name for name, _ in passes.PIPELINE])
@pytest.mark.parametrize("family", ["llama", "qwen3", "bert"])
def test_single_pass(family: str, name: str) -> None:
    """Before and after one pass alone: the text differs where the pass applies, and what it leaves is well formed."""
    needed = NEEDED.get(name, ())
    others = tuple(other for other, _ in passes.PIPELINE if other != name and other not in needed)
    precision = "fp16" if name == "guard" else "int8"
    before = passes.optimize(graphs()[family], passes.Options(precision, (*others, name)))  # type: ignore[arg-type]
    after = verify(passes.optimize(graphs()[family], passes.Options("fp16" if name == "narrow_weights" else precision, others)))  # type: ignore[arg-type]
    applies = {
        "fuse_rope_cache": family != "bert", "fuse_gate_up": family != "bert", "fuse_gate": family != "bert",
            "fuse_qkv_attention": family == "bert",
        "fuse_norm_quant": False, "remove_dead": False, "shift_bias": False, "split_norms": False,
    }  # fmt: skip
    assert (to_text(before) != to_text(after)) == applies.get(name, True)


@pytest.mark.parametrize("family", ["llama", "qwen3", "bert", "roberta"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4-g64"])
def test_decompose(family: str, precision: str) -> None:
    """Fused nodes decompose into primitives: without precision changes, into exactly the nodes that the model file wrote."""
    before = graphs()[family]
    after = passes.optimize(before, passes.Options(precision))  # type: ignore[arg-type]
    parts = [part for node in after.nodes for part in node.decompose() if part.op not in ("slice", "quantize")]
    renamed = {part.name: part.op.removesuffix("_q8").removesuffix("_q4") for part in parts}
    assert renamed == {node.name: node.op for node in before.nodes}
    assert all(not part.origin for part in parts)


def test_disabled_passes_leave_their_pattern() -> None:
    text = to_text(passes.optimize(graphs()["llama"], passes.Options("int8", ("fuse_qkv", "fuse_add_norm", "fuse_residual"))))
    assert "qkv" not in text and "add(" in text


def test_unknown_pass() -> None:
    with pytest.raises(UsageError, match="no pass named fuse_everything; passes: shift_bias"):
        passes.optimize(graphs()["llama"], passes.Options("int8", ("fuse_everything",)))


def test_shared_linear_weights_are_not_fused() -> None:
    """A weight used twice must stay one copy: fusing it would pack it again."""
    from taut.graph import Builder

    b = Builder()
    x = b.embed("x", b.weight("table", 300, 64))
    w = b.weight("w", 64, 64)
    q, k = b.linear("a.q", x, w), b.linear("a.k", x, w)
    v = b.linear_of("a.v", x, 64, bias=False)
    graph = b.finish(b.binary("add", "sum", b.binary("add", "qk", q, k), v))
    assert "qkv" not in to_text(passes.optimize(graph, passes.Options("fp32")))


def linears(precision: str, *pins: str) -> dict[str, str]:
    """Of each linear of the llama graph, by name: its op, with the group or the store that it keeps its weights in."""
    options = passes.Options(precision, pins=passes.parse_pins(pins))  # type: ignore[arg-type]
    nodes = [node for node in passes.optimize(graphs()["llama"], options).nodes if node.op.startswith("linear")]
    return {node.name: f"{node.op} {node.attrs.get('group', node.attrs.get('store', ''))}".strip() for node in nodes}


def test_int4_leaves_the_head_on_int8() -> None:
    kinds = linears("int4-g32")
    assert kinds.pop("logits").startswith("linear_q8")
    assert set(kinds.values()) == {"linear_q4 32"}


def test_pins_give_single_layers_another_precision() -> None:
    kinds = linears("int8", "layers.*.down=fp16", "layers.0.*=int4-g32", "layers.1.q=bf16")
    assert kinds["layers.0.down"] == kinds["layers.0.qkv"] == "linear_q4 32"
    assert kinds["layers.1.down"] == "linear f16"
    assert kinds["layers.1.qkv"] == "linear bf16", "q, k and v are one linear: a pin of one is a pin of all"
    assert kinds["layers.1.o"].startswith("linear_q8") and kinds["logits"].startswith("linear_q8")


@pytest.mark.parametrize("pin", ["layers.*.down", "=fp16", "layers.0.down=int5", ""])
def test_a_malformed_pin_is_refused(pin: str) -> None:
    with pytest.raises(UsageError, match="PATTERN=PRECISION"):
        linears("int8", pin)


@pytest.mark.parametrize("pinned", ["int8", "bf16", "fp32"])
@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
def test_a_pin_that_names_no_layer_is_refused(precision: str, pinned: str) -> None:
    with pytest.raises(UsageError, match=r"'layers\.9\.\*' names no linear layer; layers are named as layers\.0\."):
        linears(precision, f"layers.9.*={pinned}")


def guarded(precision: str, *pins: str, kv: str = "fp32", family: str = "llama", disabled: tuple[str, ...] = ()) -> set[str]:
    options = passes.Options(precision, disabled, pins=passes.parse_pins(pins), kv=kv)  # type: ignore[arg-type]
    nodes = passes.optimize(graphs()[family], options).nodes
    assert all(node.attrs.get("clamp", 6e4) == 6e4 and node.attrs.get("score_limit", 5e4) == 5e4 for node in nodes)
    return {node.name for node in nodes if "clamp" in node.attrs or "score_limit" in node.attrs}


def test_guards_stand_where_fp16_is() -> None:
    assert guarded("fp32") == guarded("bf16") == guarded("int8") == guarded("int4-g32") == set()
    everywhere = guarded("fp16")
    norms = {f"layers.{i}.{name}" for i in (0, 1) for name in ("attention_norm", "mlp_norm", "attention")} | {"final_norm"}
    assert everywhere == norms
    assert guarded("fp16", disabled=("guard",)) == set()
    assert guarded("int8", "layers.0.down=fp16") == set(), "no norm feeds it"
    assert guarded("int8", "layers.0.gate=fp16") == {"layers.0.mlp_norm"}
    assert guarded("int8", "layers.1.k=fp16") == {"layers.1.attention_norm", "layers.1.attention"}
    assert guarded("int8", kv="bf16") == guarded("fp32", kv="bf16") == {"layers.0.attention", "layers.1.attention"}
    assert guarded("fp32", kv="k8v4") == set()


def test_guards_follow_queries_through_norms_and_rotations() -> None:
    assert {"layers.0.attention", "layers.1.attention"} < guarded("fp16", family="qwen3")
    assert {"layers.0.attention", "embed_norm"} < guarded("fp16", family="bert")
    assert guarded("int8", "layers.0.q=fp16", family="bert") == {"embed_norm", "layers.0.attention"}
