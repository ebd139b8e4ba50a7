"""The receipt's file (compress/receipt.py says what it holds): read, checked against its own digest and the form that readers rely on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taut.checkpoint import strict_json
from taut.checkpoint.files import safe_path
from taut.errors import ModelFormatError

RECEIPT, MAX_BYTES = "receipt.json", 32 << 20
VERSION = 2
DIGEST = "digest"  # of all other fields

_OBJECT, _LIST = (dict,), (list,)
# What is there, by path; `*` is every item of a list.
_FORM: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("taut", (str,)),
    ("made_from", _OBJECT),
    ("made_from.name", (str,)),
    ("recipe", _OBJECT),
    ("recipe.scheme", (str,)),
    ("recipe.algorithm", (str,)),
    ("observer", (str, type(None))),
    ("layers", _LIST),
    ("layers.*", _OBJECT),
    ("layers.*.name", (str,)),
    ("layers.*.tensor", (str,)),
    ("layers.*.scheme", (str,)),
    ("layers.*.bytes", (int,)),
    ("fallbacks", _OBJECT),
    ("fallbacks.layers", _LIST),
    ("fallbacks.layers.*", (str,)),
    ("calibration", (dict, type(None))),
    ("warnings", _LIST),
    ("warnings.*", (str,)),
    ("quality", (dict, type(None))),
    ("files", _OBJECT),
)


def digest_of(receipt: Mapping[str, Any]) -> str:
    """SHA-256 of the receipt's other fields as canonical JSON."""
    stated = {name: value for name, value in receipt.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(stated, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """The receipt in a folder. ModelFormatError for one that is damaged, was edited, or is none."""
    receipt = strict_json.load_object(safe_path(folder, RECEIPT), name=RECEIPT, max_bytes=MAX_BYTES)
    if (version := receipt.get("version")) != VERSION:
        raise ModelFormatError(
            f"is of version {version!r}; this taut reads {VERSION}: quantize again, or take the taut that made it", file=RECEIPT
        )
    for path, types in _FORM:
        _check(receipt, path.split("."), types, path)
    if receipt.get(DIGEST) != digest_of(receipt):
        raise ModelFormatError(
            "was changed since it was made: its own digest does not match; bring the file back, or quantize again",
            file=RECEIPT,
            field=DIGEST,
        )
    return receipt


def _check(value: Any, path: list[str], types: tuple[type, ...], name: str) -> None:
    if not path:
        if type(value) not in types:
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise ModelFormatError(
                f"is a {type(value).__name__}, not a {wanted}; the receipt is damaged", file=RECEIPT, field=name
            )
    elif path[0] == "*":
        for item in value:
            _check(item, path[1:], types, name)
    elif path[0] not in value:
        raise ModelFormatError("is missing; the receipt is damaged", file=RECEIPT, field=name)
    else:
        _check(value[path[0]], path[1:], types, name)
