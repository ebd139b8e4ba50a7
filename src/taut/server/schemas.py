"""The bodies of OpenAI's requests: types, ranges and what is refused.

Rules for every field: null is the same as absent; integers are never booleans or floats; a field that would change the answer
and is not supported is refused by name; any other unknown field is ignored and counted. Needs no model: lengths in tokens are
checked later.
"""

from __future__ import annotations

import re
import reprlib
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from taut.errors import RequestError

MAX_MESSAGES = 1024
MAX_STOPS = 16
MAX_STOP_LEN = 256
MAX_REPORTED = 5

# Accepted and without effect here; not counted as unknown.
_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    | {"parallel_tool_calls", "reasoning_effort", "verbosity", "request_id"}
)

# Fields that change the answer and are not supported, each with the values that ask for nothing.
_OFF: tuple[Any, ...] = (False,)
_ZERO: tuple[Any, ...] = (0, 0.0)
_ONE: tuple[Any, ...] = (1, 1.0)
_UNSUPPORTED_SAMPLING: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "frequency_penalty": _ZERO,
    "presence_penalty": _ZERO,
    "repetition_penalty": _ONE,
    "repeat_penalty": _ONE,
    "logprobs": _OFF,
    "prompt_logprobs": (),
    "echo": _OFF,
    "min_tokens": (0,),
    "use_beam_search": _OFF,
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": _OFF,
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "json_schema"), ()
    ),
}
_UNSUPPORTED_CHAT: dict[str, tuple[Any, ...]] = {
    **_UNSUPPORTED_SAMPLING,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": _OFF,
    "add_generation_prompt": (True,),
}


def _unsupported(message: str, param: str | None = None) -> PydanticCustomError:
    return PydanticCustomError("unsupported_parameter", "{reason}", {"reason": message, "param": param})


def _wrong(message: str, param: str) -> PydanticCustomError:
    return PydanticCustomError("value_error", "{reason}", {"reason": message, "param": param})


def _whole_characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
    return text


def _shown(value: Any) -> str:
    """The beginning of a value. `repr` of all of a large one would take as long as parsing it."""
    return reprlib.repr(value)[:40]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _text_of(content: Any) -> str:
    """A message's content: a string, or a list of text parts, which are joined."""
    if isinstance(content, str):
        return _whole_characters(content)
    if not isinstance(content, list):
        raise ValueError("a string or a list of text parts is needed")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise _unsupported(f"content part {number} has type {kind[:40]!r}; this model reads text only")
        if kind is None or not isinstance(part.get("text"), str):
            raise ValueError(f'content part {number} is not {{"type": "text", "text": "…"}}')
    return _whole_characters("".join(part["text"] for part in content))


Prompt = str | list[int]


def _prompts_of(value: Any) -> list[Prompt]:
    """One or several prompts: a string, a list of strings, a list of token ids, or a list of those."""
    if isinstance(value, str) or (isinstance(value, list) and value and not isinstance(value[0], (str, list))):
        value = [value]
    if not isinstance(value, list):
        raise ValueError("a string, a list of strings, or token ids are needed")
    if not value:
        raise ValueError("the list is empty; at least one prompt is needed")
    return [_prompt_of(item, number) for number, item in enumerate(value)]


def _prompt_of(item: Any, number: int) -> Prompt:
    if not isinstance(item, (str, list)):
        raise ValueError(f"prompt {number} is neither a string nor a list of token ids")
    if not item:
        raise ValueError(f"prompt {number} is empty; at least one token is needed")
    if isinstance(item, str):
        return _whole_characters(item)
    for token in item:
        if type(token) is not int or token < 0:
            raise ValueError(f"prompt {number} holds {_shown(token)}, which is no token id")
    return item


Text = Annotated[str, AfterValidator(_whole_characters)]
Stop = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_LEN)]
Prompts = Annotated[list[Prompt], PlainValidator(_prompts_of)]


