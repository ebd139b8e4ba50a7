"""with_observers: one step before the first linear that reads a value, nothing after the last, and no plan of quantized rows."""

from __future__ import annotations

import pytest

from builders import graphs
from taut import passes, plan
from taut.errors import UsageError
from taut.plan.observe import ARRAYS, PICKS, with_observers


def make(family: str, precision: str) -> plan.Plan:
    return plan.make(passes.optimize(graphs()[family], passes.Options(precision)), plan.Target("scalar"), precision)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["llama", "qwen3", "bert", "roberta"])
def test_every_input_of_a_linear_is_observed_once_just_before_it(family: str) -> None:
    before = make(family, "fp32")
    after = with_observers(before, sinks=4)
    observed = [step.inputs[0].name for step in after.steps if step.op == "observe"]
    assert observed == list(dict.fromkeys(step.inputs[0].name for step in before.steps if step.op == "linear"))
    assert set(observed) == {node.inputs[0] for node in graphs()[family].nodes if node.op == "linear"}
    for step, following in zip(after.steps, after.steps[1:], strict=False):
        if step.op == "observe":
            assert following.op == "linear"
            assert following.inputs == step.inputs
            assert step.attrs["sinks"] == 4
            assert step.weights == (*(f"observe:{step.inputs[0].name}:{array}" for array in ARRAYS), PICKS)
    assert after.steps[-1].op == "observe"
    assert after.outputs == ()
    assert [step for step in after.steps if step.op != "observe"] == list(before.steps[: len(after.steps) - len(observed)])
    assert after.space_bytes == before.space_bytes
    assert after.digest != before.digest


def test_the_head_is_not_run() -> None:
    assert "logits" not in {view.name for step in with_observers(make("llama", "fp32"), sinks=4).steps for view in step.outputs}


@pytest.mark.parametrize("precision", ["int8", "int4-g32"])
def test_quantized_rows_are_nothing_to_observe(precision: str) -> None:
    with pytest.raises(UsageError, match="precision fp32"):
        with_observers(make("llama", precision), sinks=4)
