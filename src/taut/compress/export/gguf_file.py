"""A llama model as one GGUF file: ggml's tensor names and row order, and what llama.cpp needs to know beside.

From a model that came as GGUF, its metadata is copied; from a folder it is made of config.json and the tokenizer's files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from taut.checkpoint import rope_parameters
from taut.checkpoint.gguf_llama import llama3_divisors
from taut.compress.export import gguf_blocks, gguf_vocabulary
from taut.compress.export.model import Exported, Model
from taut.errors import UnsupportedModelError, UsageError
from taut.quant.algorithms import Weight
from taut.quant.schemes import int8

TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
FILE_TYPES = {
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "F32": gguf.LlamaFileType.ALL_F32,
}
_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_REPLACED = (
    "GGUF.",
    "general.architecture",
    "general.file_type",
    "general.quantization_version",
    "general.alignment",
    "split.",
)


@dataclass(frozen=True)
class _Planned:
    """One tensor: the weight's name, and how it will be stored. `byte_shape` is the shape in bytes, rows first."""

    source: str
    kind: str
    byte_shape: tuple[int, ...]


def gguf_name(name: str) -> str:
    """ggml's name of a Hugging Face llama tensor. UnsupportedModelError where it has none."""
    if name in TOP:
        return TOP[name]
    parts = name.split(".")
    inner = LAYER.get(".".join(parts[3:-1]))
    if parts[:2] != ["model", "layers"] or inner is None:
        raise UnsupportedModelError(f"{name} has no place in a llama GGUF file; export to compressed-tensors instead")
    return f"blk.{parts[2]}.{inner}.{parts[-1]}"


def row_order(rows: int, heads: int) -> NDArray[np.intp]:
    """Which Hugging Face row stands where: GGUF keeps the two of a rotated pair side by side, Hugging Face half a head apart."""
    order: NDArray[np.intp] = np.arange(rows, dtype=np.intp).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return order


def write(model: Model, out: Path) -> Exported:
    """The file `out`. UnsupportedModelError for other than llama, UsageError for weights that GGUF's blocks do not hold."""
    config = model.config
    if config.get("model_type") != "llama":
        raise UnsupportedModelError(
            f"model_type {config.get('model_type')!r} cannot be exported to GGUF, llama can; export to compressed-tensors instead"
        )
    planned = {gguf_name(name): _plan(name, weight) for name, weight in model.weights.items()}
    counts = Counter(plan.kind for plan in planned.values() if len(plan.byte_shape) == 2)
    building = out.with_name(out.name + ".partial")
    building.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(building, "llama")
    try:
        _add_metadata(writer, model, FILE_TYPES[counts.most_common(1)[0][0]])
        _write_tensors(writer, model, planned)
        writer.close()
        building.rename(out)
    except BaseException:
        with suppress(OSError):  # what could not be written cannot be closed either
            writer.close()
        building.unlink(missing_ok=True)
        raise
    return Exported(out, dict(counts))


def _plan(name: str, weight: Weight) -> _Planned:
    if not isinstance(weight, np.ndarray):
        n, k = weight.q.shape if isinstance(weight, int8.Quantized) else weight.u.shape
        kind = gguf_blocks.kind_of(weight, name)
        return _Planned(name, kind, (n, k // gguf_blocks.BLOCK * gguf_blocks.BLOCK_BYTES[kind]))
    kind = "F32" if weight.ndim == 1 else _FLOATS.get(weight.dtype.name, "")
    if not kind:
        raise UsageError(f"{name} is of {weight.dtype.name}; accepted are {', '.join(_FLOATS)} and quantized weights")
    itemsize = 4 if kind == "F32" else 2
    return _Planned(name, kind, (*weight.shape[:-1], weight.shape[-1] * itemsize))


def _write_tensors(writer: gguf.GGUFWriter, model: Model, planned: Mapping[str, _Planned]) -> None:
    factors = _rope_factors(model.config)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    for name, plan in planned.items():
        kind = gguf.GGMLQuantizationType[plan.kind]
        num_bytes = int(np.prod(plan.byte_shape))
        writer.add_tensor_info(name, plan.byte_shape, np.dtype(np.uint8), num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for plan in planned.values():
        writer.write_tensor_data(_bytes(plan, _reordered(plan.source, model.weights[plan.source], model.config)))


def _bytes(plan: _Planned, weight: Weight) -> NDArray[np.uint8]:
    if not isinstance(weight, np.ndarray):
        return gguf_blocks.blocks(weight, plan.source)
    stored = weight.astype(np.float32) if plan.kind == "F32" else weight
    return np.ascontiguousarray(stored).view(np.uint8).reshape(plan.byte_shape)


def _reordered(name: str, weight: Weight, config: Mapping[str, Any]) -> Weight:
    """q and k (and their biases) in GGUF's row order."""
    heads = config["num_attention_heads"]
    for part, count in (("q_proj", heads), ("k_proj", config.get("num_key_value_heads") or heads)):
        if f".self_attn.{part}." in name:
            if isinstance(weight, np.ndarray):
                return weight[row_order(len(weight), count)]
            rows = len(weight.q) if isinstance(weight, int8.Quantized) else len(weight.u)
            return weight.rows(row_order(rows, count))
    return weight


def _add_metadata(writer: gguf.GGUFWriter, model: Model, file_type: gguf.LlamaFileType) -> None:
    if model.gguf is not None:
        for key, field in gguf.GGUFReader(model.gguf).fields.items():
            if not key.startswith(_REPLACED):
                writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    else:
        _add_config(writer, model.config)
        if model.folder is None:
            raise UsageError("a GGUF file needs the tokenizer; give the folder of the model's text files")
        _add_vocabulary(writer, gguf_vocabulary.metadata(model.folder, model.config, model.config["vocab_size"]))
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = rope_parameters(dict(config))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if original := rope.get("original_max_position_embeddings"):
            writer.add_rope_scaling_orig_ctx_len(original)
    elif rope["rope_type"] not in ("default", "llama3"):
        raise UnsupportedModelError(
            f"rope type {rope['rope_type']!r} cannot be written to GGUF; accepted are default, linear, yarn and llama3"
        )


def _rope_factors(config: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """One divisor per rotary frequency, where the model has Llama 3's."""
    rope = rope_parameters(dict(config))
    if rope["rope_type"] != "llama3":
        return None
    heads = config["num_attention_heads"]
    sizes = {"head_dim": config.get("head_dim") or config["hidden_size"] // heads, "rope_theta": rope["rope_theta"]}
    return llama3_divisors(sizes, rope).astype(np.float32)


def _add_vocabulary(writer: gguf.GGUFWriter, found: Mapping[str, Any]) -> None:
    put: dict[type, Callable[[str, Any], None]] = {
        str: writer.add_string,
        bool: writer.add_bool,
        int: writer.add_uint32,
        list: writer.add_array,
    }
    for key, value in found.items():
        put[type(value)](key, value)
