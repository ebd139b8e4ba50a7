"""What `taut.evaluate` returns: two models' names and the figures between them, frozen and ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from taut.quality.embeddings import EmbeddingFigures
from taut.quality.figures import Figures

AnyFigures: TypeAlias = Figures | EmbeddingFigures


@dataclass(frozen=True)
class Contender:
    """One of the two models, as it was measured. `ref` is what it was loaded from."""

    name: str
    ref: str
    precision: str


@dataclass(frozen=True)
class Judgement:
    """Figures over all domains and over each; `texts` is a digest of each domain's token ids or sentences: figures over different texts do
    not compare.
    """

    overall: AnyFigures
    domains: dict[str, AnyFigures]
    texts: dict[str, str]


@dataclass(frozen=True)
class MetricPair:
    """What a metric of the user's gave for the model and for its reference."""

    name: str
    value: float
    reference: float

    @property
    def change(self) -> float:
        return self.value - self.reference


@dataclass(frozen=True)
class Evaluation:
    """How close `model` is to `against`. The figures are quality.figures.Figures of a decoder, quality.embeddings.EmbeddingFigures of an
    encoder. `skipped`: domains that this machine has no text of, and why.
    """

    kind: Literal["decoder", "encoder"]
    model: Contender
    against: Contender
    overall: AnyFigures
    domains: dict[str, AnyFigures]
    texts: dict[str, str]
    skipped: dict[str, str] = field(default_factory=dict)
    metric: MetricPair | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON's types."""
        metric = None if self.metric is None else {**asdict(self.metric), "change": self.metric.change}
        return {**asdict(self), "metric": metric}
