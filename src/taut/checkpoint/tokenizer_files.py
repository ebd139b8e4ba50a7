"""The tokenizer of a Hugging Face folder: tokenizer.json, or the older vocab.txt (WordPiece) or vocab.json + merges.txt
(byte-level BPE).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from taut.checkpoint import strict_json
from taut.checkpoint.files import read_small, safe_path
from taut.checkpoint.stream import byte_level_bytes, sentencepiece_bytes
from taut.checkpoint.tokenizer import Tokenizer
from taut.checkpoint.tokenizer_guard import explain_dangers
from taut.errors import ModelFormatError, UnsupportedModelError

log = logging.getLogger(__name__)
MAX_VOCAB = 1 << 21
MAX_VOCAB_FILE_BYTES = 64 << 20
_T = TypeVar("_T")

_PROBE = "Probe 1\n\u00e9 \u4e2d"  # a tokenizer that fails on this is refused when it is opened
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load(folder: Path, *, model_type: str, settings: dict[str, Any], num_rows: int | None) -> Tokenizer | None:
    """The folder's tokenizer, None when it has none. `settings` is tokenizer_config.json."""
    names = special_names(settings)
    if (folder / "tokenizer.json").exists():
        backend, spec = _from_json(safe_path(folder, "tokenizer.json"))
    elif (folder / "vocab.txt").exists():
        backend, spec = _word_piece(_read_lines(safe_path(folder, "vocab.txt")), settings, names), {}
    elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        backend = _byte_level(folder, model_type, names)
        spec = {"decoder": {"type": "ByteLevel"}}
    else:
        return None
    table, strips = _byte_table(backend, spec)
    return Tokenizer(
        backend,
        token_bytes=table,
        strips_first_space=strips,
        bos_id=backend.token_to_id(names["bos_token"]) if "bos_token" in names else None,
        num_rows=num_rows,
    )


def special_names(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, … → the token's text. A file holds each as a string or as an object with `content`."""
    found = {}
    for name in SPECIAL_NAMES:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            found[name] = text
    return found


def guarded(make: Callable[[], _T], file: str) -> _T:
    """Runs the tokenizers library on a file's content; its exceptions, and the panics of its Rust code, become a
    ModelFormatError.
    """
    try:
        return make()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic arrives as a BaseException
        raise ModelFormatError(f"is not a usable tokenizer: {str(error)[:300]}", file=file) from None


def _from_json(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    data = read_small(path, max_bytes=strict_json.MAX_BYTES)
    spec = strict_json.parse(data, file=path.name)
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise ModelFormatError("must be an object with a model", file=path.name)
    danger = explain_dangers(spec)
    if danger:
        raise UnsupportedModelError(f"{path.name}: {danger}")
    backend = guarded(lambda: tokenizers.Tokenizer.from_str(data.decode("utf-8")), path.name)
    backend.no_truncation()
    backend.no_padding()  # before any use: the library would allocate whatever length the file states
    guarded(lambda: backend.encode(_PROBE), path.name)
    if backend.get_vocab_size() > MAX_VOCAB:
        raise ModelFormatError(f"has {backend.get_vocab_size():,} tokens; at most {MAX_VOCAB:,} are accepted", file=path.name)
    return backend, spec


def _kinds(spec: object) -> Iterator[dict[str, Any]]:
    """A decoder or pre-tokenizer, with the members of a Sequence one by one."""
    if isinstance(spec, dict):
        yield spec
        for key in ("decoders", "pretokenizers"):
            for item in spec.get(key) or []:
                yield from _kinds(item)


def _byte_table(backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> tuple[list[bytes] | None, bool]:
    """(bytes of each id, whether the first space goes), when the vocabulary is a table of bytes; (None, False) otherwise."""
    steps = list(_kinds(spec.get("decoder")))
    kinds = {step.get("type") for step in steps}
    model = spec.get("model", {})
    if "ByteLevel" in kinds:
        to_bytes: Callable[[str], bytes] = byte_level_bytes
    elif "ByteFallback" in kinds and isinstance(model, dict) and model.get("byte_fallback"):
        to_bytes = sentencepiece_bytes
    else:
        return None, False
    strips = any(step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) for step in steps)
    vocab = backend.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    if size > MAX_VOCAB:
        raise ModelFormatError(f"has the token id {size - 1:,}; at most {MAX_VOCAB:,} are accepted", file="tokenizer.json")
    table = [b""] * size
    for token, token_id in vocab.items():
        table[token_id] = to_bytes(token)
    for token_id, added in backend.get_added_tokens_decoder().items():
        table[token_id] = added.content.encode("utf-8")  # stands in the text as it is
    return table, strips


def _read_lines(path: Path) -> list[str]:
    try:
        lines = read_small(path, max_bytes=MAX_VOCAB_FILE_BYTES).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ModelFormatError("is not UTF-8", file=path.name, offset=error.start) from None
    lines = [line.rstrip("\r") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    if not 1 <= len(lines) <= MAX_VOCAB:
        raise ModelFormatError(f"has {len(lines):,} lines; 1 to {MAX_VOCAB:,} are accepted", file=path.name)
    return lines


def _word_piece(lines: list[str], settings: dict[str, Any], names: dict[str, str]) -> tokenizers.Tokenizer:
    """BERT's tokenizer from its vocabulary, one token a line."""
    vocab = {token: index for index, token in enumerate(lines)}
    unknown = names.get("unk_token", "[UNK]")
    first, last = names.get("cls_token", "[CLS]"), names.get("sep_token", "[SEP]")
    absent = [token for token in (unknown, first, last) if token not in vocab]
    if absent:
        raise ModelFormatError(f"has no {' and no '.join(absent)}", file="vocab.txt")
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=settings.get("strip_accents") if isinstance(settings.get("strip_accents"), bool) else None,
        lowercase=settings.get("do_lower_case") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(first, vocab[first]), (last, vocab[last])],
    )
    special = {unknown, first, last, names.get("pad_token", "[PAD]"), names.get("mask_token", "[MASK]")}
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in sorted(special) if token in vocab]
    )
    return backend


def _byte_level(folder: Path, model_type: str, names: dict[str, str]) -> tokenizers.Tokenizer:
    """GPT-2's or RoBERTa's tokenizer from its vocabulary and merges."""
    vocab = strict_json.load_object(safe_path(folder, "vocab.json"))
    if not 1 <= len(vocab) <= MAX_VOCAB or not all(type(value) is int and 0 <= value < MAX_VOCAB for value in vocab.values()):
        raise ModelFormatError(f"must map up to {MAX_VOCAB:,} tokens to their ids", file="vocab.json")
    lines = [line for line in _read_lines(safe_path(folder, "merges.txt")) if line and not line.startswith("#version")]
    if any(line.count(" ") != 1 for line in lines):
        raise ModelFormatError("must hold two tokens a line, with a space between", file="merges.txt")
    merges = [(line.split(" ")[0], line.split(" ")[1]) for line in lines]
    backend = guarded(lambda: tokenizers.Tokenizer(models.BPE(vocab, merges)), "merges.txt")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in names.values() if token in vocab])
    if re.fullmatch(r"(xlm-)?roberta|camembert", model_type):
        first, last = names.get("cls_token", "<s>"), names.get("sep_token", "</s>")
        if first not in vocab or last not in vocab:
            raise ModelFormatError(f"has no {first} or no {last}", file="vocab.json")
        backend.post_processor = processors.RobertaProcessing(
            (last, vocab[last]), (first, vocab[first]), add_prefix_space=False
        )
    return backend
