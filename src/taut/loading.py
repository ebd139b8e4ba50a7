"""The straight line, walked once: checkpoint → graph → passes → plan → weights → engine → scheduler → loop."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from taut import checkpoint as checkpoints
from taut import models, passes, plan
from taut.checkpoint import Checkpoint
from taut.checkpoint.quantized import CONFIG_KEY
from taut.config import DEFAULT_PRECISION, LoadConfig
from taut.engine.budget import Budget, check_given, grant
from taut.engine.engine import Engine, Executor
from taut.engine.kv_cache import Format, KVLayout, KVPool, aligned_bytes
from taut.errors import Float16RangeError, ModelFormatError, UsageError
from taut.graph import Graph, Node
from taut.kernels.attention import POLICIES
from taut.kernels.table import BF16_BACKENDS, BLOCK_BACKENDS, select
from taut.models import BuiltModel
from taut.passes import split_norms
from taut.passes.shift_bias import SHIFTED
from taut.passes.split_norms import SMOOTH
from taut.plan import cache
from taut.plan import text as plan_text
from taut.plan.weights import WeightStore, store_bytes
from taut.quality import ranges
from taut.scheduler.blocks import BlockPool
from taut.scheduler.loop import Loop
from taut.scheduler.scheduler import Limits, Scheduler
from taut.units import counted

Progress = Callable[[str, int, int], None]


@dataclass
class Loaded:
    """Everything that makes up a loaded model."""

    config: LoadConfig
    checkpoint: Checkpoint
    built: BuiltModel
    graph: Graph
    plan: plan.Plan
    store: WeightStore
    budget: Budget
    engine: Engine
    scheduler: Scheduler
    loop: Loop
    runtime: Any  # the native runtime; None for the reference executor
    widened: tuple[str, ...] = ()  # linear layers that are bf16, for float16 does not hold their weights

    @property
    def context_len(self) -> int:
        """Most tokens of one sequence: what the model takes, or all that the KV cache holds if that is less."""
        return min(self.built.context_len, self.budget.kv_tokens) if self.built.kind == "decoder" else self.built.context_len

    @property
    def kv_precision(self) -> str | None:
        return self.engine.kv.layout.format if self.engine.kv is not None else None

    def describe_precision(self) -> str:
        """What the linear layers truly compute in, and the KV cache's type where it is another."""
        parts = [self.plan.precision]
        disabled = {"quantize", "narrow_weights"} & set(self.config.disable_passes)
        if disabled and self.plan.precision != _asked(self.config, self.checkpoint):
            parts[0] += f" (the {' and the '.join(sorted(disabled))} pass is disabled)"
        if self.widened:
            more = ", …" if len(self.widened) > 2 else ""
            parts.append(
                f"bf16 where float16 ends: {counted(len(self.widened), 'layer')} ({', '.join(self.widened[:2])}{more})"
            )
        if self.kv_precision not in (None, self.plan.precision):
            parts.append(f"KV cache {self.kv_precision}")
        return ", ".join(parts)

    def describe_machine(self) -> list[str]:
        if self.runtime is None:
            return ["numpy reference"]
        return [str(self.runtime.isa), counted(self.runtime.threads, "thread")]

    def describe(self) -> dict[str, Any]:
        budget = self.budget
        return {
            "name": self.checkpoint.name,
            "family": self.built.family,
            "kind": self.built.kind,
            "precision": self.plan.precision,
            "kv_precision": self.kv_precision,
            "widened_layers": list(self.widened),
            "executor": self.config.executor,
            "isa": None if self.runtime is None else self.runtime.isa,
            "threads": None if self.runtime is None else self.runtime.threads,
            "context_len": self.context_len,
            "max_context_len": self.built.max_context_len,
            "vocab_size": self.built.vocab_size,
            "plan": self.plan.digest,
            "memory": {
                "budget_bytes": budget.total_bytes,
                "weight_bytes": budget.weight_bytes,
                "activation_bytes": budget.activation_bytes,
                "kv_bytes": budget.kv_bytes,
                "kv_tokens": budget.kv_tokens,
            },
            "unused_tensors": list(self.built.surplus),
        }

    def explain(self, *, every_layer: bool = False) -> str:
        options = _pass_options(self.config, self.checkpoint, self.built, self.widened)
        lines = ["passes"]
        for name, reason in passes.PIPELINE:
            lines.append(f"  {'✓' if passes.is_run(name, options) else '–'} {name:16} {reason}")
        arena = ", ".join(f"{size:,} bytes a {space[:-1]}" for space, size in self.plan.space_bytes.items() if size)
        lines.append(f"\nplan {self.plan.digest}: {counted(len(self.plan.steps), 'step')}, arena {arena}")
        lines += plan_text.lines(self.plan, every_layer=every_layer)
        why = (
            POLICIES[self.config.attention].reason
            if self.runtime
            else "numpy takes one softmax over all keys, whatever is asked"
        )
        lines.append(f"\nattention {self.config.attention}: {why}")
        tiled = {step.op for step in self.plan.steps} & set(plan.weights.LINEARS)
        for op in sorted(tiled):
            kernel = select(op, self.plan.steps[0].kernel.partition("/")[0])
            rows = " · ".join(f"{rows} {'row' if rows == '1' else 'rows'}: {tile}" for rows, tile in kernel.tiles)
            lines.append(f"\n{kernel.name} (requires {', '.join(kernel.requires) or 'nothing'}) {rows}")
        return "\n".join(lines)

    def close(self) -> None:
        self.checkpoint.close()


