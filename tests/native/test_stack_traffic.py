"""No hot loop of a float product keeps its register tile on the stack."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native.stack_traffic import hot_loops, innermost_loops

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (shutil.which("g++") and shutil.which("objdump")), reason="needs g++ and objdump")


def flags(isa: str) -> list[str]:
    """The flags that CMakeLists.txt gives the kernels of `isa`."""
    text = (ROOT / "CMakeLists.txt").read_text()
    common = re.search(r"^set\(FLAGS (.*?)\)$", text, re.M)
    base = "avx2" if isa == "avxvnni" else isa
    own = re.search(rf'^set\(ISA_{base} "?(.*?)"?\)', text, re.M)
    assert common and own
    vnni = ["-DTAUT_AVX_VNNI=1"] if isa == "avxvnni" else []
    return ["-std=c++20", *common[1].split(), *own[1].split(), f"-DTAUT_ISA_NS={isa}", f"-DTAUT_ISA_{base}=1", *vnni]


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("kernel", ["linear_f32", "attention"])
def test_no_spills(isa: str, kernel: str, tmp_path: Path) -> None:
    target = tmp_path / "kernel.o"
    subprocess.run(["g++", *flags(isa), "-c", f"csrc/kernels/{kernel}.cc", "-o", str(target)], check=True, cwd=ROOT)
    loops = hot_loops(target)
    assert max(loop.multiplies for loop in loops) >= 12
    assert [loop for loop in loops if loop.stack_accesses] == []


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
