"""From graph to frozen Plan, and the packed weights that its steps name."""

from __future__ import annotations

from taut.plan.make import Target, make
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore

__all__ = ["Buffer", "PackedWeight", "Plan", "Step", "Target", "View", "WeightStore", "make"]
