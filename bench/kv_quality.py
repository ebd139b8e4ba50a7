"""KV cache formats against a cache of fp32, SmolLM2-135M on fp32 weights: KL, top-1 agreement, perplexity, bytes a token.

python bench/kv_quality.py [--windows 4] [--length 512]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import taut
from taut.bench import report
from taut.config import KV_PRECISIONS
from taut.quality import kl
from taut.testing import pydoc_windows

RECORDS = Path(__file__).parent / "records"


def load(kv: str, length: int) -> taut.Model:
    return taut.load("smollm2-135m", precision="fp32", kv_precision=kv, max_context=length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    options = parser.parse_args()
    exact = load("fp32", options.length)
    assert exact.tokenizer is not None, "the packaged model has one"
    windows = pydoc_windows(exact.tokenizer, options.windows, options.length)
    result = {}
    for kv in KV_PRECISIONS:
        model = load(kv, options.length)
        assert model.engine.kv is not None, "a decoder has one"
        measured = kl.measure(lambda ids: exact.logits(ids.tolist()), lambda ids, m=model: m.logits(ids.tolist()), windows)  # type: ignore[misc]
        result[kv] = {"bytes_per_token": model.engine.kv.layout.bytes_per_token, **measured.to_json()}
    print(json.dumps(result, indent=1))
    report.save(RECORDS, "kv_quality", "bench/kv_quality.py", result)


if __name__ == "__main__":
    main()
