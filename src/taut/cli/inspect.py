"""`taut inspect`: what a model became on this machine, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from taut.cli.console import flatten, print_json, print_table
from taut.cli.options import Json, ModelOptions, ModelRef


def command(
    model: ModelRef,
    model_options: ModelOptions,
    explain: Annotated[bool, typer.Option("--explain", help="Also print every pass and plan step with its reason.")] = False,
    json: Json = False,
) -> None:
    """Show a model's configuration, precision and memory; with --explain each choice that was made."""
    loaded = model_options.load(model)
    described = loaded.describe()
    if json:
        print_json({**described, **({"explain": loaded.explain().splitlines()} if explain else {})})
        return
    print(loaded.summary())
    print_table([], flatten(described))
    if explain:
        print(loaded.explain())
