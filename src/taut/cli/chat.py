"""`taut chat`: a conversation in the terminal, or one turn from a pipe."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from taut.cli import values
from taut.cli.console import checked_text, print_error, print_json, print_note, read_stdin
from taut.cli.options import Json, ModelOptions, ModelRef, SamplingOptions, plain
from taut.errors import TautError, UsageError

if TYPE_CHECKING:
    from taut.api import Model
    from taut.cli.turn import Turn

HELP = "/reset starts over · /exit or Ctrl-D leaves · Ctrl-C stops an answer"


class Chat:
    """The messages so far, and how the next answer comes about."""

    def __init__(self, model: Model, sampling: SamplingOptions, system: str | None) -> None:
        self._model, self._sampling, self._system = model, sampling, system
        self._count = 0
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str, *, echo: bool) -> tuple[str, Turn]:
        """The answer to `text`, written to stdout as it comes when `echo`. A turn that fails leaves the conversation as it was."""
        from taut.cli.turn import Turn

        messages = [*self.messages, {"role": "user", "content": text}]
        self._count += 1
        turn = Turn(self._model, self._sampling.request(self._model, f"chat-{self._count}", self._model.encode_chat(messages)))
        pieces: list[str] = []
        try:
            for piece in turn:
                pieces.append(piece)
                if echo:
                    print(piece, end="", flush=True)
        finally:
            if echo:
                print(flush=True)
        answer = "".join(pieces)
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        return answer, turn


def command(
    model: ModelRef,
    model_options: ModelOptions,
    sampling: SamplingOptions,
    system: Annotated[
        str | None, plain("--system", "A system message to begin with; default the model's own, if it has one.", values.text())
    ] = None,
    json: Json = False,
) -> None:
    """Talk with a model in the terminal. Text from a pipe is one question, answered once."""
    is_piped = not sys.stdin.isatty()
    if json and not is_piped:
        raise UsageError("--json answers one question from a pipe: echo 'question' | taut chat MODEL --json")
    question = read_stdin().strip() if is_piped else ""
    if is_piped and not question:
        raise UsageError("stdin is empty; pipe a question in: echo 'question' | taut chat MODEL")
    loaded = model_options.load(model)
    if loaded.kind != "decoder":
        raise UsageError(f"{loaded.name} is an encoder and cannot chat; it can `taut embed`")
    chat = Chat(loaded, sampling, checked_text(system) if system else None)
    if not is_piped:
        print_note(f"{loaded.summary()}\n{HELP}")
        _converse(chat)
    else:
        answer, turn = chat.ask(question, echo=not json)
        if json:
            print_json({"text": answer, **turn.report()})
        else:
            print_note(turn.summary())


def _converse(chat: Chat) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401 — gives input() its history and line editing
    while True:
        try:
            text = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        except UnicodeDecodeError:
            print_error("what you typed is not UTF-8 text; type it again")
            continue
        if text in ("/exit", "/quit"):
            return
        if text == "/reset":
            chat.reset()
            print_note("a new conversation")
        elif text.startswith("/"):
            print_note(HELP)
        elif text:
            _answer(chat, text)


def _answer(chat: Chat, text: str) -> None:
    try:
        _, turn = chat.ask(text, echo=True)
        print_note(turn.summary())
    except KeyboardInterrupt:
        print_note("stopped; this turn is forgotten")
    except TautError as error:
        print_error(f"{error} (/reset starts over)")
