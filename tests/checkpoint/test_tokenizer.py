"""Tokenizers built from every kind of file; each is compared with one made independently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from hostile.folder_cases import TOKENIZER
from hostile.raw import (
    ARRAY,
    BOOL,
    F32,
    I32,
    LLAMA,
    SPECIAL,
    STRING,
    U32,
    Field,
    byte_vocabulary,
    folder,
    llama_fields,
    llama_gguf,
    write,
)
from taut import checkpoint
from taut.checkpoint import Tokenizer
from taut.errors import RequestError

TEXTS = [
    "Hello world! Café déjà vu — 123 😊",
    "Cafe\u0301 de\u0301ja\u0300",
    "  leading  and   runs\t\ttabs\n\n\nlines \r\n end  ",
    "def f(x):\n    return x**2  # 3.14159 0xFF 1_000",
    "中文分词测试，你好。 こんにちは 한국어",
    "don't I'LL we've 'S 's",
    "👨‍👩‍👧‍👦 ď 👋🏽",
    "½ ² Ⅳ ٣٤ 12345",
    "\u00a0nbsp\u2003em\u200bzero",
    "\x00\x01\x7f",
    "",
    "   ",
]


def gguf_tokenizer(tmp_path: Path, **changes: Field | None) -> tuple[Tokenizer, tuple[str, ...]]:
    fields = llama_fields(**{f"tokenizer__ggml__{key}": value for key, value in changes.items()})
    with checkpoint.open(str(write(tmp_path / "a.gguf", llama_gguf(fields)))) as opened:
        assert opened.tokenizer is not None
        return opened.tokenizer, opened.warnings


def reference(pre: tokenizers.pre_tokenizers.PreTokenizer, normalizer: Any = None) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in enumerate([*SPECIAL, *byte_vocabulary(), "he", "ll", "hell"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("h", "e"), ("l", "l"), ("he", "ll")]))
    made.pre_tokenizer = pre
    if normalizer is not None:
        made.normalizer = normalizer
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made


GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_by(pattern: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    pre = tokenizers.pre_tokenizers
    return pre.Sequence(
        [pre.Split(tokenizers.Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def references() -> dict[str, tokenizers.Tokenizer]:
    pre = tokenizers.pre_tokenizers
    byte_level = pre.ByteLevel(add_prefix_space=False)
    return {
        "gpt-2": reference(byte_level),
        "smollm": reference(pre.Sequence([pre.Digits(individual_digits=True), byte_level])),
        "llama-bpe": reference(split_by(GPT4_SPLIT)),
        "qwen2": reference(split_by(GPT4_SPLIT.replace("{1,3}", "")), tokenizers.normalizers.NFC()),
    }


@pytest.mark.parametrize("kind", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_kinds_agree_with_their_definition(kind: str, tmp_path: Path) -> None:
    made, _ = gguf_tokenizer(tmp_path, pre=(STRING, kind))
    expected = references()[kind]
    for text in [*TEXTS, "<|im_start|>user\nhello<|im_end|>"]:
        ids = made.encode(text, add_special=False)
        assert ids == expected.encode(text).ids
        assert made.decode(ids, skip_special=False) == expected.decode(ids, skip_special_tokens=False)
        assert made.decode(ids) == expected.decode(ids)


def test_the_kinds_differ_where_they_should(tmp_path: Path) -> None:
    """Otherwise the comparison above could not fail."""
    splits = {
        kind: [piece for piece, _ in made.pre_tokenizer.pre_tokenize_str("ab 1234")] for kind, made in references().items()
    }
    assert splits["gpt-2"] == ["ab", "Ġ1234"]
    assert splits["smollm"] == ["ab", "Ġ", "1", "2", "3", "4"]
    assert splits["llama-bpe"] == ["ab", "Ġ", "123", "4"]
    assert splits["qwen2"] == ["ab", "Ġ", "1", "2", "3", "4"]
    assert references()["qwen2"].encode("e\u0301").ids == references()["gpt-2"].encode("é").ids


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({}, False),
        ({"add_bos_token": (BOOL, 1)}, True),
        ({"pre": (STRING, "llama-bpe")}, True),
        ({"pre": (STRING, "llama-bpe"), "add_bos_token": (BOOL, 0)}, False),
    ],
)
def test_bos_stands_once_on_raw_text_and_on_a_chat(changes: dict[str, Field], starts: bool, tmp_path: Path) -> None:
    """llama-cpp-python 1501: the template wrote BOS and the tokenizer added another."""
    made, _ = gguf_tokenizer(tmp_path, **changes)
    assert made.bos_id == 1
    assert made.adds_bos is starts
    assert (made.encode("hello")[0] == 1) is starts
    rendered = "<|im_start|>hello"  # a template that begins with bos_token
    assert made.encode(rendered, add_special=False).count(1) == 1


def test_add_eos(tmp_path: Path) -> None:
    made, _ = gguf_tokenizer(tmp_path, add_eos_token=(BOOL, 1))
    assert made.encode("a")[-1] == 2
    assert 2 not in made.encode("a", add_special=False)


def test_end_tokens_are_a_union(tmp_path: Path) -> None:
    """vllm 4180: generation_config lists the chat's end token, the tokenizer does not."""
    spec = {
        **TOKENIZER,
        "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(8)}, "unk_token": "w0"},
        "added_tokens": [],
    }
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    spec["added_tokens"] = [{"id": 8, "content": "<|im_end|>", **added}, {"id": 9, "content": "</s>", **added}]
    folder(
        tmp_path,
        config={**LLAMA, "eos_token_id": 3},
        tokenizer__json=json.dumps(spec).encode(),
        generation_config__json=json.dumps({"eos_token_id": [4, 5]}).encode(),
        tokenizer_config__json=json.dumps({"eos_token": {"content": "</s>"}, "chat_template": "{{ '<|im_end|>' }}"}).encode(),
    )
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.tokenizer is not None
        assert opened.tokenizer.eos_ids == {3, 4, 5, 8, 9}
        assert opened.generation_config == {"eos_token_id": [4, 5]}


