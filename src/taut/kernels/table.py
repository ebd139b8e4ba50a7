"""The kernel table: which backend runs which op, what it requires, and how its linears are tiled. The planner picks from it, `taut inspect
--explain` prints it; the kernels themselves are csrc/kernels/.
"""

from __future__ import annotations

from dataclasses import dataclass

from taut.errors import UnsupportedModelError

# fmt: off
OPS = (
    "embed", "linear", "linear_q8", "linear_q4",
    "quantize", "rms_norm", "layer_norm", "rope", "rope_cache", "cache_write", "attention", "attention_full",
    "silu", "gelu", "gelu_tanh", "relu", "tanh", "add", "mul", "swiglu", "qkv_attention", "select", "pool", "normalize",
    "observe",
)
# fmt: on
REQUIRES = {
    "reference": (),
    "scalar": (),
    "avx2": ("avx2", "fma", "f16c"),
    "avxvnni": ("avx2", "fma", "f16c", "avx_vnni"),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    "avx512bf16": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
    "amx": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"),
}
BF16_BACKENDS = ("avx512bf16",)  # whose dot products of bf16 are an instruction; others only imitate it, for tests
BLOCK_BACKENDS = (
    "amx",
)  # whose products of bf16 are in blocks of 32 (csrc/kernels/attention_blocks.h); others imitate those too
# (rows of the step, tile as rows x columns), first match from the left; the driver balances the tiles of a step.
TILES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("linear_q8", "avx2"): (
        ("1", "1x64"),
        ("2", "2x32"),
        ("3-29", "up to 6x16"),
        ("30+", "6x16, weights sorted once for 192 rows"),
    ),
    ("linear_q8", "avxvnni"): (("1", "1x64"), ("2", "2x32"), ("3+", "balanced tiles of up to 6x16")),
    ("linear_q8", "avx512"): (("1-6", "up to 6x64"), ("7+", "balanced 6x64 and 5x64")),
    ("linear_q4", "avx2"): (
        ("1", "1x32"),
        ("2-11", "up to 6x16"),
        ("12+", "6x16, weights unpacked once for 192 rows"),
    ),
    ("linear_q4", "avxvnni"): (("1-2", "2x32"), ("3+", "balanced tiles of up to 6x16")),
    ("linear_q4", "avx512"): (("any", "balanced tiles of up to 6x64"),),
    ("linear", "avx2"): (("any", "up to 6x16"),),
    ("linear", "avxvnni"): (("any", "up to 6x16"),),
    ("linear", "avx512"): (("any", "up to 6x64"),),
}
TILES |= {(op, "avx512bf16"): tiles for (op, backend), tiles in TILES.items() if backend == "avx512"}
TILES |= {
    ("linear_q8", "amx"): (
        ("1-6", "up to 6x64"),
        ("7-15", "balanced 6x64 and 5x64"),
        ("16+", "32x32, weights unpacked once for 512 rows"),
    ),
    ("linear_q4", "amx"): (("1-15", "balanced tiles of up to 6x64"), ("16+", "32x32, weights unpacked once for 512 rows")),
    ("linear", "amx"): TILES["linear", "avx512"],
}


@dataclass(frozen=True)
class Kernel:
    """One row of the table."""

    op: str
    backend: str
    requires: tuple[str, ...]
    tiles: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.op}"


def select(op: str, backend: str) -> Kernel:
    """The kernel of `op` on `backend`; UnsupportedModelError when it has none."""
    if backend not in REQUIRES:
        raise UnsupportedModelError(f"no backend named {backend!r}; backends: {', '.join(REQUIRES)}")
    if op not in OPS:
        raise UnsupportedModelError(f"backend {backend} has no kernel for {op!r}; it has: {', '.join(OPS)}")
    return Kernel(op, backend, REQUIRES[backend], TILES.get((op, backend), ()))
