"""What `import taut` gives, and that it costs little."""

from __future__ import annotations

import json
import subprocess
import sys

import taut

# Everything that `import taut` has no business loading: the extras, and the parts that only a command or a model needs.
ABSENT = ["torch", "transformers", "tokenizers", "gguf", "jinja2", "starlette", "uvicorn", "pydantic", "typer", "rich"]
ABSENT += ["prometheus_client", "huggingface_hub", "httpx", "openai"]


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_import_loads_little() -> None:
    loaded = json.loads(
        fresh("import sys, json, taut; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))")
    )
    assert "taut" in loaded
    assert not set(ABSENT) & set(loaded)


def test_import_is_fast() -> None:
    code = "import time, numpy; start = time.perf_counter(); import taut; print(time.perf_counter() - start)"
    assert min(float(fresh(code)) for _ in range(3)) < 0.25


def test_every_public_name_exists() -> None:
    assert taut.__version__.count(".") == 2
    assert sorted(taut.__all__) == taut.__all__, "kept sorted"
    for name in taut.__all__:
        assert getattr(taut, name) is not None
    assert set(taut.__all__) <= set(dir(taut))
