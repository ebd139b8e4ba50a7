"""Exports as other programs read them: KL between their logits and ours, on the same weights and token ids.

    python bench/readers.py ARTEFACT --to compressed-tensors --reader transformers --peer-python PYTHON [--tokens 2048]
    python bench/readers.py ARTEFACT --to gguf --reader llamacpp --peer-python PYTHON

PYTHON is an interpreter with the reader: transformers and compressed-tensors, vllm (its CPU build) or llama-cpp-python. A reader that keeps
inputs in floats, or quantizes them by token where ours do by group, differs by that too: make the artefact of a scheme that both read alike
(w8a16), or take the figure as the sum of both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import taut
from taut.compress.exporting import export
from taut.quality import domains, kl

LENGTH = 256
READERS = {
    "transformers": """
import sys, numpy as np, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
ids = np.load(sys.argv[2])
with torch.no_grad():
    out = np.stack([model(torch.tensor(row[None].astype("int64"))).logits[0].float().numpy() for row in ids])
np.save(sys.argv[3], out)
""",
    "vllm": """
import sys, numpy as np
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
model = LLM(sys.argv[1], dtype="float32", max_logprobs=-1, enforce_eager=True)
ids = np.load(sys.argv[2])
asked = SamplingParams(max_tokens=1, prompt_logprobs=-1, logprobs=-1)
rows = []
for row in ids:
    (answer,) = model.generate([TokensPrompt(prompt_token_ids=row.tolist())], asked)
    per_position = [*answer.prompt_logprobs[1:], answer.outputs[0].logprobs[0]]
    rows.append(np.array([[p[i].logprob for i in range(len(p))] for p in per_position], np.float32))
np.save(sys.argv[3], np.stack(rows))
""",
    "llamacpp": """
import sys, numpy as np
from llama_cpp import Llama
ids = np.load(sys.argv[2])
model = Llama(sys.argv[1], n_ctx=ids.shape[1], n_batch=ids.shape[1], logits_all=True, verbose=False)
rows = []
for row in ids:
    model.reset()
    model.eval(row.tolist())
    rows.append(np.array(model.scores[: len(row)], np.float32))
np.save(sys.argv[3], np.stack(rows))
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefact")
    parser.add_argument("--to", choices=("compressed-tensors", "gguf"), default="compressed-tensors")
    parser.add_argument("--reader", choices=tuple(READERS), default="transformers")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    ours = taut.load(options.artefact, max_context=LENGTH, kv_precision="fp32")
    assert ours.tokenizer is not None, "artefacts of decoders have one"
    ids = domains.windows(ours.tokenizer, "technical", options.tokens // LENGTH, LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / ("model.gguf" if options.to == "gguf" else "model")
        export(options.artefact, out, options.to)
        np.save(f"{folder}/ids.npy", ids)
        arguments = [str(out), f"{folder}/ids.npy", f"{folder}/logits.npy"]
        subprocess.run([options.peer_python, "-c", READERS[options.reader], *arguments], check=True)
        theirs: dict[bytes, Any] = dict(zip((row.tobytes() for row in ids), np.load(f"{folder}/logits.npy"), strict=True))
    found = kl.measure(lambda row: ours.logits(row.tolist()), lambda row: theirs[row.tobytes()], ids)
    print(json.dumps({"reader": options.reader, "to": options.to, **found.to_json()}, indent=1))


if __name__ == "__main__":
    main()
