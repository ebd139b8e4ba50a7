"""Every scheme as an artefact, judged on held-out text in three domains: what docs and receipts say of quality.

    python bench/quantization.py [--windows 4] [--offgrid FOLDER] [--only NAME …] [--record]

--offgrid: SmolLM2-135M moved off the 4-bit grid that its package lies on, for the 4-bit schemes, which the packaged weights would flatter.
With --record the figures become bench/records/quantization.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import taut
from taut.bench import report
from taut.compress.calibration import Calibration
from taut.compress.recipe import Recipe
from taut.quality import domains

RECORDS = Path(__file__).parent / "records"
DECODER, ENCODER, OFFGRID = "smollm2-135m", "minilm", "offgrid"


@dataclass(frozen=True)
class Case:
    """One artefact of one model."""

    name: str
    model: str
    recipe: Recipe
    load: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case("fp16", DECODER, Recipe("fp16")),
    Case("bf16", DECODER, Recipe("bf16")),
    Case("w8a16", DECODER, Recipe("w8a16")),
    Case("int8 rtn", DECODER, Recipe("int8", "rtn")),
    Case("int8", DECODER, Recipe("int8")),
    Case("int8-g64 rtn", DECODER, Recipe("int8-g64", "rtn")),
    Case("int8-g64", DECODER, Recipe("int8-g64")),
    Case("int8-static", DECODER, Recipe("int8-static")),
    Case("attention-fp16", DECODER, Recipe("int8", pins=("*.attention=fp16",), kv="bf16")),
    Case("first-fp16", DECODER, Recipe("int8", pins=("*.first=fp16",))),
    Case("minilm int8 rtn", ENCODER, Recipe("int8", "rtn")),
    Case("minilm int8", ENCODER, Recipe("int8")),
    Case("minilm int8-g64", ENCODER, Recipe("int8-g64")),
    Case("minilm int8-static", ENCODER, Recipe("int8-static")),
    *(
        Case(f"int4-g{group} {algorithm}", OFFGRID, Recipe(f"int4-g{group}", algorithm, max_fallbacks=1.0))
        for group in (32, 64)
        for algorithm in ("rtn", "imatrix")
    ),
)


def measure(case: Case, model: str, calibrations: dict[str, Calibration], windows: int, folder: Path) -> dict[str, Any]:
    if case.recipe.needs_calibration and model not in calibrations:
        begun = time.perf_counter()
        calibrations[model] = taut.calibrate(model, domains.calibration_texts())
        print(f"calibrated {model} on {calibrations[model].tokens:,} tokens in {time.perf_counter() - begun:.0f} s", flush=True)
    begun, out = time.perf_counter(), folder / case.name.replace(" ", "-")
    artefact = taut.quantize(model, out, case.recipe, calibration=calibrations.get(model), quality_windows=0)
    seconds = time.perf_counter() - begun
    quality = taut.evaluate(str(artefact.path), model, windows=windows if case.model != ENCODER else None).to_json()
    return {
        "recipe": artefact.receipt["recipe"], "bytes": artefact.receipt["bytes"], "quantize_s": seconds, "observer": artefact.receipt["observer"],
        "observers_tried": artefact.receipt["observers_tried"], **quality,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=4, help="of each domain")
    parser.add_argument("--offgrid", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    calibrations: dict[str, Calibration] = {}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if options.only and case.name not in options.only:
                continue
            model = str(options.offgrid) if case.model == OFFGRID else case.model
            if model == "None":
                print(f"{case.name}: left out, no --offgrid", flush=True)
                continue
            results[case.name] = measure(case, model, calibrations, options.windows, Path(folder))
            print(case.name, json.dumps(results[case.name]), flush=True)
    if options.record:
        report.save(RECORDS, "quantization", "bench/quantization.py", {"windows": options.windows, "cases": results})


if __name__ == "__main__":
    main()
