"""`taut inspect`: what a model became on this machine, and why."""

from __future__ import annotations

from typing import Annotated

from taut.cli import values
from taut.cli.console import flatten, print_json, print_table
from taut.cli.options import Json, ModelOptions, ModelRef, plain
from taut.errors import UsageError


def command(
    model: ModelRef,
    model_options: ModelOptions,
    explain: Annotated[
        bool, plain("--explain", "Also print every pass with its reason, and the plan's steps.", values.switch())
    ] = False,
    every_layer: Annotated[
        bool, plain("--every-layer", "With --explain: print all layers, where equal ones are else shown once.", values.switch())
    ] = False,
    json: Json = False,
) -> None:
    """Show a model's limits, precision and memory; with --explain each choice that was made and why."""
    if every_layer and not explain:
        raise UsageError("--every-layer is given without --explain; give both")
    loaded = model_options.load(model)
    described = loaded.describe()
    if json:
        receipt = {} if loaded.receipt is None else {"receipt": loaded.receipt}
        print_json(
            {**described, **receipt, **({"explain": loaded.explain(every_layer=every_layer).splitlines()} if explain else {})}
        )
        return
    print(loaded.summary())
    print_table([], flatten(described))
    if loaded.receipt is not None:
        from taut.cli.quantize import print_receipt

        print_receipt(loaded.receipt)
    if explain:
        print(loaded.explain(every_layer=every_layer))