class Schema(BaseModel):
    """Base of all bodies: strict types, nulls dropped, unknown fields kept aside in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class Message(Schema):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str, PlainValidator(_text_of)] = ""
    name: Text | None = None
    tool_calls: list[Any] = []
    function_call: Any = None

    @model_validator(mode="after")
    def _no_tools(self) -> Message:
        if self.role in ("tool", "function") or self.tool_calls or self.function_call is not None:
            raise _unsupported("messages of tools and tool calls are not supported")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as a chat template reads it; "developer" is today's name of "system"."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        return message | ({"name": self.name} if self.name is not None else {})


class StreamOptions(Schema):
    include_usage: bool = False


class TemplateOptions(Schema):
    """The variables that a request may hand to the chat template."""

    enable_thinking: bool | None = None


class Sampling(Schema):
    """What completions and chat completions share. None means: the model's default."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Field(ge=1)] = 1
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[list[Stop], BeforeValidator(_one_or_many), Field(max_length=MAX_STOPS)] = []
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOPS)] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _options_need_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise _wrong("stream_options is only allowed with stream: true", "stream_options")
        return self

    @property
    def token_limit(self) -> int | None:
        """The newer max_completion_tokens wins over max_tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(Sampling):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    chat_template_kwargs: TemplateOptions = TemplateOptions()

    @model_validator(mode="after")
    def _known_variables(self) -> ChatRequest:
        if self.chat_template_kwargs.model_extra:
            raise _unsupported("chat_template_kwargs: only enable_thinking is accepted", "chat_template_kwargs")
        return self


class CompletionRequest(Sampling):
    prompt: Prompts
    best_of: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _best_of(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of < self.n:
            raise _wrong(f"best_of is {self.best_of}, less than n ({self.n})", "best_of")
        if self.best_of is not None and self.best_of > self.n:
            raise _unsupported("best_of: more candidates than answers are not supported", "best_of")
        return self


class EmbeddingRequest(Schema):
    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None


_UNSUPPORTED: dict[type[Schema], dict[str, tuple[Any, ...]]] = {
    ChatRequest: _UNSUPPORTED_CHAT,
    CompletionRequest: {**_UNSUPPORTED_SAMPLING, "suffix": ("",)},
    EmbeddingRequest: {},
}
_PREFIX = re.compile(r"^(Value error, |Input |Value |List )")
Body = TypeVar("Body", bound=Schema)


def parse(schema: type[Body], payload: dict[str, Any]) -> Body:
    """`payload` as a `schema`, or RequestError naming every wrong field (the first few) and its value."""
    for name, neutral in _UNSUPPORTED[schema].items():
        value = payload.get(name)
        if value is not None and not any(type(value) is type(off) and value == off for off in neutral):
            raise RequestError(
                f"{name} is not supported by this server; leave it out", param=name, code="unsupported_parameter"
            )
    try:
        return schema.model_validate({key: value for key, value in payload.items() if key not in _UNSUPPORTED[schema]})
    except ValidationError as error:
        raise _request_error(error.errors(include_url=False)) from None


def num_ignored(body: Schema) -> int:
    """How many fields of `body` were not understood."""
    return len((body.model_extra or {}).keys() - _IGNORED)


def _request_error(problems: list[ErrorDetails]) -> RequestError:
    first = problems[0]
    param = str(first["loc"][0]) if first["loc"] else first.get("ctx", {}).get("param")
    message = "; ".join(_describe(problem) for problem in problems[:MAX_REPORTED])
    if len(problems) > MAX_REPORTED:
        message += f"; and {len(problems) - MAX_REPORTED} more"
    codes = {"unsupported_parameter": "unsupported_parameter", "missing": "missing_required_parameter"}
    return RequestError(message, param=param, code=codes.get(first["type"], "invalid_value"))


def _describe(problem: ErrorDetails) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    what = _PREFIX.sub("", problem["msg"]).replace(" after validation", "")
    if problem["type"] == "missing":
        return f"{where} is required"
    if problem["type"] in ("value_error", "unsupported_parameter"):
        return f"{where}: {what}" if where else what
    return f"{where} {what} (given {_shown(problem['input'])})"
