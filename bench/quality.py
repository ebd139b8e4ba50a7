"""int8, fp16 and bf16 against fp32 on the two packaged models: KL, top-1 agreement and perplexity of SmolLM2-135M; MiniLM's cosines.

python bench/quality.py [--windows 16] [--length 512]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import taut
from taut.bench import report
from taut.quality import kl
from taut.testing import pydoc_windows, sentences

RECORDS = Path(__file__).parent / "records"


def logits_of(model: taut.Model) -> kl.Logits:
    return lambda ids: model.logits(ids.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    options = parser.parse_args()
    exact = taut.load("smollm2-135m", precision="fp32", max_context=options.length)
    assert exact.tokenizer is not None, "the packaged model has one"
    windows, texts = pydoc_windows(exact.tokenizer, options.windows, options.length), sentences(200)
    vectors = taut.load("minilm", precision="fp32").embed(texts)
    result = {}
    for precision in ("int8", "fp16", "bf16"):  # not int4: the packaged weights lie on a 4-bit grid
        model = taut.load("smollm2-135m", precision=precision, max_context=options.length)
        similarity = kl.cosine(vectors, taut.load("minilm", precision=precision).embed(texts))
        encoder = {"sentences": len(texts), "mean_cosine": float(similarity.mean()), "least_cosine": float(similarity.min())}
        result[precision] = {
            "smollm2-135m": kl.measure(logits_of(exact), logits_of(model), windows).to_json(),
            "minilm": encoder,
        }
    print(json.dumps(result, indent=1))
    report.save(RECORDS, "quality", "bench/quality.py", result)


if __name__ == "__main__":
    main()
