"""The `taut` command: its subcommands, and how an error ends it.

Exit codes: 0 fine, 1 unexpected or a bound is missed (`taut eval --max-kl`), 2 usage, 3 the model, 4 port in use, 5 memory budget, 6 an
artefact, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from taut import env
from taut.cli import (
    bench_encoder,
    bench_ladder,
    bench_latency,
    chat,
    embed,
    evaluate,
    export,
    generate,
    inspect,
    limits,
    plan,
    quantize,
    serve,
    values,
    verify,
)
from taut.cli.console import print_error
from taut.cli.options import grouped
from taut.errors import RequestError, TautError, UsageError


class Command(TyperCommand):
    """A command whose --help is shown as what it is: a flag without a value."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_value(super().get_help_option(ctx))


class Group(TyperGroup):
    """The same for a group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_value(super().get_help_option(ctx))


def _without_value(flag: Any) -> Any:
    if flag is not None:
        flag.metavar = ""
    return flag


app = typer.Typer(
    name="taut",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(name="bench", cls=Group, no_args_is_help=True, help="Time a model, as a share of what this machine can do.")

for module in (serve, chat, generate, embed, inspect, limits, quantize, plan, verify, export):
    app.command(module.__name__.rpartition(".")[2], cls=Command)(grouped(module.command))
app.command("eval", cls=Command)(grouped(evaluate.command))
bench.command("latency", cls=Command)(grouped(bench_latency.command))
bench.command("encoder", cls=Command)(grouped(bench_encoder.command))
bench.command("ladder", cls=Command)(grouped(bench_ladder.command))
app.add_typer(bench)


def _print_version(asked: bool) -> None:
    if asked:
        from taut.cli.version import version_line

        print(version_line())
        raise typer.Exit


@app.callback()
def taut(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and the instruction set in use, and exit.",
            callback=_print_version,
            is_eager=True,
            **values.switch(),
        ),
    ] = False,
) -> None:
    """Give it a transformer checkpoint; it quantizes, fuses, plans, batches and serves it at the machine's limit."""


def main() -> None:
    """Run the command line and exit with the code of what went wrong, after one clear message."""
    try:
        for switch in (env.DEBUG, env.EXACT):
            switch.is_on()  # refuses what is neither yes nor no
        app()
    except RequestError as error:  # over HTTP a bad request, here bad usage
        _fail(error, str(error), UsageError.exit_code)
    except TautError as error:
        _fail(error, str(error), error.exit_code)
    except KeyboardInterrupt as error:
        _fail(error, "interrupted", 130)
    except BrokenPipeError:  # the reader of our output has left, as in `taut generate … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError as error:
        _fail(error, "out of memory; a smaller --memory or --max-context leaves more room", 5)


def _fail(error: BaseException, message: str, code: int) -> None:
    if _is_debugging():
        raise error
    print_error(message)
    sys.exit(code)


def _is_debugging() -> bool:
    try:
        return env.DEBUG.is_on()
    except UsageError:  # it says neither yes nor no, which is the error at hand
        return False
