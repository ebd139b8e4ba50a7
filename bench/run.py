"""`make bench`: every figure of the README on this machine. Records go to bench/records, the README's tables are written from them.

    python bench/run.py [--quick] [--readme]

--quick leaves out the models that must be made first (smollm2-1.7b 3.4 GB, roberta-base 0.25 GB). --readme rewrites the README's tables
from the records that are there, measuring nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from taut.bench import report
from taut.testing import make

HERE = Path(__file__).parent
ROOT = HERE.parent
MODELS = ROOT / ".models"
RECORDS = HERE / "records"
TAUT = str(Path(sys.executable).with_name("taut"))
# name of the record, arguments of `taut bench`
SMALL = {
    "latency-smollm2-135m-int8": ["latency", "smollm2-135m", "--precision=int8", "--prompt=512", "--gen=32", "--batch=1"],
    "latency-smollm2-135m-int4": ["latency", "smollm2-135m", "--precision=int4-g32", "--prompt=512", "--gen=32", "--batch=1"],
    "latency-smollm2-135m-fp16": ["latency", "smollm2-135m", "--precision=fp16", "--prompt=512", "--gen=32", "--batch=1"],
    "latency-smollm2-135m-fp32": ["latency", "smollm2-135m", "--precision=fp32", "--prompt=512", "--gen=32", "--batch=1"],
    "encoder-minilm-int8": ["encoder", "minilm", "--precision=int8", "--length=128", "--batch=1"],
    "encoder-minilm-fp32": ["encoder", "minilm", "--precision=fp32", "--length=128", "--batch=1"],
}
LARGE = {
    "latency-smollm2-1.7b-int8": ["latency", "smollm2-1.7b", "--precision=int8", "--prompt=512", "--gen=32", "--batch=1"],
    "latency-smollm2-1.7b-int4": ["latency", "smollm2-1.7b", "--precision=int4-g128", "--prompt=512", "--gen=32", "--batch=1"],
    "latency-smollm2-1.7b-int8-b8": ["latency", "smollm2-1.7b", "--precision=int8", "--prompt=512", "--gen=32", "--batch=8"],
    "latency-smollm2-1.7b-int4-b8": [
        "latency",
        "smollm2-1.7b",
        "--precision=int4-g128",
        "--prompt=512",
        "--gen=32",
        "--batch=8",
    ],
    "encoder-roberta-base-int8": ["encoder", "roberta-base", "--precision=int8", "--length=512", "--batch=1"],
    "encoder-roberta-base-int8-b8": ["encoder", "roberta-base", "--precision=int8", "--length=512", "--batch=8"],
}


def model(name: str) -> str:
    """A reference for `taut bench`: an alias, or a random-weight folder made on first use."""
    if name in ("smollm2-135m", "minilm"):
        return name
    folder = MODELS / name
    if not (folder / "model.safetensors").exists():
        make(name, folder)
    return str(folder)


def measure(name: str, arguments: list[str]) -> None:
    kind, ref, *rest = arguments
    print(f"taut bench {' '.join(arguments)}", flush=True)
    command = [TAUT, "bench", kind, model(ref), *rest, "--json"]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    report.save(RECORDS, name, f"taut bench {' '.join(arguments)}", result)
    print(report.text(result), flush=True)


def saved(name: str) -> dict[str, Any] | None:
    path = RECORDS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def speed_table() -> str:
    decoders = [
        "| decoder, 512-token prompt | prefill tokens/s | of limit | decode ms/step | of limit | memory |",
        "|---|---|---|---|---|---|",
    ]
    encoders = ["| encoder | requests/s | p50 ms | p99 ms | of limit | memory |", "|---|---|---|---|---|---|"]
    machine: dict[str, Any] = {}
    for name in (*SMALL, *LARGE):
        if (record := saved(name)) is None:
            continue
        machine, r = record["machine"] | record["result"]["limits"], record["result"]
        title = f"{Path(r['model']).name}, {r['precision']}, batch {r['batch']}"
        memory = f"{r['rss_bytes'] / 1e9:.2f} GB"
        if name.startswith("latency"):
            shares, speed = r["of_limit"], f"{r['prefill_tokens_per_s']:,.0f}"
            cells = [title, speed, f"{shares['prefill']:.0%}", f"{r['decode_ms']:.1f}", f"{shares['decode']:.0%}", memory]
            decoders.append(row(cells))
        else:
            times = [f"{r[key]:.1f}" for key in ("requests_per_s", "p50_ms", "p99_ms")]
            encoders.append(row([f"{title}, {r['length']} tokens", *times, f"{r['of_limit']:.0%}", memory]))
    if not machine:
        return "Measured with `make bench`."
    where = f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}; commit {machine['commit']}."
    limits = f"Limits seen meanwhile: {machine['int8_tops']:.2f} int8 TOP/s, {machine['read_gb_s']:.0f} GB/s."
    parts = ["\n".join(decoders), "\n".join(encoders), f"{where} {limits} Records: [bench/records](bench/records)."]
    return "\n\n".join([*parts, *peers()])


def peers() -> list[str]:
    """One sentence for each decoder peer that bench/peers/run.py has measured."""
    lines = []
    for path in sorted(RECORDS.glob("peers-decoder-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))["result"]
        for one in result["comparisons"]:
            load, ratio = result["load"], one["ratio"]
            where = f"{result['model']}, batch {load['batch']}, prompts of {load['prompt']:,} tokens"
            lines.append(
                f"{one['ours']} beside {one['system']} {one['variant'].upper()}, alternately, on the same weights ({where}): "
                f"prefill {ratio['prefill_tokens_per_s']:.2f} ×, decode {ratio['decode_ms']:.2f} × as fast, "
                f"{1 / ratio['rss_bytes']:.2f} × the memory."
            )
    return lines


def quality_table() -> str:
    record = saved("quality")
    if record is None:
        return "Measured with `make bench`."
    results = record["result"]
    d, e = ([result[model] for result in results.values()] for model in ("smollm2-135m", "minilm"))
    windows = f"{d[0]['windows']} windows of {d[0]['tokens'] // d[0]['windows']} tokens"
    return "\n".join(
        [
            row(["against fp32", *results]),
            "|---" * (1 + len(results)) + "|",
            row([f"SmolLM2-135M, {windows}: mean KL, nats", *(f"{r['kl']:.2g}" for r in d)]),
            row(["top-1 agreement", *(f"{r['top1']:.2%}" for r in d)]),
            row([f"perplexity (fp32 {d[0]['reference_perplexity']:.2f})", *(f"{r['perplexity']:.2f}" for r in d)]),
            row(
                [
                    f"MiniLM, {e[0]['sentences']} sentences: mean cosine (least)",
                    *(f"{r['mean_cosine']:.6f} ({r['least_cosine']:.6f})" for r in e),
                ]
            ),
        ]
    )


def artefacts_table() -> str:
    """Schemes as `taut quantize` makes them (bench/quantization.py)."""
    record = saved("quantization")
    if record is None:
        return "Measured with `python bench/quantization.py --record`."
    decoders = [
        "| artefact of SmolLM2-135M | weights | mean KL, nats | top-1 agreement | perplexity |", "|---|---|---|---|---|",
    ]  # fmt: skip
    encoders = ["| artefact of MiniLM | weights | mean cosine | nearest 10 in common |", "|---|---|---|---|"]
    for name, case in record["result"]["cases"].items():
        found, size = case["overall"], f"{case['bytes'] / 1e6:,.0f} MB"
        if case["kind"] == "decoder":
            kl = f"{found['kl']:.2g} ± {found['kl_error']:.1g}"
            decoders.append(row([name, size, kl, f"{found['top1']:.1%}", f"{found['perplexity_change']:+.2%}"]))
        else:
            cosine, common = f"{found['mean_cosine']:.6f}", f"{found['neighbour_overlap']:.1%}"
            encoders.append(row([name.removeprefix("minilm "), size, cosine, common]))
    text = (
        f"Held-out text in three domains, {record['result']['windows']} windows of 512 tokens of each; 500 sentences. int4 on the same model moved "
        "off the 4-bit grid that its package lies on."
    )
    return "\n\n".join(["\n".join(decoders), "\n".join(encoders), text])


def write_readme() -> None:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, table in (("quality", quality_table()), ("artefacts", artefacts_table()), ("speed", speed_table())):
        start = text.index(f"<!-- figures: {name} -->")
        begin, end = text.index("\n", start) + 1, text.index("<!-- end -->", start)
        text = text[:begin] + table + "\n" + text[end:]
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--readme", action="store_true")
    options = parser.parse_args()
    if not options.readme:
        for name, arguments in (SMALL if options.quick else SMALL | LARGE).items():
            measure(name, arguments)
        subprocess.run([sys.executable, str(HERE / "quality.py")], check=True)
    write_readme()


if __name__ == "__main__":
    main()
