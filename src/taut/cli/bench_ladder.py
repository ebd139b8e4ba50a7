"""`taut bench ladder`: from an unoptimized model to this product at its best, one switch at a time."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from taut import env
from taut.cli import values
from taut.cli.console import print_note
from taut.cli.options import ModelRef, option, plain
from taut.errors import UsageError

if TYPE_CHECKING:
    from taut.bench.ladder.climb import Outlook


def command(
    model: ModelRef,
    rungs: Annotated[
        str | None, plain("--rungs", "Only these rungs, by name, with commas between; default all.", values.text("A,B"))
    ] = None,
    batch: Annotated[
        int | None, plain("--batch", "Sequences side by side; default 4 for a decoder, 1 for an encoder.", values.whole(1))
    ] = None,
    length: Annotated[
        int | None, plain("--length", "Encoder: tokens of a request; default 512, or all that it takes.", values.whole(1))
    ] = None,
    prompt: Annotated[
        int | None, plain("--prompt", "Decoder: prompt tokens; default 512, or half of what it takes.", values.whole(1))
    ] = None,
    gen: Annotated[
        int | None, plain("--gen", "Decoder: tokens to generate; default 100, or what is left.", values.whole(1))
    ] = None,
    requests: Annotated[
        int, plain("--requests", "Encoder: least number of timed batches a rung; default 100.", values.whole(1))
    ] = 100,
    rounds: Annotated[int, plain("--rounds", "Times up and down the ladder; default 2.", values.whole(1))] = 2,
    texts: Annotated[
        int | None,
        plain("--texts", "Texts that quality is judged by; default 4 windows or 64 sentences; 0 for none.", values.whole(0)),
    ] = None,
    peer_python: Annotated[
        str | None,
        plain("--peer-python", "An interpreter with torch and transformers; default this one.", values.text("PYTHON")),
    ] = None,
    threads: Annotated[int | None, option(env.THREADS, values.whole(1))] = None,
    memory: Annotated[int | None, option(env.MEMORY, values.size())] = None,
    json: Annotated[
        Path | None, plain("--json", "Write the result, with machine and versions, to FILE.", {"metavar": "FILE"})
    ] = None,
    plot: Annotated[Path | None, plain("--plot", "Draw the ladder into FILE (.png, .svg).", {"metavar": "FILE"})] = None,
) -> None:
    """Measure a model rung by rung: precision, fusion, attention, each on top of the last and in a process of its own."""
    from taut.bench import report
    from taut.bench.ladder import climb, figures, show
    from taut.bench.ladder.rungs import choose

    if plot is not None:
        show.pyplot()  # its absence is an error now, not after an hour
    for path in (json, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"the folder of {str(path)!r} does not exist; make it, or give another file")
    seen = climb.outlook(model)
    chosen = choose(seen.kind, None if rungs is None else [key.strip() for key in rungs.split(",") if key.strip()])
    if seen.kind == "encoder":
        _refuse("a decoder", prompt=prompt, gen=gen)
        load = _encoder_load(seen, length, batch, -(-requests // rounds))
    else:
        _refuse("an encoder", length=length)
        load = _decoder_load(seen, prompt, gen, batch)
    count = texts if texts is not None else 64 if seen.kind == "encoder" else 4
    child = [sys.executable, "-m", "taut.cli.bench_rung"]
    course = climb.Course(model, seen, load, child, rounds, count, 256, threads, memory, peer_python)
    result = figures.result(course, climb.climb(course, chosen, report=print_note))
    print("\n".join([show.table(result), "", *show.notes(result)]))
    if json is not None:
        record = report.record(f"taut bench ladder {Path(model).name}", result)
        json.write_text(json_module.dumps(record, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        show.plot(result, plot)


def _encoder_load(seen: Outlook, length: int | None, batch: int | None, batches: int) -> dict[str, int]:
    """`batches` of a round are cut into up to three repetitions, between which the limits are measured."""
    reps = min(3, batches)
    return {"length": length or min(512, seen.context_len), "batch": batch or 1, "reps": reps, "least": -(-batches // reps)}


def _decoder_load(seen: Outlook, prompt: int | None, gen: int | None, batch: int | None) -> dict[str, int]:
    prompt = prompt or min(512, max(1, seen.context_len // 2))
    return {"prompt": prompt, "gen": gen or max(1, min(100, seen.context_len - prompt)), "batch": batch or 4, "reps": 1}


def _refuse(who: str, **options: Any) -> None:
    if given := [f"--{name}" for name, value in options.items() if value is not None]:
        raise UsageError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for {who}; leave {'it' if len(given) == 1 else 'them'} out"
        )
