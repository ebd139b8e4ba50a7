"""int8 against fp32 on the two packaged models: KL, top-1 agreement and perplexity of SmolLM2-135M; cosine of MiniLM's embeddings.

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    options = parser.parse_args()
    exact, int8 = (taut.load("smollm2-135m", precision=precision, max_context=options.length) for precision in ("fp32", "int8"))
    windows = pydoc_windows(exact.tokenizer, options.windows, options.length)
    decoder = kl.measure(exact.logits, int8.logits, windows).to_json()
    texts = sentences(200)
    similarity = kl.cosine(*(taut.load("minilm", precision=precision).embed(texts) for precision in ("fp32", "int8")))
    encoder = {"sentences": len(texts), "mean_cosine": float(similarity.mean()), "least_cosine": float(similarity.min())}
    result = {"smollm2-135m": decoder, "minilm": encoder}
    print(json.dumps(result, indent=1))
    report.save(RECORDS, "quality", "bench/quality.py", result)


if __name__ == "__main__":
    main()
