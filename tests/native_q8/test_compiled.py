"""What cannot run everywhere: the AVX-512 tiles under emulation, and the registers of the compiled loops."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from native.stack_traffic import hot_loops
from native.test_stack_traffic import ROOT, flags

has_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@has_compiler
@pytest.mark.slow
@pytest.mark.skipif(not Path("/usr/include/simde").exists(), reason="needs SIMDe (libsimde-dev)")
def test_emulated_avx512_gives_the_portable_bits(tmp_path: Path) -> None:
    done = subprocess.run(["sh", "csrc/tests/emulate_q8.sh", str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "identical"), done.stdout + done.stderr


@has_compiler
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump")
@pytest.mark.parametrize(
    ("kernel", "isa", "multiplies"),
    [
        ("q8", "avx2", 24),  # 6 x 2 registers x 2 k-pairs
        ("q8", "avxvnni", 12),  # 6 x 2 registers
        ("q8", "avx512", 24),  # 6 x 4 registers
        ("q4", "avx2", 24),  # of int4 two k-quads at a time
        ("q4", "avxvnni", 24),
        ("q4", "avx512", 48),
    ],
)
def test_no_spills(kernel: str, isa: str, multiplies: int, tmp_path: Path) -> None:
    target = tmp_path / "kernel.o"
    subprocess.run(["g++", *flags(isa), "-c", f"csrc/kernels/linear_{kernel}.cc", "-o", str(target)], check=True, cwd=ROOT)
    loops = hot_loops(target, 4 if kernel == "q4" else 3)
    most = max(loop.integer_multiplies for loop in loops)
    assert most == multiplies or ((kernel, isa) == ("q4", "avx2") and most > multiplies)  # its loop of many rows is larger
    assert [loop for loop in loops if loop.stack_accesses] == []
