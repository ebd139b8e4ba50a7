"""The kernel cases: shapes with tails, odd strides and real model sizes. One list for the tests and for timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROWS = (1, 2, 3, 5, 6, 7, 13, 31, 49)  # tile tails, a skinny row, more than one group


@dataclass(frozen=True)
class Case:
    """One step. `inputs` are the feature counts of its float inputs, `weights` (kind, shape) pairs, `outputs` (features, dtype)."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, str], ...]
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 13
    tolerance: float = 2e-6  # of the largest magnitude of the output

    @property
    def name(self) -> str:
        attrs = "-".join(f"{key}={value}" for key, value in self.attrs.items())
        shape = "x".join(map(str, (self.tokens, *self.inputs, *(features for features, _ in self.outputs[:1]))))
        return f"{self.op}-{shape}-{attrs}".rstrip("-")


def linear(
    k: int, n: int, *, act: str = "", bias: bool = True, tokens: int = 13, store: str = "f32", bf16: bool = False
) -> Case:
    weights = ((store, (n, k)), *([("vector", (n,))] if bias else []))
    return Case(
        "linear",
        (k,),
        ((n, "f32"),),
        weights,
        {"act": act, "store": store, **({"bf16": True} if bf16 else {})},
        tokens,
        tolerance=2e-6 + k * 4e-9,
    )


def norm(op: str, features: int, **attrs: Any) -> Case:
    width = attrs.get("head_dim", 0) or features
    group = attrs.setdefault("group", -1)
    attrs = {"eps": 1e-5, "add": False, "store_sum": False, "store_out": True, "head_dim": 0} | attrs
    outputs = [(features, "f32")] * (attrs["store_sum"] + attrs["store_out"]) + [(features, "q8")] * (group >= 0)
    weights = [("vector", (width,))] * (2 if op == "layer_norm" else 1)
    return Case(op, (features,) * (1 + attrs["add"]), tuple(outputs), tuple(weights), attrs)


def plain(op: str, features: int, inputs: int = 1, **attrs: Any) -> Case:
    return Case(op, (features,) * inputs, ((features, "f32"),), (), attrs)


def full(heads: int, kv_heads: int, head_dim: int, *, products: str = "", **more: Any) -> Case:
    """products: "bf16" or "blocks", which are those of bf16."""
    attrs = {**more, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5, "softmax_keys": 64}
    q, kv = heads * head_dim, kv_heads * head_dim
    if products:  # one softmax: a chunk's own largest score would round its weights elsewhere
        return Case("attention_full", (q, kv, kv), ((q, "f32"),), (), {**attrs, "softmax_keys": 0, products: True}, 83, 3e-4)
    return Case("attention_full", (q, kv, kv), ((q, "f32"),), (), attrs, tokens=83)


LINEARS = (
    *(linear(k, 70, tokens=tokens) for k in (1, 3, 12, 130) for tokens in (1, 7)),
    *(linear(96, 200, tokens=tokens) for tokens in ROWS),
    linear(576, 192, act="silu", bias=False),
    linear(384, 65, act="gelu"),
    linear(64, 16, act="gelu_tanh"),
    linear(64, 1, act="tanh"),
    linear(68, 128, act="relu", tokens=1),
    *(linear(k, 70, tokens=tokens, store=store) for store in ("f16", "bf16") for k in (3, 130) for tokens in ROWS),
    *(linear(576, 192, act="silu", bias=False, store=store) for store in ("f16", "bf16", "i8")),
    *(linear(k, 70, tokens=tokens, store="i8") for k in (3, 130) for tokens in ROWS),
    *(linear(k, 70, tokens=tokens, store="bf16", bf16=True) for k in (1, 3, 130, 576) for tokens in (1, 6, 7, 25)),
)
NORMS = (
    norm("rms_norm", 576),
    norm("rms_norm", 37),
    norm("rms_norm", 1),
    norm("rms_norm", 6 * 64, head_dim=64),
    norm("rms_norm", 3 * 20, head_dim=20),
    norm("rms_norm", 128, add=True, store_sum=True, group=64),
    norm("rms_norm", 100, add=True, store_out=False, group=0),
    norm("rms_norm", 128, store_out=False, group=128),
    norm("layer_norm", 384),
    norm("layer_norm", 37, add=True),
    norm("layer_norm", 96, add=True, store_sum=True, group=32),
    norm("layer_norm", 100, clamp=0.75),
    norm("rms_norm", 128, clamp=1.5, add=True, store_sum=True, group=64),
    norm("rms_norm", 100, add=True, store_sum=True, group=0, scale=0.015625, offset=0.25),
    norm("layer_norm", 96, store_out=False, group=0, scale=0.03125, offset=-0.5),
)
ELEMENTWISE = (
    *(plain(op, features) for op in ("silu", "gelu", "gelu_tanh", "relu", "tanh") for features in (64, 35)),
    plain("add", 50, 2),
    plain("mul", 64, 2),
    plain("normalize", 384),
    plain("normalize", 35),
    Case("swiglu", (2 * 192,), ((192, "f32"),), (), {"act": "silu", "group": -1}),
    Case("swiglu", (2 * 35,), ((35, "f32"),), (), {"act": "gelu_tanh", "group": -1}),
    Case("swiglu", (2 * 192,), ((192, "q8"),), (), {"act": "silu", "group": 64}),
    *(
        Case("quantize", (k,), ((k, "q8"),), (), {"group": group})
        for k, group in ((128, 128), (192, 64), (96, 32), (100, 0), (37, 0))
    ),
    *(Case("quantize", (k,), ((k, "q8"),), (), {"group": 0, "scale": 0.0390625, "offset": 0.75}) for k in (37, 128)),
    Case("swiglu", (2 * 64,), ((64, "q8"),), (), {"act": "silu", "group": 0, "scale": 0.125, "offset": -2.5}),
    Case("rope", (6 * 64,), ((6 * 64, "f32"),), (("table", (100, 64)),), {"head_dim": 64, "rotary_dim": 64}),
    Case("rope", (2 * 80,), ((2 * 80, "f32"),), (("table", (100, 40)),), {"head_dim": 80, "rotary_dim": 40}),
    *(
        Case("embed", (), ((96, "f32"),), ((kind, (130, 96)),), {"index": "ids", "offset": 0})
        for kind in ("table", "f32", "q8", "q8g32", "i8", "bf16")
    ),
    Case("embed", (), ((37, "f32"),), (("table", (130, 37)),), {"index": "positions", "offset": 2}),
    Case("select", (96,), ((96, "f32"),)),
    *(Case("pool", (70,), ((70, "f32"),), (), {"mode": mode}) for mode in ("mean", "cls", "last", "max")),
)
FULL = (
    full(3, 3, 64),
    full(4, 2, 20),
    full(2, 1, 128),
    full(1, 1, 4),
    *(
        full(*heads, products=products)
        for heads in ((3, 3, 64), (2, 1, 20), (1, 1, 7), (2, 2, 80))
        for products in ("bf16", "blocks")
    ),
    full(4, 2, 20, score_limit=0.5),
)
CASES = (*LINEARS, *NORMS, *ELEMENTWISE, *FULL)
