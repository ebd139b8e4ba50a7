"""The tokenizer of a GGUF file, built from its metadata: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

Precedence (token_type array): an entry decides what its token is. A missing array, or one shorter than the vocabulary,
leaves the others normal, with a warning; surplus entries are ignored. The bos, eos, eot and eom ids are always special,
whatever token_type says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from taut.checkpoint.stream import byte_level_bytes, parse_byte_token, sentencepiece_bytes
from taut.checkpoint.tokenizer import Tokenizer
from taut.checkpoint.tokenizer_files import MAX_VOCAB, guarded
from taut.errors import ModelFormatError, UnsupportedModelError
from taut.units import counted

_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_WORD_START = "▁"

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class _PreTokenizer:
    """How a vocabulary's text was split before its merges were learned. `split` None is GPT-2's own rule."""

    split: str | None = None
    has_single_digits: bool = False
    has_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_GPT2 = _PreTokenizer()
_SMOLLM = _PreTokenizer(has_single_digits=True)
_LLAMA3 = _PreTokenizer(split=LLAMA3_SPLIT, ignores_merges=True, adds_bos=True)
_QWEN2 = _PreTokenizer(split=QWEN2_SPLIT, has_nfc=True)
_PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "codeshell": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


@dataclass(frozen=True)
class _Vocabulary:
    """The checked arrays. `names` are unique: a token that stands twice keeps its name at its first id only."""

    tokens: list[str]
    names: list[str]
    types: list[int]
    scores: list[float]
    special: dict[str, int]


class _Reader:
    def __init__(self, metadata: dict[str, Any], file: str, warnings: list[str]) -> None:
        self._metadata, self.file, self.warnings = metadata, file, warnings

    def error(self, message: str, key: str) -> ModelFormatError:
        return ModelFormatError(message, file=self.file, field=f"tokenizer.ggml.{key}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if value is not default and type(value) is not kind:
            raise self.error(f"is a {type(value).__name__}; {kind.__name__} is expected", key)
        return value

    def vocabulary(self) -> _Vocabulary:
        tokens = self.get("tokens", list, [])
        if not 1 <= len(tokens) <= MAX_VOCAB:
            raise self.error(f"holds {len(tokens):,} tokens; 1 to {MAX_VOCAB:,} are accepted", "tokens")
        types = self._integers("token_type")
        if len(types) != len(tokens):
            self.warnings.append(
                f"token_type has {len(types):,} entries for {len(tokens):,} tokens; the others are taken as normal"
            )
            types = (types + [_NORMAL] * len(tokens))[: len(tokens)]
        scores = self.get("scores", np.ndarray, np.empty(0, np.float32)).astype(np.float64).tolist()
        if scores and len(scores) != len(tokens):
            raise self.error(f"holds {len(scores):,} scores for {len(tokens):,} tokens", "scores")
        special = {}
        for name in (
            "bos",
            "eos",
            "eot",
            "eom",
            "unknown",
            "padding",
            "seperator",
            "cls",
            "mask",
        ):  # "seperator" is the format's spelling
            token_id = self.get(f"{name}_token_id", int)
            if token_id is not None and not 0 <= token_id < len(tokens):
                raise self.error(f"is {token_id}; the vocabulary has {len(tokens):,} tokens", f"{name}_token_id")
            if token_id is not None:
                special[name] = token_id
        return _Vocabulary(tokens, self._unique(tokens), types, scores, special)

    def _integers(self, key: str) -> list[int]:
        values = self.get(key, np.ndarray, np.empty(0, np.int32))
        if values.dtype.kind not in "iu":
            raise self.error(f"is an array of {values.dtype}; whole numbers are expected", key)
        found: list[int] = values.tolist()
        return found

    def _unique(self, tokens: list[str]) -> list[str]:
        if len(set(tokens)) == len(tokens):
            return tokens
        seen: set[str] = set()
        names = []
        for index, token in enumerate(tokens):
            names.append(token if token not in seen else f"\ufdd1{index}")  # a noncharacter: no text leads to this token
            seen.add(token)
        self.warnings.append(
            f"{counted(len(tokens) - len(seen), 'token')} of the vocabulary stood there already; the first of each is used"
        )
        return names


def build(metadata: dict[str, Any], *, file: str, num_rows: int, warnings: list[str]) -> Tokenizer | None:
    """The file's tokenizer; None when it holds no vocabulary. `warnings` receives what is odd but bearable."""
    reader = _Reader(metadata, file, warnings)
    kind = reader.get("model", str)
    if kind in (None, "none", "no_vocab"):
        return None
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"{file}: tokenizer model {kind[:40]!r}; accepted are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)"
        )
    vocabulary = reader.vocabulary()
    backend, adds_bos = (_byte_level if kind == "gpt2" else _sentencepiece)(reader, vocabulary)
    _add_special(backend, vocabulary)
    special = vocabulary.special
    first = [special["bos"]] if "bos" in special and reader.get("add_bos_token", bool, adds_bos) else []
    last = [special["eos"]] if "eos" in special and reader.get("add_eos_token", bool, False) else []
    if first or last:
        pieces = {str(token_id): (vocabulary.names[token_id], token_id) for token_id in first + last}
        backend.post_processor = processors.TemplateProcessing(
            single=[f"{pieces[str(i)][0]}:0" for i in first] + ["$A:0"] + [f"{pieces[str(i)][0]}:0" for i in last],
            special_tokens=list(pieces.values()),
        )
    to_bytes = byte_level_bytes if kind == "gpt2" else sentencepiece_bytes
    table = [
        token.encode("utf-8", "replace") if token_type in (_CONTROL, _USER_DEFINED) else to_bytes(token)
        for token, token_type in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    return Tokenizer(
        backend,
        token_bytes=table,
        strips_first_space=kind == "llama" and reader.get("add_space_prefix", bool, True),
        bos_id=special.get("bos"),
        eos_ids=[special[name] for name in ("eos", "eot", "eom") if name in special],
        num_rows=num_rows,
    )


def _byte_level(reader: _Reader, vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """(backend, whether it begins with BOS when the file does not say)."""
    name = reader.get("pre", str)
    pre = _PRE_TOKENIZERS.get(name)
    if pre is None:
        given = (
            "does not name its pre-tokenizer (tokenizer.ggml.pre)" if name is None else f"has the pre-tokenizer {name[:40]!r}"
        )
        raise UnsupportedModelError(
            f"{reader.file}: {given}; accepted are {', '.join(_PRE_TOKENIZERS)}. A guess would split text "
            "wrongly: convert the model again, or use its Hugging Face folder"
        )
    merges = []
    for merge in reader.get("merges", list, []):
        space = merge.find(" ", 1)
        if space < 0:
            raise reader.error(f"holds {merge[:40]!r}; two tokens with a space between are expected", "merges")
        merges.append((merge[:space], merge[space + 1 :]))
    vocab = {token: index for index, token in enumerate(vocabulary.names)}
    backend = guarded(lambda: tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre.ignores_merges)), reader.file)
    steps: list[Any] = []
    if pre.has_single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre.has_nfc:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend, pre.adds_bos


