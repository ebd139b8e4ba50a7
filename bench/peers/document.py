"""docs/benchmarks.md and its pictures, written from bench/records: what was measured, where, beside whom. Measures nothing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taut.bench.ladder import show
from taut.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"
Result = Mapping[str, Any]
BUSY = 0.3  # cores in use by others before a run
HEAD = """# Benchmarks

Written by `python bench/peers/run.py document` from the records in [bench/records](../bench/records); do not edit. Speeds are medians.
Each peer ran alternately with taut (A B B A) on the same weights, each run in its own process; ratios are paired run by run, and
more than 1 × is better for taut. *Of limit* is taut's share of what the machine could do in the same minute (ARCHITECTURE.md).
A peer that was not installed is named as such. Models named by a shape (smollm2-1.7b, roberta-base) have random weights: their quality
figures say how far the arithmetic differs, not how well a trained model does.
"""
COLUMNS = {
    "decoder": (("prefill tokens/s", "prefill_tokens_per_s", 1.0, ".0f"), ("decode ms/step", "decode_ms", 1.0, ".1f")),
    "encoder": (
        ("requests/s", "requests_per_s", 1.0, ".2f"),
        ("P50 ms", "p50_ms", 1.0, ".0f"),
        ("P99 ms", "p99_ms", 1.0, ".0f"),
    ),
}
SHORT = {
    "prefill_tokens_per_s": "prefill",
    "decode_ms": "decode",
    "requests_per_s": "requests/s",
    "p99_ms": "P99",
    "rss_bytes": "memory",
}


def write(records: Path, docs: Path = DOCS) -> Path:
    """docs/benchmarks.md, and a picture of each record where matplotlib is installed."""
    parts = [HEAD]
    for path in sorted(records.glob("ladder-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## {record['result']['model']}, rung by rung\n", _ladder(record["result"]), _where(record)]
        parts += _picture(docs, path.stem, lambda out, record=record: show.plot(record["result"], out))
    for path in sorted(records.glob("peers-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## {_title(record['result'])}\n", table(record["result"]) + "\n", _where(record)]
        parts += _picture(docs, path.stem, lambda out, record=record: plot(record["result"], out))
    out = docs / "benchmarks.md"
    out.write_text("\n".join(parts), encoding="utf-8")
    return out


def _picture(docs: Path, name: str, draw: Any) -> list[str]:
    """The link to a picture, drawn anew where it can be; nothing where there is none."""
    out = docs / "benchmarks" / f"{name}.png"
    try:
        show.pyplot()
        out.parent.mkdir(exist_ok=True)
        draw(out)
    except UsageError as error:
        print(error)
    return [f"![{name}](benchmarks/{name}.png)\n"] if out.exists() else []


def _title(result: Result) -> str:
    load = result["load"]
    about = {
        "decoder": f"decoder, batch {load['batch']}, {load['prompt']}-token prompts, {load['gen']} tokens generated",
        "encoder": f"encoder, batch {load['batch']}, {load['length']} tokens",
        "sentences": "texts of uneven length to vectors, tokenization included",
    }
    return f"{result['model']}: {about[result['work']]}"


def _where(record: Mapping[str, Any]) -> str:
    machine, result = record["machine"], record["result"]
    limits = result["limits"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    text = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB; {versions}; commit {machine['commit']}; {record['time'][:10]}."
    if limits:
        bf16 = f"{limits['bf16_tflops']:.2f} bf16 TFLOP/s, " if limits["bf16_tflops"] else ""
        text += (
            f" {limits['isa']}, {limits['threads']} threads. Limits meanwhile: {limits['int8_tops']:.2f} int8 TOP/s, {bf16}"
            f"{limits['fp32_tflops']:.2f} fp32 TFLOP/s, {limits['read_gb_s']:.0f} GB/s."
        )
    if result.get("busy_cores", 0) > BUSY:
        text += f" **The machine was busy** (others used {result['busy_cores']} cores before): peers whose threads spin suffer most."
    return text + f" `{record['command']}`\n"


def _ladder(result: Result) -> str:
    header, rows = show.cells(result)
    return _markdown(header, rows) + "\n\n" + "\n".join(show.notes(result)) + "\n"


def table(result: Result) -> str:
    """One row of taut and one of the peer for each comparison; then what could not be run."""
    if result["work"] == "sentences":
        columns = [(name, name, 1.0, ".0f") for name in _cases(result)]
    else:
        columns = list(COLUMNS[result["work"]])
    header = ["system", *(name for name, *_ in columns), "of limit", "memory GB", "quality against fp32", "times better"]
    rows = []
    for one in result["comparisons"]:
        ratio = ", ".join(f"{SHORT.get(name, name)} {value:.2f} ×" for name, value in one["ratio"].items())
        own = [f"taut {one['ours']}", *_cells(result, one["taut"], columns), _share(result, one["taut"]), _memory(one["taut"])]
        rows.append([*own, _quality(result["quality"].get(one["ours"])), ratio])
        name = f"{one['version']}, {one['variant']}"
        rows.append([name, *_cells(result, one["peer"], columns), "", _memory(one["peer"]), _quality(one.get("quality")), ""])
    text = _markdown(header, rows) if rows else "No peer was run."
    missing = [f"{one['system']} {one['variant']} ({one['missing']})" for one in result["missing"]]
    return text + (f"\n\nNot run: {'; '.join(missing)}." if missing else "")


def _cases(result: Result) -> list[str]:
    runs = [run for one in result["comparisons"] for run in one["taut"]]
    return list(runs[0]["cases"]) if runs else []


def _median(result: Result, runs: Sequence[Result], name: str) -> float:
    if result["work"] == "sentences":
        return float(statistics.median(run["cases"][name]["sentences_per_s"] for run in runs))
    return float(statistics.median(run[name] for run in runs))


def _cells(result: Result, runs: Sequence[Result], columns: Sequence[tuple[str, str, float, str]]) -> list[str]:
    return [format(_median(result, runs, name) * scale, how) for _, name, scale, how in columns]


def _share(result: Result, runs: Sequence[Result]) -> str:
    if result["work"] == "decoder":
        return " / ".join(f"{statistics.median(run['of_limit'][name] for run in runs):.0%}" for name in ("prefill", "decode"))
    if result["work"] == "encoder":
        return f"{statistics.median(run['of_limit'] for run in runs):.0%}"
    return " / ".join(f"{statistics.median(run['cases'][name]['of_limit'] for run in runs):.0%}" for name in _cases(result))


def _memory(runs: Sequence[Result]) -> str:
    return f"{statistics.median(run['rss_bytes'] for run in runs) / 1e9:.2f}"


def _quality(quality: Result | None) -> str:
    if not quality:
        return ""
    if "kl" in quality:
        return f"KL {quality['kl']:.2g}, top-1 {quality['top1']:.1%}"
    return f"cosine {quality['mean_cosine']:.5f}, least {quality['least_cosine']:.5f}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def plot(result: Result, path: Path) -> None:
    """Bars of how many times better taut is, one panel a figure, one bar a peer."""
    plt = show.pyplot()
    comparisons = result["comparisons"]
    if not comparisons:
        return
    names = list(comparisons[0]["ratio"])
    figure, axes = plt.subplots(1, len(names), figsize=(3.6 * len(names), 1.2 + 0.4 * len(comparisons)), sharey=True)
    for axis, name in zip(axes, names, strict=True):
        values = [one["ratio"][name] for one in comparisons]
        bars = axis.barh([f"{one['system']} {one['variant']}" for one in comparisons], values, color="#3b6ea5")
        axis.bar_label(bars, fmt="%.2f", padding=3)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_xlim(0, 1.25 * max(1.0, *values))
        axis.set_xticks([])
        axis.set_title(SHORT.get(name, name), fontsize=10)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.suptitle(f"times better than the peer — {_title(result)}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
