"""`taut quantize`: a model becomes an artefact with a receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from taut.cli import values
from taut.cli.console import print_json, print_note, print_table, progress
from taut.cli.metric import load_metric
from taut.cli.options import Json, ModelRef, plain
from taut.cli.quantizing import RecipeOptions
from taut.units import counted, show_bytes


def command(
    model: ModelRef,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make; it must not be there.")],
    options: RecipeOptions,
    calibration: Annotated[
        str | None,
        plain(
            "--calibration",
            "Text to calibrate on; self: what the model writes; default documentation and code of Python itself.",
            values.text("FILE|DIR|self"),
        ),
    ] = None,
    stats_cache: Annotated[
        Path | None,
        plain("--stats-cache", "A folder that keeps the calibration's statistics, and whose are used.", {"metavar": "DIR"}),
    ] = None,
    quality_windows: Annotated[
        int,
        plain(
            "--quality-windows",
            "Windows of held-out text for each domain to judge the result by; default 2, 0 none.",
            values.whole(0),
        ),
    ] = 2,
    metric: Annotated[
        str | None, plain("--metric", "Your own figure of a model, measured before and after.", values.text("FILE.py:FUNCTION"))
    ] = None,
    threads: Annotated[
        int | None, plain("--threads", "Compute threads; default what the machine allows.", values.whole(1))
    ] = None,
    json: Json = False,
) -> None:
    """Quantize a model into a folder that loads like any model, with a receipt of what became of each layer and what it costs.

    Interrupted, the same command goes on where it stopped.
    """
    from taut.compress.quantize import Settings, quantize

    recipe, own = options.chosen(), None if metric is None else load_metric(metric)
    settings = Settings(quality_windows, own, stats_cache, threads)
    with progress() as report:
        artefact = quantize(model, out, recipe, calibration=calibration, settings=settings, progress=report)
    if json:
        print_json(artefact.receipt)
        return
    print_receipt(artefact.receipt)
    print(f"{out}: load it with `taut serve {out}`, check it anywhere with `taut verify {out}`")


def print_receipt(receipt: dict[str, Any]) -> None:
    """What a reader wants of a receipt: the sizes, the schemes, the quality."""
    counts: dict[str, list[int]] = {}
    for layer in receipt["layers"]:
        found = counts.setdefault(layer["scheme"], [0, 0])
        found[0] += 1
        found[1] += layer["bytes"]
    rows = [[scheme, str(number), show_bytes(size)] for scheme, (number, size) in counts.items()]
    print_table(["scheme", "layers", "weights"], rows)
    made_from, calibration = receipt["made_from"], receipt["calibration"]
    print(f"made from {made_from['name']} by taut {receipt['taut']}, {receipt['recipe']['algorithm']}", end="")
    print(f", calibrated on {calibration['tokens']:,} tokens" if calibration else "")
    if receipt["observer"]:
        print(f"ranges of static inputs: {receipt['observer']}")
    for warning in (calibration or {}).get("warnings", ()):
        print_note(f"warning: {warning}")
    for warning in receipt["warnings"]:
        print_note(f"warning: {warning}")
    if fallen := receipt["fallbacks"]["layers"]:
        print_note(
            f"warning: {counted(len(fallen), 'layer')} could not be {receipt['recipe']['scheme']}: {', '.join(fallen[:4])} …"
        )
    if quality := receipt.get("quality"):
        _print_quality(quality)


def _print_quality(quality: dict[str, Any]) -> None:
    """The figures over all domains, one line."""
    found, against = quality["overall"], f"against {quality['against']}"
    if quality["kind"] == "decoder":
        change = found["perplexity_change"]
        print(
            f"{against}: KL {found['kl']:.3g} nats, top-1 {found['top1']:.2%}, perplexity {change:+.2%}, {found['tokens']:,} tokens"
        )
    else:
        print(f"{against}: mean cosine {found['mean_cosine']:.6f}, nearest 10 in common {found['neighbour_overlap']:.2%}")
    if quality["metric"] is not None:
        own = quality["metric"]
        print(f"{own['name']}: {own['value']:.6g}, the model's own {own['reference']:.6g}")