def _sentencepiece(reader: _Reader, vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    if not vocabulary.scores:
        raise reader.error("is missing; a SentencePiece vocabulary needs the scores of its tokens", "scores")
    vocab = {token: index for index, token in enumerate(vocabulary.names)}
    unknown = vocabulary.names[vocabulary.special.get("unknown", 0)]
    merges = _merges_from_scores(vocabulary, vocab)
    has_bytes = any(parse_byte_token(token) is not None for token in vocabulary.names)
    backend = guarded(
        lambda: tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)),
        reader.file,
    )
    spaces: list[Any] = [normalizers.Replace(" ", _WORD_START)]
    if reader.get("add_space_prefix", bool, True):
        spaces.insert(0, normalizers.Prepend(_WORD_START))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence([decoders.Replace(_WORD_START, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend, True


def _merges_from_scores(vocabulary: _Vocabulary, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores highest: every way to cut a token in two, best token first."""
    plain = {t: i for t, i in vocab.items() if vocabulary.types[i] in (_NORMAL, _USER_DEFINED)}
    ranked = sorted(plain, key=lambda token: (-vocabulary.scores[vocab[token]], vocab[token]))
    return [
        (token[:cut], token[cut:])
        for token in ranked
        if len(token) <= 256  # no vocabulary has longer ones; the cuts of one token grow with its square
        for cut in range(1, len(token))
        if token[:cut] in plain and token[cut:] in plain
    ]


def _add_special(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary) -> None:
    named = {vocabulary.special[name] for name in ("bos", "eos", "eot", "eom") if name in vocabulary.special}
    special, ordinary = [], []
    for index, (name, kind) in enumerate(zip(vocabulary.names, vocabulary.types, strict=True)):
        if not name or kind == _BYTE:
            continue
        if kind == _CONTROL or index in named:
            special.append(AddedToken(name, normalized=False, special=True))
        elif kind == _USER_DEFINED:
            ordinary.append(AddedToken(name, normalized=False, special=False))
    backend.add_special_tokens(special)
    backend.add_tokens(ordinary)
