"""`taut bench ladder`: from an unoptimized model to this product at its best, one switch at a time."""

from __future__ import annotations

import json as json_module
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from taut import env
from taut.cli import values
from taut.cli.console import check_writable, print_note
from taut.cli.options import ModelRef, option, plain
from taut.errors import UsageError

if TYPE_CHECKING:
    from taut.bench.ladder.climb import Outlook


@dataclass(frozen=True)
class LoadOptions:
    """What every rung does; None takes the kind's default."""

    batch: Annotated[
        int | None, plain("--batch", "Sequences side by side; default 4 for a decoder, 1 for an encoder.", values.whole(1))
    ] = None
    length: Annotated[
        int | None, plain("--length", "Encoder: tokens of a request; default 512, or all that it takes.", values.whole(1))
    ] = None
    prompt: Annotated[
        int | None, plain("--prompt", "Decoder: prompt tokens; default 512, or half of what it takes.", values.whole(1))
    ] = None
    gen: Annotated[
        int | None, plain("--gen", "Decoder: tokens to generate; default 100, or what is left.", values.whole(1))
    ] = None
    requests: Annotated[
        int, plain("--requests", "Encoder: least number of timed batches a rung; default 100.", values.whole(1))
    ] = 100

    def of(self, seen: Outlook, rounds: int) -> dict[str, int]:
        """The fields of encoder.Load or latency.Load. UsageError for an option of the other kind."""
        if seen.kind == "encoder":
            _refuse("a decoder", prompt=self.prompt, gen=self.gen)
            return self._of_encoder(seen, -(-self.requests // rounds))
        _refuse("an encoder", length=self.length)
        prompt = self.prompt or min(512, max(1, seen.context_len // 2))
        gen = self.gen or max(1, min(100, seen.context_len - prompt))
        return {"prompt": prompt, "gen": gen, "batch": self.batch or 4, "reps": 1}

    def _of_encoder(self, seen: Outlook, batches: int) -> dict[str, int]:
        """`batches` of a round are cut into up to three repetitions, between which the limits are measured."""
        length, reps = self.length or min(512, seen.context_len), min(3, batches)
        return {"length": length, "batch": self.batch or 1, "reps": reps, "least": -(-batches // reps)}


@dataclass(frozen=True)
class RunOptions:
    """Which rungs are climbed, how often, and in what."""

    rungs: Annotated[
        str | None, plain("--rungs", "Only these rungs, by name, with commas between; default all.", values.text("A,B"))
    ] = None
    rounds: Annotated[int, plain("--rounds", "Times up and down the ladder; default 2.", values.whole(1))] = 2
    texts: Annotated[
        int | None,
        plain("--texts", "Texts that quality is judged by; default 4 windows or 64 sentences; 0 for none.", values.whole(0)),
    ] = None
    peer_python: Annotated[
        str | None,
        plain("--peer-python", "An interpreter with torch and transformers; default this one.", values.text("PYTHON")),
    ] = None
    threads: Annotated[int | None, option(env.THREADS, values.whole(1))] = None
    memory: Annotated[int | None, option(env.MEMORY, values.size())] = None

    def names(self) -> list[str] | None:
        """The rungs asked for. UsageError when they cannot be run."""
        if self.peer_python is not None and shutil.which(self.peer_python) is None:
            raise UsageError(f"--peer-python {self.peer_python!r} is no program; give the path of a Python interpreter")
        return None if self.rungs is None else [name.strip() for name in self.rungs.split(",") if name.strip()]


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes, beside stdout."""

    json: Annotated[
        Path | None, plain("--json", "Write the result, with machine and versions, to FILE.", {"metavar": "FILE"})
    ] = None
    plot: Annotated[Path | None, plain("--plot", "Draw the ladder into FILE (.png, .svg).", {"metavar": "FILE"})] = None

    def check(self) -> None:
        """UsageError for what could not be written after an hour of measuring."""
        from taut.bench.ladder import show

        if self.plot is not None:
            show.check_plot(self.plot)
        for path in (self.json, self.plot):
            if path is not None:
                check_writable(path)


def command(model: ModelRef, load_options: LoadOptions, run_options: RunOptions, output: OutputOptions) -> None:
    """Measure a model rung by rung: precision, fusion, attention, each on top of the last and in a process of its own."""
    from taut.bench import report
    from taut.bench.ladder import climb, figures, show
    from taut.bench.ladder.rungs import choose

    output.check()
    seen = climb.outlook(model)
    chosen = choose(seen.kind, run_options.names())
    load = load_options.of(seen, run_options.rounds)
    texts = run_options.texts if run_options.texts is not None else 64 if seen.kind == "encoder" else 4
    course = climb.Course(
        model, seen, load, [sys.executable, "-m", "taut.cli.bench_rung"], run_options.rounds, texts, 256,
        run_options.threads, run_options.memory, run_options.peer_python,
    )  # fmt: skip
    result = figures.result(course, climb.climb(course, chosen, report=print_note))
    print("\n".join([show.table(result), "", *show.notes(result)]))
    if output.json is not None:
        record = report.record(f"taut bench ladder {Path(model).name}", result)
        output.json.write_text(json_module.dumps(record, indent=1) + "\n", encoding="utf-8")
    if all("missing" in rung for rung in result["rungs"]):
        raise UsageError("no rung could be run; the reasons stand below the table")
    if output.plot is not None:
        show.plot(result, output.plot)


def _refuse(who: str, **options: Any) -> None:
    if given := [f"--{name}" for name, value in options.items() if value is not None]:
        raise UsageError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for {who}; leave {'it' if len(given) == 1 else 'them'} out"
        )
