"""Stop strings across token borders (bug reports E1 to E3): nothing of a stop is shown, nothing else is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taut.scheduler.text import StoppedText


class Pieces:
    """Token i is the i-th piece."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self) -> str:
        return ""


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    text = StoppedText(Pieces(pieces), stops)
    shown = []
    for i in range(len(pieces)):
        shown.append(text.push(i))
        if text.stopped:
            return shown, True
    return [*shown, text.flush()], text.stopped


def test_stop_over_three_tokens() -> None:
    shown, stopped = run(["abc", "DEF", "G", "HIJ", "xyz"], ["DEFGHIJ"])
    assert stopped and shown == ["abc", "", "", ""]


def test_held_text_comes_at_the_end() -> None:
    assert run(["ple", "as"], ["as much"]) == (["ple", "", "as"], False)


def test_earliest_of_overlapping_stops() -> None:
    assert "".join(run(["xa", "bc"], ["abc", "ab"])[0]) == "x"
    assert "".join(run(["xabc"], ["bc", "ab"])[0]) == "x"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_any_split(whole: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    shown, stopped = run(pieces, stops)
    ends = [at for stop in stops if (at := whole.find(stop)) >= 0]
    # Where several stops end in different tokens the first one completed decides; it can lie later than an unfinished one, never earlier.
    if not ends:
        assert "".join(shown) == whole and not stopped
    else:
        assert stopped and whole.startswith("".join(shown)) and len("".join(shown)) >= min(ends)
        assert not any(stop in "".join(shown) for stop in stops)
