"""`taut bench encoder`: throughput and latency of an encoder."""

from __future__ import annotations

import time
from typing import Annotated

from taut.cli import values
from taut.cli.console import print_json
from taut.cli.options import Json, ModelOptions, ModelRef, plain


def command(
    model: ModelRef,
    model_options: ModelOptions,
    length: Annotated[
        int | None, plain("--length", "Tokens of each sequence; default 512, or all that the model takes.", values.whole(1))
    ] = None,
    batch: Annotated[int, plain("--batch", "Sequences in a step; default 1.", values.whole(1))] = 1,
    reps: Annotated[int, plain("--reps", "Repetitions of about a second; default 5.", values.whole(1))] = 5,
    json: Json = False,
) -> None:
    """Time an encoder, as a share of the machine's limit measured around each repetition."""
    from taut.bench import encoder, limits, report
    from taut.bench.probe import subject

    began = time.perf_counter()
    loaded = model_options.load(model)
    load_s = time.perf_counter() - began
    load = encoder.Load(length or min(512, loaded.context_len), batch, reps)
    result = {**encoder.run(subject(loaded), load, lambda: limits.measure(model_options.threads)), "load_s": load_s}
    if json:
        print_json(result)
    else:
        print(report.text(result))
