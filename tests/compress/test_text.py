"""Calibration text: of files, of folders and of the model itself; what is no text is an error that says so."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import taut
from taut.compress import text as module
from taut.compress.calibrate import calibrate
from taut.compress.text import read_calibration, spread
from taut.errors import UsageError
from taut.kernels import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.is_built(), reason="native module not built")]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def model(tiny_models: dict[str, Path]) -> Iterator[taut.Model]:
    loaded = taut.load(str(tiny_models["llama"]), precision="fp32", max_sequences=4)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 100])
def test_spread_visits_all_and_its_beginnings_lie_everywhere(count: int) -> None:
    order = list(spread(count))
    assert sorted(order) == list(range(count))
    if count == 100:
        assert {index // 25 for index in order[:4]} == {0, 1, 2, 3}


def test_pieces_of_a_file_are_all_of_it_once(tmp_path: Path, model: taut.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 64)
    text = "".join(f"{i} žluťoučký 語 🐎 " for i in range(60))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    pieces = list(read_calibration(tmp_path / "a.txt", model))
    order = list(spread(len(pieces)))
    assert "".join(str(pieces[order.index(i)]) for i in range(len(pieces))) == text
    assert str(pieces[0]).startswith("0 ")
    assert pieces == list(read_calibration(str(tmp_path / "a.txt"), model))


def test_files_of_a_folder_take_turns(tmp_path: Path, model: taut.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 64)
    (tmp_path / "b").mkdir()
    (tmp_path / "a.md").write_text("alpha " * 50)
    (tmp_path / "b" / "b.TXT").write_text("beta " * 50)
    (tmp_path / "c.jsonl").write_text('{"text": "gamma"}\n\n{"text": "delta"}\n')
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    names = ("alpha", "beta", "gamma", "delta")
    found = [next((n for n in names if n[1:] in str(text)), "?") for text in read_calibration(tmp_path, model)]
    assert found[:6] == ["alpha", "beta", "gamma", "alpha", "beta", "delta"]
    assert {"gamma", "delta"} <= {str(text) for text in read_calibration(tmp_path, model)}
    assert all("PNG" not in str(text) for text in read_calibration(tmp_path, model))


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[taut.Model]:
    folder = taut_tiny(tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    loaded = taut.load(str(folder), precision="fp32")
    yield loaded
    loaded.close()


def taut_tiny(folder: Path) -> Path:
    from taut.testing import tiny

    return tiny("llama", folder)


def test_messages_get_the_chat_template(tmp_path: Path, chat: taut.Model) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": messages}))
    assert chat.tokenizer is not None
    expected = chat.tokenizer.encode("[user] hello\n[assistant] hi\n", add_special=False)
    assert list(read_calibration(tmp_path / "talk.jsonl", chat)) == [expected]


def test_what_is_no_text_is_an_error(tmp_path: Path, model: taut.Model) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "nothing.txt").write_text("")
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    cases: dict[str, tuple[bytes, str]] = {
        "binary.txt": (b"abc\0def", "zero byte at 3"),
        "latin.txt": ("caf\xe9 au lait".encode("latin-1"), "byte 3 is no UTF-8"),
        "list.jsonl": (b'{"text": "a"}\n[1, 2]\n', "line 2"),
        "broken.jsonl": (b'{"text": ', "line 1"),
        "deep.jsonl": (b"[" * 100_000, "line 1"),
    }
    for name, (data, words) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=words):
            list(read_calibration(tmp_path / name, model))
    for where, words in (("none.txt", "no calibration text"), ("empty", "has no text"), ("a.png", "accepted")):
        with pytest.raises(UsageError, match=words):
            read_calibration(tmp_path / where, model)


def test_messages_need_a_chat_template(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    (tmp_path / "talk.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}')
    encoder = taut.load(str(tiny_models["bert"]), precision="fp32")
    with pytest.raises(UsageError, match="no chat template"):
        list(read_calibration(tmp_path / "talk.jsonl", encoder))
    encoder.close()


def test_messages_that_are_none(tmp_path: Path, chat: taut.Model) -> None:
    for bad in ([], ["hello"], [{"role": 1, "content": "a"}], [{"role": "user"}]):
        (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": bad}))
        with pytest.raises(UsageError, match="line 1"):
            list(read_calibration(tmp_path / "talk.jsonl", chat))


def test_the_model_makes_up_the_same_text_every_time(model: taut.Model, tiny_models: dict[str, Path]) -> None:
    first = list(itertools.islice(read_calibration("self", model), 6))
    assert all(1 < len(ids) <= model.context_len for ids in first)
    assert len({tuple(ids) for ids in first}) > 1
    other = taut.load(str(tiny_models["llama"]), precision="fp32", max_sequences=3)
    assert list(itertools.islice(read_calibration("self", other), 6)) == first
    other.close()
    assert calibrate(model, read_calibration("self", model), tokens=200).tokens == 200


def test_an_encoder_makes_up_no_text(tiny_models: dict[str, Path]) -> None:
    encoder = taut.load(str(tiny_models["bert"]), precision="fp32")
    with pytest.raises(UsageError, match="makes up no text"):
        read_calibration("self", encoder)
    encoder.close()
