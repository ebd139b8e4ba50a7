"""A model's chat template: messages to the text that the model was trained on.

The template is a Jinja program that came with the model. It runs in a process of its own (template_worker.py) which can
do nothing but render, within a time and a size. Knows nothing of tokens, except that a special token typed by a user is
hidden from the tokenizer.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from taut.errors import ContextLengthError, ModelFormatError, RequestError

MAX_TEMPLATE_BYTES = 256 << 10
MAX_CHARS = 1 << 20
MAX_INPUT_BYTES = 32 << 20
RENDER_LIMIT_S = 2.0
START_LIMIT_S = 30.0
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH")  # what Python itself may need to start
_ABSENT = {"tools": None, "documents": None}  # templates in use test these for none, as transformers passes them
_RESERVED = frozenset({"messages", "add_generation_prompt", "strftime_now", "raise_exception", "range", "namespace"})


class ChatTemplate:
    """`variables` are the names that every rendering sees, such as bos_token. `hide_special` is applied to every text
    that a caller gives.

    `clock` gives the time of `strftime_now`. `limit_s` bounds one rendering, `max_chars` its result.
    """

    def __init__(
        self,
        source: str,
        *,
        variables: Mapping[str, str] | None = None,
        hide_special: Callable[[str], str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
        max_chars: int = MAX_CHARS,
        limit_s: float = RENDER_LIMIT_S,
    ) -> None:
        size = len(source.encode("utf-8", "replace"))
        if size > MAX_TEMPLATE_BYTES:
            raise ModelFormatError(f"is {size:,} bytes; at most {MAX_TEMPLATE_BYTES:,} are accepted", field="chat_template")
        self.source = source
        self._variables = dict(variables or {})
        self._hide_special, self._clock = hide_special, clock
        self._max_chars, self._limit_s = max_chars, limit_s
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation, up to where the assistant continues. Encode it with `add_special=False`.

        `variables` reach the template by name (`tools`, `enable_thinking`, …). RequestError when the template refuses
        the messages, fails or takes too long; ContextLengthError when the text is longer than `max_chars`.
        """
        reserved = _RESERVED.intersection(variables)
        if reserved:
            raise RequestError(
                f"template variables may not be named {', '.join(sorted(reserved))}", param="chat_template_kwargs"
            )
        given = self._hide({**variables, "messages": [dict(message) for message in messages]})
        context = {**_ABSENT, **self._variables, **given, "add_generation_prompt": add_generation_prompt}
        try:
            request = json.dumps(
                {"context": context, "now": self._clock().isoformat(), "max_chars": self._max_chars}, allow_nan=False
            ).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the messages are not plain data: {error}", param="messages") from None
        if len(request) > MAX_INPUT_BYTES:
            raise RequestError(
                f"the messages take {len(request):,} bytes; at most {MAX_INPUT_BYTES:,} are accepted", param="messages"
            )
        with self._lock:
            return self._exchange(request)

    def check(self) -> None:
        """Compiles the template; ModelFormatError when it is not a Jinja template."""
        with self._lock:
            try:
                self._start()
            except RequestError as error:
                raise ModelFormatError(str(error), field="chat_template") from None

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _hide(self, value: Any) -> Any:
        if self._hide_special is None:
            return value
        if isinstance(value, str):
            return self._hide_special(value)
        if isinstance(value, list):
            return [self._hide(item) for item in value]
        if isinstance(value, dict):
            return {key: self._hide(item) for key, item in value.items()}
        return value

    def _start(self) -> _Worker:
        if self._worker is None or not self._worker.is_alive():
            self._stop()
            self._worker = _Worker()
            self._ask(None, START_LIMIT_S)
            answer = self._ask(json.dumps({"source": self.source}).encode("ascii"), self._limit_s)
            if "ok" not in answer:
                self._stop()
                raise RequestError(
                    f"the model's chat template cannot be compiled: {answer['error']}",
                    param="messages",
                    code="chat_template_error",
                )
        return self._worker

    def _exchange(self, request: bytes) -> str:
        self._start()
        answer = self._ask(request, self._limit_s)
        if "ok" in answer:
            return str(answer["ok"])
        if answer["kind"] == "raised":
            raise RequestError(
                f"the model's chat template refuses the messages: {answer['error']}",
                param="messages",
                code="chat_template_error",
            )
        if answer["kind"] == "length":
            raise ContextLengthError(
                f"the conversation makes more than {self._max_chars:,} characters, too long for the model's context",
                param="messages",
            )
        raise RequestError(f"the model's chat template failed: {answer['error']}", param="messages", code="chat_template_error")

    def _ask(self, request: bytes | None, limit_s: float) -> dict[str, str]:
        assert self._worker is not None
        try:
            return self._worker.ask(request, limit_s, max_answer_bytes=12 * self._max_chars + 4096)
        except TimeoutError:
            reason = f"took longer than {limit_s:g} s"
        except (OSError, ValueError, EOFError):
            reason = "ended its process (too much memory?)"
        self._stop()
        raise RequestError(f"the model's chat template {reason}", param="messages", code="chat_template_error")

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class _Worker:
    """The rendering process and its two pipes."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", str(Path(__file__).with_name("template_worker.py")), json.dumps(sys.path)]
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self.kill = weakref.finalize(self, _end, self._process)  # also when the template is forgotten, and at exit

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes | None, limit_s: float, *, max_answer_bytes: int) -> dict[str, str]:
        """Sends one message (None: nothing) and waits for an answer. TimeoutError after `limit_s`; EOFError when the
        process ends.
        """
        deadline = time.monotonic() + limit_s
        to_send = memoryview(b"" if request is None else len(request).to_bytes(4, "little") + request)
        while to_send:
            self._wait(self._in, selectors.EVENT_WRITE, deadline)
            to_send = to_send[os.write(self._in, to_send) :]
        size = int.from_bytes(self._receive(4, deadline), "little")
        if size > max_answer_bytes:
            raise ValueError("the answer is too large")
        answer: dict[str, str] = json.loads(self._receive(size, deadline))
        return answer

    def _receive(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._wait(self._out, selectors.EVENT_READ, deadline)
            piece = os.read(self._out, min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    @staticmethod
    def _wait(fd: int, event: int, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(fd, event)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
