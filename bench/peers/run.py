"""taut beside every installed peer, alternately (A B B A …) on the same weights: table, record, and docs/benchmarks.md.

    python bench/peers/run.py decoder   [--model smollm2-1.7b] [--batch 1 8]
    python bench/peers/run.py encoder   [--model roberta-base] [--batch 1 8]
    python bench/peers/run.py sentences [--model minilm]
    python bench/peers/run.py document             (only writes docs/benchmarks.md from the records)

--peer-python PYTHON is where peers are looked for; --peer-python SYSTEM=PYTHON (repeatable) names the interpreter of one. A system that
is not installed there is said to be so. Every run has its own process, so memory is its own; each peer has its own runs of taut beside it,
in the same minutes. Files that a peer must convert are kept in .models/peers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import document  # noqa: E402
import models  # noqa: E402

from taut.bench import report  # noqa: E402
from taut.config import PRECISIONS  # noqa: E402
from taut.quality import kl  # noqa: E402

RECORDS = HERE.parent / "records"
NAMES = {
    "llamacpp": "llama.cpp",
    "openvino_genai": "OpenVINO GenAI",
    "pytorch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
WORKS = ("decoder", "encoder", "sentences")
MODEL = {"decoder": "smollm2-1.7b", "encoder": "roberta-base", "sentences": "minilm"}
# figure: whether more is better
RATIOS = {
    "decoder": {"prefill_tokens_per_s": True, "decode_ms": False, "rss_bytes": False},
    "encoder": {"requests_per_s": True, "p99_ms": False, "rss_bytes": False},
}
PROMPT = 512  # tokens; a record of another length says so in its name
CASES = ((12, 1), (12, 32), (80, 1), (80, 32))
Spec = dict[str, Any]
Answer = dict[str, Any]
Ask = Callable[[str, str, Spec], Answer]  # (python, verb, spec)


def ask(python: str, verb: str, spec: Spec) -> Answer:
    """One run in its own process. A system that cannot run is an answer, `missing`; one of taut's own that cannot is an error."""
    try:
        done = subprocess.run([python, str(HERE / "worker.py"), verb], input=json.dumps(spec), capture_output=True, text=True)
    except OSError as error:
        return {"missing": f"{python} cannot be run: {error.strerror}"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        answer: Answer = json.loads(lines[-1])
        return answer
    last = " ".join(done.stderr.strip().splitlines()[-2:])[-300:]
    if spec["system"] == "taut":
        raise SystemExit(f"taut itself ended early: {last}")
    return {"missing": f"{verb} failed: {last}"}


def compare(options: argparse.Namespace, work: str, batch: int, ask: Ask = ask) -> Answer:
    """Every system and variant against taut at one batch size."""
    model = models.prepared(options.model or MODEL[work])
    if (model.kind == "decoder") != (work == "decoder"):
        raise SystemExit(f"{model.name} is an {model.kind}; {work} needs another model (--model)".replace("an d", "a d"))
    spec = base_spec(options, work, batch, model)
    comparisons, missing, busy = [], [], busyness()
    with tempfile.TemporaryDirectory(prefix="taut-peers-") as folder:
        judge = Judge(Path(folder), spec, ask)
        for system, variant, python in variants(options, work):
            theirs = {**spec, "system": system, "variant": variant}
            print(f"{work}, batch {batch}: {NAMES[system]} {variant}", flush=True)
            found = one_peer(theirs, python, ours_for(variant, options.precision), options.rounds, judge)
            if "missing" in found:
                print(f"  {found['missing']}", flush=True)
                missing.append({"system": NAMES[system], "variant": variant, "missing": found["missing"]})
                continue
            print(f"  {json.dumps({name: round(value, 2) for name, value in found['ratio'].items()})}", flush=True)
            comparisons.append({"system": NAMES[system], "variant": variant, **found})
    load = {name: spec[name] for name in ("batch", "prompt", "gen", "length", "threads", "reps")}
    result = {"work": work, "model": model.name, "load": load, "rounds": options.rounds, "comparisons": comparisons}
    return {**result, "missing": missing, "busy_cores": busy, "quality": judge.own, "limits": limits_of(comparisons)}


def busyness() -> float:
    """Cores in use by others, over a second in which nothing of ours runs; a warning when that is more than a little."""
    before = _cpu_ticks()
    time.sleep(1)
    idle, total = (after - start for after, start in zip(_cpu_ticks(), before, strict=True))
    busy = round((os.cpu_count() or 1) * (1 - idle / total), 2)
    if busy > document.BUSY:
        print(f"warning: others use {busy} cores; systems whose threads spin at barriers lose most, so the ratios are unfair")
    return busy


def _cpu_ticks() -> tuple[int, int]:
    """(idle, all) ticks of all cores so far."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(value) for value in stat.readline().split()[1:]]
    return ticks[3] + ticks[4], sum(ticks[:8])


def variants(options: argparse.Namespace, work: str) -> Iterator[tuple[str, str, str]]:
    """(system, variant, interpreter) of all that are asked for."""
    pythons: dict[str, str] = dict(one.split("=", 1) for one in options.peer_python if "=" in one)
    default = next((one for one in options.peer_python if "=" not in one), sys.executable)
    for system in NAMES:
        for variant in importlib.import_module(f"systems.{system}").VARIANTS.get(work, ()):
            if not options.systems or system in options.systems or f"{system}:{variant}" in options.systems:
                yield system, variant, pythons.get(system, default)


def ours_for(variant: str, asked: str | None) -> str:
    """The precision of ours to set beside it: 4 bits beside 4 bits where this version has them, else int8."""
    narrow = [name for name in PRECISIONS if name.startswith("int4")]
    is_narrow = variant.startswith(("q4", "int4"))
    return asked or (narrow[0] if is_narrow and narrow else "int8")


def base_spec(options: argparse.Namespace, work: str, batch: int, model: models.Model) -> Spec:
    return {
        "work": work,
        "model": str(model.folder),
        "cache": str(model.cache),
        "vocab_size": model.vocab_size,
        "pooling": model.pooling,
        "batch": batch,
        "prompt": min(options.prompt, model.context_len // 2),
        "gen": options.gen,
        "length": min(options.length, model.context_len),
        "threads": options.threads,
        "reps": options.reps,
        "max_context": None,
        "cases": {f"{words} words, {count} at once": models.uneven_texts(words, count) for words, count in CASES},
        "calibration_ids": models.calibration_ids(model),
        "quality_ids": models.quality_ids(model, options.windows, options.window_len) if options.windows else [],
    }


def one_peer(spec: Spec, python: str, precision: str, rounds: int, judge: Judge) -> Answer:
    """A B B A of taut and one variant: both sides' runs, and the medians of the paired ratios."""
    ready = judge.ask(python, "find", spec)
    if "missing" not in ready and spec["system"] == "llamacpp":
        spec = {**spec, "gguf": str(models.gguf(Path(spec["model"]), Path(spec["cache"])))}
    if "missing" not in ready:
        ready = judge.ask(python, "prepare", spec)
    if "missing" in ready:
        return ready
    own = {**spec, "system": "taut", "variant": precision}
    runs: dict[str, list[Answer]] = {"taut": [], "peer": []}
    for side in ("taut", "peer", "peer", "taut") * rounds:
        first = not runs[side]
        answer = judge.run(sys.executable, own, judged=first) if side == "taut" else judge.run(python, spec, judged=first)
        if "missing" in answer:
            return answer
        runs[side].append(answer)
    quality, version = runs["peer"][0].pop("quality", None), runs["peer"][0]["version"]
    return {"version": version, "ours": precision, "ratio": ratios(spec["work"], **runs), "quality": quality, **runs}


def ratios(work: str, taut: list[Answer], peer: list[Answer]) -> dict[str, float]:
    """How many times better taut is, run by run: more than 1 is faster, or smaller."""
    found = {}
    for name in figures(work, taut[0]):
        more = name not in ("decode_ms", "p99_ms", "rss_bytes")
        pairs = [(figures(work, a)[name], figures(work, b)[name]) for a, b in zip(taut, peer, strict=True)]
        found[name] = statistics.median(a / b if more else b / a for a, b in pairs)
    return found


def figures(work: str, answer: Mapping[str, Any]) -> dict[str, float]:
    if work == "sentences":
        return {name: case["sentences_per_s"] for name, case in answer["cases"].items()} | {"rss_bytes": answer["rss_bytes"]}
    return {name: answer[name] for name in RATIOS[work]}


class Judge:
    """Quality against taut's fp32 on the same texts. Its reference is made when it is first needed."""

    def __init__(self, folder: Path, spec: Spec, ask: Ask) -> None:
        self.folder, self.spec, self.ask = folder, spec, ask
        self.own: dict[str, Any] = {}  # taut's precision: quality
        self.reference: Path | None = None

    def run(self, python: str, spec: Spec, *, judged: bool) -> Answer:
        """One measured run; with `quality` in its answer the first time."""
        is_own = spec["system"] == "taut"
        if not (judged and spec["quality_ids"]) or (is_own and spec["variant"] in self.own):
            return self.ask(python, "measure", {**spec, "quality_ids": []})
        answers = self.folder / "answers.npz"
        answers.unlink(missing_ok=True)
        answer = self.ask(python, "measure", {**spec, "answers": str(answers)})
        if "missing" not in answer and answers.exists():
            quality = self._judged(answers)
            if is_own:
                self.own[spec["variant"]] = quality
            else:
                answer["quality"] = quality
        return answer

    def _judged(self, answers: Path) -> dict[str, Any]:
        ids = self.spec["quality_ids"]
        with np.load(self._reference()) as exact, np.load(answers) as given:
            if self.spec["work"] == "decoder":
                order = iter(range(len(ids))), iter(range(len(ids)))
                windows = [np.asarray(one, np.int32) for one in ids]
                found = kl.measure(
                    lambda _: exact[f"answer{next(order[0])}"], lambda _: given[f"answer{next(order[1])}"], windows
                )
                return dict(found.to_json())
            rows = [np.stack([side[f"answer{i}"] for i in range(len(ids))]) for side in (exact, given)]
            cosine = kl.cosine(*rows)
            return {"texts": len(ids), "mean_cosine": float(cosine.mean()), "least_cosine": float(cosine.min())}

    def _reference(self) -> Path:
        if self.reference is None:
            self.reference = self.folder / "reference.npz"
            short = {"batch": 1, "prompt": 8, "gen": 1, "length": 8, "reps": 1, "cases": {}}
            spec = {**self.spec, **short, "system": "taut", "variant": "fp32", "answers": str(self.reference)}
            spec["work"] = "decoder" if self.spec["work"] == "decoder" else "encoder"
            self.ask(sys.executable, "measure", spec)
        return self.reference


def limits_of(comparisons: list[Answer]) -> dict[str, Any] | None:
    from taut.bench.probe import middle

    found = [run["limits"] for one in comparisons for run in one["taut"]]
    return dict(middle(found)) if found else None


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=(*WORKS, "document"))
    parser.add_argument(
        "--model", help="alias, shape name or folder; default " + ", ".join(f"{w}: {m}" for w, m in MODEL.items())
    )
    parser.add_argument("--systems", nargs="+", default=[], help="only these: NAME or NAME:VARIANT", metavar="SYSTEM")
    parser.add_argument("--peer-python", action="append", default=[], metavar="[SYSTEM=]PYTHON")
    parser.add_argument("--precision", choices=PRECISIONS, help="ours; default int8, int4 beside 4-bit peers")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    for name, default in (("prompt", PROMPT), ("gen", 32), ("length", 512), ("reps", 2), ("rounds", 1), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--windows", type=int, default=4, help="windows that a decoder's quality is judged by; 0: no quality")
    parser.add_argument("--window-len", type=int, default=256)
    parser.add_argument("--records", type=Path, default=RECORDS, help="where records go; default bench/records")
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed()
    batches = options.batch if options.work in ("decoder", "encoder") else [1] * (options.work == "sentences")
    for batch in batches:
        result = compare(options, options.work, batch)
        size = "" if options.work == "sentences" else f"-b{batch}"
        long = f"-p{options.prompt}" if options.work == "decoder" and options.prompt != PROMPT else ""
        command = f"bench/peers/run.py {options.work} --model {result['model']}" + (
            f" --prompt {options.prompt}" if long else ""
        )
        print(document.table(result))
        print(report.save(options.records, f"peers-{options.work}-{result['model']}{size}{long}", command, result))
    if options.records == RECORDS:
        document.write(RECORDS)


if __name__ == "__main__":
    main()
