"""A scripted model behind the server's protocols: no tensors, every timing and failure on request.

A prompt says what happens. Its text is made of words; the tokenizer gives one id per character.
    "hello"            the answer is the script, one piece a step
    "fail"             the request fails at its second step
    "nan"              the request fails with NumericalError at its second step (an embedding: a non-finite vector)
    "die"              the step raises, which kills the engine thread
    "hang"             the step waits until `FakeLoop.release` is set
    "go on"            the script is repeated until `FakeLoop.release` is set
    "overload"         submit raises OverloadedError
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from taut.errors import NumericalError, OverloadedError, RequestError
from taut.scheduler.request import EmbedRequest, Event, FinishedEvent, GenerateRequest, Request, TextEvent, Usage

CACHED_TOKENS = 3
DIM = 4


class FakeTokenizer:
    vocab_size = 0x110000

    def __init__(self) -> None:
        self.calls = 0
        self.threads: set[str] = set()

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        return [ord(character) for character in text]


class FakeTemplate:
    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        if any(a["role"] == b["role"] == "user" for a, b in itertools.pairwise(messages)):
            raise RequestError("Conversation roles must alternate", param="messages")
        return "".join(f"{message['role']}:{message['content']};" for message in messages) + str(variables or "")


@dataclass(frozen=True)
class FakeStats:
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 64
    steps: int = 0
    guards: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeLoop:
    """Runs at most `slots` sequences at once, one piece of `script` a step, `step_s` seconds each."""

    script: tuple[str, ...] = ("Hel", "lo", ", ", "world")
    step_s: float = 0.0
    slots: int = 4
    max_queued: int = 1000
    max_queued_tokens: int = 10**6
    release: threading.Event = field(default_factory=threading.Event)
    guards: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.running: dict[str, Request] = {}
        self.sent: dict[str, int] = {}
        self.cancelled: list[tuple[str, int]] = []  # (request id, step at which it was cancelled)
        self.seen: list[Request] = []
        self.steps = self.rests = 0
        self.owners: set[int] = set()

    def submit(self, request: Request) -> None:
        self.owners.add(threading.get_ident())
        if "overload" in text_of(request) or len(self.waiting) >= self.max_queued:
            raise OverloadedError("the queue is full", retry_after_s=7)
        assert request.request_id not in {r.request_id for r in (*self.waiting, *self.running.values())}, "ids are unique"
        self.seen.append(request)
        self.sent[request.request_id] = 0
        self.waiting.append(request)

    def cancel(self, request_id: str) -> None:
        self.owners.add(threading.get_ident())
        self.cancelled.append((request_id, self.steps))
        self.running.pop(request_id, None)
        self.waiting = deque(request for request in self.waiting if request.request_id != request_id)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def rest(self) -> None:
        self.rests += 1

    def step(self) -> list[Event]:
        self.owners.add(threading.get_ident())
        self.steps += 1
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting.popleft()
            self.running[request.request_id] = request
        prompts = [text_of(request) for request in self.running.values()]
        if any("die" in prompt for prompt in prompts):
            raise RuntimeError("secret detail at /some/path")
        if any("hang" in prompt for prompt in prompts):
            self.release.wait(60)
        if self.step_s:
            time.sleep(self.step_s)
        events: list[Event] = []
        for request in tuple(self.running.values()):
            events += self._embed(request) if isinstance(request, EmbedRequest) else self._generate(request)
        for event in events:
            if isinstance(event, FinishedEvent):
                del self.running[event.request_id]
        return events

    def _generate(self, request: GenerateRequest) -> list[Event]:
        number = self.sent[request.request_id]
        usage = Usage(len(request.prompt), number, CACHED_TOKENS if request.choice == 0 else 0)
        if number == 1 and "nan" in text_of(request):
            return [FinishedEvent(request.request_id, "error", usage, NumericalError("the logits are not finite"))]
        if number == 1 and "fail" in text_of(request):
            return [FinishedEvent(request.request_id, "error", usage, RuntimeError("secret detail at /some/path"))]
        if number >= len(self.script) and not self._goes_on(request):
            return [FinishedEvent(request.request_id, "stop", usage)]
        if number == request.max_tokens:
            return [FinishedEvent(request.request_id, "length", usage)]
        self.sent[request.request_id] += 1
        return [TextEvent(request.request_id, self.script[number % len(self.script)], (number,))]

    def _goes_on(self, request: GenerateRequest) -> bool:
        return "go on" in text_of(request) and not self.release.is_set()

    def _embed(self, request: EmbedRequest) -> list[Event]:
        vector = np.full(DIM, len(request.prompt), np.float32)
        if "nan" in text_of(request):
            vector[1] = np.nan
        return [FinishedEvent(request.request_id, "stop", Usage(len(request.prompt)), embedding=vector)]

    def stats(self) -> FakeStats:
        return FakeStats(len(self.running), len(self.waiting), 2 * len(self.running), 64, self.steps, dict(self.guards))


@dataclass
class FakeModel:
    loop: FakeLoop = field(default_factory=FakeLoop)
    kind: Literal["decoder", "encoder"] = "decoder"
    context_len: int = 256
    chat_template: FakeTemplate | None = field(default_factory=FakeTemplate)
    generation_config: dict[str, Any] = field(default_factory=dict)
    receipt: dict[str, Any] | None = None
    name: str = "fake"

    def __post_init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.embedding_dim = DIM if self.kind == "encoder" else None

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "precision": "int8", "isa": "scalar", "threads": 1}


def text_of(request: Request) -> str:
    return "".join(chr(token) for token in request.prompt)
