"""A recipe: what to quantize a model to, and how. Ready ones by name, a YAML file, or options on top of either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from taut.errors import UsageError
from taut.quant.formats import SCHEMES

ALGORITHMS = ("rtn", "imatrix", "smoothquant")
OBSERVERS = ("minmax", "ema", "percentile", "mse", "entropy", "auto")
KV = ("fp32", "bf16", "int8", "k8v4")
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Recipe:
    """scheme: of every linear that no pin names. pins: PATTERN=SCHEME, the last match counting. algorithm None: what suits the scheme
    (`default_algorithm`). observer: how the ranges of static inputs are chosen. kv: the KV cache's precision that the artefact asks for;
    None what its scheme implies. max_fallbacks: the largest share of layers that may get another scheme than they were to have.
    symmetric: int4 without a minimum of its own in each group, as some other programs' formats need; it costs accuracy."""

    scheme: str = "int8"
    algorithm: str | None = None
    observer: str = "auto"
    pins: tuple[str, ...] = ()
    kv: str | None = None
    max_fallbacks: float = 0.1
    symmetric: bool = False

    def __post_init__(self) -> None:
        for name, value, accepted in (
            ("scheme", self.scheme, tuple(SCHEMES)),
            ("algorithm", self.algorithm, (None, *ALGORITHMS)),
            ("observer", self.observer, OBSERVERS),
            ("kv", self.kv, (None, *KV)),
        ):
            if value not in accepted:
                raise UsageError(f"{name} {value!r} is not one of {', '.join(str(a) for a in accepted if a is not None)}")
        if not isinstance(self.symmetric, bool):
            raise UsageError(f"symmetric must be true or false, not {self.symmetric!r}")
        if not isinstance(self.max_fallbacks, (int, float)) or not 0 <= self.max_fallbacks <= 1:
            raise UsageError(f"max_fallbacks must be a share from 0 to 1, not {self.max_fallbacks!r}")

    @property
    def chosen_algorithm(self) -> str:
        return self.algorithm or default_algorithm(self.scheme)

    @property
    def chosen_kv(self) -> str | None:
        """The KV cache's precision; the accuracy plan's has 16 bits."""
        return self.kv or ("bf16" if self.scheme == "int8-g64" else None)

    @property
    def needs_calibration(self) -> bool:
        return self.chosen_algorithm != "rtn" or any(SCHEMES[scheme].inputs == "static" for scheme in self.schemes)

    @property
    def schemes(self) -> set[str]:
        return {self.scheme, *(pin.rpartition("=")[2] for pin in self.pins if pin.rpartition("=")[2] in SCHEMES)}


def default_algorithm(scheme: str) -> str:
    """What reaches the best quality of a scheme in minutes: smoothing where inputs are quantized, importance where weights have 4 bits."""
    format_ = SCHEMES[scheme]
    if format_.weight == "int4":
        return "imatrix"
    return "smoothquant" if format_.inputs != "float" else "rtn"


# Layered precision as production systems use it: what is sensitive in 16 bits, the fully connected layers in int8.
READY: dict[str, Recipe] = {
    "attention-fp16": Recipe("int8", pins=("*.attention=fp16",), kv="bf16"),
    "first-fp16": Recipe("int8", pins=("*.first=fp16",)),
}


def load(where: str) -> Recipe:
    """A ready recipe by name, or a YAML file of Recipe's fields (`pins` a list). UsageError for anything else in it."""
    if where in READY:
        return READY[where]
    path = Path(where)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"the recipe {where!r} has more than {MAX_FILE_BYTES:,} bytes")
        stated = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"no recipe {where!r} ({(error.strerror or 'unreadable').lower()}); give a YAML file or one of {', '.join(READY)}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"the recipe {where!r} is no YAML: {reason}") from None
    return of_mapping(stated, where)


def of_mapping(stated: object, where: str) -> Recipe:
    accepted = [field.name for field in fields(Recipe)]
    if not isinstance(stated, Mapping) or (unknown := [str(key) for key in stated if key not in accepted]):
        extra = f", not {', '.join(unknown)}" if isinstance(stated, Mapping) else ""
        raise UsageError(f"the recipe {where!r} must map {', '.join(accepted)} to values{extra}")
    values: dict[str, Any] = dict(stated)
    pins = values.get("pins", ())
    if isinstance(pins, Mapping):
        pins = [f"{pattern}={scheme}" for pattern, scheme in pins.items()]
    if not isinstance(pins, (list, tuple)) or not all(isinstance(pin, str) for pin in pins):
        raise UsageError(f"pins of the recipe {where!r} must be a list of PATTERN=SCHEME, or a mapping of them")
    if not all(isinstance(values.get(name), (str, type(None))) for name in ("scheme", "algorithm", "observer", "kv")):
        raise UsageError(f"the recipe {where!r} gives something else than text for scheme, algorithm, observer or kv")
    return replace(Recipe(), **{**values, "pins": tuple(pins)})
