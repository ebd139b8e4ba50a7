"""calibrate: statistics of what every linear of a model reads, over some text.

The model runs in float on its own engine, by a plan with steps that observe (plan/observe.py) and without the head. Each window is one
sequence of a ragged batch: nothing is padded. The statistics depend on the windows and their order alone, bit for bit: not on threads, on
how windows share batches or on where a run was interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from taut import checkpoint as checkpoints
from taut.api import Model
from taut.compress.calibration import Calibration, digest_of, read, write
from taut.compress.windows import Texts, Windows, cut
from taut.engine.batch import Part, concatenate
from taut.engine.kv_cache import blocks_for
from taut.errors import ModelFormatError, UsageError
from taut.loading import Loaded, load_model
from taut.plan import Plan
from taut.plan.observe import MOST_WINDOWS, Observation, with_observers

TOKENS, LENGTH = 8192, 512
SINKS = 4  # a decoder's first tokens, whose activations are out of proportion
BATCH_TOKENS = 1024
SAVE_TOKENS = 4096
Progress = Callable[[str, int, int], None]
Reference = str | Model | Loaded


def calibrate(
    model: Reference,
    texts: Texts,
    *,
    tokens: int = TOKENS,
    length: int = LENGTH,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> Calibration:
    """Run `model` (a name that load takes, or a model loaded in float) over `texts`, until `tokens` tokens were read, in windows of up to
    `length`.

    `progress` is called with ("calibrate", tokens done, all). `cache` is a folder: what was measured before on the same files and token
    ids is read there, and an interrupted run goes on where it stopped. UsageError for text that cannot be used or a model that is
    quantized, NumericalError when an activation is not finite.
    """
    for name, value in (("tokens", tokens), ("length", length)):
        if type(value) is not int or value < 1:
            raise UsageError(f"{name} must be an integer of at least 1, not {value!r}")
    with opened(model) as loaded:
        if loaded.runtime is None:
            raise UsageError("calibration runs on the native executor; load the model without executor='reference'")
        sinks = SINKS if loaded.built.kind == "decoder" else 0
        plan = with_observers(loaded.plan, sinks=sinks)
        windows = cut(loaded, texts, tokens, length)
        run = _begin(loaded, plan, windows, sinks, cache)
        run.to_end(progress)
        return run.state()


@contextmanager
def opened(model: Reference, threads: int | None = None) -> Iterator[Loaded]:
    """The loaded model; one that is given by name is loaded in float, as its files store it, and closed at the end."""
    if not isinstance(model, str):
        yield model.loaded if isinstance(model, Model) else model
        return
    loaded = load_model(model, precision=_stored_precision(model), exact=True, threads=threads)
    try:
        yield loaded
    finally:
        loaded.close()


def _stored_precision(ref: str) -> str:
    """bf16 where every matrix is stored so, which halves the memory and loses nothing; else fp32."""
    with checkpoints.open(ref, with_text=False) as checkpoint:
        stored = {info.dtype for info in checkpoint.tensors.values() if len(info.shape) > 1}
    return "bf16" if stored == {"bfloat16"} else "fp32"


def model_digest(loaded: Loaded) -> str:
    """A hash of the identity of the model's files."""
    with checkpoints.open(loaded.checkpoint.ref, with_text=False) as checkpoint:
        return digest_of(checkpoint)


@dataclass
class _Run:
    """A calibration under way: `done` windows are in. `path` is where its state is kept, None for nowhere."""

    loaded: Loaded
    plan: Plan
    windows: Windows
    observation: Observation
    done: int
    sinks: int
    digest: str  # of the model
    path: Path | None
    warnings: tuple[str, ...]

    def state(self) -> Calibration:
        inputs = {node.name: node.inputs[0] for node in self.loaded.built.graph.nodes if node.op == "linear"}
        assert set(inputs.values()) == set(self.observation.statistics), "what linears read is not what was observed"
        digests = self.windows.digest, self.digest
        return Calibration(
            self.observation.statistics, inputs, self._tokens(), self.done, self.sinks, *digests, warnings=self.warnings
        )

    def _tokens(self) -> int:
        return sum(map(len, self.windows.ids[: self.done]))

    def to_end(self, progress: Progress | None) -> None:
        from taut.engine.executors.native import NativeExecutor

        executor = NativeExecutor(self.plan, self.observation.store, self.loaded.runtime, self.loaded.engine.kv)
        total, saved = self.windows.num_tokens, self._tokens()
        while True:
            if progress:
                progress("calibrate", self._tokens(), total)
            if self.done == len(self.windows.ids):
                return
            batch = self.windows.ids[self.done : self.done + _fitting(self.loaded, self.windows.ids[self.done :])]
            self._observe(executor, batch)
            self.done += len(batch)
            if self.path is not None and (self.done == len(self.windows.ids) or self._tokens() - saved >= SAVE_TOKENS):
                write(self.path, self.state(), self.observation.sample)
                saved = self._tokens()

    def _observe(self, executor: object, windows: Sequence[tuple[int, ...]]) -> None:
        with _parts(self.loaded, windows) as parts:
            batch = concatenate(parts)
            self.observation.begin(batch.positions)
            executor.run(batch)  # type: ignore[attr-defined]
            self.observation.end(batch.positions, batch.starts)


def _begin(loaded: Loaded, plan: Plan, windows: Windows, sinks: int, cache: Path | None) -> _Run:
    """From the start, or from where an earlier run of the same stopped."""
    digest, warnings = model_digest(loaded), windows.warnings
    key = hashlib.blake2b(f"{plan.digest} {windows.digest} {digest}".encode(), digest_size=12).hexdigest()
    path = cache / f"calibration-{key}.npz" if cache is not None else None
    done, resumed = 0, None
    if path is not None and path.is_file():
        try:
            before, sample = read(path)
            done, resumed = before.windows, (sample, before.by_value)
        except ModelFormatError as error:
            warnings = (*warnings, f"the calibration in the cache was not used: {error}")
    return _Run(loaded, plan, windows, Observation(plan, loaded.store, resumed), done, sinks, digest, path, warnings)


def _fitting(loaded: Loaded, windows: Sequence[tuple[int, ...]]) -> int:
    """How many of the next windows make one batch: at least one, of BATCH_TOKENS tokens, what the KV cache has room for."""
    count = num_tokens = num_blocks = 0
    for window in windows[:MOST_WINDOWS]:
        num_tokens, num_blocks = num_tokens + len(window), num_blocks + blocks_for(len(window))
        is_full = loaded.engine.kv is not None and num_blocks > loaded.scheduler.pool.num_available
        if count and (num_tokens > BATCH_TOKENS or is_full):
            break
        count += 1
    return count


@contextmanager
def _parts(loaded: Loaded, windows: Sequence[tuple[int, ...]]) -> Iterator[list[Part]]:
    """The windows as a batch's parts, every row wanted, in KV blocks of their own for as long."""
    pool = loaded.scheduler.pool
    blocks = [pool.take(blocks_for(len(window))) if loaded.engine.kv is not None else [] for window in windows]
    try:
        yield [Part(window, 0, own, all_rows=True) for window, own in zip(windows, blocks, strict=True)]
    finally:
        for own in blocks:
            pool.release(own)
