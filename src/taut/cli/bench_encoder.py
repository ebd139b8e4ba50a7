"""`taut bench encoder`: throughput and latency of an encoder."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from taut.cli.console import print_json
from taut.cli.options import Json, ModelOptions, ModelRef


def command(
    model: ModelRef,
    model_options: ModelOptions,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of each sequence.")] = 512,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences in a step.")] = 1,
    reps: Annotated[int, typer.Option("--reps", min=1, help="Repetitions of about a second.")] = 5,
    json: Json = False,
) -> None:
    """Time an encoder, as a share of the machine's limit measured around each repetition."""
    from taut.bench import encoder, limits, report
    from taut.bench.probe import subject

    began = time.perf_counter()
    loaded = model_options.load(model)
    load_s = time.perf_counter() - began
    load = encoder.Load(length, batch, reps)
    result = {**encoder.run(subject(loaded), load, lambda: limits.measure(model_options.threads)), "load_s": load_s}
    if json:
        print_json(result)
    else:
        print(report.text(result))
