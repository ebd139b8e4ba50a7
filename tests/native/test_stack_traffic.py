"""No hot loop keeps its register tile on the stack."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native.stack_traffic import hot_loops, innermost_loops, integer_loops
from taut.kernels import native

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("objdump")), reason="needs g++ and objdump (Debian: apt-get install g++ binutils)"
)


def flags(isa: str) -> list[str]:
    """The flags that CMakeLists.txt gives the kernels of `isa`."""
    text = (ROOT / "CMakeLists.txt").read_text()
    common = re.search(r"^set\(FLAGS (.*?)\)$", text, re.M)
    base = {"avxvnni": "avx2", "avx512bf16": "avx512"}.get(isa, isa)
    own = re.search(rf'^set\(ISA_{base} "?(.*?)"?\)', text, re.M)
    assert common and own
    more = {"avxvnni": ["-DTAUT_AVX_VNNI=1"], "avx512bf16": ["-DTAUT_AVX512_BF16=1"]}.get(isa, [])
    return ["-std=c++20", *common[1].split(), *own[1].split(), f"-DTAUT_ISA_NS={isa}", f"-DTAUT_ISA_{base}=1", *more]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "kernel"),
    [
        *((isa, kernel) for isa in ("avx2", "avx512") for kernel in ("linear_f32", "attention")),
        *(("avx512bf16", kernel) for kernel in ("linear_bf16", "attention", "attention_full")),
    ],
)
def test_no_spills(isa: str, kernel: str, tmp_path: Path) -> None:
    target = tmp_path / "kernel.o"
    subprocess.run(["g++", *flags(isa), "-c", f"csrc/kernels/{kernel}.cc", "-o", str(target)], check=True, cwd=ROOT)
    loops = hot_loops(target)
    assert max(loop.multiplies for loop in loops) >= 12
    assert [loop for loop in loops if loop.stack_accesses] == []


@pytest.mark.native
@pytest.mark.skipif(not native.is_built() or platform.machine() != "x86_64", reason="needs the native module, for x86-64")
def test_no_spills_in_the_integer_loops_of_the_built_module() -> None:
    """Of what is shipped, every instruction set in it: the tiles of linear_q8 and linear_q4."""
    loops = integer_loops(Path(str(native.module().__file__)))
    assert sum(loop.integer_multiplies >= 12 for loop in loops) >= 8
    for instruction in ("vpmaddubsw", "vpdpbusd"):
        assert any(instruction in line for loop in loops for line in loop.instructions), f"no hot loop has {instruction}"
    spilled = [f"{loop.address:#x}: {loop.stack_accesses}" for loop in loops if loop.stack_accesses]
    assert spilled == [], "hot loops (address: stack accesses) that keep registers on the stack"


def test_a_spill_is_seen() -> None:
    text = """
   10:\tvbroadcastss (%rax),%ymm1
   14:\tvfmadd231ps (%rcx),%ymm1,%ymm0
   18:\tvmovups %ymm0,0x20(%rsp)
   1c:\tvfmadd231ps (%rdx),%ymm1,%ymm2
   20:\tjne    10 <f+0x10>
"""
    (loop,) = innermost_loops(text)
    assert (loop.multiplies, loop.stack_accesses) == (2, 1)
