"""A BERT with outlier channels, as trained ones have them (Bondarenko et al. 2021): two channels of the residual behind each feed-forward
block are 60 times the others, and the norm's gain doubles them. One range for a whole tensor loses the rest; smoothing does not.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import taut
from taut.checkpoint.quantized import CONFIG_KEY, SMOOTH
from taut.checkpoint.safetensors import SafetensorsFile
from taut.compress.exporting import export
from taut.compress.quantize import Settings, quantize
from taut.compress.recipe import Recipe
from taut.errors import ModelFormatError, UsageError
from taut.quality import kl
from taut.testing import tiny

pytestmark = pytest.mark.native
LAYERS, HIDDEN = 4, 256
CHANNELS = [5, 9]
FACTOR, GAMMA = 60, 2
OTHERS = 8  # by which what reads the other channels makes up for the norm, which the outliers shrink them with
IDS = [[int(token) for token in np.random.default_rng(seed).integers(5, 200, 12)] for seed in range(24)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("bert")
    tiny(
        "bert",
        folder,
        seed=3,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        intermediate_size=2 * HIDDEN,
        num_attention_heads=4,
    )
    file = SafetensorsFile(folder / "model.safetensors")
    tensors = {name: np.array(file.read(name), np.float32) for name in file.tensors}
    file.close()
    for name, w in tensors.items():
        layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
        if layer is None:
            continue
        if ".output." in name and "attention" not in name and layer < LAYERS - 1:
            w[CHANNELS] *= FACTOR if "dense" in name else GAMMA if name.endswith("LayerNorm.weight") else 1
        if layer and name.endswith(("query.weight", "key.weight", "value.weight", "intermediate.dense.weight")):
            w *= OTHERS
            w[:, CHANNELS] /= FACTOR * OTHERS * GAMMA
    save_file(tensors, folder / "model.safetensors")
    return folder


def cosine(bert: Path, out: Path, recipe: Recipe) -> float:
    quantize(str(bert), out, recipe, calibration=IDS, settings=Settings(windows=0))
    exact = taut.load(str(bert), precision="fp32").embed_ids(IDS)
    return float(kl.cosine(exact, taut.load(str(out)).embed_ids(IDS)).mean())


def test_smoothed_int8_keeps_what_plain_static_ranges_lose(bert: Path, tmp_path: Path) -> None:
    plain = cosine(bert, tmp_path / "plain", Recipe("int8-static", "rtn", "minmax", pins=("*=int8-static",)))
    smoothed = cosine(bert, tmp_path / "int8", Recipe("int8"))
    grouped = cosine(bert, tmp_path / "g64", Recipe("int8-g64"))
    assert plain < 0.9, plain
    assert smoothed >= 0.99 and grouped >= 0.99, (smoothed, grouped)


def test_smoothing_is_what_does_it(bert: Path, tmp_path: Path) -> None:
    assert cosine(bert, tmp_path / "rtn", Recipe("int8", "rtn")) < 0.95


def test_kernels_agree_with_the_reference_over_divided_norms(bert: Path, tmp_path: Path) -> None:
    artefact = quantize(str(bert), tmp_path / "out", Recipe("int8"), calibration=IDS, settings=Settings(windows=0))
    stated = artefact.load().loaded.checkpoint.quantization
    assert stated is not None and len(stated.smoothed) >= 2 * (LAYERS - 1), "gains and biases"
    native, reference = artefact.load(exact=True), artefact.load(executor="reference")
    np.testing.assert_allclose(native.embed_ids(IDS[:4]), reference.embed_ids(IDS[:4]), atol=2e-3)
    with pytest.raises(UsageError, match="--algorithm"):
        export(artefact.path, tmp_path / "exported")


def test_a_list_that_does_not_fit_the_norms_is_refused(bert: Path, tmp_path: Path) -> None:
    """Half a norm, or one before no linear, would load and answer wrongly: the columns are multiplied, nothing is divided."""
    from safetensors.numpy import load_file, save_file

    out = quantize(str(bert), tmp_path / "out", Recipe("int8"), calibration=IDS, settings=Settings(windows=0)).path
    config, tensors = json.loads((out / "config.json").read_text()), load_file(out / "model.safetensors")
    smoothed = config[CONFIG_KEY]["smoothed"]
    gain, bias = next((name, name.replace("weight", "bias")) for name in smoothed if name.endswith("weight"))
    last, table = f"encoder.layer.{LAYERS - 1}.output.LayerNorm", "embeddings.word_embeddings.weight"
    others = [f"{last}.weight", f"{last}.bias"]
    faults = {
        "no bias": ([name for name in smoothed if name != bias], [bias], bias),
        "no gain": ([name for name in smoothed if name != gain], [gain], gain),
        "before no linear": ([*smoothed, *others], [], last),
        "no norm": ([*smoothed, table], [], table),
    }
    for fault, (listed, dropped, named) in faults.items():
        config[CONFIG_KEY]["smoothed"] = listed
        twins = {name + SMOOTH: tensors[name].astype(np.float32) for name in listed}
        kept = {name: array for name, array in tensors.items() if name.removesuffix(SMOOTH) not in dropped or name in dropped}
        save_file(twins | kept, out / "model.safetensors")
        (out / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelFormatError, match=named):
            pytest.fail(f"{fault}: {taut.load(str(out))}")