@dataclass(frozen=True)
class _Renamed:
    """The checkpoint's tensors by weight key."""

    checkpoint: Checkpoint
    names: dict[str, str]

    def read(self, key: str) -> Any:
        for suffix in (SHIFTED, SMOOTH):
            if key.endswith(suffix):
                return self.checkpoint.read(self.names[key.removesuffix(suffix)] + suffix)
        return self.checkpoint.read(self.names[key])

    def release(self) -> None:
        self.checkpoint.source.release_pages()

    def identity(self) -> str:
        return json.dumps([self.checkpoint.source.identity(), self.names], sort_keys=True)


def load_model(ref: str, *, progress: Progress | None = None, **options: Any) -> Loaded:
    """Load `ref`; see api.load."""
    if unknown := sorted(set(options) - set(LoadConfig.__dataclass_fields__)):
        accepted = ", ".join(LoadConfig.__dataclass_fields__)
        raise UsageError(f"load has no option {', '.join(unknown)}; accepted: {accepted}, progress")
    config = LoadConfig(**options)
    check_given(config.memory_bytes)
    with _uncollected():
        checkpoint = checkpoints.open(ref, with_text=False)
        try:
            return _load(checkpoint, config, progress)
        except BaseException:
            checkpoint.close()
            raise


@contextmanager
def _uncollected() -> Iterator[None]:
    """Inside, nobody looks for cycles to free: loading makes a vocabulary's million objects, and no garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _load(checkpoint: Checkpoint, config: LoadConfig, progress: Progress | None, widened: tuple[str, ...] = ()) -> Loaded:
    """`widened`: linear layers that stay bf16 because float16 does not hold their weights."""
    built = models.build(checkpoint, context_len=config.max_context)
    if config.kv_precision is not None and built.kind != "decoder":
        raise UsageError(f"kv_precision {config.kv_precision} is given, but an encoder has no KV cache; leave it out")
    graph = passes.optimize(built.graph, _pass_options(config, checkpoint, built, widened))
    runtime, target = _machine(config)
    made = plan.make(graph, target, _precision(graph))
    budget = _grant(config, checkpoint, built, graph, made)
    allocate = aligned_bytes if runtime is None else runtime.allocate
    source = _Renamed(checkpoint, built.renamed)
    try:
        store = _load_weights(graph, source, allocate, runtime, progress)
    except Float16RangeError:
        if widened or not (beyond := ranges.beyond_float16(graph, source)):
            raise
    else:
        beyond = ()
    if beyond:
        return _load(checkpoint, config, progress, beyond)
    checkpoint.source.close()  # the packed copy serves from here on; a mapped file would count as resident memory
    kv = KVPool(_kv_layout(config, checkpoint, built), budget.kv_blocks, allocate) if built.kind == "decoder" else None
    executor = _executor(config, graph, made, store, kv, runtime)
    engine = Engine(executor, kv) if runtime is None else Engine(executor, kv, runtime.sample)
    longest = min(built.context_len, budget.kv_tokens or built.context_len)
    limits = Limits(longest, _step_tokens(config, built), running=config.max_sequences)
    scheduler = Scheduler(limits, BlockPool(budget.kv_blocks, f"{made.digest} {_kv_format(config, checkpoint)}".encode()))
    tokenizer = checkpoint.tokenizer
    stream = tokenizer.stream if tokenizer is not None else None
    end_ids = tokenizer.eos_ids if tokenizer is not None else frozenset[int]()
    loop = Loop(engine, scheduler, stream, end_ids, built.vocab_size)
    return Loaded(config, checkpoint, built, graph, made, store, budget, engine, scheduler, loop, runtime, widened)


def _load_weights(graph: Graph, source: _Renamed, allocate: Any, runtime: Any, progress: Progress | None) -> WeightStore:
    """The packed weights; and the checkpoint's text is made, beside the reading where they are kept."""

    def make_text() -> None:
        _ = source.checkpoint.text

    kept = cache.of_user() if runtime is not None else None
    if kept is None:
        make_text()  # before any packing, which takes longer: what is wrong with a file is said at once
        return plan.weights.load(graph, source, allocate, None if runtime is None else runtime.packers, progress)
    return kept.load(graph, source, allocate, runtime.packers, runtime.pool, progress, make_text)