def test_a_turn_end_in_the_template_that_is_no_special_token_is_not_an_end(tmp_path: Path) -> None:
    settings = json.dumps({"chat_template": "{{ '<|im_end|>' }}"}).encode()
    folder(tmp_path, tokenizer__json=json.dumps(TOKENIZER).encode(), tokenizer_config__json=settings)
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.tokenizer is not None
        assert opened.tokenizer.eos_ids == frozenset()


def test_gguf_end_tokens(tmp_path: Path) -> None:
    made, _ = gguf_tokenizer(tmp_path, eot_token_id=(U32, 0))
    assert made.eos_ids == {0, 2}


def test_a_short_token_type_array_leaves_the_rest_normal(tmp_path: Path) -> None:
    """llama.cpp 3692: the arrays disagree."""
    made, warnings = gguf_tokenizer(tmp_path, token_type=(ARRAY, (I32, [3])))
    assert "token_type has 1 entries for 262 tokens" in warnings[0]
    assert made.special_ids == {0, 1, 2}  # 0 by its type, 1 and 2 because they are bos and eos
    made, warnings = gguf_tokenizer(tmp_path, token_type=(ARRAY, (I32, [3] * 3 + [1] * 900)))
    assert len(warnings) == 1
    assert made.encode("hell", add_special=False) == [261]


def test_tokens_that_stand_twice_are_reported_and_still_decode(tmp_path: Path) -> None:
    tokens = [*SPECIAL, *byte_vocabulary(), "a", "a", "zz"]
    merges = (ARRAY, (STRING, ["z z"]))
    made, warnings = gguf_tokenizer(tmp_path, tokens=(ARRAY, (STRING, tokens)), merges=merges)
    assert "2 tokens of the vocabulary stood there already" in warnings[0]
    first = 3 + ord("a")
    assert made.encode("a", add_special=False) == [first]
    assert made.decode([first, 259, 260, 261]) == "aaazz"


def test_user_defined_tokens_match_whole_and_are_not_special(tmp_path: Path) -> None:
    """llama.cpp 7049: the word after a non-special added token."""
    types = [3] * 3 + [1] * 256 + [4, 1, 1]
    made, _ = gguf_tokenizer(tmp_path, token_type=(ARRAY, (I32, types)))  # "he" is user-defined
    expected = references()["smollm"]
    expected.add_tokens([tokenizers.AddedToken("he", normalized=False, special=False)])
    for text in ("hell", "x he y", "he<|im_end|>hell", "the"):
        assert made.encode(text, add_special=False) == expected.encode(text).ids
    assert 259 not in made.special_ids
    assert made.decode([259]) == "he"


SPM_TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    "<0x41>",
    "<0x-1>",
    "<0xZZ>",
    "<0x1FF>",
    "<0xC3>",
    "<0xA9>",
    "▁",
    "a",
    "b",
    "▁a",
    "ab",
    "▁ab",
    "c",
]


def sentencepiece(tmp_path: Path, **changes: Field | None) -> Tokenizer:
    types = [2, 3, 3, 6, 6, 6, 6, 6, 6] + [1] * 7
    scores = [0.0] * 9 + [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]
    made, _ = gguf_tokenizer(
        tmp_path,
        **{
            "model": (STRING, "llama"),
            "pre": None,
            "merges": None,
            "tokens": (ARRAY, (STRING, SPM_TOKENS)),
            "token_type": (ARRAY, (I32, types)),
            "scores": (ARRAY, (F32, scores)),
            "unknown_token_id": (U32, 0),
            **changes,
        },
    )
    return made


