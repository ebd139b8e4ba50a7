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
    """Show what quantizing would do: bytes, error and speed of each layer. Nothing is written."""
    from taut.bench import limits
    from taut.compress import dry_run

    recipe = options.chosen()
    with progress() as report:
        found = dry_run.plan(model, recipe, limits=limits.measure(threads), errors=not no_errors, progress=report)
    if json:
        print_json([{**asdict(one), "layer": asdict(one.layer)} for one in found])
        return
    rows = _grouped(found) if not every_layer else [(one.layer.name, [one]) for one in found]
    print_table(
        ["layer", "scheme", "why", "bytes", "error", "decode µs", "prefill µs/token"],
        [
            [
                name, ", ".join(sorted({one.layer.scheme for one in group})), group[0].layer.reason,
                show_bytes(sum(one.bytes_after for one in group)), f"{max(one.error for one in group):.2g}",
                f"{sum(one.decode_us or 0 for one in group):.1f}", f"{sum(one.prefill_us or 0 for one in group):.1f}",
            ]
            for name, group in rows
        ],
    )  # fmt: skip
    before, after = sum(one.bytes_before for one in found), sum(one.bytes_after for one in found)
    print(f"linear weights: {show_bytes(before)} in fp32 → {show_bytes(after)} ({before / after:.2f} × smaller)")
    decode, prefill = sum(one.decode_us or 0 for one in found), sum(one.prefill_us or 0 for one in found)
    print(
        f"at this machine's limits: a decoded token {decode / 1e3:.2f} ms, prefill {1e6 / prefill:,.0f} tokens/s, linears alone"
    )


def _grouped(found: list[PlannedLayer]) -> list[tuple[str, list[PlannedLayer]]]:
    """(name with * for the layer's number, its layers), in order; those of one name but different fates apart."""
    groups: dict[tuple[str, str, str], list[PlannedLayer]] = {}
    for one in found:
        parts = one.layer.name.split(".")
        name = ".".join("*" if part.isdigit() else part for part in parts)
        groups.setdefault((name, one.layer.scheme, one.layer.reason), []).append(one)
    return [(f"{name} × {len(group)}" if len(group) > 1 else name, group) for (name, _, _), group in groups.items()]