def _pass_options(
    config: LoadConfig, checkpoint: Checkpoint, built: BuiltModel, widened: tuple[str, ...] = ()
) -> passes.Options:
    disabled, stated, kv = tuple(config.disable_passes), checkpoint.quantization, _kv_format(config, checkpoint)
    if stated is None:
        pins = passes.parse_pins((*config.pins, *ranges.pins(widened, "bf16")))
        return passes.Options(config.precision or DEFAULT_PRECISION, disabled, pins=pins, kv=kv)
    if config.precision not in (None, stated.scheme) or config.pins:
        asked = f"precision {config.precision}" if config.precision not in (None, stated.scheme) else "pins"
        raise UsageError(
            f"{checkpoint.name} is quantized already, to {stated.scheme}, and loads as that: leave {asked} out, or quantize the model it "
            "was made from again"
        )
    if missing := {"quantize", "narrow_weights", "shift_bias", "split_norms"} & set(disabled):
        raise UsageError(
            f"{checkpoint.name} is quantized already; the pass {', '.join(sorted(missing))} cannot be disabled for it"
        )
    by_name = {name: key for key, name in built.renamed.items()}
    layers = {by_name[name]: layer for name, layer in stated.layers.items() if name in by_name}
    static = {key: layer.static for key, layer in layers.items() if layer.static is not None}
    formats = {key: layer.scheme for key, layer in layers.items()}
    smoothed = frozenset(by_name.get(name, name) for name in stated.smoothed)
    if misfits := split_norms.misfits(built.graph, smoothed):
        listed = ", ".join(built.renamed.get(key, key) for key in misfits[:10])
        raise ModelFormatError(
            f"must list a norm's gain and bias together, of norms that linear layers read; at odds with that: {listed}",
            file="config.json",
            field=f"{CONFIG_KEY}.smoothed",
        )
    return passes.Options(stated.scheme, disabled, kv=kv, formats=formats, static=static, smoothed=smoothed)


def _asked(config: LoadConfig, checkpoint: Checkpoint) -> str:
    """The precision that was asked for, or that the artefact has."""
    return checkpoint.quantization.scheme if checkpoint.quantization is not None else config.precision or DEFAULT_PRECISION


def _precision(graph: Graph) -> str:
    """What the linears over tokens truly compute on, whatever was asked for (a group of 128 may not divide a layer's inputs); several
    are joined, the one of most layers first."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in plan.weights.LINEARS and graph.signature(node.inputs[0]).space == "tokens":
            name = _linear_precision(node)
            counts[name] = counts.get(name, 0) + 1
    return " + ".join(sorted(counts, key=lambda name: (-counts[name], name))) or "fp32"


def _linear_precision(node: Node) -> str:
    if node.op == "linear_q4" or node.attrs.get("bits") == 4:
        return f"int4-g{node.attrs['group']}"
    if node.op in ("linear_q8", "qkv_attention"):
        group = node.attrs.get("weight_group")
        return f"int8-g{group}" if group else "int8-static" if node.attrs.get("static") else "int8"
    return {"f16": "fp16", "bf16": "bf16", "i8": "w8a16"}.get(str(node.attrs.get("store")), "fp32")


def _machine(config: LoadConfig) -> tuple[Any, plan.Target]:
    if config.executor == "reference":
        return None, plan.Target(softmax_keys=POLICIES[config.attention].softmax_keys)
    from taut.engine.runtime import runtime

    machine = runtime(config.threads)
    bf16, blocks = (machine.isa in backends and not config.exact for backends in (BF16_BACKENDS, BLOCK_BACKENDS))
    return machine, plan.Target(machine.isa, POLICIES[config.attention].softmax_keys, bf16, blocks)


def _kv_layout(config: LoadConfig, checkpoint: Checkpoint, built: BuiltModel) -> KVLayout:
    return KVLayout(built.layers, built.kv_heads, built.head_dim, _kv_format(config, checkpoint))


def _kv_format(config: LoadConfig, checkpoint: Checkpoint) -> Format:
    stated = checkpoint.quantization.kv if checkpoint.quantization is not None else None
    return cast(Format, config.kv_precision or stated or ("int8" if _asked(config, checkpoint).startswith("int") else "fp32"))


def _step_tokens(config: LoadConfig, built: BuiltModel) -> int:
    """Most tokens of one step: an encoder's sequence is never cut, so one must fit whole."""
    return max(config.step_tokens, built.context_len) if built.kind == "encoder" else config.step_tokens


def _grant(config: LoadConfig, checkpoint: Checkpoint, built: BuiltModel, graph: Graph, made: plan.Plan) -> Budget:
    bytes_ = made.space_bytes
    activation = bytes_["tokens"] * _step_tokens(config, built) + (bytes_["rows"] + bytes_["sequences"]) * config.max_sequences
    kv = (_kv_layout(config, checkpoint, built), built.context_len, config.max_sequences) if built.kind == "decoder" else None
    return grant(config.memory_bytes, store_bytes(graph), activation, kv)


def _executor(
    config: LoadConfig, graph: Graph, made: plan.Plan, store: WeightStore, kv: KVPool | None, runtime: Any
) -> Executor:
    if config.executor == "reference":
        from taut.engine.executors.reference import ReferenceExecutor

        return ReferenceExecutor(graph, store, kv)
    from taut.engine.executors.native import NativeExecutor

    return NativeExecutor(made, store, runtime, kv)
