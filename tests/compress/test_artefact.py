"""quantize end to end on tiny models: the artefact computes what its codes say, verifies, goes on after an interruption, and lies to nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut.checkpoint import receipt_file
from taut.compress import quantize as quantize_module
from taut.compress.artefact import open_artefact
from taut.compress.quantize import Settings, quantize
from taut.compress.recipe import Recipe
from taut.compress.verify import verify
from taut.errors import ModelNotFoundError, UsageError
from taut.testing import tiny

pytestmark = pytest.mark.native
SCHEMES = ("fp32", "bf16", "fp16", "w8a16", "int8", "int8-g64", "int8-static", "int4-g32")
TEXTS = [f"Sentence number {i} of the calibration says that {i} times {i} is {i * i}." for i in range(40)]
IDS = [3, 5, 8, 13, 21, 34, 55, 89, 2, 7]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tiny(name, tmp_path_factory.mktemp(name)) for name in ("llama", "bert")}


def made(source: Path, out: Path, scheme: str, **changes: Any) -> Path:
    recipe = Recipe(scheme, **{"max_fallbacks": 1.0, "observer": "minmax", **changes})
    quantize(str(source), out, recipe, calibration=TEXTS, settings=Settings(windows=0))
    return out


def answer(model: taut.Model) -> np.ndarray:
    return model.logits(IDS) if model.kind == "decoder" else model.embed_ids([IDS])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_the_artefact_computes_what_its_codes_say(models: dict[str, Path], tmp_path: Path, family: str, scheme: str) -> None:
    """Native and reference executors agree, bit for bit, on every scheme, and are near the model itself."""
    out = made(models[family], tmp_path / "out", scheme)
    native, reference = taut.load(str(out), exact=True), taut.load(str(out), executor="reference")
    exact = answer(taut.load(str(models[family]), precision="fp32"))
    got, want = answer(native), answer(reference)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
    assert native.loaded.checkpoint.quantization is not None
    bound = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 5e-2, "int4-g32": 0.9}.get(scheme, 0.25)
    assert np.abs(got - exact).max() <= bound * np.abs(exact).max()
    assert all(check.passed for check in verify(out)), verify(out)


def test_rounding_to_nearest_equals_loading_at_that_precision(models: dict[str, Path], tmp_path: Path) -> None:
    for scheme in ("int8", "int4-g32", "bf16", "w8a16"):
        pins = (f"head={'int8' if scheme == 'int4-g32' else scheme}",)  # a rule gives it float inputs else
        out = made(models["llama"], tmp_path / scheme, scheme, algorithm="rtn", pins=pins)
        np.testing.assert_array_equal(
            answer(taut.load(str(out))), answer(taut.load(str(models["llama"]), precision=scheme)), err_msg=scheme
        )


def test_the_same_inputs_give_the_same_bytes(models: dict[str, Path], tmp_path: Path) -> None:
    one, two = (made(models["llama"], tmp_path / name, "int8-static") for name in ("one", "two"))
    for path in sorted(one.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (two / path.relative_to(one)).read_bytes(), path.name


def test_an_interrupted_run_goes_on_to_the_same_artefact(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(models["llama"], tmp_path / "whole", "int8")
    monkeypatch.setattr(quantize_module, "CHECKPOINT_BYTES", 1)
    count = 0
    real = quantize_module.packed

    def failing(*args: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return real(*args, **more)

    monkeypatch.setattr(quantize_module, "packed", failing)
    with pytest.raises(KeyboardInterrupt):
        made(models["llama"], tmp_path / "cut", "int8")
    assert (tmp_path / "cut.partial").is_dir() and not (tmp_path / "cut").exists()
    made(models["llama"], tmp_path / "cut", "int8")
    layers = len(open_artefact(whole).receipt["layers"])
    assert count == layers + 1, "what was written is not made again"
    for path in sorted(whole.iterdir()):
        assert path.read_bytes() == (tmp_path / "cut" / path.name).read_bytes(), path.name


def test_an_interruption_after_the_weights_keeps_them(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(quantize_module.golden, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(models["llama"], tmp_path / "out", "int8")
    monkeypatch.setattr(quantize_module, "packed", interrupted)
    made(models["llama"], tmp_path / "out", "int8")
    assert all(check.passed for check in verify(tmp_path / "out"))
    assert not {"layers.json", "model.safetensors.done"} & {item.name for item in (tmp_path / "out").iterdir()}


def test_quantizing_twice_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    out = made(models["llama"], tmp_path / "out", "int8")
    with pytest.raises(UsageError, match="quantized already"):
        made(out, tmp_path / "again", "int4-g32")
    with pytest.raises(UsageError, match="quantized already"):
        taut.load(str(out), precision="int4-g32")
    with pytest.raises(UsageError, match="pins"):
        taut.load(str(out), pins=("layers.*.o=fp16",))
    assert taut.load(str(out), precision="int8").plan.precision == "int8", "its own precision may be said"


def test_what_is_there_is_never_overwritten(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        made(models["llama"], tmp_path / "out", "int8")


def test_the_receipt_says_what_became_of_each_layer(models: dict[str, Path], tmp_path: Path) -> None:
    out = made(models["llama"], tmp_path / "out", "int8-static", pins=("layers.0.o=fp16",))
    receipt = open_artefact(out).receipt
    layers = {layer["name"]: layer for layer in receipt["layers"]}
    assert layers["layers.0.o"]["scheme"] == "fp16" and layers["layers.0.o"]["reason"] == "pin"
    assert layers["layers.0.q"]["range"]["low"] < layers["layers.0.q"]["range"]["high"]
    assert receipt["calibration"]["tokens"] > 0 and receipt["bytes"] == sum(layer["bytes"] for layer in layers.values())
    assert 0 < layers["layers.1.o"]["error"] < 1e-3 and len({layer["digest"] for layer in layers.values()}) == len(layers)
    assert taut.load(str(out)).receipt == receipt
    assert taut.load(str(models["llama"])).receipt is None


@pytest.mark.parametrize("fault", ["weights", "scheme", "golden", "extra file", "config"])
def test_verify_sees_what_was_changed(models: dict[str, Path], tmp_path: Path, fault: str) -> None:
    out = made(models["llama"], tmp_path / "out", "int8", algorithm="rtn")
    if fault == "weights":
        data = bytearray((out / "model.safetensors").read_bytes())
        data[-100] ^= 1
        (out / "model.safetensors").write_bytes(data)
    elif fault == "golden":
        stored = np.load(out / "golden.npz")
        np.savez(out / "golden.npz", ids=stored["ids"], values=stored["values"] + np.float32(1e-3))
    elif fault == "extra file":
        (out / "added.txt").write_text("x")
    elif fault == "config":
        config = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    else:
        receipt = json.loads((out / "receipt.json").read_text())
        receipt["layers"][0]["scheme"] = "fp32"
        receipt["digest"] = receipt_file.digest_of(receipt)
        (out / "receipt.json").write_text(json.dumps(receipt))
    assert not all(check.passed for check in verify(out))


def test_a_folder_without_receipt_is_no_artefact(models: dict[str, Path]) -> None:
    with pytest.raises(ModelNotFoundError, match="taut quantize"):
        verify(models["llama"])
