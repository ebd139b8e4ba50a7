"""transformers on torch, fp32, eager attention: what parity is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the parity tests need the extra `parity`")
transformers = pytest.importorskip("transformers", reason="the parity tests need the extra `parity`")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

PLAIN: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}


def decoder(folder: str | Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **PLAIN, **options).eval()


def encoder(folder: str | Path) -> Any:
    return transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False, **PLAIN).eval()


def logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    """(len(ids), vocab)"""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(ids)])).logits[0].float().numpy()


def hidden(model: Any, ids: Sequence[int]) -> np.ndarray:
    """(len(ids), hidden): the last hidden states"""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0].float().numpy()


def greedy(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """What the model itself says after `prompt` and after each token of `answer`: len(answer) + 1 tokens.

    `answer` is the model's own greedy continuation exactly when all but the last of them equal it (by induction over the prefixes);
    one pass over both instead of one pass per token.
    """
    rows = logits(model, [*prompt, *answer])[len(prompt) - 1 :]
    return rows.argmax(axis=-1).tolist()


def embed(model: Any, tokenizer: Any, texts: Sequence[str], max_length: int) -> np.ndarray:
    """(texts, hidden): what sentence-transformers computes for mean pooling and normalization, one text at a time."""
    rows = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=max_length).input_ids
        mean = hidden(model, ids).astype(np.float64).mean(axis=0)
        rows.append(mean / np.linalg.norm(mean))
    return np.array(rows)
