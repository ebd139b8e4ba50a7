"""Exports: every packing comes back as it was, read by the gguf package, by taut, and by the formats' specifications written out here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import dequantize as ggml_dequantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

from taut import checkpoint
from taut.checkpoint.gguf_tokenizer import QWEN2_SPLIT
from taut.compress import export
from taut.compress.export import compressed_tensors, gguf_blocks, gguf_file, gguf_vocabulary
from taut.errors import CompressionError, ModelFormatError, ModelNotFoundError, UnsupportedModelError, UsageError
from taut.quant.algorithms import dequantize, quantize
from taut.quant.schemes import int4, int8

HEADS, KV_HEADS, HIDDEN, INNER, VOCAB = 4, 2, 64, 128, 300
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 0],
}
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def weight(n: int, k: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_t(4, (n, k)) * 0.05).astype(np.float32)


def tiny(schemes: dict[str, str], *, symmetric: bool = False, folder: Path | None = None, **config: object) -> export.Model:
    """`schemes`: by the end of a linear's name, "" for the others."""
    weights: dict[str, Any] = {
        "model.embed_tokens.weight": weight(VOCAB, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    chosen: dict[str, str] = {}
    for layer in range(2):
        stem = f"model.layers.{layer}."
        for index, (name, (n, k)) in enumerate(LINEARS.items()):
            scheme = next(given for end, given in schemes.items() if name.endswith(end))
            full = f"{stem}{name}.weight"
            options = {"symmetric": True} if symmetric and scheme.startswith("int4") else {}
            weights[full] = quantize(weight(n, k, 10 * layer + index), scheme, **options)  # type: ignore[arg-type]
            if not isinstance(weights[full], np.ndarray):
                chosen[full] = scheme
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{stem}{norm}.weight"] = np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32)
    return export.Model(weights, chosen, {**CONFIG, **config}, folder)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a byte-level tokenizer."""
    folder = tmp_path / "texts"
    folder.mkdir()
    vocabulary = {"<|bos|>": 1, "<|eos|>": 2, "a": 3, "b": 4, "ab": 5}
    write_tokenizer(folder, vocabulary, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True})
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}", "add_bos_token": True}))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


def write_tokenizer(folder: Path, vocabulary: dict[str, int], pre: object, **model: object) -> None:
    added = [{"id": 1, "content": "<|bos|>", "special": True}, {"id": 5, "content": "ab", "special": False}]
    body = {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]], **model}
    (folder / "tokenizer.json").write_text(json.dumps({"model": body, "added_tokens": added, "pre_tokenizer": pre}))


# --- compressed-tensors


def unpack(packed: NDArray[np.int32], bits: int, k: int) -> NDArray[np.int64]:
    """By the format's words: element i of a row stands in bits [i · bits, (i + 1) · bits) of the row, plus 2**(bits - 1)."""
    rows = []
    for row in packed.view(np.uint32):
        whole = sum(int(word) << (32 * index) for index, word in enumerate(row))
        rows.append([(whole >> (bits * i)) % (1 << bits) - (1 << (bits - 1)) for i in range(k)])
    return np.array(rows)


@pytest.mark.fast
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [8, 32, 50])
def test_packing_and_the_specification(bits: int, k: int) -> None:
    half = 1 << (bits - 1)
    codes = np.random.default_rng(k).integers(-half, half, (5, k)).astype(np.int8)
    assert np.array_equal(unpack(compressed_tensors.pack(codes, bits), bits, k), codes)
    known = compressed_tensors.pack(np.arange(-8, 8, dtype=np.int8)[None], 4)
    assert known.view(np.uint32).tolist() == [[0x76543210, 0xFEDCBA98]]


def read_back(tensors: dict[str, NDArray[Any]], module: str, bits: int) -> NDArray[np.float32]:
    """A linear's weight as the format's readers compute it."""
    scale = tensors[f"{module}.weight_scale"]
    if f"{module}.weight_packed" in tensors:
        n, k = tensors[f"{module}.weight_shape"].tolist()
        codes = unpack(tensors[f"{module}.weight_packed"], bits, k)
    else:
        codes = tensors[f"{module}.weight"].astype(np.int64)
        n, k = codes.shape
    wide = codes.reshape(n, scale.shape[1], -1) * scale.astype(np.float64)[:, :, None]
    return wide.reshape(n, k).astype(np.float32)


@pytest.mark.parametrize(
    ("scheme", "format_", "bits", "group", "strategy"),
    [
        ("int8", "int-quantized", 8, None, "channel"),
        ("int8-g64", "pack-quantized", 8, 64, "group"),
        ("w8a16", "pack-quantized", 8, None, "channel"),
        ("int4-g32", "pack-quantized", 4, 32, "group"),
        ("int4-g64", "pack-quantized", 4, 64, "group"),
    ],
)
def test_compressed_tensors(
    scheme: str, format_: str, bits: int, group: int | None, strategy: str, tmp_path: Path, texts: Path
) -> None:
    model = tiny({"": scheme}, symmetric=True, folder=texts)
    done = export.write(model, tmp_path / "out")
    assert done.formats == {format_: 14}
    assert done.widened == ()
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for name, given in model.weights.items():
        module = name.removesuffix(".weight")
        wanted = dequantize(given)
        found = tensors[name] if isinstance(given, np.ndarray) else read_back(tensors, module, bits)
        assert np.array_equal(found, wanted), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "float32"
    quantization = config["quantization_config"]
    assert (quantization["quant_method"], quantization["format"]) == ("compressed-tensors", format_)
    assert quantization["ignore"] == ["lm_head"]
    (only,) = quantization["config_groups"].values()
    assert only["targets"] == ["Linear"]
    weights = only["weights"]
    assert (weights["num_bits"], weights["strategy"], weights["group_size"]) == (bits, strategy, group)
    assert (weights["type"], weights["symmetric"], weights["dynamic"]) == ("int", True, False)
    inputs = only["input_activations"]
    if scheme == "int8":
        assert (inputs["num_bits"], inputs["strategy"], inputs["dynamic"], inputs["symmetric"]) == (8, "token", True, True)
    else:
        assert inputs is None
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def test_taut_reads_the_container(tmp_path: Path) -> None:
    export.write(tiny({"": "int8"}), tmp_path / "out")
    from taut.checkpoint.safetensors import SafetensorsFile

    file = SafetensorsFile(tmp_path / "out" / "model.safetensors")
    assert file.read("model.layers.0.mlp.up_proj.weight").dtype == np.int8
    file.close()


def test_mixed_precisions_name_their_linears(tmp_path: Path) -> None:
    model = tiny({"down_proj": "int8", "o_proj": "fp32", "": "int4-g32"}, symmetric=True)
    done = export.write(model, tmp_path / "out")
    assert done.formats == {"pack-quantized": 10, "int-quantized": 2}
    quantization = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert quantization["format"] == "mixed-precision"
    groups = {group["format"]: group["targets"] for group in quantization["config_groups"].values()}
    assert groups["int-quantized"] == [f"model.layers.{i}.mlp.down_proj" for i in range(2)]
    assert len(groups["pack-quantized"]) == 10
    assert quantization["ignore"] == [*(f"model.layers.{i}.self_attn.o_proj" for i in range(2)), "lm_head"]


def test_naive_and_widened(tmp_path: Path) -> None:
    model = tiny({"": "w8a16"})
    head = quantize(weight(VOCAB, HIDDEN, 77), "int8-g64")
    full = export.Model(
        {**model.weights, "lm_head.weight": head}, {**model.schemes, "lm_head.weight": "int8-g64"}, model.config
    )
    done = export.write(full, tmp_path / "out", naive=True)
    assert (done.formats, done.widened) == ({"naive-quantized": 14}, ("lm_head.weight",))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["model.layers.1.self_attn.k_proj.weight"].dtype == np.int8
    assert np.array_equal(tensors["lm_head.weight"], dequantize(head))


@pytest.mark.parametrize("target", export.TARGETS)
def test_a_failed_export_leaves_nothing(target: str, tmp_path: Path) -> None:
    class Failing(dict[str, Any]):
        reads = 0

        def __getitem__(self, name: str) -> Any:
            self.reads += 1
            if self.reads > 5:
                raise OSError("gone")
            return super().__getitem__(name)

    model = tiny({"": "int8"})
    with pytest.raises((CompressionError, UsageError)):
        export.write(export.Model(Failing(model.weights), model.schemes, model.config), tmp_path / "out", target)
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot export to 'onnx'; accepted are compressed-tensors, gguf"):
        export.write(tiny({"": "int8"}), tmp_path / "out", "onnx")
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        export.write(tiny({"": "int8"}), tmp_path / "there")
    for target in export.TARGETS:
        with pytest.raises(UsageError, match=r"int8-static .* 13 others.*--scheme int8"):
            export.write(tiny({"": "int8-static"}), tmp_path / "out", target)
    with pytest.raises(UsageError, match=r"asymmetric int4 .*13 others.*symmetric int4, or export to gguf"):
        export.write(tiny({"": "int4-g32"}), tmp_path / "out")
    with pytest.raises(UsageError, match=r"q_proj.*k_proj.*v_proj.*different precisions"):
        export.write(tiny({"k_proj": "w8a16", "": "int8"}), tmp_path / "out")
    with pytest.raises(UnsupportedModelError, match="model_type 'bert' cannot be exported to GGUF"):
        export.write(tiny({"": "int8"}, model_type="bert"), tmp_path / "out", "gguf")
    with pytest.raises(UsageError, match="needs the tokenizer"):
        export.write(tiny({"": "int8"}), tmp_path / "out", "gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


# --- GGUF


@pytest.mark.fast
@pytest.mark.parametrize(
    ("scheme", "symmetric", "kind"),
    [
        ("int8", False, "Q8_0"),
        ("int8-g64", False, "Q8_0"),
        ("int4-g32", False, "Q4_1"),
        ("int4-g128", False, "Q4_1"),
        ("int4-g32", True, "Q4_0"),
        ("int4-g64", True, "Q4_0"),
    ],
)
def test_blocks_are_read_by_the_gguf_package(scheme: str, symmetric: bool, kind: str) -> None:
    w = weight(6, 256) * np.logspace(-2, 0, 8, dtype=np.float32).repeat(32)
    q = quantize(w, scheme, symmetric=symmetric)
    assert not isinstance(q, np.ndarray)
    assert gguf_blocks.kind_of(q, "w") == kind
    found = ggml_dequantize(gguf_blocks.blocks(q, "w"), gguf.GGMLQuantizationType[kind])
    wanted = dequantize(q)
    if isinstance(q, int4.Quantized):  # the scales are float16 here and there
        assert np.allclose(found, wanted, rtol=0, atol=1e-7 + 1e-6 * np.abs(w).max())
    else:
        assert np.abs(found - wanted).max() <= 2**-11 * np.abs(w).max() * 1.01
        assert np.abs(found - w).max() <= 1.2 * np.abs(wanted - w).max()


@pytest.mark.fast
def test_coarse_float16_scales_move_codes_to_the_nearest() -> None:
    """Scales of 1e-6 have four bits in float16."""
    w = weight(4, 64) * np.float32(1e-3)
    q = quantize(w, "int8")
    assert isinstance(q, int8.Quantized)
    found = ggml_dequantize(gguf_blocks.blocks(q, "w"), gguf.GGMLQuantizationType.Q8_0)
    step = q.scale.max() * 1.2
    assert np.abs(found - dequantize(q)).max() <= step * 0.75


@pytest.mark.fast
def test_blocks_that_do_not_fit() -> None:
    odd = int8.Quantized(np.zeros((2, 40), np.int8), np.ones(2, np.float32))
    with pytest.raises(UsageError, match=r"down: rows of 40 inputs in groups of 40 do not fill GGUF's blocks of 32"):
        gguf_blocks.kind_of(odd, "down")
    huge = int8.Quantized(np.ones((2, 64), np.int8), np.full(2, 1e6, np.float32))
    with pytest.raises(UsageError, match=r"a scale of 1e\+06 is beyond float16"):
        gguf_blocks.blocks(huge, "down")


@pytest.mark.parametrize(
    ("scheme", "symmetric"), [("int8", False), ("int4-g32", False), ("int4-g64", True), ("fp16", False), ("bf16", False)]
)
def test_gguf_comes_back_through_taut(scheme: str, symmetric: bool, tmp_path: Path, texts: Path) -> None:
    """Names, q and k rows, numbers, config and tokenizer, all by taut's own reader."""
    model = tiny({"": scheme}, symmetric=symmetric, folder=texts)
    done = export.write(model, tmp_path / "m.gguf", "gguf")
    assert sum(done.formats.values()) == 15
    with checkpoint.open(str(tmp_path / "m.gguf")) as back:
        assert set(back.tensors) == set(model.weights)
        for name, given in model.weights.items():
            wanted = dequantize(given)
            # int8's scales are rounded to float16, half an ulp of it; float16's smallest steps
            limit = 2**-11 * np.abs(wanted).max() if scheme == "int8" and not isinstance(given, np.ndarray) else 1e-7
            assert np.abs(back.read(name).astype(np.float32) - wanted).max() <= limit, name
        for key in (
            "hidden_size",
            "num_key_value_heads",
            "rms_norm_eps",
            "rope_theta",
            "max_position_embeddings",
            "tie_word_embeddings",
        ):
            assert back.config[key] == CONFIG[key], key
        assert back.config["bos_token_id"] == 1
        assert back.config["eos_token_id"] == 2
        assert back.tokenizer is not None
        assert back.tokenizer.encode("ab")[-1] == 5


@pytest.mark.fast
def test_rows_are_ggmls() -> None:
    """As llama.cpp's converter permutes: reshape(heads, 2, rows / heads / 2, K).swapaxes(1, 2)."""
    w = weight(16, 3)
    permuted = w.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
    assert np.array_equal(w[gguf_file.row_order(16, 2)], permuted)
    assert gguf_file.row_order(8, 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_metadata_of_a_gguf_source_is_copied(tmp_path: Path, texts: Path) -> None:
    first = tmp_path / "first.gguf"
    export.write(tiny({"": "fp16"}, folder=texts), first, "gguf")
    model = tiny({"": "int4-g32"})
    export.write(export.Model(model.weights, model.schemes, model.config, gguf=first), tmp_path / "second.gguf", "gguf")
    before, after = (gguf.GGUFReader(tmp_path / f"{name}.gguf").fields for name in ("first", "second"))
    assert set(before) == set(after)
    same = [key for key in before if not key.startswith(("GGUF.", "general.file_type"))]
    assert all(before[key].contents() == after[key].contents() for key in same)
    assert after["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_1
    assert before["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_F16


def test_rope_scaling_goes_along(tmp_path: Path, texts: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for name, scaling in (("llama3", llama3), ("linear", {"rope_type": "linear", "factor": 2.0})):
        export.write(tiny({"": "int8"}, folder=texts, rope_scaling=scaling), tmp_path / name, "gguf")
        with checkpoint.open(str((tmp_path / name).rename(tmp_path / f"{name}.gguf"))) as back:
            assert back.config["rope_scaling"] == scaling
    with pytest.raises(UnsupportedModelError, match="rope type 'longrope'"):
        export.write(tiny({"": "int8"}, folder=texts, rope_scaling={"rope_type": "longrope"}), tmp_path / "no.gguf", "gguf")


def test_names_without_a_place() -> None:
    with pytest.raises(UnsupportedModelError, match=r"q_norm\.weight has no place in a llama GGUF"):
        gguf_file.gguf_name("model.layers.0.self_attn.q_norm.weight")


def test_vocabulary(texts: Path) -> None:
    found = gguf_vocabulary.metadata(texts, CONFIG, 8)
    assert found["tokenizer.ggml.tokens"] == ["[PAD0]", "<|bos|>", "<|eos|>", "a", "b", "ab", "[PAD6]", "[PAD7]"]
    assert found["tokenizer.ggml.token_type"] == [5, 3, 1, 1, 1, 4, 5, 5]
    assert found["tokenizer.ggml.merges"] == ["a b"]
    assert found["tokenizer.ggml.pre"] == "gpt-2"
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    byte_level = {"type": "ByteLevel", "use_regex": False}
    for pre, name in (
        ([{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}], "smollm"),
        ([{"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}}, byte_level], "qwen2"),
    ):
        write_tokenizer(texts, {"a": 0}, {"type": "Sequence", "pretokenizers": pre})
        assert gguf_vocabulary.metadata(texts, CONFIG, 8)["tokenizer.ggml.pre"] == name
    write_tokenizer(
        texts, {"a": 0}, {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "x"}}, byte_level]}
    )
    with pytest.raises(UnsupportedModelError, match=r"pre-tokenizer \(Split, ByteLevel\) is none of"):
        gguf_vocabulary.metadata(texts, CONFIG, 8)
    write_tokenizer(texts, {"a": 0}, byte_level, byte_fallback=True)
    with pytest.raises(UnsupportedModelError, match="only byte-level BPE"):
        gguf_vocabulary.metadata(texts, CONFIG, 8)
    (texts / "tokenizer.json").write_text("[")
    with pytest.raises(ModelFormatError, match="is not JSON"):
        gguf_vocabulary.metadata(texts, CONFIG, 8)
    (texts / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFoundError, match="a GGUF file needs the tokenizer"):
        gguf_vocabulary.metadata(texts, CONFIG, 8)


def test_bf16_arrays_stay_bf16(tmp_path: Path) -> None:
    model = tiny({"": "int8"})
    weights = {name: w.astype(ml_dtypes.bfloat16) if isinstance(w, np.ndarray) else w for name, w in model.weights.items()}
    export.write(export.Model(weights, model.schemes, {**CONFIG, "dtype": "bfloat16"}), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
