"""`taut bench latency`: prefill and decode speed of a decoder."""

from __future__ import annotations

import time
from typing import Annotated

from taut.cli import values
from taut.cli.console import print_json
from taut.cli.options import Json, ModelOptions, ModelRef, plain


def command(
    model: ModelRef,
    model_options: ModelOptions,
    prompt: Annotated[int, plain("--prompt", "Prompt tokens of each sequence; default 512.", values.whole(1))] = 512,
    gen: Annotated[int, plain("--gen", "Tokens to generate; default 32.", values.whole(1))] = 32,
    batch: Annotated[int, plain("--batch", "Sequences side by side; default 1.", values.whole(1))] = 1,
    reps: Annotated[int, plain("--reps", "Repetitions; medians are reported; default 3.", values.whole(1))] = 3,
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
