"""Faults that other engines' users reported about numbers and quantization, replayed here. Each test names the report."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut.checkpoint.safetensors import SafetensorsFile
from taut.compress.quantize import Settings, quantize
from taut.compress.recipe import Recipe
from taut.errors import ModelFormatError, NumericalError, RequestError, UsageError
from taut.kernels import native
from taut.quant import algorithms
from taut.quant.formats import SCHEMES, fitting
from taut.quant.schemes import int4, int8
from taut.testing import tiny

pytestmark = pytest.mark.native
IDS = [3, 5, 8, 13, 21, 34]


def rewrite(folder: Path, change: Any) -> Path:
    """`change(tensors)` on the checkpoint's weights."""
    from safetensors.numpy import save_file

    path = folder / "model.safetensors"
    file = SafetensorsFile(path)
    tensors = {name: np.array(file.read(name), np.float32) for name in file.tensors}
    file.close()
    change(tensors)
    save_file(tensors, path)
    return folder


def made(source: Path, out: Path, scheme: str) -> str:
    quantize(str(source), out, Recipe(scheme, "rtn", max_fallbacks=1.0), settings=Settings(windows=0))
    return str(out)


def test_an_overflow_in_fp16_is_no_endless_token_0(tmp_path: Path) -> None:
    """vllm#22881, Qwen3#315: NaN became token 0, for ever, with HTTP 200. Here a model beyond float16 is kept in bf16 where it must be."""
    folder = rewrite(
        tiny("llama", tmp_path / "m"), lambda t: t["model.layers.0.mlp.down_proj.weight"].__imul__(np.float32(3e6))
    )
    model = taut.load(made(folder, tmp_path / "out", "fp16"))
    assert np.isfinite(model.logits(IDS)).all()
    assert "bf16" in model.plan.precision and "fp16" in model.plan.precision


def test_a_nan_fails_its_request_with_a_clear_error(tmp_path: Path) -> None:
    """vllm#19661: a NaN embedding ended in a traceback of the serializer."""

    def damage(t: dict[str, np.ndarray]) -> None:
        t[next(name for name in t if name.endswith("word_embeddings.weight"))][7] = np.inf

    folder = rewrite(tiny("bert", tmp_path / "m"), damage)
    with pytest.raises((NumericalError, ModelFormatError)):
        taut.load(str(folder), precision="fp32").embed_ids([[7, 8, 9]])


def test_sums_of_fp16_products_go_beyond_float16(tmp_path: Path) -> None:
    """llama.cpp#11920: a float16 accumulator overflowed at 65504."""
    w = np.full((8, 64), 100.0, np.float32)
    narrow = algorithms.quantize(w, "fp16")
    assert float((np.asarray(narrow, np.float32) @ np.full(64, 50.0, np.float32)).max()) == 320_000.0
    folder = rewrite(
        tiny("llama", tmp_path / "m"), lambda t: t["model.layers.0.self_attn.v_proj.weight"].__imul__(np.float32(1e4))
    )
    assert np.isfinite(taut.load(str(folder), precision="fp16").logits(IDS)).all()


