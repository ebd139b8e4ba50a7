"""Options that the commands around artefacts share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from taut.cli import values
from taut.cli.options import plain
from taut.config import PRECISIONS

if TYPE_CHECKING:
    from taut.compress.recipe import Recipe

SCHEMES = (*PRECISIONS[:2], "int8-static", *PRECISIONS[2:])


@dataclass(frozen=True)
class RecipeOptions:
    """What to quantize to, and how."""

    scheme: Annotated[
        str | None, plain("--scheme", "What linears become; default the recipe's, else int8.", values.one_of(SCHEMES))
    ] = None
    algorithm: Annotated[
        str | None,
        plain(
            "--algorithm", "How the numbers are chosen; default smoothquant for int8 inputs, imatrix for int4, else rtn.",
            values.one_of(("rtn", "imatrix", "smoothquant")),
        ),
    ] = None  # fmt: skip
    observer: Annotated[
        str | None,
        plain(
            "--observer", "How bounds of static inputs are chosen; default auto, what measures best.",
            values.one_of(("minmax", "ema", "percentile", "mse", "entropy", "auto")),
        ),
    ] = None  # fmt: skip
    pin: Annotated[
        list[str] | None,
        plain(
            "--pin",
            "A scheme for the linears of this name, as 'layers.*.attention=fp16'; repeatable.",
            values.text("PATTERN=SCHEME"),
        ),
    ] = None
    kv: Annotated[
        str | None,
        plain("--kv", "The KV cache's precision that the artefact asks for.", values.one_of(("fp32", "bf16", "int8", "k8v4"))),
    ] = None
    recipe: Annotated[
        str | None,
        plain("--recipe", "attention-fp16, first-fp16 or a YAML file; options above override it.", values.text("NAME|FILE")),
    ] = None
    max_fallbacks: Annotated[
        float | None,
        plain("--max-fallbacks", "Largest share of layers that may get another scheme; default 0.1.", values.number(0, 1)),
    ] = None

    symmetric: Annotated[
        bool, plain("--symmetric", "int4 without minima, as compressed-tensors needs it; costs accuracy.", values.switch())
    ] = False

    def chosen(self) -> Recipe:
        from taut.compress import recipe

        start = recipe.load(self.recipe) if self.recipe is not None else recipe.Recipe()
        given: dict[str, Any] = {
            name: value
            for name in ("scheme", "algorithm", "observer", "kv", "max_fallbacks")
            if (value := getattr(self, name)) is not None
        }
        if self.symmetric:
            given["symmetric"] = True
        if self.pin:
            given["pins"] = (*start.pins, *(pin for pins in self.pin for pin in pins.split()))
        return replace(start, **given)
