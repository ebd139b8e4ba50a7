"""Incremental detokenization: complete characters only, and together exactly the whole text."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from hostile.raw import byte_vocabulary
from taut.checkpoint import Tokenizer
from taut.checkpoint.stream import byte_alphabet, byte_level_bytes, parse_byte_token

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
VOCABULARY = [*byte_vocabulary(), "he", "Ġ", "<end>"]


def _byte_level() -> tuple[Tokenizer, tokenizers.Tokenizer]:
    names = list(dict.fromkeys(VOCABULARY))
    backend = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate(names)}, [("h", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, token_bytes=[byte_level_bytes(token) for token in names]), backend


TOKENIZER, BACKEND = _byte_level()
BYTE_IDS = list(range(256))  # the first 256 ids are the bytes in order


def pieces(ids: list[int]) -> list[str]:
    stream = TOKENIZER.stream()
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@pytest.mark.parametrize("text", ["ď", "👋", "👨‍👩‍👧‍👦", "Příliš žluťoučký", "中文", "a👋b", "\ufffd", "x\ufffdy"])
def test_a_character_in_several_tokens_comes_whole(text: str) -> None:
    """vllm-mlx 109: each byte token was decoded alone."""
    emitted = pieces(list(text.encode()))
    assert "".join(emitted) == text
    if REPLACEMENT not in text:
        assert REPLACEMENT not in "".join(emitted)
    assert emitted[0] == (text[0] if ord(text[0]) < 128 else "")  # nothing shows before its last byte


def test_a_byte_level_token_is_bytes_or_stands_for_itself() -> None:
    """Every character of the first planes, alone and among others: in the alphabet its byte, else the whole token's own UTF-8."""
    alphabet = byte_alphabet()
    for character in map(chr, [*range(0x400), 0x2581, 0xD800, 0xFFFD, 0x1F44B]):
        for token in (character, f"a{character}Ġ"):
            known = all(c in alphabet for c in token)
            expected = bytes(alphabet[c] for c in token) if known else token.encode("utf-8", "replace")
            assert byte_level_bytes(token) == expected, hex(ord(character))


def test_an_unfinished_character_at_the_end_becomes_one_replacement() -> None:
    """llama.cpp 14937: max_tokens reached inside a character."""
    assert pieces([*b"ab", *"👋".encode()[:3]]) == ["a", "b", "", "", "", REPLACEMENT]


@pytest.mark.parametrize("raw", [b"\xff", b"\x80", b"a\xffb", b"\xc3\xc3\xa9", b"\xf0\x9f\x91a", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_bytes_that_are_no_character_become_replacements(raw: bytes) -> None:
    """llama.cpp 9195: invalid UTF-8 killed the server."""
    assert "".join(pieces(list(raw))) == raw.decode("utf-8", "replace") == BACKEND.decode(list(raw))


def test_many_invalid_bytes_do_not_hold_the_stream_back() -> None:
    stream = TOKENIZER.stream()
    emitted = [stream.push(0xFF) for _ in range(1000)]
    assert sum(map(len, emitted)) >= 999


@given(st.lists(st.sampled_from([*range(258), 0xC3, 0xA9, 0xF0, 0x9F, 0x91, 0x8B, 0xE2, 0x82]), max_size=40))
def test_stream_is_decode_is_the_library(ids: list[int]) -> None:
    emitted = pieces(ids)
    whole = TOKENIZER.decode(ids)
    assert "".join(emitted) == whole == BACKEND.decode(ids)
    assert sum(piece.count(REPLACEMENT) for piece in emitted) == whole.count(REPLACEMENT)


def test_special_tokens_are_skipped_or_shown() -> None:
    end = TOKENIZER.token_id("<end>")
    assert end is not None
    assert TOKENIZER.decode([104, end, 105]) == "hi"
    assert TOKENIZER.decode([104, end, 105], skip_special=False) == "h<end>i"
    # a special token between the bytes of a character is as if absent
    assert TOKENIZER.decode([0xC3, end, 0xA9]) == "é"


def test_a_stream_starts_afresh_after_flush() -> None:
    stream = TOKENIZER.stream()
    assert stream.push(0xC3) + stream.flush() == REPLACEMENT
    assert stream.push(0xA9) + stream.push(97) == REPLACEMENT + "a"


def test_word_pieces_join_and_space_as_the_library_does() -> None:
    vocab = ["[UNK]", "[CLS]", "[SEP]", "hello", "##ing", "##s", "world", ",", "!", "'", "s"]
    backend = tokenizers.Tokenizer(models.WordPiece({token: index for index, token in enumerate(vocab)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    made = Tokenizer(backend)
    for ids in ([3, 4, 7, 6, 8], [1, 3, 5, 2, 6], [4, 5], [6] * 50 + [4] * 50, []):
        stream = made.stream()
        emitted = [*(stream.push(token_id) for token_id in ids), stream.flush()]
        assert "".join(emitted) == made.decode(ids) == backend.decode(ids)


@pytest.mark.parametrize(("token", "byte"), [("<0x41>", 0x41), ("<0xfF>", 0xFF), ("<0x00>", 0)])
def test_byte_tokens(token: str, byte: int) -> None:
    assert parse_byte_token(token) == byte


@pytest.mark.parametrize(
    "token", ["<0x-1>", "<0xZZ>", "<0x1FF>", "<0x1>", "<0x 1>", "<0x+1>", "<0x1_>", "0x41", "<0X41>", "<0x４１>", "<0x41> "]
)
def test_no_byte_tokens(token: str) -> None:
    assert parse_byte_token(token) is None
