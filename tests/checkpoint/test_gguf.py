"""Sound GGUF files: every type that the gguf package dequantizes, Hugging Face's names, row order and config keys."""

from __future__ import annotations

import warnings
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import dequantize

from hostile.raw import (
    F32,
    GGML_F32,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    STRING,
    U32,
    gguf_field,
    gguf_file,
    gguf_tensor,
    llama_fields,
    llama_gguf,
    llama_tensors,
    write,
)
from taut import checkpoint
from taut.checkpoint import gguf as gguf_module
from taut.checkpoint.gguf import GgufFile
from taut.checkpoint.gguf_llama import GgufLlama


def _is_readable(kind: gguf.GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


QUANTIZED = [kind for kind in gguf.GGML_QUANT_SIZES if _is_readable(kind) and kind.name not in ("F32", "F16", "BF16")]


def test_the_package_dequantizes_many_types() -> None:
    assert len(QUANTIZED) >= 20


def test_the_usual_types_are_as_the_package_says() -> None:
    table = gguf_module._type_table()
    assert {kind: (*row, True) for kind, row in gguf_module._USUAL.items()} == {
        kind: table[kind] for kind in gguf_module._USUAL
    }


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_dequantizes_as_the_gguf_package_does(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = 24, 2 * block
    raw = np.random.default_rng(1).integers(0, 256, (rows, columns // block * block_bytes), dtype=np.uint8)
    write(tmp_path / "a.gguf", gguf_file([], [gguf_tensor("a", (columns, rows), int(kind), 0)], raw.tobytes()))
    file = GgufFile(tmp_path / "a.gguf")
    assert file.stored["a"].info == checkpoint.TensorInfo((rows, columns), kind.name.lower(), raw.nbytes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random bytes hold infinite scales
        expected, read = dequantize(raw, kind), file.read("a")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, expected.reshape(rows, columns))
    file.close()


@pytest.mark.parametrize(("type_id", "dtype"), [(0, np.float32), (1, np.float16), (30, ml_dtypes.bfloat16)])
def test_plain_types_are_views(type_id: int, dtype: type, tmp_path: Path) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    write(tmp_path / "a.gguf", gguf_file([], [gguf_tensor("a", (4, 3), type_id, 0)], values.tobytes()))
    file = GgufFile(tmp_path / "a.gguf")
    read = file.read("a")
    assert read.dtype == dtype
    assert read.ctypes.data == file.read("a").ctypes.data
    np.testing.assert_array_equal(read, values)
    file.close()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_versions_and_alignments(version: int, alignment: int, tmp_path: Path) -> None:
    data = np.arange(8, dtype=np.float32).tobytes()
    fields = [gguf_field("general.alignment", U32, alignment)]
    tensors = [gguf_tensor("a", (8,), GGML_F32, 0)]
    write(tmp_path / "a.gguf", gguf_file(fields, tensors, data, alignment=alignment, version=version))
    file = GgufFile(tmp_path / "a.gguf")
    assert file.read("a").tolist() == list(range(8))
    file.close()


def test_reads_what_the_reference_package_writes(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    values: dict[str, object] = {
        "text": "é",
        "count": 7,
        "ratio": 0.5,
        "flag": True,
        "names": ["a", "bé", ""],
        "numbers": [1, 2, 3],
    }
    writer.add_string("text", "é")
    writer.add_uint32("count", 7)
    writer.add_float32("ratio", 0.5)
    writer.add_bool("flag", True)
    writer.add_array("names", ["a", "bé", ""])
    writer.add_array("numbers", [1, 2, 3])
    tensor = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    quantized = gguf.quants.quantize(tensor, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", tensor)
    writer.add_tensor("quantized", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "a.gguf")
    for key, value in values.items():
        read = file.metadata[key]
        assert (read.tolist() if isinstance(read, np.ndarray) else read) == value
    np.testing.assert_array_equal(file.read("plain"), tensor)
    np.testing.assert_array_equal(file.read("quantized"), dequantize(quantized, gguf.GGMLQuantizationType.Q8_0))
    file.close()


def test_query_and_key_rows_come_in_hugging_face_order(tmp_path: Path) -> None:
    """The converter puts row `half * head_dim/2 + i` of a head at `2 i + half`; each row here names its own place."""
    tensors = llama_tensors(262)
    for kind, heads in (("q", HEADS), ("k", KV_HEADS)):
        stored = np.empty((heads * HEAD_DIM, HIDDEN), np.float32)
        for head in range(heads):
            for half in range(2):
                for i in range(HEAD_DIM // 2):
                    hf_row = head * HEAD_DIM + half * HEAD_DIM // 2 + i
                    stored[head * HEAD_DIM + 2 * i + half] = hf_row
        tensors[f"blk.0.attn_{kind}.weight"] = stored
    with checkpoint.open(str(write(tmp_path / "a.gguf", llama_gguf(None, tensors)))) as opened:
        for name, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
            rows = opened.read(f"model.layers.0.self_attn.{name}.weight")[:, 0]
            assert rows.tolist() == list(range(heads * HEAD_DIM))
        np.testing.assert_array_equal(opened.read("model.layers.0.self_attn.v_proj.weight"), tensors["blk.0.attn_v.weight"])


def test_config_has_hugging_face_keys(tmp_path: Path) -> None:
    with checkpoint.open(str(write(tmp_path / "a.gguf", llama_gguf()))) as opened:
        expected = {
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "max_position_embeddings": 128,
            "vocab_size": 262,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        assert expected.items() <= opened.config.items()
        assert checkpoint.rope_parameters(opened.config) == {"rope_type": "default", "rope_theta": 10_000.0}
        assert "lm_head.weight" not in opened.tensors
        assert opened.name == "a"


def test_an_own_head_is_not_tied(tmp_path: Path) -> None:
    tensors = {**llama_tensors(262), "output.weight": np.ones((262, HIDDEN), np.float32)}
    with checkpoint.open(str(write(tmp_path / "a.gguf", llama_gguf(None, tensors)))) as opened:
        assert opened.config["tie_word_embeddings"] is False
        assert opened.read("lm_head.weight").shape == (262, HIDDEN)


def test_linear_rope_scaling(tmp_path: Path) -> None:
    fields = llama_fields(llama__rope__scaling__type=(STRING, "linear"), llama__rope__scaling__factor=(F32, 4.0))
    with checkpoint.open(str(write(tmp_path / "a.gguf", llama_gguf(fields)))) as opened:
        assert checkpoint.rope_parameters(opened.config) == {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}


def test_llama3_rope_factors_become_the_parameters_that_made_them(tmp_path: Path) -> None:
    """Llama 3.2's own numbers, by the loop of the converter (convert_hf_to_gguf.py, generate_extra_tensors)."""
    base, dims, factor, low, high, original = 500_000.0, 8, 32.0, 1.0, 4.0, 8192
    divisors = []
    for i in range(0, dims, 2):
        wavelength = 2 * np.pi * base ** (i / dims)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    tensors = {**llama_tensors(262), "rope_freqs.weight": np.array(divisors, np.float32)}
    fields = llama_fields(llama__rope__freq_base=(F32, base))
    model = GgufLlama(write(tmp_path / "a.gguf", llama_gguf(fields, tensors)))
    assert model.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in model.tensors
    model.close()


def test_an_unknown_tensor_keeps_its_name_for_the_model_to_report(tmp_path: Path) -> None:
    tensors = {**llama_tensors(262), "blk.0.mystery.weight": np.ones(4, np.float32)}
    with checkpoint.open(str(write(tmp_path / "a.gguf", llama_gguf(None, tensors)))) as opened:
        assert "blk.0.mystery.weight" in opened.tensors


def test_a_folder_with_one_gguf_file_is_that_model(tmp_path: Path) -> None:
    write(tmp_path / "only.gguf", llama_gguf())
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.config["model_type"] == "llama"
