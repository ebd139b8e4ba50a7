"""Every malformed model gives its own error, soon, within bounded memory, and leaves nothing open."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hostile.make import CASES, write_case

MEMORY_BYTES = 1 << 30
LIMIT_S = 10.0


def _params() -> list[object]:
    """A template's case starts a process of its own, and some run into its time limit."""
    return [pytest.param(name, marks=pytest.mark.slow if "template" in name else ()) for name in CASES]


@pytest.mark.parametrize("name", _params())
def test_gives_its_error(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    target = write_case(name, tmp_path)
    started = time.monotonic()
    with pytest.raises(case.error) as caught:
        case.act(target)
    assert case.message in str(caught.value)
    assert time.monotonic() - started < LIMIT_S
    assert str(tmp_path) not in str(caught.value) or case.error.__name__ == "ModelNotFoundError"


@pytest.mark.slow
def test_a_process_survives_them_all_in_bounded_memory(tmp_path: Path) -> None:
    """One process opens every case in turn under an address-space limit; a real allocation of what a file declares
    would fail in it.
    """
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "hostile.worker", str(tmp_path), str(MEMORY_BYTES)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    outcome = json.loads(run.stdout.splitlines()[-1])
    assert outcome["wrong"] == []
    assert outcome["count"] == len(CASES)
    assert outcome["open_files_after"] <= outcome["open_files_before"]
    assert outcome["peak_rss_bytes"] < MEMORY_BYTES


def test_the_next_sound_model_opens_unchanged(tmp_path: Path) -> None:
    from hostile.raw import llama_gguf, write
    from taut import checkpoint

    good = write(tmp_path / "good.gguf", llama_gguf())
    with checkpoint.open(str(good)) as first:
        before = first.read("model.layers.0.self_attn.q_proj.weight").copy()
    for name in ("gguf/overlap", "gguf/cut-tenth", "gguf/array-2^62"):
        with pytest.raises(CASES[name].error):
            CASES[name].act(write_case(name, tmp_path / "bad"))
    gc.collect()
    with checkpoint.open(str(good)) as again:
        assert (again.read("model.layers.0.self_attn.q_proj.weight") == before).all()
        assert again.tokenizer is not None
        assert again.tokenizer.decode(again.tokenizer.encode("hello")) == "hello"
