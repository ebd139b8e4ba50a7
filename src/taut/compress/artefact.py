"""An artefact: the folder that quantize makes, with its receipt. It loads like any model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taut import api
from taut.checkpoint import receipt_file
from taut.checkpoint.receipt_file import RECEIPT
from taut.errors import CompressionError, ModelNotFoundError

GOLDEN = "golden.npz"


@dataclass(frozen=True)
class Artefact:
    """`receipt` is what stands in receipt.json: see receipt.py."""

    path: Path
    receipt: dict[str, Any]

    def load(self, **options: Any) -> api.Model:
        """The quantized model; options as of taut.load."""
        return api.load(str(self.path), **options)

    @property
    def quality(self) -> dict[str, Any] | None:
        """KL, top-1, perplexity … against the model that it was made from; None where that was not measured."""
        found = self.receipt.get("quality")
        return found if isinstance(found, dict) else None


def open_artefact(where: str | Path) -> Artefact:
    """The artefact in a folder. ModelNotFoundError where there is none, ModelFormatError for a damaged receipt."""
    path = Path(where)
    if not (path / RECEIPT).is_file():
        raise ModelNotFoundError(
            f"{str(where)!r} is no artefact: it has no {RECEIPT}; make one with: taut quantize MODEL {str(where)!r}"
        )
    return Artefact(path, receipt_file.read(path))


def write_receipt(folder: Path, receipt: dict[str, Any]) -> None:
    try:
        text = json.dumps(receipt, indent=1, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise CompressionError(
            "a figure of the receipt is not finite: the model's answers overflow; check the checkpoint"
        ) from None
    (folder / RECEIPT).write_text(text + "\n", "utf-8")
