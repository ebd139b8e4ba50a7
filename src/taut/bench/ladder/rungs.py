"""Which rungs the two ladders have, and with which load options each is run. Knows names and switches; measures nothing.

A rung is there only if its switches are: a precision or an option that this version does not accept leaves its rung out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taut.config import PRECISIONS, LoadConfig
from taut.errors import UsageError
from taut.passes.pipeline import PIPELINE

Kind = Literal["decoder", "encoder"]
Mode = Literal["measure", "recompute", "pytorch"]
FUSIONS = tuple(name for name, _ in PIPELINE if name.startswith("fuse_"))
_INT4 = ("int4-g128", "int4-g64", "int4-g32")


@dataclass(frozen=True)
class Rung:
    """One step. `is_aside`: shown, but neither the first nor the last of the summary. `attention` None: the product's own choice."""

    key: str
    title: str
    precision: str
    is_fused: bool = False
    attention: str | None = None
    mode: Mode = "measure"
    is_aside: bool = False

    def options(self) -> dict[str, Any]:
        """What to load the model with (config.LoadConfig)."""
        chosen: dict[str, Any] = {"precision": self.precision, "disable_passes": () if self.is_fused else FUSIONS}
        return chosen | ({} if self.attention is None else {"attention": self.attention})


def has_attention_option() -> bool:
    """Whether plain and flash attention can be told apart by an option."""
    return "attention" in LoadConfig.__dataclass_fields__


def ladder(kind: Kind) -> list[Rung]:
    """All rungs of this version, lowest first."""
    return _encoder() if kind == "encoder" else _decoder(has_attention_option(), PRECISIONS)


def _encoder() -> list[Rung]:
    return [
        Rung("pytorch", "PyTorch fp32, eager", "fp32", mode="pytorch"),
        Rung("fp32", "fp32, no fusion", "fp32"),
        Rung("fp16", "fp16 weights, no fusion", "fp16"),
        Rung("int8", "int8, no fusion", "int8"),
        Rung("fused", "int8 + fusion", "int8", is_fused=True),
        # Next: dynamic batching on a trace of mixed lengths, which needs a way to run a trace.
    ]


def _decoder(has_attention: bool, precisions: Sequence[str]) -> list[Rung]:
    # auto is flash attention with a softmax a chunk of keys: what flash with tiles of 32 keys loses to it stands in docs/log.md.
    plain, flash = ("plain", "auto") if has_attention else (None, None)
    found = [
        Rung("no-cache", "bf16 weights, no KV cache", "bf16", attention=plain, mode="recompute", is_aside=True),
        Rung("bf16", "bf16 weights, no fusion", "bf16", attention=plain),
        Rung("int8", "int8, no fusion", "int8", attention=plain),
        Rung("fused", "int8 + fusion", "int8", True, plain),
    ]
    if has_attention:
        found.append(Rung("flash", "int8 + fusion + flash attention", "int8", True, flash))
    if narrow := [name for name in _INT4 if name in precisions]:
        flashed = " + flash attention" if has_attention else ""
        found.append(Rung("int4", f"{narrow[0]} + fusion{flashed}", narrow[0], True, flash))
    return found


def choose(kind: Kind, keys: Sequence[str] | None) -> list[Rung]:
    """The rungs of these keys, in the ladder's order; None: all. Raises UsageError for a key that is none."""
    every = ladder(kind)
    if keys is None:
        return every
    known = [rung.key for rung in every]
    if unknown := sorted(set(keys) - set(known)):
        raise UsageError(f"no rung named {', '.join(unknown)} for an {kind}; rungs: {', '.join(known)}".replace("an d", "a d"))
    if not keys:
        raise UsageError(f"no rung is given; rungs: {', '.join(known)}")
    return [rung for rung in every if rung.key in keys]
