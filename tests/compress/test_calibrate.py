"""Calibration of tiny models: the native statistics against numpy's of the same activations, bit for bit, however a run went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import taut
from taut.compress import calibrate as module
from taut.compress.calibrate import calibrate
from taut.compress.calibration import Calibration
from taut.engine.batch import Part, concatenate
from taut.engine.executors.native import NativeExecutor
from taut.errors import ModelFormatError, NumericalError, UsageError
from taut.graph import Graph
from taut.kernels import native
from taut.loading import Loaded
from taut.plan.observe import Observation, with_observers
from taut.quant.statistics import Statistics

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.is_built(), reason="native module not built")]
FAMILIES = ("llama", "qwen3", "bert", "roberta")
LENGTHS = (40, 3, 17, 64, 1, 50, 33, 20)


def windows(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 250, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def models(tiny_models: dict[str, Path]) -> Iterator[dict[str, taut.Model]]:
    loaded = {name: taut.load(str(tiny_models[name]), precision="fp32") for name in FAMILIES}
    yield loaded
    for model in loaded.values():
        model.close()


def equal(a: Calibration, b: Calibration) -> bool:
    assert list(a.by_value) == list(b.by_value)
    assert (a.tokens, a.windows, a.inputs, a.text_digest) == (b.tokens, b.windows, b.inputs, b.text_digest)
    return all(same(a.by_value[name], b.by_value[name]) for name in a.by_value)


def same(a: Statistics, b: Statistics) -> bool:
    first, second = a.to_arrays(), b.to_arrays()
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


def activations(loaded: Loaded, texts: list[list[int]]) -> dict[str, np.ndarray]:
    """What the linears read, out of the arena of the same plan stopped before each observer."""
    plan = with_observers(loaded.plan, sinks=4)
    observation = Observation(plan, loaded.store)
    executor = NativeExecutor(plan, observation.store, loaded.runtime, loaded.engine.kv)
    found = {}
    with module._parts(loaded, [tuple(text) for text in texts]) as parts:
        batch = concatenate(parts)
        for index, step in enumerate(plan.steps):
            if step.op == "observe":
                executor.run(batch, 0, index)
                found[step.inputs[0].name] = executor.value(step.inputs[0], batch).copy()
    return found


def reference(loaded: Loaded, texts: list[list[int]], sinks: int) -> dict[str, Statistics]:
    from taut.quant.statistics import Sample

    starts = np.cumsum([0, *map(len, texts)])
    positions = np.concatenate([np.arange(len(text)) for text in texts])
    picks = Sample().choose(positions < sinks)
    found = {}
    for name, x in activations(loaded, texts).items():
        found[name] = Statistics(x.shape[1])
        found[name].add(x, positions, starts, picks, sinks)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_native_statistics_are_numpys_bit_for_bit(models: dict[str, taut.Model], family: str) -> None:
    loaded = models[family].loaded
    got = calibrate(models[family], windows())
    expected = reference(loaded, windows(), 4 if models[family].kind == "decoder" else 0)
    assert set(got.by_value) == set(expected)
    for name in expected:
        first, second = got.by_value[name].to_arrays(), expected[name].to_arrays()
        for part in first:
            assert first[part].tobytes() == second[part].tobytes(), (name, part)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_of_the_unfused_graph_has_its_inputs_statistics(models: dict[str, taut.Model], family: str) -> None:
    graph: Graph = models[family].loaded.built.graph
    got = calibrate(models[family], windows())
    linears = {node.name: node for node in graph.nodes if node.op == "linear"}
    assert set(got.statistics) == set(linears)
    assert got.statistics["layers.0.q"] is got.statistics["layers.0.v"]
    for name, statistics in got.statistics.items():
        assert statistics.channels == graph.signature(linears[name].inputs[0]).features
        assert statistics.num_rows() == sum(LENGTHS)
    assert got.windows == len(LENGTHS)
    assert got.tokens == sum(LENGTHS)


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("batch_tokens", [1, 70, 128])
def test_how_windows_share_batches_changes_no_bit(
    models: dict[str, taut.Model], family: str, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = calibrate(models[family], windows())
    monkeypatch.setattr(module, "BATCH_TOKENS", batch_tokens)
    assert equal(calibrate(models[family], windows()), whole)


def test_threads_change_no_bit(tiny_models: dict[str, Path], models: dict[str, taut.Model]) -> None:
    alone = taut.load(str(tiny_models["llama"]), precision="fp32", threads=1)
    assert equal(calibrate(alone, windows()), calibrate(models["llama"], windows()))
    alone.close()


class _Stop(Exception):
    pass


def stop_at(tokens: int) -> module.Progress:
    def progress(stage: str, done: int, total: int) -> None:
        if done >= tokens:
            raise _Stop

    return progress


@pytest.mark.parametrize("stop", [50, 100, 200])
def test_an_interrupted_run_goes_on_and_ends_the_same(
    models: dict[str, taut.Model], tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = calibrate(models["llama"], windows())
    monkeypatch.setattr(module, "BATCH_TOKENS", 48)
    monkeypatch.setattr(module, "SAVE_TOKENS", 40)
    with pytest.raises(_Stop):
        calibrate(models["llama"], windows(), cache=tmp_path, progress=stop_at(stop))
    first: list[int] = []
    again = calibrate(models["llama"], windows(), cache=tmp_path, progress=lambda _, done, __: first.append(done))
    assert first[0] > 0
    assert equal(again, whole)
    assert not list(tmp_path.glob("*.partial"))


def test_the_cache_answers_for_the_same_text_and_model_alone(
    models: dict[str, taut.Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = calibrate(models["llama"], windows(), cache=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module._Run, "_observe", lambda *_: pytest.fail("it ran"))
        assert equal(calibrate(models["llama"], windows(), cache=tmp_path), whole)
    assert not equal_text(calibrate(models["llama"], windows(seed=1), cache=tmp_path), whole)
    calibrate(models["qwen3"], windows(), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def equal_text(a: Calibration, b: Calibration) -> bool:
    return a.text_digest == b.text_digest


def test_a_damaged_cache_is_measured_again(models: dict[str, taut.Model], tmp_path: Path) -> None:
    whole = calibrate(models["llama"], windows(), cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-3000])
    again = calibrate(models["llama"], windows(), cache=tmp_path)
    assert equal(again, whole)
    assert any("not used" in warning for warning in again.warnings)
    assert equal(Calibration.load(entry), whole)


def test_a_file_brings_it_back(models: dict[str, taut.Model], tmp_path: Path) -> None:
    whole = calibrate(models["roberta"], windows())
    whole.save(tmp_path / "new" / "statistics.npz")
    back = Calibration.load(tmp_path / "new" / "statistics.npz")
    assert equal(back, whole)
    assert (back.model_digest, back.warnings, back.sinks) == (whole.model_digest, whole.warnings, whole.sinks)
    with pytest.raises(UsageError, match="no calibration"):
        Calibration.load(tmp_path / "none.npz")
    for damage in (b"", b"not a zip", (tmp_path / "new" / "statistics.npz").read_bytes()[:500]):
        (tmp_path / "bad.npz").write_bytes(damage)
        with pytest.raises(ModelFormatError, match=r"bad\.npz"):
            Calibration.load(tmp_path / "bad.npz")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        whole.save(tmp_path / "file" / "statistics.npz")


def test_a_name_is_loaded_and_closed(tiny_models: dict[str, Path], models: dict[str, taut.Model]) -> None:
    assert equal(calibrate(str(tiny_models["llama"]), windows()), calibrate(models["llama"], windows()))


def test_calibrating_leaves_the_model_as_it_was(models: dict[str, taut.Model]) -> None:
    model = models["llama"]
    before = model.logits([5, 6, 7, 8])
    calibrate(model, windows())
    assert np.array_equal(model.logits([5, 6, 7, 8]), before)
    model.loaded.scheduler.pool.check_integrity([])


def test_text_of_a_decoder_is_cut_into_windows_behind_bos(models: dict[str, taut.Model]) -> None:
    model = models["llama"]
    assert model.tokenizer is not None
    text = "It was the best of times, it was the worst of times. " * 10
    ids = model.tokenizer.encode(text, add_special=False)
    got = module.cut(model.loaded, [text, "  ", "a"], 10_000, 32)
    start = [] if model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    body = 32 - len(start)
    assert got.ids[0] == (*start, *ids[:body])
    assert got.ids[1] == (*start, *ids[body : 2 * body])
    assert got.ids[-1] == (*start, *model.tokenizer.encode("a", add_special=False))
    assert all(len(window) <= 32 for window in got.ids)
    assert module.cut(model.loaded, [text], 100, 32).num_tokens == 100


def test_text_of_an_encoder_keeps_its_last_special_token(models: dict[str, taut.Model]) -> None:
    model = models["bert"]
    assert model.tokenizer is not None
    long = "the cat sat on the mat " * 30
    got = module.cut(model.loaded, ["a cat", long], 10_000, 20)
    assert list(got.ids[0]) == model.tokenizer.encode("a cat")
    assert list(got.ids[1]) == [*model.tokenizer.encode(long)[:19], model.tokenizer.encode(long)[-1]]


def test_poor_text_is_said(models: dict[str, taut.Model]) -> None:
    same_text = [[5, 6, 7, 8]] * 3
    warnings = " ".join(calibrate(models["llama"], same_text).warnings)
    for words in ("only 12 of 8,192 tokens", "only 3 windows", "2 of 3 windows"):
        assert words in warnings
    varied = [[i, *range(10, 50)] for i in range(5, 25)]
    assert calibrate(models["llama"], varied, tokens=800, length=64).warnings == ()


def test_what_cannot_be_calibrated_is_an_error_that_says_why(
    models: dict[str, taut.Model], tiny_models: dict[str, Path]
) -> None:
    model = models["llama"]
    for texts in ([], ["", "  "], [[]]):
        with pytest.raises(UsageError, match="empty"):
            calibrate(model, texts)
    with pytest.raises(UsageError, match="not one text"):
        calibrate(model, "text")
    with pytest.raises(UsageError, match="outside the model's vocabulary"):
        calibrate(model, [[5, 10_000_000]])
    with pytest.raises(UsageError, match="lists of token ids"):
        calibrate(model, [[5.5]])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="tokens must be"):
        calibrate(model, windows(), tokens=0)
    for options, words in (({"precision": "int8"}, "precision fp32"), ({"executor": "reference"}, "native executor")):
        with taut_loaded(tiny_models["llama"], **options) as other, pytest.raises(UsageError, match=words):
            calibrate(other, windows())


class taut_loaded:
    def __init__(self, path: Path, **options: object) -> None:
        self.model = taut.load(str(path), **{"precision": "fp32", **options})

    def __enter__(self) -> taut.Model:
        return self.model

    def __exit__(self, *_: object) -> None:
        self.model.close()


def test_a_value_that_is_no_number_is_an_error(tiny_models: dict[str, Path]) -> None:
    with taut_loaded(tiny_models["llama"]) as model:
        store = model.loaded.store
        key = next(key for key in store if key.endswith("layers.1.mlp_norm.weight"))
        store[key].data[3] = np.float32(3e38)
        with pytest.raises(NumericalError, match=r"layers\.1"):
            calibrate(model, windows())


def test_progress_tells_tokens(models: dict[str, taut.Model]) -> None:
    seen: list[tuple[str, int, int]] = []
    calibrate(models["llama"], windows(), progress=lambda *args: seen.append(args))
    assert seen[0] == ("calibrate", 0, sum(LENGTHS))
    assert seen[-1] == ("calibrate", sum(LENGTHS), sum(LENGTHS))


def test_a_batch_that_observers_cannot_take_is_refused(models: dict[str, taut.Model]) -> None:
    loaded = models["llama"].loaded
    plan = with_observers(loaded.plan, sinks=4)
    observation = Observation(plan, loaded.store)
    executor = NativeExecutor(plan, observation.store, loaded.runtime, loaded.engine.kv)
    with pytest.raises(Exception, match="every token's row"):
        executor.run(concatenate([Part([5, 6, 7], 0, [0])]))
    many = [Part([5], 0, [index], all_rows=True) for index in range(65)]
    with pytest.raises(Exception, match="at most 64 sequences"):
        executor.run(concatenate(many))
