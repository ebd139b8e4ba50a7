"""One model as the API shows it: its names, its defaults, and how text becomes token ids that fit.

The methods that take text run in a worker thread; they are bounded before they start, by characters, and after, by the context.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from taut.errors import ContextLengthError, RequestError
from taut.scheduler.request import GenerateRequest, SamplingParams
from taut.server.protocols import ModelKind, ModelLike, TokenizerLike
from taut.server.schemas import ChatRequest, Prompt, Sampling
from taut.server.settings import Settings

_CAN = {"decoder": "/v1/chat/completions and /v1/completions", "encoder": "/v1/embeddings"}


class Served:
    """`model` under the names and limits of `settings`."""

    def __init__(self, model: ModelLike, settings: Settings) -> None:
        self.model, self.limits = model, settings.limits
        self.name = settings.served_name or model.name
        self.names = frozenset({self.name, model.name, *settings.aliases})
        self.created = int(time.time())
        self.details = model.describe()  # once, before the engine's thread owns the model
        self.receipt: dict[str, Any] | None = getattr(
            model, "receipt", None
        )  # of an artefact: what was measured when it was made
        self.context_len = min(model.context_len, self._kv_tokens() or model.context_len)
        self.max_chars = self.limits.chars_per_token * self.context_len

    def _kv_tokens(self) -> int:
        """What the whole KV cache holds, 0 when the model has none: no sequence can be longer, whatever its context."""
        return int(self.details.get("memory", {}).get("kv_tokens", 0))

    def check(self, name: str | None, kind: ModelKind, route: str) -> None:
        """Raises RequestError unless `name` (None: whichever is served) is this model and it is a `kind`."""
        if name is not None and name not in self.names:
            message = f"the model {ascii(name[:100])[:100]} is not served here; this server has {self.name!r}"
            raise RequestError(message, param="model", code="model_not_found", status=404)
        if self.model.kind != kind:
            a = "an encoder" if self.model.kind == "encoder" else "a decoder"
            message = f"{self.name} is {a} and cannot answer {route}; it serves {_CAN[self.model.kind]}"
            raise RequestError(message, param="model", code="unsupported_operation")

    # ---- text to ids (worker thread)

    def encode(self, prompt: Prompt, param: str) -> tuple[int, ...]:
        """Token ids of one prompt; raises RequestError (empty, unknown ids) or ContextLengthError."""
        ids: Sequence[int]
        if isinstance(prompt, str):
            self._check_chars(prompt, param)
            ids = self._tokenizer(param).encode(prompt)
            self._check_count(ids, param)
        else:
            ids = prompt
            self._check_count(ids, param)  # before each one is looked at
            self._check_ids(ids, param)
        return tuple(ids)

    def encode_chat(self, body: ChatRequest) -> tuple[int, ...]:
        """Token ids of a conversation, through the model's own chat template."""
        template = self.model.chat_template
        if template is None:
            message = f"{self.name} has no chat template; use /v1/completions and write the whole prompt"
            raise RequestError(message, param="messages", code="unsupported_operation")
        messages = [message.for_template() for message in body.messages]
        if sum(len(message["content"]) for message in messages) > self.max_chars:
            raise self._too_many_chars("messages")
        text = template.render(messages, add_generation_prompt=True, **body.chat_template_kwargs.model_dump(exclude_none=True))
        self._check_chars(text, "messages")
        ids = self._tokenizer("messages").encode(text, add_special=False, parse_special=True)
        self._check_count(ids, "messages")
        return tuple(ids)

    def _tokenizer(self, param: str) -> TokenizerLike:
        if self.model.tokenizer is None:
            message = f"{self.name} has no tokenizer; send token ids"
            raise RequestError(message, param=param, code="unsupported_operation")
        return self.model.tokenizer

    def _check_chars(self, text: str, param: str) -> None:
        if len(text) > self.max_chars:
            raise self._too_many_chars(param)

    def _too_many_chars(self, param: str) -> ContextLengthError:
        message = f"{param} is longer than {self.max_chars} characters, too long for a context of {self.context_len} tokens"
        return ContextLengthError(message, param=param)

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return  # the engine checks them too
        for token in ids:
            if not 0 <= token < tokenizer.vocab_size:
                raise RequestError(
                    f"{param}: token id {token} is outside the vocabulary of {tokenizer.vocab_size}", param=param
                )

    def _check_count(self, ids: Sequence[int], param: str) -> None:
        # A decoder needs room for one new token; an encoder fills its context.
        longest = self.context_len - (1 if self.model.kind == "decoder" else 0)
        if not ids:
            raise RequestError(f"{param} has no tokens; at least one is needed", param=param)
        if len(ids) > longest:
            raise ContextLengthError(f"{param} has {len(ids)} tokens; at most {longest} fit", param=param)

    # ---- ids to requests

    def generate_requests(self, answer_id: str, prompts: list[tuple[int, ...]], body: Sampling) -> list[GenerateRequest]:
        """The requests of `body.n` choices for each prompt, prompt-major; the i-th has the id "<answer_id>:<i>"."""
        sampling = self._sampling(body)
        return [
            GenerateRequest(
                request_id=f"{answer_id}:{number * body.n + choice}",
                prompt=prompt,
                max_tokens=min(body.token_limit or self.context_len, self.context_len - len(prompt)),
                sampling=sampling,
                stop=tuple(body.stop),
                stop_token_ids=frozenset(body.stop_token_ids),
                ignore_eos=body.ignore_eos,
                choice=choice,
            )
            for number, prompt in enumerate(prompts)
            for choice in range(body.n)
        ]

    def _sampling(self, body: Sampling) -> SamplingParams:
        """The request's values; where it has none, the model's generation_config.json; then OpenAI's defaults (temperature 1).
        The request's values; where it has none, the model's generation_config.json; then OpenAI's defaults (temperature 1)."""
        top_p = self._default(body.top_p, "top_p", 1.0)
        temperature = self._default(body.temperature, "temperature", 1.0)
        return SamplingParams(
            temperature=0.0 if top_p == 0 else float(temperature),  # the nucleus of mass 0 is the likeliest token
            top_k=max(0, int(self._default(body.top_k, "top_k", 0))),
            top_p=float(top_p) or 1.0,
            min_p=float(self._default(body.min_p, "min_p", 0.0)),
            seed=None if body.seed is None else body.seed & (2**63 - 1),
        )

    def _default(self, value: float | None, name: str, otherwise: float) -> Any:
        if value is not None:
            return value
        preferred = self.model.generation_config.get(name)
        return preferred if isinstance(preferred, (int, float)) else otherwise
