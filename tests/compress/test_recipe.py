"""Recipes: what files may say, and which layers get what."""

from __future__ import annotations

from pathlib import Path

import pytest

from taut import checkpoint as checkpoints
from taut import models
from taut.compress import recipe as recipes
from taut.compress.layers import Layer, fallbacks, layers_of
from taut.compress.recipe import Recipe
from taut.errors import UsageError
from taut.testing import tiny

pytestmark = pytest.mark.fast


def layers(folder: Path, recipe: Recipe) -> dict[str, Layer]:
    with checkpoints.open(str(folder), with_text=False) as checkpoint:
        return {layer.name: layer for layer in layers_of(models.build(checkpoint), recipe)}


def test_a_yaml_file_says_what_options_say(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("scheme: int8-static\nobserver: mse\npins:\n  'layers.*.attention': fp16\nkv: bf16\n")
    assert recipes.load(str(path)) == Recipe("int8-static", None, "mse", ("layers.*.attention=fp16",), "bf16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scheme: int7", "int7"), ("- scheme", "must map"), ("colour: red", "colour"), ("scheme: [int8]", "else than text"), ("a: b: c", "no YAML"),
        ("pins: 3", "list of PATTERN"), ("max_fallbacks: 2", "0 to 1"), ("!!python/object:os.system {}", "no YAML"), ("kv: int2", "int2"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_a_usage_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        recipes.load(str(path))


def test_no_file_is_a_usage_error_naming_the_ready_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="attention-fp16"):
        recipes.load(str(tmp_path / "none.yaml"))


def test_attention_in_fp16_and_the_rest_in_int8(tmp_path: Path) -> None:
    """The mission's layered precision: the four projections of attention in 16 bits, the fully connected layers in int8."""
    found = layers(tiny("llama", tmp_path), recipes.load("attention-fp16"))
    assert {name.rpartition(".")[2]: layer.scheme for name, layer in found.items()} == {
        "q": "fp16", "k": "fp16", "v": "fp16", "o": "fp16", "gate": "int8", "up": "int8", "down": "int8", "logits": "w8a16",
    }  # fmt: skip
    assert recipes.load("attention-fp16").kv == "bf16"


def test_the_first_linear_of_each_layer_in_fp16(tmp_path: Path) -> None:
    found = layers(tiny("bert", tmp_path), recipes.load("first-fp16"))
    assert {name.rpartition(".")[2]: layer.scheme for name, layer in found.items()} == {
        "q": "fp16", "k": "fp16", "v": "fp16", "o": "int8", "up": "int8", "down": "int8",
    }  # fmt: skip


def test_a_pin_of_one_part_decides_for_the_linears_that_are_fused_with_it(tmp_path: Path) -> None:
    found = layers(tiny("llama", tmp_path), Recipe("int8", pins=("layers.0.v=bf16",)))
    assert {found[f"layers.0.{part}"].scheme for part in "qkv"} == {"bf16"}
    assert {found[f"layers.1.{part}"].scheme for part in "qkv"} == {"int8"}


def test_a_pin_that_names_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no linear"):
        layers(tiny("llama", tmp_path), Recipe(pins=("layers.*.nothing=fp16",)))


def test_static_leaves_what_reads_outlier_tokens_dynamic(tmp_path: Path) -> None:
    found = layers(tiny("llama", tmp_path), Recipe("int8-static"))
    assert found["layers.0.q"].scheme == found["layers.0.up"].scheme == "int8-static"
    assert {found[name].scheme for name in ("layers.0.o", "layers.0.down")} == {"int8"} and found["logits"].scheme == "w8a16"
    assert not fallbacks(found.values()), "that is a rule, no fallback"
    pinned = layers(tmp_path, Recipe("int8-static", pins=("layers.*.o=int8-static",)))
    assert pinned["layers.0.o"].scheme == "int8-static", "who asks for it gets it"


def test_layers_that_do_not_fit_are_no_silent_fallback(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path)
    with pytest.raises(UsageError, match="--max-fallbacks"):
        layers(folder, Recipe("int4-g128"))
    found = layers(folder, Recipe("int4-g128", max_fallbacks=1.0))
    assert fallbacks(found.values()), "no width of this model is a multiple of 128"


def test_what_may_be_smoothed(tmp_path: Path) -> None:
    decoder = layers(tiny("llama", tmp_path / "a"), Recipe())
    assert decoder["layers.0.q"].source == "layers.0.attention_norm" and decoder["layers.0.gate"].source == "layers.0.mlp_norm"
    assert decoder["layers.0.down"].source == "layers.0.up", "silu(gate) * up passes a division of up on"
    assert decoder["logits"].source is None, "the head is the embedding too"
    assert not any(layer.splits for layer in decoder.values()), "only linears read a pre-norm"
    encoder = layers(tiny("bert", tmp_path / "b"), Recipe())
    found = {name.rpartition(".")[2]: layer.splits for name, layer in encoder.items() if layer.source}
    assert found == {"q": True, "k": True, "v": True, "up": True}, (
        "post-norm: the residual reads the norm too; GELU passes nothing on"
    )
    assert encoder["layers.1.q"].source == "layers.0.mlp_norm"


def test_queries_and_keys_are_never_clipped(tmp_path: Path) -> None:
    found = layers(tiny("llama", tmp_path), Recipe("int4-g32", max_fallbacks=1.0))
    assert not found["layers.0.q"].clips and not found["layers.0.k"].clips and found["layers.0.v"].clips


def test_tensor_parallel_degrees_cut_whole_heads_and_groups(tmp_path: Path) -> None:
    found = layers(tiny("llama", tmp_path, num_attention_heads=8, num_key_value_heads=2), Recipe())
    heads = found["layers.0.k"].shape[0]
    assert found["layers.0.q"].tp and found["layers.0.k"].tp == (2,), heads
