"""A ladder's result as rows of a table, one sentence, and a picture. Knows the result's JSON, nothing of how it came about."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taut.errors import UsageError
from taut.units import show_bytes

Result = Mapping[str, Any]
_ENCODER = ("rung", "requests/s", "P50 ms", "P99 ms", "of limit", "memory", "cosine (least)")
_DECODER = ("rung", "requests/s", "prefill tok/s", "of limit", "decode ms", "P99 ms", "of limit", "memory", "KL", "top-1")
# title, figure, scale of the picture's panels
_PANELS = {
    "encoder": (("requests/s", "requests_per_s", 1.0), ("P99, ms", "p99_ms", 1.0), ("memory, GB", "memory_bytes", 1e-9)),
    "decoder": (
        ("prefill, tokens/s", "prefill_tokens_per_s", 1.0),
        ("decode, ms a step", "decode_ms", 1.0),
        ("memory, GB", "memory_bytes", 1e-9),
    ),
}
NONE = "–"


def table(result: Result) -> str:
    """One line a rung, columns aligned, however wide the terminal is."""
    header, rows = cells(result)
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in (header, *rows)
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def cells(result: Result) -> tuple[Sequence[str], list[list[str]]]:
    """(header, rows), one row a rung."""
    row = _encoder_row if result["kind"] == "encoder" else _decoder_row
    header = _ENCODER if result["kind"] == "encoder" else _DECODER
    rows = []
    for rung in result["rungs"]:
        figures = ["not run"] + [NONE] * (len(header) - 2) if "missing" in rung else row(rung)
        rows.append([f"({rung['title']})" if rung["is_aside"] else rung["title"], *figures])
    return header, rows


def _encoder_row(rung: Result) -> list[str]:
    quality = rung["quality"]
    cosine = NONE if quality is None else f"{quality['mean_cosine']:.5f} ({quality['least_cosine']:.5f})"
    times = [f"{rung['requests_per_s']:,.2f}", f"{rung['p50_ms']:,.1f}", f"{rung['p99_ms']:,.1f}"]
    return [*times, _percent(rung["of_limit"]), show_bytes(rung["memory_bytes"]), cosine]


def _decoder_row(rung: Result) -> list[str]:
    quality, share = rung["quality"], rung["of_limit"] or {"prefill": None, "decode": None}
    judged = [NONE, NONE] if quality is None else [f"{quality['kl']:.2g}", f"{quality['top1']:.1%}"]
    return [
        f"{rung['requests_per_s']:,.3g}",
        f"{rung['prefill_tokens_per_s']:,.0f}",
        _percent(share["prefill"]),
        f"{rung['decode_ms']:,.1f}",
        f"{rung['decode_p99_ms']:,.1f}",
        _percent(share["decode"]),
        show_bytes(rung["memory_bytes"]),
        *judged,
    ]


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def notes(result: Result) -> list[str]:
    """What must be known beside the table, a sentence each; the last one is the summary."""
    measured = [rung for rung in result["rungs"] if "missing" not in rung]
    found = [_about(result, [rung["samples"] for rung in measured if not rung["is_aside"]])]
    found += [f"Not run, “{rung['title']}”: {rung['missing']}." for rung in result["rungs"] if "missing" in rung]
    for rung in measured:
        if "system" in rung:
            found.append(f"{rung['title']}: {rung['system']}.")
        if count := rung.get("estimated_from_passes"):
            found.append(f"({rung['title']}): every token runs all earlier ones again; estimated from {count} full passes.")
    if result["summary"] is not None:
        found.append(_summed_up(result["summary"], {rung["key"]: rung["title"] for rung in measured}))
    return found


def _about(result: Result, samples: Sequence[int]) -> str:
    load, rounds = result["load"], f"{result['rounds']} round{'s' * (result['rounds'] > 1)}"
    count = f"{min(samples)} samples a rung" if samples else "no samples"
    if result["kind"] == "encoder":
        return f"Batches of {load['batch']}, {load['length']} tokens a request; P50 and P99 over {count}, {rounds}."
    sizes = f"Batch {load['batch']}, {load['prompt']}-token prompts, {load['gen']} tokens generated"
    return f"{sizes}; P99 of a decode step over {count}, {rounds}. Memory is resident growth, KV cache included."


def _summed_up(summary: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    parts = [f"{name} {value:.2f} ×" for name, value in summary.items() if name not in ("first", "last")]
    ends = f"From “{titles[summary['first']]}” to “{titles[summary['last']]}”"
    return f"{ends}, times better: {', '.join(parts)}.".replace("p99", "P99")


def pyplot() -> Any:
    """matplotlib without a screen. Raises UsageError where it is not installed."""
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise UsageError("a plot needs matplotlib, which is not installed; run: pip install 'taut[plot]'") from None
    return importlib.import_module("matplotlib.pyplot")


def check_plot(path: Path) -> None:
    """UsageError when `plot` could not save a picture of this name."""
    pyplot()
    known = importlib.import_module("matplotlib.backend_bases").FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise UsageError(f"no picture of the kind of {str(path)!r} can be drawn; accepted endings: {', '.join(sorted(known))}")


def plot(result: Result, path: Path) -> None:
    """One panel a figure, one bar a rung, saved as `path` (its ending chooses the format)."""
    plt = pyplot()
    rungs = [rung for rung in result["rungs"] if not rung["is_aside"] and "missing" not in rung]
    panels = _PANELS[result["kind"]]
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 0.8 + 0.55 * len(rungs)), sharey=True)
    for axis, (title, name, scale) in zip(axes, panels, strict=True):
        values = [rung[name] * scale for rung in rungs]
        bars = axis.barh([rung["title"] for rung in rungs], values, color="#3b6ea5")
        axis.bar_label(bars, labels=[f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values], padding=3)
        axis.set_title(title)
        axis.set_xlim(0, 1.2 * max(values, default=1.0))
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.suptitle(f"{result['model']}: {_about(result, [rung['samples'] for rung in rungs])}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
