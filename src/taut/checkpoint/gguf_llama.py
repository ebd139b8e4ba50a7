"""A llama model in a GGUF file, seen as its Hugging Face checkpoint: HF tensor names, HF row order, HF config keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.checkpoint import config_json
from taut.checkpoint.gguf import GgufFile
from taut.checkpoint.tensors import TensorInfo
from taut.errors import ModelFormatError, UnsupportedModelError

ARCHITECTURE = "llama"
MAX_LAYERS = 1024

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d{1,6})\.([a-z_]+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"


class GgufLlama:
    """`tensors` and `read` speak HF names; `config` holds HF keys; `metadata` is the file's own."""

    def __init__(self, path: Path, name: str = "") -> None:
        self._file = GgufFile(path, name)
        self.name = self._file.name
        self.metadata = self._file.metadata
        self.warnings: list[str] = []
        self._stored: dict[str, str] = {}  # HF name → ggml name
        try:
            self.config = self._make_config()
            self._rename()
        except BaseException:
            self._file.close()
            raise
        self.tensors: dict[str, TensorInfo] = {hf: self._file.stored[ggml].info for hf, ggml in self._stored.items()}

    def read(self, name: str) -> NDArray[Any]:
        values = self._file.read(self._stored[name])
        if name.startswith("model.layers."):
            if ".self_attn.q_proj." in name:
                return _to_hf_rows(values, self.config["num_attention_heads"])
            if ".self_attn.k_proj." in name:
                return _to_hf_rows(values, self.config["num_key_value_heads"])
        return values

    def identity(self) -> str:
        return self._file.identity()

    def release_pages(self) -> None:
        self._file.release_pages()

    def close(self) -> None:
        self._file.close()

    def _rename(self) -> None:
        num_layers = self.config["num_hidden_layers"]
        for ggml in self._file.stored:
            match = _BLOCK.fullmatch(ggml)
            if match and match[2] in _BLOCK_NAMES:
                if int(match[1]) >= num_layers:
                    raise self._error(f"is of layer {match[1]}, but llama.block_count is {num_layers}", ggml)
                self._stored[f"model.layers.{int(match[1])}.{_BLOCK_NAMES[match[2]]}.{match[3]}"] = ggml
            elif ggml != _ROPE_FACTORS:
                self._stored[_TOP_NAMES.get(ggml, ggml)] = ggml  # an unknown name stays, for the model to report
        head_dim = self.config["head_dim"]
        for kind, heads in (("q", self.config["num_attention_heads"]), ("k", self.config["num_key_value_heads"])):
            for layer in range(num_layers):
                hf = f"model.layers.{layer}.self_attn.{kind}_proj.weight"
                if hf not in self._stored:
                    raise self._error("is missing", f"blk.{layer}.attn_{kind}.weight")
                rows = self._file.stored[self._stored[hf]].info.shape[0]
                if rows != heads * head_dim:
                    raise self._error(f"has {rows} rows; {heads} heads of {head_dim} need {heads * head_dim}", self._stored[hf])

    def _error(self, message: str, field: str) -> ModelFormatError:
        return ModelFormatError(message, file=self.name, field=field)

    def _get(self, key: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        value = self.metadata.get(key, default)
        if value is ...:
            raise self._error("is missing", key)
        if value is not default and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)):
            raise self._error(f"is a {type(value).__name__}; {getattr(kinds, '__name__', 'a number')} is expected", key)
        return value

    def _int(self, key: str, low: int, high: int, default: Any = ...) -> int:
        value: int = self._get(key, int, default)
        if value is not default and not low <= value <= high:
            raise self._error(f"is {value}; {low} to {high:,} is accepted", key)
        return value

    def _make_config(self) -> dict[str, Any]:
        architecture = self._get("general.architecture", str)
        if architecture != ARCHITECTURE:
            raise UnsupportedModelError(f"{self.name}: GGUF architecture {architecture[:40]!r}; accepted is {ARCHITECTURE!r}")
        if self._int("llama.expert_count", 0, 1 << 16, 0):
            raise UnsupportedModelError(f"{self.name}: mixture-of-experts models are not supported")
        hidden = self._int("llama.embedding_length", 1, 65_536)
        heads = self._int("llama.attention.head_count", 1, 1024)
        kv_heads = self._int("llama.attention.head_count_kv", 1, 1024, heads)
        rope_dim = self._int("llama.rope.dimension_count", 2, 4096, hidden // heads)
        head_dim = self._int("llama.attention.key_length", 2, 4096, rope_dim)
        if head_dim % 2 or heads % kv_heads:
            raise self._error(
                f"heads {heads}, key-value heads {kv_heads}, head size {head_dim} do not fit", "llama.attention.head_count"
            )
        if rope_dim != head_dim or self._int("llama.attention.value_length", 1, 4096, head_dim) != head_dim:
            raise UnsupportedModelError(f"{self.name}: rope, key and value sizes of a head must be equal")
        embed = self._file.stored.get("token_embd.weight")
        if embed is None or len(embed.info.shape) != 2 or embed.info.shape[1] != hidden:
            raise self._error(f"must be a (vocabulary, {hidden}) matrix", "token_embd.weight")
        config: dict[str, Any] = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": hidden,
            "intermediate_size": self._int("llama.feed_forward_length", 1, 1 << 20),
            "num_hidden_layers": self._int("llama.block_count", 1, MAX_LAYERS),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": _shortest(self._get("llama.attention.layer_norm_rms_epsilon", float)),
            "rope_theta": _shortest(self._get("llama.rope.freq_base", float, 10_000.0)),
            "rope_scaling": None,
            "max_position_embeddings": self._int("llama.context_length", 1, 1 << 24),
            "vocab_size": embed.info.shape[0],
            "tie_word_embeddings": "output.weight" not in self._file.stored,
            "attention_bias": "blk.0.attn_q.bias" in self._file.stored,
            "mlp_bias": "blk.0.ffn_gate.bias" in self._file.stored,
        }
        config["rope_scaling"] = self._rope_scaling(config)
        config_json.check(config, file=self.name)
        for key, name in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
            token = self._int(f"tokenizer.ggml.{key}_token_id", 0, (1 << 32) - 1, None)
            if token is not None:
                config[name] = token
        return config

    def _rope_scaling(self, config: dict[str, Any]) -> dict[str, Any] | None:
        kind = self._get("llama.rope.scaling.type", str, "none")
        if _ROPE_FACTORS in self._file.stored:
            return self._llama3_scaling(config)
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise UnsupportedModelError(f"{self.name}: rope scaling {kind[:40]!r}; accepted are linear and yarn")
        scaling: dict[str, Any] = {"rope_type": kind, "factor": _shortest(self._get("llama.rope.scaling.factor", float))}
        original = self._int("llama.rope.scaling.original_context_length", 1, 1 << 24, None)
        if original is not None:
            scaling["original_max_position_embeddings"] = original
        return scaling

    def _llama3_scaling(self, config: dict[str, Any]) -> dict[str, Any]:
        """Llama 3.1 and 3.2 store one divisor per frequency instead of the parameters; they are found again and verified."""
        stored = self._file.read(_ROPE_FACTORS).astype(np.float64).ravel()
        scaling = {
            "rope_type": "llama3",
            "factor": float(round(stored.max(initial=1.0), 3)),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        divisors = llama3_divisors(config, scaling)
        if stored.shape != divisors.shape or not np.allclose(stored, divisors, rtol=1e-4):
            raise UnsupportedModelError(f"{self.name}: {_ROPE_FACTORS} holds factors other than Llama 3's")
        return scaling


def llama3_divisors(config: dict[str, Any], scaling: dict[str, Any]) -> NDArray[np.float64]:
    """Divisor of each rotary frequency, (head_dim / 2,); transformers `_compute_llama3_parameters`."""
    dims = config["head_dim"]
    wavelength = 2 * np.pi * config["rope_theta"] ** (np.arange(0, dims, 2) / dims)
    turns = scaling["original_max_position_embeddings"] / wavelength
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1 - smooth) / factor + smooth))


def _shortest(value: float) -> float:
    """A float32 as the decimal that was meant: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _to_hf_rows(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undoes the converter's order of q and k rows: within a head, pairs (0, 1), (2, 3), … become halves (0, 2, …), (1,
    3, …).
    """
    grouped = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(values.shape)
