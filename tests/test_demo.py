"""`make demo`'s script as a person would see it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.mark.native
@pytest.mark.slow
def test_demo_answers_measures_and_embeds() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\d+% of this machine's limit", done.stdout)) == 2
    assert re.search(r"answer +[\d.]+ tokens/s over HTTP, .* server memory 0\.\d\d GB", done.stdout)
    rows = [[float(x) for x in match.split()] for match in re.findall(r"^((?: *-?\d\.\d\d){3}) ", done.stdout, re.MULTILINE)]
    assert [row[i] for i, row in enumerate(rows)] == [1.0, 1.0, 1.0]
    assert rows[0][1] > 0.4 > 0.2 > rows[0][2], "two sentences about cats are closer than one about revenue"
