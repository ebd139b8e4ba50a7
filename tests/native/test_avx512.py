"""AVX-512 without an AVX-512 machine: its vector functions, emulated, against the plain ones, bit for bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIMDE = Path("/usr/include/simde/x86/avx512.h")


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") and SIMDE.exists()), reason="needs g++ and libsimde-dev")
def test_vector_functions(tmp_path: Path) -> None:
    binary = tmp_path / "emulate"
    source = "tests/native/emulate_f32x16.cc"
    options = ["-std=c++20", "-O0", "-w", "-ffp-contract=off", "-iquote", "csrc"]
    subprocess.run(["g++", *options, source, "-o", str(binary)], check=True, cwd=ROOT)
    done = subprocess.run([str(binary)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
