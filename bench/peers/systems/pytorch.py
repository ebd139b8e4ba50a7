"""PyTorch with transformers, eager mode: fp32, and its dynamic int8 (linears only)."""

from __future__ import annotations

import os

import numpy as np
from common import Loading, Result, Spec, pooled, timed

NEEDS = dict.fromkeys(("encoder", "sentences"), ("torch", "transformers", "numpy"))
VARIANTS = dict.fromkeys(("encoder", "sentences"), ("fp32", "int8"))


def prepare(spec: Spec) -> None:
    """Nothing: it runs from the folder."""


def measure(spec: Spec) -> Result:
    # Its threads otherwise spin at every barrier: 50 times slower on a small model when anything else runs on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    import transformers

    torch.set_num_threads(spec["threads"])
    loading = Loading()
    model = transformers.AutoModel.from_pretrained(spec["model"], dtype=torch.float32).eval()
    if spec["variant"] == "int8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    head = loading.done(f"PyTorch {torch.__version__}, transformers {transformers.__version__}")

    def embed(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            rows = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
        return pooled(spec, rows.numpy(), mask)

    return {**head, **timed(spec, embed)}
