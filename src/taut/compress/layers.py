"""The linears of a model before they are quantized: what each is to become and why, and which may share a smoothing.

Reads the plain graph of the model; moves no weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from taut import passes
from taut.compress.recipe import Recipe
from taut.errors import UsageError
from taut.graph import Graph, Node
from taut.models import BuiltModel
from taut.passes.options import is_named
from taut.quant.formats import SCHEMES
from taut.units import counted

FUSED_FIRST = ("fuse_qkv", "fuse_gate_up")  # what must share a format
# Static ranges do not fit what these read on decoders: a few tokens' activations there are out of all proportion.
DECODERS_DYNAMIC = ("o", "down")
ENCODERS_DYNAMIC = ("down",)  # behind GELU, by token
# A decoder's head reads one row of a sequence: float inputs cost no bytes there, and a quarter of int8's whole error comes from its inputs.
FLOAT_HEAD = "reads one row of a sequence: float inputs cost no bytes there"
HEADS = {
    "int8": ("w8a16", FLOAT_HEAD),
    "int8-static": ("w8a16", FLOAT_HEAD),
    "int8-g64": ("bf16", f"{FLOAT_HEAD}; the accuracy plan keeps 16 bits"),
}
NORMS = ("rms_norm", "layer_norm")
MIXED_TP = (2, 4, 8)


@dataclass(frozen=True)
class Layer:
    """One linear. `unit`: the fused linear that it is part of. `asked`: what the recipe says, `scheme` what it gets, `reason` why. `source`:
    what makes its input and may take a smoothing of it: a norm, or the linear whose rows pass through a product (up, for down). `splits`:
    whether others read the norm too (a post-norm encoder's residual), which then has a divided twin. `clips`: whether a search may shrink
    its range (not q and k: their error goes through the softmax). `tp`: degrees of tensor parallelism that cut it at whole heads and
    groups."""

    name: str
    key: str
    tensor: str
    bias: str | None
    shape: tuple[int, int]
    unit: str
    asked: str
    scheme: str
    reason: str
    source: str | None
    splits: bool
    clips: bool
    tp: tuple[int, ...]


def layers_of(built: BuiltModel, recipe: Recipe) -> list[Layer]:
    """Every linear of the model, in order. UsageError for a pin that names none, or for more fallbacks than the recipe allows."""
    pins = passes.parse_pins(recipe.pins)
    options = passes.Options(recipe.scheme, pins=pins)
    everything = tuple(name for name, _ in passes.PIPELINE)
    fused = passes.optimize(built.graph, replace(options, disabled=tuple(set(everything) - set(FUSED_FIRST))))
    options.check_pins(fused)
    sources = _sources(built.graph)
    found = []
    for unit in (node for node in fused.nodes if node.op == "linear"):
        for part in (node for node in unit.decompose() if node.op == "linear"):
            found.append(_layer(built, fused, options, unit, part, sources.get(part.name)))
    _check_fallbacks(found, recipe)
    return found


def _layer(
    built: BuiltModel, fused: Graph, options: passes.Options, unit: Node, part: Node, source: tuple[str, bool] | None
) -> Layer:
    n, k = built.graph.weight_shape(part.weights[0])
    asked, scheme = options.precision_of(unit), options.scheme_of(fused, unit)
    pinned = any(is_named(unit, pattern) for pattern, _ in options.pins)
    reason = "pin" if pinned else "scheme"
    if scheme != asked:
        rows = fused.signature(unit.inputs[0]).space != "tokens"
        reason = (
            "reads one row of a sequence: int8 costs nothing there" if rows else f"{k} inputs are no whole groups of {asked}"
        )
    kind = part.name.rpartition(".")[2]
    if not pinned:
        scheme, reason = _exempt(built.kind, kind, scheme) or (scheme, reason)
    names, (made_by, splits) = built.renamed, source or (None, False)
    return Layer(
        part.name, part.weights[0], names[part.weights[0]], names[part.weights[1]] if len(part.weights) > 1 else None, (n, k),
        unit.name, asked, scheme, reason, made_by, splits, kind not in ("q", "k"), _tensor_parallel(built, kind, (n, k), scheme),
    )  # fmt: skip


def _exempt(model: str, kind: str, scheme: str) -> tuple[str, str] | None:
    """(scheme, reason) of a linear that a rule leaves out of `scheme`."""
    if kind == "logits" and scheme in HEADS:
        return HEADS[scheme]
    dynamic = DECODERS_DYNAMIC if model == "decoder" else ENCODERS_DYNAMIC
    if SCHEMES[scheme].inputs == "static" and kind in dynamic:
        return "int8", "its inputs have outlier tokens: quantized by their own range"
    return None


def _tensor_parallel(built: BuiltModel, kind: str, shape: tuple[int, int], scheme: str) -> tuple[int, ...]:
    """Degrees that cut the layer at whole heads, columns and groups. o and down are cut along their inputs, the others along outputs."""
    n, k = shape
    group = SCHEMES[scheme].group or 1
    if kind in ("o", "down"):
        unit = max(group, built.head_dim if kind == "o" else 1)
        return tuple(degree for degree in MIXED_TP if k % (unit * degree) == 0)
    unit = built.head_dim if kind in ("q", "k", "v") else 1
    return tuple(degree for degree in MIXED_TP if n % (unit * degree) == 0)


def _sources(graph: Graph) -> dict[str, tuple[str, bool]]:
    """linear → (what may be divided where its columns are multiplied, whether others read that too): the division is exact, and undone by
    the linear alone."""
    uses: dict[str, int] = {}
    for node in graph.nodes:
        for key in node.weights:
            uses[key] = uses.get(key, 0) + 1
    users, producers = graph.users(), graph.producers()
    found: dict[str, tuple[str, bool]] = {}
    for node in graph.nodes:
        readers = [reader for reader in users[node.outputs[0]] if reader.op == "linear"]
        splits = len(readers) < len(users[node.outputs[0]]) or node.outputs[0] in graph.outputs
        if not all(uses[reader.weights[0]] == 1 for reader in readers):
            continue
        if node.op in NORMS and not node.attrs.get("head_dim"):
            found |= {reader.name: (node.name, splits) for reader in readers}
        elif node.op == "mul" and not splits:
            linears = [made for name in node.inputs if (made := producers[name]).op == "linear" and users[name] == [node]]
            if linears:
                found |= {reader.name: (linears[-1].name, False) for reader in readers}
    return found


def _check_fallbacks(found: Iterable[Layer], recipe: Recipe) -> None:
    all_ = list(found)
    fallen = fallbacks(all_)
    if len(fallen) > recipe.max_fallbacks * len(all_):
        schemes = ", ".join(sorted({layer.scheme for layer in fallen}))
        raise UsageError(
            f"{counted(len(fallen), 'layer')} of {len(all_)} cannot be {recipe.scheme} (first: {fallen[0].name}, {fallen[0].reason}) and would "
            f"become {schemes}; choose that scheme, or allow it with --max-fallbacks {len(fallen) / len(all_):.2f}"
        )


def fallbacks(layers: Iterable[Layer]) -> list[Layer]:
    """Those that do not get what they were to have because it does not fit them; not those that a rule exempts on purpose."""
    return [layer for layer in layers if layer.reason.endswith("no whole groups of " + layer.asked)]


def idle_choices(recipe: Recipe, layers: Iterable[Layer], kind: str, *, idle_calibration: bool) -> list[str]:
    """What the recipe chooses that has nothing to act on, said so that nobody takes it for done."""
    formats = [SCHEMES[layer.scheme] for layer in layers]
    found = []
    if recipe.observer != "auto" and all(format_.inputs != "static" for format_ in formats):
        found.append(f"observer {recipe.observer} had no effect: no layer has static inputs, as those of int8-static")
    if recipe.symmetric and all(format_.weight != "int4" for format_ in formats):
        found.append("symmetric had no effect: no layer has weights of four bits")
    if recipe.algorithm == "smoothquant" and all(format_.inputs == "float" for format_ in formats):
        found.append("smoothquant had no effect: no layer has quantized inputs")
    if recipe.algorithm == "imatrix" and all(format_.weight in ("f32", "f16", "bf16") for format_ in formats):
        found.append("imatrix had no effect: no layer has quantized weights")
    if recipe.kv is not None and kind != "decoder":
        found.append(f"kv {recipe.kv} had no effect: an {kind} has no KV cache")
    if idle_calibration:
        found.append(f"the calibration text was not read: {recipe.chosen_algorithm} with these schemes needs none")
    return found
