"""A plan's steps as lines for people. Layers that differ in nothing but their number are shown once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from taut.plan.plan import Plan, Step
from taut.units import counted

_LAYER = re.compile(r"\blayer(s\.|=)(\d+)")


def lines(plan: Plan, *, every_layer: bool = False) -> list[str]:
    """One line a step: kernel, outputs with their widths, attributes, what it was fused from. Equal layers are folded, or not."""
    texts = [_line(step) for step in plan.steps]
    layers = [_layer(step) for step in plan.steps]
    shown: list[str] = []
    at = 0
    while at < len(texts):
        length, times = (0, 1) if every_layer else _repetition(texts, layers, at)
        if times == 1:
            shown.append(f"  {at:4} {texts[at]}")
            at += 1
            continue
        first = layers[at] or 0
        shown.append(f"  layers {first}–{first + times - 1}, {counted(length, 'step')} each ({at}–{at + length * times - 1}):")
        shown += [f"     · {_renumbered(text, first)}" for text in texts[at : at + length]]
        at += length * times
    return shown


def _line(step: Step) -> str:
    outputs = ", ".join(f"{view.name}[{view.features}]" for view in step.outputs)
    attrs = " ".join(f"{key}={value}" for key, value in step.attrs.items())
    made_of = f"   ← {', '.join(step.origin)}" if len(step.origin) > 1 else ""
    return f"{step.kernel:24} {outputs or '(cache)'}  {attrs}{made_of}"


def _layer(step: Step) -> int | None:
    """The layer in which the step begins; None outside of the layers."""
    found = [int(match[2]) for name in step.origin[:1] if (match := _LAYER.match(name))]
    return found[0] if found else None


def _repetition(texts: Sequence[str], layers: Sequence[int | None], at: int) -> tuple[int, int]:
    """(steps of one layer, how many equal layers follow each other) from step `at`; (0, 1) when the next layer differs."""
    layer = layers[at]
    if layer is None or layer + 1 not in layers[at:]:
        return 0, 1
    length, times = layers.index(layer + 1, at) - at, 1
    block = [_renumbered(text, layer) for text in texts[at : at + length]]
    while block == [_renumbered(t, layer + times) for t in texts[at + times * length : at + (times + 1) * length]]:
        times += 1
    return length, times


def _renumbered(text: str, layer: int) -> str:
    """`text` with the layers' numbers counted from `layer`, which is written i: layers.i, layer=i, layers.i+1."""

    def written(match: re.Match[str]) -> str:
        offset = int(match[2]) - layer
        return f"layer{match[1]}i{f'{offset:+}' if offset else ''}"

    return _LAYER.sub(written, text)
