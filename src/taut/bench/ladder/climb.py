"""Runs the rungs: up in odd rounds, down in even ones, so that a machine that drifts favours none; every run in its own process.

Knows how a run is asked for and answered (JSON on stdin and stdout), not what is measured in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taut import checkpoint, models
from taut.bench.ladder import pytorch
from taut.bench.ladder.rungs import Kind, Rung
from taut.errors import TautError, UsageError

Answer = dict[str, Any]
Ask = Callable[[Sequence[str], Mapping[str, Any]], Answer]  # (command, spec) -> the JSON that it prints
Report = Callable[[str], None]


@dataclass(frozen=True)
class Outlook:
    """What must be known of a model before it is loaded. `folder` is where PyTorch finds it, None for a file that it does not read."""

    name: str
    kind: Kind
    context_len: int
    folder: Path | None
    pooling: str


def outlook(ref: str) -> Outlook:
    """Read the model's configuration. Raises ModelError like loading."""
    with checkpoint.open(ref) as opened:
        built = models.build(opened)
        pooling = opened.pooling.mode if opened.pooling else "mean"
        return Outlook(opened.name, built.kind, built.context_len, checkpoint.folder_of(ref), pooling)


@dataclass(frozen=True)
class Course:
    """What to run. `load` holds the fields of encoder.Load or latency.Load; `child` is the command of taut's own runs;
    `peer_python` has torch and transformers, None takes the running interpreter."""

    model: str
    seen: Outlook
    load: Mapping[str, int]
    child: Sequence[str]
    rounds: int = 2
    texts: int = 4
    window_len: int = 256
    threads: int | None = None
    memory_bytes: int | None = None
    peer_python: str | None = None

    def __post_init__(self) -> None:
        faults = []
        asked = self.load["length"] if self.seen.kind == "encoder" else self.load["prompt"] + self.load["gen"]
        if asked > self.seen.context_len:
            faults.append(f"{asked:,} tokens are asked for, {self.seen.name} takes {self.seen.context_len:,}; give less")
        if min(self.rounds, *self.load.values()) < 1 or self.texts < 0:
            faults.append("sizes and rounds must be at least 1, texts at least 0")
        if faults:
            raise UsageError("; ".join(faults))

    def options(self, rung: Rung) -> dict[str, Any]:
        return {**rung.options(), "threads": self.threads, "memory_bytes": self.memory_bytes}


@dataclass
class Climbed:
    """A rung and the answers of its runs, or why there are none."""

    rung: Rung
    answers: list[Answer] = field(default_factory=list)
    missing: str | None = None


def climb(course: Course, rungs: Sequence[Rung], *, ask: Ask | None = None, report: Report | None = None) -> list[Climbed]:
    """Measure every rung `course.rounds` times. A rung whose options the model refuses is kept with the reason."""
    ask, tell = ask or ask_process, report or (lambda line: None)
    found = [Climbed(rung) for rung in rungs]
    with tempfile.TemporaryDirectory(prefix="taut-ladder-") as folder:
        reference = Path(folder) / "reference.npz"
        if course.texts:
            tell("reference: fp32 answers")
            _checked(ask(course.child, _spec(course, Rung("reference", "", "fp32", True), reference, "reference")))
        for turn in range(course.rounds):
            for climbed in found if turn % 2 == 0 else reversed(found):
                if climbed.missing is None:
                    tell(f"round {turn + 1} of {course.rounds}: {climbed.rung.title}")
                    _run(course, climbed, reference, ask)
    return found


def _run(course: Course, climbed: Climbed, reference: Path, ask: Ask) -> None:
    rung = climbed.rung
    if rung.mode == "pytorch" and course.seen.folder is None:
        climbed.missing = "PyTorch reads no such file; give a Hugging Face folder"
        return
    spec = _spec(course, rung, reference, rung.mode)
    if climbed.answers:
        spec["texts"] = 0  # quality does not change between rounds
    command = [course.peer_python or sys.executable, pytorch.__file__] if rung.mode == "pytorch" else course.child
    try:
        answer = ask(command, spec)
    except TautError as error:  # killed for its memory, say: the other rungs are worth having
        climbed.missing = str(error)
        return
    climbed.missing = answer.get("missing")
    if climbed.missing is None:
        climbed.answers.append(answer)


def _spec(course: Course, rung: Rung, reference: Path, task: str) -> dict[str, Any]:
    return {
        "task": task,
        "model": str(course.seen.folder) if rung.mode == "pytorch" else course.model,
        "options": course.options(rung),
        "load": dict(course.load),
        "texts": course.texts,
        "window_len": min(course.window_len, course.seen.context_len),
        "pooling": course.seen.pooling,
        "reference": str(reference),
    }


def _checked(answer: Answer) -> None:
    if answer.get("missing"):
        raise UsageError(f"the fp32 reference cannot be made: {answer['missing']}; --texts 0 leaves the quality figures out")


def ask_process(command: Sequence[str], spec: Mapping[str, Any]) -> Answer:
    """Run `command` with `spec` on its stdin; what it prints last is the answer. A crash raises TautError with its last words."""
    try:
        done = subprocess.run(list(command), input=json.dumps(spec), capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"{command[0]!r} cannot be run ({error.strerror}); give the path of a Python interpreter") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = " ".join(done.stderr.strip().splitlines()[-3:]) or f"exit status {done.returncode}"
        raise TautError(f"a run of {spec['task']} with {spec['options']} ended early: {last}")
    answer: Answer = json.loads(lines[-1])
    return answer
