"""Fixtures of the command line's tests."""

from __future__ import annotations

from typing import Any

import pytest

import taut
from cli.support import Model
from taut import env


@pytest.fixture
def decoder() -> Model:
    return Model()


@pytest.fixture
def encoder() -> Model:
    return Model(kind="encoder")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for taut.load: gives `loads["model"]` (or raises it) and keeps the options."""
    seen: dict[str, Any] = {}

    def load(ref: str, **options: Any) -> Any:
        seen.update(ref=ref, options=options)
        if isinstance(seen["model"], BaseException):
            raise seen["model"]
        return seen["model"]

    monkeypatch.setattr(taut, "load", load)
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    return seen
