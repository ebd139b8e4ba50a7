"""Shared fixtures and tiers. A test without a tier's marker belongs to the fast tier."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from taut.testing import tiny

FAMILIES = ("llama", "qwen3", "bert", "roberta")
TIERS = {"native", "parity", "slow"}

# Nothing here may reach a network; the hub's own tests point it at a loopback address.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# What one test packs, no other may find.
os.environ["TAUT_CACHE"] = "off"

# Properties are tested, not speed: an example may take long on a busy machine.
hypothesis.settings.register_profile("taut", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("taut")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not TIERS & {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.fast)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny fp32 checkpoint folder of every family; do not write into them."""
    return {name: tiny(name, tmp_path_factory.mktemp(f"tiny-{name}")) for name in FAMILIES}
