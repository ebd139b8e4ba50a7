"""Text to token ids and back, for every kind of checkpoint.

Special tokens in text. `encode(text)` adds the model's own beginning and end tokens (raw prompts, embeddings). A
rendered chat already holds them, so it is encoded with `add_special=False`: exactly one BOS either way. A chat's
message contents are made safe by `ChatTemplate` with `hide_special`: a `<|im_end|>` that a user typed is read as
ordinary characters, never as the end of a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tokenizers
from tokenizers import normalizers

from taut.checkpoint.stream import TokenStream, WindowStream, decode_all
from taut.errors import RequestError

MAX_TEXT_CHARS = 8 << 20

# A Unicode noncharacter. Put inside a special token it keeps the token from being recognised; the normalizer then removes it.
_HIDE = "\ufdd0"


class Tokenizer:
    """One model's tokenizer.

    `vocab_size` counts the ids the tokenizer knows. `num_rows` is the model's embedding rows when known: text that
    needs a higher id is refused with a RequestError. `eos_ids` is the union of what the checkpoint's files call an end
    token. `adds_bos`: whether `encode` begins with `bos_id`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        token_bytes: Sequence[bytes] | None = None,
        strips_first_space: bool = False,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        num_rows: int | None = None,
    ) -> None:
        hide = normalizers.Replace(_HIDE, "")
        backend.normalizer = normalizers.Sequence([hide, backend.normalizer]) if backend.normalizer else hide
        self._backend, self._table, self._strips_first_space = backend, token_bytes, strips_first_space
        self._num_rows = num_rows
        self.vocab_size = backend.get_vocab_size()
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_tokens = tuple(sorted(added[token_id].content for token_id in self.special_ids if added[token_id].content))
        # Longest first: a shorter special token may be the beginning of a longer one.
        pattern = "|".join(re.escape(token) for token in sorted(self.special_tokens, key=len, reverse=True))
        self._special = re.compile(pattern) if pattern else None
        self.adds_bos = bos_id is not None and backend.encode("").ids[:1] == [bos_id]

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids. With `parse_special` off, special tokens in `text` are ordinary characters."""
        if len(text) > MAX_TEXT_CHARS:
            raise RequestError(f"the text has {len(text):,} characters; at most {MAX_TEXT_CHARS:,} are accepted")
        if not parse_special:
            text = self.hide_special(text)
        try:
            ids = self._backend.encode(text, add_special_tokens=add_special).ids
        except (TypeError, UnicodeEncodeError):  # the library refuses unpaired surrogates with either
            raise RequestError("the text holds half of a surrogate pair, which is no character") from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a vocabulary without what the text needs, or a panic of the library's Rust code
            raise RequestError("the model's tokenizer cannot read this text", code="tokenizer_error") from None
        if self._num_rows is not None and ids and max(ids) >= self._num_rows:
            worst = max(ids)
            raise RequestError(
                f"the text needs token {worst} ({self.token_text(worst)!r}), but the model has only {self._num_rows} tokens"
            )
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        if self._table is None:
            return decode_all(self.stream(skip_special=skip_special), ids)
        skip = self.special_ids if skip_special else frozenset()
        text = b"".join(self._bytes(token_id) for token_id in ids if token_id not in skip).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strips_first_space else text

    def to_json(self) -> str:
        """The tokenizer as the content of a tokenizer.json."""
        stated: dict[str, Any] = json.loads(self._backend.to_str())
        own = stated["normalizer"]  # ours, that hides special tokens, stands first
        stated["normalizer"] = own["normalizers"][1] if own["type"] == "Sequence" else None
        return json.dumps(stated, ensure_ascii=False)

    def token_text(self, token_id: int) -> str:
        """One token as text, special or not; U+FFFD where its bytes are part of a character, empty for an unknown id."""
        if self._table is not None:
            return self._bytes(token_id).decode("utf-8", "replace")
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; a vocabulary without bytes gives its text's."""
        return self._bytes(token_id) if self._table is not None else self.token_text(token_id).encode("utf-8")

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact name, such as "<|im_end|>"."""
        return self._backend.token_to_id(token)

    def stream(self, *, skip_special: bool = True) -> TokenStream:
        skip = self.special_ids if skip_special else frozenset()
        if self._table is not None:
            return TokenStream(self._bytes, skip=skip, strip_first_space=self._strips_first_space)
        decode: Callable[[Sequence[int]], str] = lambda ids: self._backend.decode(list(ids), skip_special_tokens=False)  # noqa: E731
        return WindowStream(decode, skip=skip)

    def hide_special(self, text: str) -> str:
        """`text` with each special token made unrecognisable to `encode`, which still reads its characters."""
        if _HIDE in text:
            text = text.replace(_HIDE, "")
        if self._special is None:
            return text
        return self._special.sub(lambda match: match[0][0] + _HIDE + match[0][1:] if len(match[0]) > 1 else match[0], text)

    def _bytes(self, token_id: int) -> bytes:
        assert self._table is not None
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""
