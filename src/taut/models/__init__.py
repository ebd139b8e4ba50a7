"""One file per family, named after config.json's model_type. Each exports Config, rename and build; there is no registry.

build writes the plain mathematics with unfused ops; passes make it fast.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from taut.checkpoint import Checkpoint
from taut.errors import UnsupportedModelError, UsageError
from taut.graph import Graph, verify
from taut.units import counted

Kind = Literal["decoder", "encoder"]


@dataclass(frozen=True)
class BuiltModel:
    """A graph and what the outer stages must know of the model. `context_len` is the most tokens of one sequence,
    `max_context_len` what it could be at most."""

    graph: Graph
    kind: Kind
    family: str
    context_len: int
    max_context_len: int
    vocab_size: int
    layers: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    renamed: dict[str, str]  # weight key -> tensor name in the checkpoint
    surplus: tuple[str, ...]  # tensors that no weight asks for


def families() -> list[str]:
    """Every supported model_type."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def family(model_type: object) -> ModuleType:
    """The module of a model_type, or UnsupportedModelError listing what is supported."""
    if not isinstance(model_type, str) or model_type not in families():
        raise UnsupportedModelError(f"model_type {model_type!r} is not supported; supported: {', '.join(families())}")
    return importlib.import_module(f"taut.models.{model_type}")


def build(checkpoint: Checkpoint, *, context_len: int | None = None) -> BuiltModel:
    """The model of a checkpoint, for sequences of at most `context_len` tokens (default, and limit: what its config allows)."""
    module = family(checkpoint.config.get("model_type"))
    config = module.Config.from_checkpoint(checkpoint)
    if context_len is not None and context_len > config.context_len:
        raise UsageError(
            f"max_context (--max-context) is {context_len:,}, but {checkpoint.name} takes at most {config.context_len:,} tokens; "
            "give at most that, or leave it out"
        )
    limit = context_len or config.context_len
    graph = verify(module.build(config, limit))
    renamed, surplus = _match(module, checkpoint, graph)
    return BuiltModel(
        graph, module.KIND, module.__name__.rpartition(".")[2], limit, config.context_len, config.vocab_size,
        config.layers, config.kv_heads, config.head_dim, config.hidden_size, renamed, surplus,
    )  # fmt: skip


def _match(module: ModuleType, checkpoint: Checkpoint, graph: Graph) -> tuple[dict[str, str], tuple[str, ...]]:
    """Pair declared weights with the checkpoint's tensors; every missing or misshapen one goes into one message."""
    renamed = {key: name for name in checkpoint.tensors if (key := module.rename(name)) is not None}
    faults = []
    for key, weight in graph.weights.items():
        if key not in renamed:
            faults.append(f"missing: {key} {list(weight.shape)}")
        elif (shape := checkpoint.tensors[renamed[key]].shape) != weight.shape:
            faults.append(f"wrong shape: {renamed[key]} is {list(shape)}, the config asks for {list(weight.shape)}")
    used = {renamed[key] for key in graph.weights if key in renamed}
    surplus = tuple(sorted(name for name in checkpoint.tensors if name not in used))
    if faults:
        shown = "\n  ".join(faults[:20]) + (f"\n  … and {len(faults) - 20} more" if len(faults) > 20 else "")
        extra = f"\nnot used by the model: {', '.join(surplus[:10])}" if surplus else ""
        raise UnsupportedModelError(
            f"{checkpoint.name}: the weights do not match config.json ({counted(len(faults), 'fault')}; an incomplete download?)\n  {shown}{extra}"
        )
    return renamed, surplus
