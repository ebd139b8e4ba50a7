"""`taut eval`: how close a model is to what it was made from, and whether that is close enough."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taut.cli import values
from taut.cli.console import check_writable, print_error, print_note, print_table, progress
from taut.cli.options import ModelOptions, ModelRef, plain
from taut.errors import UsageError

if TYPE_CHECKING:
    from taut.compress.evaluation import AnyFigures, Evaluation
    from taut.quality.figures import Bucket

MISSED = 1  # the exit code


@dataclass(frozen=True)
class TextOptions:
    """What the two models are put to."""

    against: Annotated[
        str | None, plain("--against", "The reference, in fp32; default what MODEL was made from.", values.text("REF"))
    ] = None
    windows: Annotated[
        int | None,
        plain("--windows", "Windows of text per domain, default 8; an encoder: sentences in all, 500.", values.whole(1)),
    ] = None
    length: Annotated[
        int | None, plain("--length", "Tokens of a window; default 512, or what the context holds.", values.whole(3))
    ] = None
    domains: Annotated[
        str | None, plain("--domains", "Of prose, technical and code, with commas between; default all.", values.text("A,B"))
    ] = None
    metric: Annotated[
        str | None,
        plain(
            "--metric",
            "Also measure both with a function of yours: FUNCTION(model) -> number.",
            values.text("FILE.py:FUNCTION"),
        ),
    ] = None

    def names(self) -> list[str] | None:
        return None if self.domains is None else [name.strip() for name in self.domains.split(",") if name.strip()]


@dataclass(frozen=True)
class BoundOptions:
    """What is close enough; beyond it the exit code is 1."""

    max_kl: Annotated[float | None, plain("--max-kl", "Decoder: largest mean KL, in nats.", values.number(0))] = None
    min_top1: Annotated[
        float | None, plain("--min-top1", "Decoder: least share of equal most likely tokens, as 0.95.", values.number(0, 1))
    ] = None
    min_cosine: Annotated[float | None, plain("--min-cosine", "Encoder: least mean cosine.", values.number(-1, 1))] = None

    def check(self, name: str, kind: str) -> None:
        """UsageError for a bound of the other kind of model."""
        others = (
            {"--min-cosine": self.min_cosine} if kind == "decoder" else {"--max-kl": self.max_kl, "--min-top1": self.min_top1}
        )
        if given := [flag for flag, value in others.items() if value is not None]:
            accepted = "--max-kl and --min-top1" if kind == "decoder" else "--min-cosine"
            a = "a decoder" if kind == "decoder" else "an encoder"
            raise UsageError(f"{' and '.join(given)} given, but {name} is {a}; {accepted} can bound it")

    def missed(self, figures: AnyFigures) -> Iterator[str]:
        """A sentence for each bound that `figures` miss."""
        bounds = (
            ("kl", self.max_kl, "the mean KL"),
            ("top1", self.min_top1, "top-1"),
            ("mean_cosine", self.min_cosine, "the mean cosine"),
        )
        for field, bound, name in bounds:
            if bound is None:
                continue
            value, is_least = getattr(figures, field), field != "kl"
            if not (value >= bound if is_least else value <= bound):
                yield f"{name} is {value:.6g}, {'less' if is_least else 'more'} than {bound:g}"


def command(
    model: ModelRef,
    model_options: ModelOptions,
    texts: TextOptions,
    bounds: BoundOptions,
    json: Annotated[Path | None, plain("--json", "Write all figures to FILE.", {"metavar": "FILE"})] = None,
) -> None:
    """Measure a model against its reference on held-out text: KL, top-1, perplexity, flips; an encoder's cosines and ranks."""
    from taut.cli.metric import load_metric
    from taut.compress.evaluate import evaluate
    from taut.quality.domains import check

    names, metric = texts.names(), None if texts.metric is None else load_metric(texts.metric)
    if names is not None:
        check(names)
    if json is not None:
        check_writable(json)
    loaded = model_options.load(model)
    bounds.check(loaded.name, loaded.kind)
    with progress() as report:
        found = evaluate(
            loaded, texts.against, windows=texts.windows, length=texts.length, domains=names, metric=metric, progress=report
        )
    show(found)
    if json is not None:
        json.write_text(
            json_module.dumps(found.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
    missed = list(bounds.missed(found.overall))
    for sentence in missed:
        print_error(sentence)
    if missed:
        raise typer.Exit(MISSED)


def show(found: Evaluation) -> None:
    """The figures as tables on stdout."""
    from taut.quality.figures import Figures

    for name, reason in found.skipped.items():
        print_note(f"{name} is left out: {reason}")
    model, against = found.model, found.against
    print(f"{model.name} ({model.precision}) against {against.name} ({against.precision}), in {found.seconds:.0f} s")
    columns = [*found.domains.values(), found.overall]
    rows = _DECODER_ROWS if isinstance(found.overall, Figures) else _ENCODER_ROWS
    print_table(["", *found.domains, "all"], [[name, *(cell(column) for column in columns)] for name, cell in rows])
    if isinstance(found.overall, Figures):
        _show_buckets(found.overall.buckets)
    if (metric := found.metric) is not None:
        print_table(
            ["metric", "model", "reference", "change"],
            [[metric.name, f"{metric.value:.6g}", f"{metric.reference:.6g}", f"{metric.change:+.6g}"]],
        )


def _show_buckets(buckets: Sequence[Bucket]) -> None:
    rows = [
        [f"{b.first}–{b.last}", _small(b.kl), _error(b.kl_error), f"{b.top1:.2%}", _change(b.perplexity_change)]
        for b in buckets
    ]
    print_table(["position in the window", "mean KL", "±", "top-1", "perplexity"], rows)


def _small(value: float) -> str:
    return f"{value:.3g}"


def _error(value: float | None) -> str:
    return NONE if value is None else f"{value:.1g}"


def _change(value: float | None) -> str:
    return NONE if value is None else f"{value:+.2%}"


NONE = "–"
Row = tuple[str, Callable[[Any], str]]
_DECODER_ROWS: tuple[Row, ...] = (
    ("mean KL, nats", lambda f: _small(f.kl)),
    ("  ±", lambda f: _error(f.kl_error)),
    ("median KL", lambda f: _small(f.kl_median)),
    ("99th percentile", lambda f: _small(f.kl_p99)),
    ("top-1 agreement", lambda f: f"{f.top1:.2%}"),
    ("perplexity", lambda f: f"{f.perplexity:.3f}"),
    ("  the reference's", lambda f: f"{f.reference_perplexity:.3f}"),
    ("  change", lambda f: _change(f.perplexity_change)),
    ("  ±", lambda f: NONE if f.perplexity_change_error is None else f"{f.perplexity_change_error:.2%}"),
    ("flips lost", lambda f: f"{f.flips_lost:,}"),
    ("flips gained", lambda f: f"{f.flips_gained:,}"),
    ("tokens predicted", lambda f: f"{f.predicted:,}"),
)
_ENCODER_ROWS: tuple[Row, ...] = (
    ("mean cosine", lambda f: f"{f.mean_cosine:.6f}"),
    ("least cosine", lambda f: f"{f.least_cosine:.6f}"),
    ("nearest in common", lambda f: f"{f.neighbour_overlap:.2%}"),
    ("  of each", lambda f: f"{f.neighbours}"),
    ("rank correlation", lambda f: NONE if f.rank_correlation is None else f"{f.rank_correlation:.6f}"),
    ("sentences", lambda f: f"{f.texts:,}"),
)
