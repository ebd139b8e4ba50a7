"""`taut plan`: what quantize would make of a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from taut.cli import values
from taut.cli.console import print_json, print_table, progress
from taut.cli.options import Json, ModelRef, plain
from taut.cli.quantizing import RecipeOptions
from taut.units import show_bytes

if TYPE_CHECKING:
    from taut.compress.dry_run import PlannedLayer


def command(
    model: ModelRef,
    options: RecipeOptions,
    every_layer: Annotated[
        bool, plain("--every-layer", "All layers; default one row for layers of a kind.", values.switch())
    ] = False,
    no_errors: Annotated[bool, plain("--no-errors", "Do not read the weights: bytes and times only.", values.switch())] = False,
    threads: Annotated[
        int | None, plain("--threads", "Compute threads; default what the machine allows.", values.whole(1))
    ] = None,
    json: Json = False,
) -> None:
    """Show what quantizing would do to each layer: bytes, error of rounding, time. Nothing is written.

    Times are of a token alone (as in decoding) and among many (as in prefill), at this machine's limits.
    """
    from taut.bench import limits
    from taut.compress import dry_run

    recipe = options.chosen()
    with progress() as report:
        found = dry_run.plan(model, recipe, limits=limits.measure(threads), errors=not no_errors, progress=report)
    if json:
        print_json([{**asdict(one), "layer": asdict(one.layer)} for one in found])
        return
    rows = [(one.layer.name, [one]) for one in found] if every_layer else _grouped(found)
    table = []
    for name, group in rows:
        size, worst = show_bytes(sum(one.bytes_after for one in group)), _error(group)
        times = [sum(one.decode_us or 0 for one in group), sum(one.prefill_us or 0 for one in group)]
        table.append([name, str(len(group)), group[0].layer.scheme, size, worst, *(f"{time:.1f}" for time in times)])
    print_table(["layer", "×", "scheme", "bytes", "error", "1 row µs", "many µs"], table)
    for reason in dict.fromkeys(one.layer.reason for one in found if one.layer.reason != "scheme"):
        names = [name for name, group in rows if group[0].layer.reason == reason]
        print(f"{', '.join(names)}: {reason}")
    before, after = sum(one.bytes_before for one in found), sum(one.bytes_after for one in found)
    print(f"linear weights: {show_bytes(before)} in fp32 → {show_bytes(after)} ({before / after:.2f} × smaller)")
    one_row, many = sum(one.decode_us or 0 for one in found), sum(one.prefill_us or 0 for one in found)
    print(
        f"linears alone, at this machine's limits: one token {one_row / 1e3:.2f} ms, many together {1e6 / many:,.0f} tokens/s"
    )


def _grouped(found: list[PlannedLayer]) -> list[tuple[str, list[PlannedLayer]]]:
    groups: dict[tuple[str, str, str], list[PlannedLayer]] = {}
    for one in found:
        parts = one.layer.name.split(".")
        name = ".".join("*" if part.isdigit() else part for part in parts)
        groups.setdefault((name, one.layer.scheme, one.layer.reason), []).append(one)
    return [(name, group) for (name, _, _), group in groups.items()]


def _error(group: list[PlannedLayer]) -> str:
    """The largest of the group; a dash where none was measured."""
    return f"{largest:.2g}" if (largest := max(one.error for one in group)) else "–"
