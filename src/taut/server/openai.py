"""OpenAI's dialect: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models.

Each call becomes a job: which requests it means, and how their events read as OpenAI's JSON, whole or in chunks.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

import taut
from taut.errors import NumericalError, RequestError
from taut.scheduler.request import EmbedRequest, GenerateRequest, Request
from taut.server.answer import Result, Services, StreamAnswer, WholeAnswer
from taut.server.body import is_large, parse_object, read_body
from taut.server.schemas import Body, ChatRequest, CompletionRequest, EmbeddingRequest, Sampling, num_ignored, parse
from taut.server.served import Served
from taut.server.settings import Limits

Json = dict[str, Any]


class _TextJob:
    """What chat and plain completions share: ids, choices, usage. The subclasses name the fields."""

    route = ""
    prefix = ""
    whole_object = ""
    chunk_object = ""

    def __init__(self, served: Served, body: Sampling, num_prompts: int) -> None:
        self.served, self.wants_usage = served, body.wants_usage
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.num_prompts, self.n = num_prompts, body.n
        self.num_requests = num_prompts * body.n

    def whole(self, result: Result) -> Json:
        choices = [
            {"index": index, **self._answer(text), "logprobs": None, "finish_reason": result.finished[index].reason}
            for index, text in enumerate(result.texts)
        ]
        return {**self._head(self.whole_object), "choices": choices, "usage": self._usage(result)}

    def delta(self, index: int, text: str) -> Json:
        return self._chunk(index, self._piece(text), None)

    def ending(self, index: int, reason: str) -> Json:
        return self._chunk(index, self._piece(None), reason)

    def closing(self, result: Result) -> list[Json]:
        """The usage chunk, when it was asked for."""
        if not self.wants_usage:
            return []
        return [{**self._head(self.chunk_object), "choices": [], "usage": self._usage(result)}]

    def _answer(self, text: str) -> Json:
        raise NotImplementedError

    def _piece(self, text: str | None) -> Json:
        raise NotImplementedError

    def _chunk(self, index: int, piece: Json, reason: str | None) -> Json:
        choice = {"index": index, **piece, "logprobs": None, "finish_reason": reason}
        return {**self._head(self.chunk_object), "choices": [choice], **({"usage": None} if self.wants_usage else {})}

    def _head(self, kind: str) -> Json:
        fingerprint = f"taut-{taut.__version__}"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": fingerprint,
        }

    def _usage(self, result: Result) -> Json:
        """A prompt counts once, however many choices it has."""
        prompts = [result.finished[number * self.n].usage for number in range(self.num_prompts)]
        prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
        completion_tokens = sum(event.usage.completion_tokens for event in result.finished.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        }


class ChatJob(_TextJob):
    route = "/v1/chat/completions"
    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, served: Served, body: ChatRequest) -> None:
        super().__init__(served, body, num_prompts=1)
        self._body = body

    def requests(self) -> list[GenerateRequest]:
        return self.served.generate_requests(self.id, [self.served.encode_chat(self._body)], self._body)

    def opening(self) -> list[Json]:
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk(index, delta, None) for index in range(self.n)]

    def _answer(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _piece(self, text: str | None) -> Json:
        return {"delta": {} if text is None else {"content": text}}


class CompletionJob(_TextJob):
    route = "/v1/completions"
    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, served: Served, body: CompletionRequest) -> None:
        super().__init__(served, body, num_prompts=len(body.prompt))
        self._body = body

    def requests(self) -> list[GenerateRequest]:
        prompts = [
            self.served.encode(prompt, _nth("prompt", number, self.num_prompts))
            for number, prompt in enumerate(self._body.prompt)
        ]
        return self.served.generate_requests(self.id, prompts, self._body)

    def opening(self) -> list[Json]:
        return []

    def _answer(self, text: str) -> Json:
        return {"text": text}

    def _piece(self, text: str | None) -> Json:
        return {"text": text or ""}


class EmbeddingJob:
    route = "/v1/embeddings"

    def __init__(self, served: Served, body: EmbeddingRequest) -> None:
        self._served, self._body = served, body
        self._id = f"embd-{uuid.uuid4().hex}"
        self.num_requests = len(body.input)

    def requests(self) -> Sequence[Request]:
        return [
            EmbedRequest(f"{self._id}:{number}", self._served.encode(text, _nth("input", number, self.num_requests)))
            for number, text in enumerate(self._body.input)
        ]

    def whole(self, result: Result) -> Json:
        data = [
            {"object": "embedding", "index": number, "embedding": self._vector(number, result)}
            for number in range(self.num_requests)
        ]
        prompt_tokens = sum(event.usage.prompt_tokens for event in result.finished.values())
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        return {"object": "list", "data": data, "model": self._served.name, "usage": usage}

    def _vector(self, number: int, result: Result) -> str | list[float]:
        vector = result.finished[number].embedding
        assert vector is not None
        if not np.isfinite(vector).all():
            raise NumericalError(f"the embedding of input {number} is not finite")
        if self._body.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        return [float(value) for value in vector]


def _nth(name: str, number: int, count: int) -> str:
    return name if count == 1 else f"{name}[{number}]"


class OpenAI:
    """The routes. Each one reads and checks the body, then hands a job to an answer."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route(ChatJob.route, self.chat, methods=["POST"]),
            Route(CompletionJob.route, self.completions, methods=["POST"]),
            Route(EmbeddingJob.route, self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}/quality", self.quality, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
        ]

    async def chat(self, request: HttpRequest) -> ASGIApp:
        body = await self._read(request, ChatRequest)
        self._services.served.check(body.model, "decoder", ChatJob.route)
        _check_n(body, self._services.settings.limits)
        return self._text_answer(ChatJob(self._services.served, body), body)

    async def completions(self, request: HttpRequest) -> ASGIApp:
        body = await self._read(request, CompletionRequest)
        self._services.served.check(body.model, "decoder", CompletionJob.route)
        _check_n(body, self._services.settings.limits)
        _check_count("prompt", len(body.prompt), self._services.settings.limits)
        return self._text_answer(CompletionJob(self._services.served, body), body)

    async def embeddings(self, request: HttpRequest) -> ASGIApp:
        body = await self._read(request, EmbeddingRequest)
        served = self._services.served
        served.check(body.model, "encoder", EmbeddingJob.route)
        _check_count("input", len(body.input), self._services.settings.limits)
        if body.dimensions not in (None, served.model.embedding_dim):
            message = f"dimensions: this model's vectors have {served.model.embedding_dim} dimensions and are not shortened"
            raise RequestError(message, param="dimensions", code="unsupported_parameter")
        return WholeAnswer(self._services, EmbeddingJob(served, body))

    async def models(self, request: HttpRequest) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: HttpRequest) -> JSONResponse:
        self._services.served.check(request.path_params["name"], self._services.served.model.kind, request.url.path)
        return JSONResponse(self._card())

    async def quality(self, request: HttpRequest) -> JSONResponse:
        """The receipt of the served model: how it was quantized, and how close it came to its reference."""
        served = self._services.served
        served.check(request.path_params["name"], served.model.kind, request.url.path)
        if served.receipt is None:
            raise RequestError(
                f"{served.name} was loaded without a receipt: its quality was not measured; make an artefact with "
                "`taut quantize MODEL OUT` and serve that, or measure it with `taut eval MODEL`",
                param="model",
                code="no_receipt",
                status=404,
            )
        return JSONResponse(_without_path(served.receipt))

    def _card(self) -> Json:
        served = self._services.served
        return {"id": served.name, "object": "model", "created": served.created, "owned_by": "taut"}

    def _text_answer(self, job: ChatJob | CompletionJob, body: Sampling) -> ASGIApp:
        return StreamAnswer(self._services, job) if body.stream else WholeAnswer(self._services, job)

    async def _read(self, request: HttpRequest, schema: type[Body]) -> Body:
        limits = self._services.settings.limits
        data = await read_body(request, limits)

        def checked() -> tuple[Body, int]:
            body = parse(schema, parse_object(data, max_depth=limits.json_depth))
            return body, num_ignored(body)

        large = is_large(data)
        body, ignored = await to_thread.run_sync(checked, limiter=self._services.parsing) if large else checked()
        self._services.metrics.ignored_fields.inc(ignored)
        return body


def _check_n(body: Sampling, limits: Limits) -> None:
    if body.n > limits.max_n:
        raise RequestError(f"n is {body.n}; at most {limits.max_n} choices are made per request", param="n")


def _check_count(name: str, count: int, limits: Limits) -> None:
    if count > limits.max_texts:
        raise RequestError(f"{name} holds {count} texts; at most {limits.max_texts} are taken per request", param=name)


def _without_path(receipt: dict[str, Any]) -> dict[str, Any]:
    """The receipt without where the original lies on this machine; its name and digest say which it is."""
    made_from = {key: value for key, value in receipt.get("made_from", {}).items() if key != "ref"}
    return {**receipt, "made_from": made_from}
