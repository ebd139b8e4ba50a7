"""What float16 does not hold: found in the checkpoint and in a self-test, and loaded as bf16, which is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut.api import Model
from taut.errors import ModelFormatError
from taut.kernels import native
from taut.quality.ranges import Range, overflowing, self_test
from taut.testing import tiny
from testing.loud import loud

DOWN = "model.layers.1.mlp.down_proj.weight"
KEY = "model.layers.0.self_attn.k_proj.weight"


def load(folder: Path, precision: str = "fp16", **options: Any) -> Model:
    return taut.load(str(folder), precision=precision, memory_bytes=1 << 30, **options)


def stores(model: Model) -> dict[str, str]:
    return {node.name: str(node.attrs["store"]) for node in model.loaded.graph.nodes if node.op == "linear"}


@pytest.mark.parametrize("executor", ["reference", pytest.param("native", marks=pytest.mark.native)])
def test_a_weight_beyond_float16_makes_its_layer_bf16(tmp_path: Path, executor: str) -> None:
    if executor == "native" and not native.is_built():
        pytest.skip("the native module is not built")
    folder = loud(loud(tiny("llama", tmp_path, max_position_embeddings=128), DOWN, 1e6), KEY, 1e7)
    model = load(folder, executor=executor)
    found = stores(model)
    assert {name for name, store in found.items() if store == "bf16"} == {"layers.1.down", "layers.0.qkv"}
    assert set(found.values()) == {"f16", "bf16"}
    assert model.describe()["widened_layers"] == ["layers.0.qkv", "layers.1.down"]
    assert "bf16 where float16 ends: 2 layers (layers.0.qkv, layers.1.down)" in model.summary()
    pinned = load(folder, executor=executor, pins=("layers.1.down=bf16", "layers.0.q=bf16"))
    assert pinned.describe()["widened_layers"] == []
    ids = list(range(20))
    assert pinned.logits(ids).tobytes() == model.logits(ids).tobytes()


def test_one_layer_is_named_and_a_user_cannot_pin_it_to_float16(tmp_path: Path) -> None:
    folder = loud(tiny("llama", tmp_path, max_position_embeddings=128), DOWN, 1e6)
    model = load(folder, "int8", pins=("layers.*.down=fp16",), executor="reference")
    assert model.describe()["widened_layers"] == ["layers.1.down"]
    assert "1 layer (layers.1.down)" in model.summary()
    assert load(folder, "bf16", executor="reference").describe()["widened_layers"] == []


def test_float16_stays_where_it_holds_all(tmp_path: Path) -> None:
    model = load(tiny("llama", tmp_path, max_position_embeddings=128), executor="reference")
    assert model.describe()["widened_layers"] == [] and set(stores(model).values()) == {"f16"}


def test_a_damaged_weight_is_still_refused(tmp_path: Path) -> None:
    folder = loud(tiny("llama", tmp_path, max_position_embeddings=128), DOWN, float("inf"))
    with pytest.raises(ModelFormatError, match="NaN or infinite"):
        load(folder, executor="reference")


@pytest.mark.native
@pytest.mark.skipif(not native.is_built(), reason="the native module is not built")
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_self_test_finds_what_is_large(tmp_path: Path, family: str) -> None:
    folder = tiny(family, tmp_path / "quiet", max_position_embeddings=128)
    quiet = self_test(load(folder, "fp32").loaded)
    linears = {node.name for node in load(folder, "fp32").loaded.graph.nodes if node.op == "linear"}
    assert len(quiet) == len(linears)
    assert all(0 < value < 1e3 for found in quiet.values() for value in (found.weights, found.inputs, found.outputs))
    assert overflowing(quiet) == ()
    name = DOWN if family == "llama" else "encoder.layer.1.output.dense.weight"
    model = load(loud(tiny(family, tmp_path / "loud", max_position_embeddings=128), name, 3e5), "fp32")
    ranges = self_test(model.loaded)
    assert ranges["layers.1.down"].weights == pytest.approx(3e5 * quiet["layers.1.down"].weights)
    assert ranges["layers.1.down"].outputs > 2e4
    assert overflowing(ranges) == ("layers.1.down=bf16",)
    assert set(stores(load(folder, pins=overflowing(ranges, "bf16"))).values()) == {"f16", "bf16"}
    if family == "llama":
        pool = model.loaded.scheduler.pool
        assert pool.num_owned == 0, "the blocks are given back"


@pytest.mark.parametrize(
    ("found", "overflows"),
    [
        (Range(1, 1, 1), False),
        (Range(65504, 2e4, 2e4), False),
        (Range(65520, 1, 1), True),
        (Range(1, 2.1e4, 1), True),
        (Range(1, 1, 2.1e4), True),
        (Range(1, float("inf"), 1), True),
        (Range(float("inf"), 1, 1), True),
    ],
)
def test_the_rule(found: Range, overflows: bool) -> None:
    assert overflowing({"a": found}, "fp32") == (("a=fp32",) if overflows else ())


def test_a_number_that_is_not_one_counts_as_infinite() -> None:
    from taut.quality.ranges import _largest

    assert _largest(np.array([[1.0, np.nan], [np.inf, 2.0]], np.float16)) == np.inf
    assert _largest(np.array([[1.0, -3.0]], np.float32)) == 3 and _largest(np.empty((0, 4), np.float32)) == 0
