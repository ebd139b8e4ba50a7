"""Options that several commands share, as groups: a command takes a group as one parameter, `grouped` spreads its fields for typer.

Every option of a group has an environment twin, declared in taut.env.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from taut import env
from taut.errors import UsageError

if TYPE_CHECKING:
    from taut.api import Model
    from taut.scheduler.request import GenerateRequest

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


class Precision(str, enum.Enum):
    fp32 = "fp32"
    int8 = "int8"


class Executor(str, enum.Enum):
    native = "native"
    reference = "reference"


def parse_bytes(text: str) -> int:
    """A size such as 4GiB, 500MB or 1000000, in bytes."""
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].lower() if match else "?"
    if match is None or unit not in _UNITS:
        raise typer.BadParameter(f"{text!r} is no size; write it as 4GiB, 500MB or a number of bytes")
    return int(float(match[1]) * _UNITS[unit])


def option(variable: env.Variable, **settings: Any) -> Any:
    """A typer option for the flag of `variable`, documented (its default too) and read from the environment as that says."""
    return typer.Option(variable.flag, envvar=variable.name, help=variable.doc, show_default=False, **settings)


ModelRef = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A folder, a .gguf file, a hub id (org/name), or an alias: smollm2-135m, minilm."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded."""

    precision: Annotated[Precision, option(env.PRECISION)] = Precision.int8
    threads: Annotated[int | None, option(env.THREADS, min=1)] = None
    memory: Annotated[int | None, option(env.MEMORY, parser=parse_bytes, metavar="SIZE")] = None
    max_context: Annotated[int | None, option(env.MAX_CONTEXT, min=1)] = None
    executor: Annotated[Executor, option(env.EXECUTOR)] = Executor.native
    disable_pass: Annotated[list[str] | None, option(env.DISABLE_PASS, metavar="NAME")] = None
    exact: Annotated[bool, option(env.EXACT)] = False

    def load(self, ref: str) -> Model:
        """The model, with a progress bar on stderr when that is a terminal."""
        import taut
        from taut.cli.console import progress

        with progress() as report:
            return taut.load(
                ref,
                precision=self.precision.value,
                threads=self.threads,
                memory_bytes=self.memory,
                max_context=self.max_context,
                executor=self.executor.value,
                disable_passes=tuple(name for names in self.disable_pass or () for name in names.split()),
                exact=self.exact,
                progress=report,
            )


@dataclass(frozen=True)
class SamplingOptions:
    """How text is generated. Temperature 0 is greedy."""

    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Stop after so many tokens.")] = None
    temperature: Annotated[float, typer.Option("--temperature", min=0, max=2, help="0 always takes the likeliest token.")] = 0.0
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Keep only the k likeliest tokens; 0 keeps all.")] = 0
    top_p: Annotated[float, typer.Option("--top-p", min=0.0, max=1, help="Keep the likeliest tokens of this total mass.")] = 1.0
    min_p: Annotated[float, typer.Option("--min-p", min=0, max=1, help="Drop tokens below this share of the likeliest.")] = 0.0
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed gives the same text.")] = None
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End the text before this string; repeatable.")] = None

    def request(self, model: Model, request_id: str, ids: list[int]) -> GenerateRequest:
        """`ids` as a request that fits the model's context and cache."""
        from taut.errors import ContextLengthError
        from taut.scheduler.request import GenerateRequest, SamplingParams

        kv_tokens = model.describe().get("memory", {}).get("kv_tokens") or model.context_len
        room = min(model.context_len, kv_tokens) - len(ids)
        if room < 1:
            raise ContextLengthError(f"the prompt has {len(ids)} tokens; at most {len(ids) + room - 1} fit")
        sampling = SamplingParams(self.temperature, self.top_k, self.top_p or 1e-9, self.min_p, self.seed)
        return GenerateRequest(request_id, tuple(ids), min(self.max_tokens or room, room), sampling, tuple(self.stop or ()))


@dataclass(frozen=True)
class ServeOptions:
    """Where and within which limits to serve."""

    host: Annotated[str, option(env.HOST)] = "127.0.0.1"
    port: Annotated[int, option(env.PORT, min=0, max=65535)] = 8000
    api_key_file: Annotated[Path | None, option(env.API_KEY_FILE)] = None
    served_name: Annotated[str | None, option(env.SERVED_NAME)] = None
    drain_timeout: Annotated[float, option(env.DRAIN_TIMEOUT, min=0)] = 30.0
    max_n: Annotated[int, option(env.MAX_N, min=1, max=128)] = 8
    max_texts: Annotated[int, option(env.MAX_TEXTS, min=1, max=2048)] = 256

    def keys(self) -> tuple[str, ...]:
        """The API keys of the environment and the file. Raises UsageError when the file cannot be read or holds none."""
        from taut.server.settings import split_keys

        keys = split_keys(env.API_KEY.get() or "")
        if self.api_key_file is None:
            return keys
        try:
            found = split_keys(self.api_key_file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the API keys: {error}") from None
        if not found:
            raise UsageError(f"{self.api_key_file} holds no API key; write one a line")
        return keys + found


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer must see it: each parameter whose type is a dataclass is replaced by that dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _fields(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def spread(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**values, **built)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(group)
    ]