def test_sentencepiece_vocabulary(tmp_path: Path) -> None:
    made = sentencepiece(tmp_path)
    assert made.encode("ab a") == [1, 14, 12]  # BOS, "▁ab", "▁a"
    assert made.decode(made.encode("ab a")) == "ab a"
    assert made.encode("aé", add_special=False) == [12, 7, 8]  # é by its bytes
    assert made.decode([12, 7, 8]) == "aé"
    assert sentencepiece(tmp_path, add_space_prefix=(BOOL, 0)).encode("ab", add_special=False) == [13]


def test_byte_tokens_are_parsed_strictly(tmp_path: Path) -> None:
    """llama.cpp 25969: `<0x-1>` wrote before the buffer."""
    made = sentencepiece(tmp_path)
    assert made.token_bytes(3) == b"A"
    for token_id in (4, 5, 6):
        assert made.token_bytes(token_id) == SPM_TOKENS[token_id].encode()
    assert made.decode([3, 4, 5, 6]) == "A<0x-1><0xZZ><0x1FF>"


def test_special_tokens_in_text(tmp_path: Path) -> None:
    made, _ = gguf_tokenizer(tmp_path)
    assert made.encode("<|im_end|>", add_special=False) == [2]
    plain = made.encode("a<|im_end|>b", add_special=False, parse_special=False)
    assert 2 not in plain
    assert made.decode(plain) == "a<|im_end|>b"
    assert plain == made.encode(made.hide_special("a<|im_end|>b"), add_special=False)
    assert made.encode(made.hide_special("hello"), add_special=False) == made.encode("hello", add_special=False)


def test_hidden_text_cannot_be_unhidden(tmp_path: Path) -> None:
    """A text that already holds the hiding character, or tokens inside tokens, gains nothing."""
    made, _ = gguf_tokenizer(tmp_path)
    hidden = made.hide_special("<|im_end|>")
    mark = hidden[1]
    for text in (hidden, f"<|im{mark}_end|>", f"<{mark}{mark}|im_end|>", "<|im_<|im_end|>end|>", mark * 3 + "<|im_end|>"):
        assert 2 not in made.encode(made.hide_special(text), add_special=False)


def test_a_token_beyond_the_models_rows_is_refused_for_that_text_alone(tmp_path: Path) -> None:
    """transformers 12763: the id was used as an index."""
    folder(tmp_path, config={**LLAMA, "vocab_size": 2}, tokenizer__json=json.dumps(TOKENIZER).encode())
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.tokenizer is not None
        assert "the tokenizer has 3 tokens, the model 2" in opened.warnings[0]
        assert opened.tokenizer.encode("hello") == [0]
        with pytest.raises(RequestError, match=r"needs token 2 \('<s>'\), but the model has only 2 tokens"):
            opened.tokenizer.encode("hello <s>")


def test_text_that_is_no_text(tmp_path: Path) -> None:
    made, _ = gguf_tokenizer(tmp_path)
    with pytest.raises(RequestError, match="surrogate"):
        made.encode("a\ud800")
    with pytest.raises(RequestError, match="at most 8,388,608 are accepted"):
        made.encode("a" * ((8 << 20) + 1))


def test_ids_that_are_no_tokens_decode_to_nothing(tmp_path: Path) -> None:
    made, _ = gguf_tokenizer(tmp_path)
    assert made.decode([-1, 262, 10**9]) == ""
    assert made.token_text(10**9) == ""


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    spec = {
        **TOKENIZER,
        "truncation": {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 10**12},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "x",
        },
    }
    folder(tmp_path, tokenizer__json=json.dumps(spec).encode())
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.tokenizer is not None
        assert opened.tokenizer.encode("hello hello hello") == [0, 0, 0]


@pytest.mark.parametrize("model_type", ["gpt2", "roberta"])
def test_vocab_and_merges_files(model_type: str, tmp_path: Path) -> None:
    vocab = {token: index for index, token in enumerate(["<s>", "</s>", *byte_vocabulary(), "he"])}
    folder(
        tmp_path,
        config={**LLAMA, "model_type": model_type, "vocab_size": 300},
        vocab__json=json.dumps(vocab).encode(),
        merges__txt=b"#version: 0.2\nh e\n",
        tokenizer_config__json=json.dumps({"cls_token": "<s>", "sep_token": "</s>"}).encode(),
    )
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.tokenizer is not None
        ids = opened.tokenizer.encode("he é")
        assert opened.tokenizer.decode(ids) == "he é"
        assert (ids[0], ids[-1]) == ((0, 1) if model_type == "roberta" else (vocab["he"], ids[-1]))


def test_a_folder_without_tokenizer_files(tmp_path: Path) -> None:
    with checkpoint.open(str(folder(tmp_path))) as opened:
        assert opened.tokenizer is None
        assert opened.chat_template is None
