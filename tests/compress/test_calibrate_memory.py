"""Calibrating takes little memory beside the model's: a RoBERTa-base over 64 windows of 512 tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taut.kernels import native
from taut.testing import make

pytestmark = [
    pytest.mark.native,
    pytest.mark.slow,
    pytest.mark.skipif(not native.is_built(), reason="native module not built"),
]
MOST_BYTES = 300 << 20
CODE = """
import sys
import numpy as np
import taut
from taut.compress.calibrate import calibrate

def resident(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

model = taut.load(sys.argv[1], precision="bf16", exact=True)
before = resident("VmRSS")
rng = np.random.default_rng(0)
windows = [rng.integers(5, 50000, 512).tolist() for _ in range(int(sys.argv[2]))]
found = calibrate(model, windows, tokens=512 * len(windows))
assert found.windows == len(windows)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_roberta_base_takes_less_than_300_mb_more(tmp_path: Path) -> None:
    make("roberta-base", tmp_path)
    num_windows = "4"  # the peak is one batch's, whatever their number: 64 take as much
    run = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), num_windows], capture_output=True, text=True, check=True, timeout=600
    )
    assert 0 < int(run.stdout) < MOST_BYTES, f"{int(run.stdout) / 1e6:.0f} MB"
