"""`taut bench latency`: prefill and decode speed of a decoder."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from taut.cli.console import print_json
from taut.cli.options import Json, ModelOptions, ModelRef


def command(
    model: ModelRef,
    model_options: ModelOptions,
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Prompt tokens of each sequence.")] = 512,
    gen: Annotated[int, typer.Option("--gen", min=1, help="Tokens to generate.")] = 32,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences side by side.")] = 1,
    reps: Annotated[int, typer.Option("--reps", min=1, help="Repetitions; medians are reported.")] = 3,
    json: Json = False,
) -> None:
    """Time prefill and decode of a decoder, as a share of the machine's limit measured around each repetition."""
    from taut.bench import latency, limits, report
    from taut.bench.probe import subject

    began = time.perf_counter()
    loaded = model_options.load(model)
    load_s = time.perf_counter() - began
    load = latency.Load(prompt, gen, batch, reps)
    result = {**latency.run(subject(loaded), load, lambda: limits.measure(model_options.threads)), "load_s": load_s}
    if json:
        print_json(result)
    else:
        print(report.text(result))
