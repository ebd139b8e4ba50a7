"""Options that several commands share, as groups: a command takes a group as one parameter, `grouped` spreads its fields for typer.

Every option of a group has an environment twin, declared in taut.env.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from taut import env
from taut.cli import values
from taut.config import ATTENTIONS, EXECUTORS, KV_PRECISIONS, PRECISIONS
from taut.errors import UsageError
from taut.units import counted

if TYPE_CHECKING:
    from taut.api import Model
    from taut.scheduler.request import GenerateRequest


def option(variable: env.Variable, settings: Mapping[str, Any]) -> Any:
    """A typer option for the flag of `variable`, documented (its default too) and read from the environment as that says."""
    return typer.Option(variable.flag, envvar=variable.name, help=variable.doc, show_default=False, **settings)


def plain(flag: str, doc: str, settings: Mapping[str, Any]) -> Any:
    """A typer option without an environment twin; `doc` says its default."""
    return typer.Option(flag, help=doc, show_default=False, **settings)


AUTO = "auto"  # a precision that is chosen by measuring
ModelRef = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A folder, a .gguf file, a hub id (org/name), or a packaged model: smollm2-135m, minilm.",
    ),
]
Json = Annotated[bool, plain("--json", "Print JSON for programs.", values.switch())]


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded."""

    precision: Annotated[str | None, option(env.PRECISION, values.one_of((*PRECISIONS, AUTO)))] = None
    threads: Annotated[int | None, option(env.THREADS, values.whole(1))] = None
    memory: Annotated[int | None, option(env.MEMORY, values.size())] = None
    max_context: Annotated[int | None, option(env.MAX_CONTEXT, values.whole(1))] = None
    executor: Annotated[str, option(env.EXECUTOR, values.one_of(EXECUTORS))] = "native"
    pin: Annotated[list[str] | None, option(env.PIN, values.text("PATTERN=PRECISION"))] = None
    kv: Annotated[str | None, option(env.KV, values.one_of(KV_PRECISIONS))] = None
    attention: Annotated[str, option(env.ATTENTION, values.one_of(ATTENTIONS))] = "auto"
    disable_pass: Annotated[list[str] | None, option(env.DISABLE_PASS, values.text("NAME"))] = None
    exact: Annotated[bool, option(env.EXACT, values.switch())] = False

    def load(self, ref: str) -> Model:
        """The model, with a progress bar on stderr when that is a terminal."""
        import taut
        from taut.cli.console import progress

        options: dict[str, Any] = {
            "precision": self.precision,
            "threads": self.threads,
            "memory_bytes": self.memory,
            "max_context": self.max_context,
            "executor": self.executor,
            "pins": tuple(pin for pins in self.pin or () for pin in pins.split()),
            "kv_precision": self.kv,
            "attention": self.attention,
            "disable_passes": tuple(name for names in self.disable_pass or () for name in names.split()),
            "exact": self.exact,
        }
        if self.precision == AUTO:
            options["precision"] = self._fastest(ref, options)
        with progress() as report:
            return taut.load(ref, progress=report, **options)

    @staticmethod
    def _fastest(ref: str, options: Mapping[str, Any]) -> str:
        """The fastest precision that passes the canary; each that is tried is shown."""
        from taut.cli.console import print_note
        from taut.compress import auto

        def show(trial: auto.Trial) -> None:
            verdict = "taken" if trial.passed else "too far"
            print_note(f"precision {trial.precision}: {trial.distance:.2g} from fp32 on the canary, {verdict}")

        chosen, _ = auto.choose(ref, report=show, **options)
        return chosen


@dataclass(frozen=True)
class SamplingOptions:
    """How text is generated. Temperature 0 is greedy."""

    max_tokens: Annotated[
        int | None, plain("--max-tokens", "Stop after N new tokens; default as many as the context holds.", values.whole(1))
    ] = None
    temperature: Annotated[
        float, plain("--temperature", "Randomness from 0 to 2; default 0, always the likeliest token.", values.number(0, 2))
    ] = 0.0
    top_k: Annotated[int, plain("--top-k", "Choose among the N likeliest tokens; default 0, all.", values.whole(0))] = 0
    top_p: Annotated[
        float, plain("--top-p", "Choose among the likeliest tokens of this total mass; default 1, all.", values.number(0, 1))
    ] = 1.0
    min_p: Annotated[
        float, plain("--min-p", "Drop tokens below this share of the likeliest one's; default 0, none.", values.number(0, 1))
    ] = 0.0
    seed: Annotated[int | None, plain("--seed", "The same seed gives the same text; default a random one.", values.whole())] = (
        None
    )
    stop: Annotated[list[str] | None, plain("--stop", "End the text before this string; repeatable.", values.text())] = None

    def request(self, model: Model, request_id: str, ids: list[int]) -> GenerateRequest:
        """`ids` as a request that fits the model's context and cache."""
        from taut.errors import ContextLengthError
        from taut.scheduler.request import GenerateRequest, SamplingParams

        room = model.context_len - len(ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {counted(len(ids), 'token')}; at most {model.context_len - 1:,} and an answer fit; "
                "shorten the prompt, or raise --max-context or --memory if they are set"
            )
        sampling = SamplingParams(self.temperature, self.top_k, self.top_p or 1e-9, self.min_p, self.seed)
        return GenerateRequest(request_id, tuple(ids), min(self.max_tokens or room, room), sampling, tuple(self.stop or ()))


@dataclass(frozen=True)
class ServeOptions:
    """Where and within which limits to serve."""

    host: Annotated[str, option(env.HOST, values.text("ADDRESS"))] = "127.0.0.1"
    port: Annotated[int, option(env.PORT, values.whole(0, 65535))] = 8000
    api_key_file: Annotated[Path | None, option(env.API_KEY_FILE, {"metavar": "FILE"})] = None
    served_name: Annotated[str | None, option(env.SERVED_NAME, values.text("NAME"))] = None
    drain_timeout: Annotated[float, option(env.DRAIN_TIMEOUT, values.number(0))] = 30.0
    max_n: Annotated[int, option(env.MAX_N, values.whole(1, 128))] = 8
    max_texts: Annotated[int, option(env.MAX_TEXTS, values.whole(1, 1024))] = 256

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
    def spread(**given: Any) -> None:
        built = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**given, **built)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(group)
    ]