@pytest.mark.parametrize("scheme", ["int8", "int8-g64", "int4-g32", "w8a16"])
def test_the_same_integers_on_every_instruction_set(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime#6004, #14642, #5849: vpmaddubsw saturated, so AVX2 and VNNI machines differed. Weights and inputs at their ends here."""

    def loud(t: dict[str, np.ndarray]) -> None:
        for name, w in t.items():
            if w.ndim == 2 and "embed" not in name:
                w[:] = np.where(w > 0, np.abs(w).max(), -np.abs(w).max())

    out = made(rewrite(tiny("llama", tmp_path / "m"), loud), tmp_path / "out", scheme)
    answers = {}
    for isa in native.runnable_isas():
        monkeypatch.setenv("TAUT_ISA", isa)
        answers[isa] = taut.load(out, exact=True).logits(IDS).tobytes()
    monkeypatch.delenv("TAUT_ISA")
    assert len(answers) > 1 and len(set(answers.values())) == 1, list(answers)


@pytest.mark.parametrize("group", ["int4-g-1", "int4-g0", "int4-g7", "int4-g1", "int8-g1"])
def test_a_group_that_there_is_not_is_an_early_error(group: str) -> None:
    """AutoAWQ#578, ao#3458: group -1, 0, 1 or 7 ended deep inside a reshape."""
    with pytest.raises(UsageError, match="int4-g128"):
        algorithms.quantize(np.ones((4, 64), np.float32), group)


@pytest.mark.parametrize("k", [15, 17, 33, 64, 96, 27392 // 64])
@pytest.mark.parametrize("scheme", ["int4-g128", "int4-g32", "int8-g64"])
def test_odd_widths_get_a_scheme_that_fits(k: int, scheme: str) -> None:
    """ao#3458, #1268, lmdeploy#1560: widths that no group divides."""
    chosen = fitting(scheme, k)
    w = np.random.default_rng(k).normal(size=(5, k)).astype(np.float32)
    made = algorithms.dequantize(algorithms.quantize(w, chosen))
    assert np.abs(made - w).max() < 0.3
    assert not SCHEMES[chosen].group or k % SCHEMES[chosen].group == 0


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "fp32"])
def test_rows_and_groups_of_zeros_stay_zeros(scheme: str) -> None:
    """lmdeploy#1786: a group of zeros gave 0/0. Constant groups and subnormal weights too."""
    w = np.random.default_rng(1).normal(size=(6, 128)).astype(np.float32)
    w[0], w[1, :64], w[2], w[3, 64:] = 0, 0, 0.25, np.float32(1e-41)
    for algorithm in ("rtn", "imatrix"):
        made = algorithms.dequantize(algorithms.quantize(w, scheme, algorithm=algorithm, importance=np.zeros(128, np.float32)))  # type: ignore[arg-type]
        assert np.isfinite(made).all() and not made[0].any(), algorithm
        assert SCHEMES[scheme].group == 128 or not made[1, :64].any(), algorithm
        np.testing.assert_allclose(made[2], 0.25, rtol=0.01)


def test_every_kind_of_weight_answers_every_kind_of_request(tmp_path: Path) -> None:
    """CTranslate2#628: one quantization with one option failed on a dtype."""
    folder = tiny("llama", tmp_path / "m")
    for scheme, kv in itertools.product(
        ("int8", "int8-g64", "int4-g32", "w8a16", "fp16", "bf16"), ("fp32", "bf16", "int8", "k8v4")
    ):
        model = taut.load(str(folder), precision=scheme, kv_precision=kv, max_context=64)
        for options in ({}, {"temperature": 1e-5, "seed": 1}, {"temperature": 1.5, "top_p": 0.9, "top_k": 5, "seed": 1}):
            assert model.generate(IDS, max_tokens=3, **options).usage.completion_tokens <= 3
        assert len(list(model.generate(IDS, max_tokens=2, stream=True))) >= 0
        model.close()


def test_double_quantization_and_its_options_are_refused(tmp_path: Path) -> None:
    """Olive#573: quantizing twice silently differed."""
    out = made(tiny("llama", tmp_path / "m"), tmp_path / "out", "int8")
    with pytest.raises(UsageError, match="quantized already"):
        made(Path(out), tmp_path / "again", "int8")


def test_packing_is_exact_in_both_directions() -> None:
    """auto-round#2273: a zero point off by one "loads fine, produces garbage"."""
    w = np.random.default_rng(2).normal(size=(70, 128)).astype(np.float32)
    for group in int4.GROUPS:
        q = int4.quantize_weight(w, group)
        back = int4.unpack(*int4.pack(q), 70, 128)
        np.testing.assert_array_equal(int4.dequantize(back), int4.dequantize(q))
    q8, scale = int8.quantize_weight(w)
    np.testing.assert_array_equal(int8.unpack(int8.pack(q8, scale)[0], 70, 128), q8)


def test_a_temperature_near_zero_hurts_nobody(tmp_path: Path) -> None:
    """vllm#890: T = 1e-5 gave NaN and blocked later requests."""
    model = taut.load(str(tiny("llama", tmp_path / "m")))
    cold = model.generate(IDS, max_tokens=4, temperature=1e-5, seed=3).text
    assert cold == model.generate(IDS, max_tokens=4).text
    with pytest.raises(RequestError):
        model.generate(IDS, max_tokens=4, temperature=-1)
