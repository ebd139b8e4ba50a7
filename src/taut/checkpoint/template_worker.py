"""The process that renders one chat template. Run by file name, never imported by the engine; it imports jinja2 and
nothing of taut.

A template is a program of unknown origin. The sandbox keeps it from the interpreter; the process keeps it from the
machine: bounded memory, no new files, killed by its parent when it takes too long. Messages on stdin and stdout: 4
bytes little-endian length, then JSON.

Out, when started: {"ok": ""}.
In: {"source": …} once, then {"context": {…}, "now": ISO time, "max_chars": n} each time.
Out: {"ok": text} or {"error": message, "kind": "syntax" | "raised" | "render" | "size" | "length"}.
"""

from __future__ import annotations

import json
import sys

sys.path[:] = json.loads(sys.argv[1])  # where the parent finds jinja2; must precede its import

import contextlib  # noqa: E402
import datetime  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

import jinja2  # noqa: E402
import jinja2.nodes  # noqa: E402
from jinja2.ext import Extension  # noqa: E402
from jinja2.parser import Parser  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402
from jinja2.utils import Namespace  # noqa: E402

MEMORY_BYTES = 512 << 20
RECURSION_LIMIT = 600


class _Raised(Exception):
    """The template called raise_exception."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here its content alone counts."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja2 asks for a set, and only looks into it

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Sandbox(ImmutableSandboxedEnvironment):
    def wrap_str_format(self, value: Any) -> None:
        return None  # the sandbox would hand out a tamed str.format; here it has none at all

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_") or (isinstance(obj, str) and attr in ("format", "format_map")):
            return False
        return super().is_safe_attribute(obj, attr, value)


def _raise_exception(message: object) -> NoReturn:
    raise _Raised(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(source: str) -> jinja2.Template:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    limited_range = environment.globals["range"]
    environment.globals.clear()
    environment.globals.update(range=limited_range, namespace=Namespace, raise_exception=_raise_exception)
    environment.filters["tojson"] = _tojson
    return environment.from_string(source)


def render(template: jinja2.Template, context: dict[str, Any], now: str, max_chars: int) -> dict[str, str]:
    moment = datetime.datetime.fromisoformat(now)
    pieces, num_chars = [], 0
    try:
        for piece in template.generate(**context, strftime_now=lambda pattern: moment.strftime(pattern)):
            num_chars += len(piece)
            if num_chars > max_chars:
                return {"error": f"produced more than {max_chars:,} characters", "kind": "length"}
            pieces.append(piece)
    except _Raised as error:
        return {"error": str(error), "kind": "raised"}
    except RecursionError:
        return {"error": "recursion is too deep", "kind": "render"}
    except MemoryError:
        return {"error": "needs too much memory", "kind": "size"}
    except Exception as error:  # whatever the template's own program does wrong
        return {"error": f"{type(error).__name__}: {error}", "kind": "render"}
    return {"ok": "".join(pieces)}


def _warm_up() -> None:
    """Lets Python load what it loads at first use; after `_restrict` no file can be opened."""
    template = compile_template(
        "{% for m in messages %}{{ 'a\\u00e9\\n' ~ strftime_now('%d %b %Y') ~ m|tojson(indent=2) }}{{ m.x.y }}{% endfor %}"
    )
    render(template, {"messages": [{}]}, "2000-01-01T00:00:00+00:00", 100)
    with contextlib.suppress(jinja2.TemplateSyntaxError):
        compile_template("{% if %}")


def _restrict() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    try:
        import resource
    except ImportError:
        return
    for name, limit in (("RLIMIT_AS", MEMORY_BYTES), ("RLIMIT_FSIZE", 0), ("RLIMIT_NOFILE", 3), ("RLIMIT_CORE", 0)):
        if hasattr(resource, name):
            hard = resource.getrlimit(getattr(resource, name))[1]
            lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            with contextlib.suppress(OSError, ValueError):  # where the system does not bound this, the time limit still holds
                resource.setrlimit(getattr(resource, name), (lower, lower))


def _receive() -> Any:
    header = sys.stdin.buffer.read(4)
    if len(header) < 4:
        os._exit(0)
    return json.loads(sys.stdin.buffer.read(int.from_bytes(header, "little")))


def _send(answer: dict[str, str]) -> None:
    data = json.dumps(answer).encode("ascii")
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
    sys.stdout.buffer.flush()


def main() -> None:
    _warm_up()
    _restrict()
    sys.setrecursionlimit(RECURSION_LIMIT)
    _send({"ok": ""})
    try:
        template = compile_template(_receive()["source"])
    except jinja2.TemplateSyntaxError as error:
        _send({"error": f"line {error.lineno}: {error.message}", "kind": "syntax"})
        return
    except (RecursionError, MemoryError, Exception) as error:
        _send({"error": f"{type(error).__name__}: {error}", "kind": "syntax"})
        return
    _send({"ok": ""})
    while True:
        request = _receive()
        _send(render(template, request["context"], request["now"], request["max_chars"]))


if __name__ == "__main__":
    main()
