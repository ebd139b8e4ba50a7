"""read_calibration: text to calibrate on, of a file, of a folder or of the model itself.

Any beginning of what it gives is spread over all files and every part of each: files take turns, and the pieces of a file come in the
order of van der Corput's sequence (first, middle, quarters, …). The order depends on names and sizes alone. Files are read piece by piece,
as far as the calibration asks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from taut.api import Model
from taut.errors import RequestError, UsageError
from taut.loading import Loaded
from taut.scheduler.request import GenerateRequest, SamplingParams, TextEvent

SUFFIXES = (".txt", ".md", ".jsonl")
PIECE_BYTES = 8192  # a few windows of text
SELF = "self"
SAMPLED_TOKENS = 512  # of a text that the model makes up
Text = str | list[int]
_Read = Callable[[], Iterator[Text]]


def read_calibration(where: str | Path, model: Model | Loaded) -> Iterator[Text]:
    """Texts, or token ids of conversations and of what the model made up. `where` is a .txt, .md or .jsonl file (of objects with "text" or
    "messages"; the latter get the model's chat template), a folder with such files, or "self". UsageError when there is no text."""
    loaded = model.loaded if isinstance(model, Model) else model
    if where == SELF:
        return sample_texts(loaded)
    path = Path(where)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        files = [p for p in files if p.stat().st_size]
        if not files:
            raise UsageError(
                f"the folder {str(path)!r} has no text: no file ending in {', '.join(SUFFIXES)} with anything in it"
            )
    elif path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(
                f"{path.name} is no calibration text; accepted: files ending in {', '.join(SUFFIXES)}, folders, self"
            )
        files = [path]
    else:
        raise UsageError(f"there is no calibration text {str(path)!r}; give a file, a folder or {SELF!r}")
    return _in_turns([_jsonl(file, loaded) if file.suffix.lower() == ".jsonl" else _plain(file) for file in files])


def _in_turns(files: list[Iterator[Text]]) -> Iterator[Text]:
    while files:
        left = []
        for file in files:
            for text in file:
                yield text
                left.append(file)
                break
        files = left


def spread(count: int) -> Iterator[int]:
    """0 … count - 1 in the order of their bits reversed."""
    bits = max(count - 1, 0).bit_length()
    for index in range(1 << bits):
        reversed_ = int(format(index, f"0{bits}b")[::-1], 2) if bits else 0
        if reversed_ < count:
            yield reversed_


def _plain(path: Path) -> Iterator[Text]:
    size = path.stat().st_size
    for index in spread(-(-size // PIECE_BYTES)):
        text = _piece(path, index * PIECE_BYTES, size)
        if text.strip():
            yield text


def _piece(path: Path, begin: int, size: int) -> str:
    """The characters whose first byte lies in [begin, begin + PIECE_BYTES)."""
    with open(path, "rb") as file:
        file.seek(begin)
        data = file.read(PIECE_BYTES + 3)
    first = 0
    while begin and first < 3 and first < len(data) and data[first] & 0xC0 == 0x80:
        first += 1
    end = min(PIECE_BYTES, len(data))
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return _decoded(data[first:end], path, begin + first)


def _decoded(data: bytes, path: Path, offset: int) -> str:
    try:
        if b"\0" in data:
            raise ValueError(f"a zero byte at {offset + data.index(0)}")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {offset + error.start} is no UTF-8"
    except ValueError as error:
        reason = str(error)
    raise UsageError(f"{path.name} is no text ({reason}); calibration reads UTF-8 text") from None


def _jsonl(path: Path, loaded: Loaded) -> Iterator[Text]:
    begins = [0]
    with open(path, "rb") as file:
        begins += [file.tell() for _ in iter(file.readline, b"")]
    for index in spread(len(begins) - 1):
        with open(path, "rb") as file:
            file.seek(begins[index])
            line = _decoded(file.readline(), path, begins[index])
        if line.strip():
            yield _of_record(line, f"{path.name}, line {index + 1}", loaded)


def _of_record(line: str, where: str, loaded: Loaded) -> Text:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict) and isinstance(record.get("text"), str):
        return str(record["text"])
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        raise UsageError(f'{where} is no JSON object with "text" or "messages": {line.strip()[:60]!r}')
    return _conversation(record["messages"], where, loaded)


def _conversation(messages: list[Any], where: str, loaded: Loaded) -> Text:
    template: Any = loaded.checkpoint.chat_template
    tokenizer: Any = loaded.checkpoint.tokenizer
    if template is None or tokenizer is None:
        raise UsageError(f'{where} has "messages", but {loaded.checkpoint.name} has no chat template; give "text"')
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in messages) or not messages:
        raise UsageError(f'{where}: "messages" must be a list of objects with a role and a content')
    try:
        ids: list[int] = tokenizer.encode(template.render(messages, add_generation_prompt=False), add_special=False)
    except RequestError as error:
        raise UsageError(f"{where}: {error}") from None
    return ids


def sample_texts(loaded: Loaded, length: int = SAMPLED_TOKENS) -> Iterator[list[int]]:
    """Token ids that the model makes up, from BOS at temperature 1, without end; the n-th is the same every time. What a model says is as
    good for calibration as what people wrote."""
    tokenizer: Any = loaded.checkpoint.tokenizer
    if loaded.built.kind != "decoder" or tokenizer is None:
        raise UsageError(
            f"{loaded.checkpoint.name} makes up no text: it is no decoder with a tokenizer; give a file or a folder"
        )
    start = tokenizer.bos_id if tokenizer.bos_id is not None else min(tokenizer.eos_ids, default=0)
    return _sampled(loaded, start, min(length, loaded.context_len))


def _sampled(loaded: Loaded, start: int, length: int) -> Iterator[list[int]]:
    ends = loaded.checkpoint.tokenizer.eos_ids if loaded.checkpoint.tokenizer else frozenset()
    together = loaded.config.max_sequences
    for first in itertools.count(0, together):
        texts: dict[str, list[int]] = {}
        for seed in range(first, first + together):
            texts[f"calibration-{seed}"] = [start]
            sampling = SamplingParams(temperature=1.0, seed=seed)
            loaded.loop.submit(GenerateRequest(f"calibration-{seed}", (start,), max(length - 1, 1), sampling))
        while loaded.loop.has_work:
            for event in loaded.loop.step():
                if isinstance(event, TextEvent) and event.request_id in texts:
                    texts[event.request_id] += [token for token in event.token_ids if token not in ends]
        yield from _not_empty(list(texts.values()))


def _not_empty(texts: Sequence[list[int]]) -> Iterator[list[int]]:
    """A model that always ends at once would be asked for ever."""
    longer = [text for text in texts if len(text) > 1]
    if not longer:
        raise UsageError("the model makes up no text: it ends at once; give a file or a folder")
    yield from longer
