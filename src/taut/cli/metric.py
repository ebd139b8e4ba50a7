"""`--metric FILE.py:FUNCTION`: a function of the user's own, called with a loaded model."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taut.errors import UsageError

MODULE = "taut_user_metric"
FORM = "give it as FILE.py:FUNCTION, where FUNCTION(model) returns a number"


def load_metric(given: str) -> Callable[[Any], float]:
    """The function. The file runs as a module, with its folder importable. UsageError says what is wrong with it."""
    file, _, name = given.rpartition(":")
    path = Path(file)
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"--metric {given!r} names no function of a Python file; {FORM}")
    if not path.is_file():
        raise UsageError(f"--metric: there is no file {file!r}; {FORM}")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--metric: {file} does not run: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        what = "no function" if function is None else f"a {type(function).__name__}, no function,"
        raise UsageError(f"--metric: {file} has {what} {name!r}; {_functions(module)}")
    return function  # type: ignore[no-any-return]


def _functions(module: Any) -> str:
    names = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == MODULE and callable(value)]
    return f"it has {', '.join(names)}" if names else "it has none"
