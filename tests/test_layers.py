"""A stage imports only the stages to its left (ARCHITECTURE.md); this test reads the imports and holds the code to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "taut"
# Left to right; quant stands left of ops, because the int8 ops' references are made of its arithmetic.
# Stages in one set stand side by side and know nothing of each other.
ORDER: tuple[frozenset[str], ...] = tuple(
    frozenset(stage.split())
    for stage in (
        "errors",
        "units",
        "env",
        "config",
        "quant",
        "ops",
        "checkpoint",
        "graph",
        "models",
        "passes",
        "kernels",
        "plan",
        "engine",
        "quality",
        "bench scheduler",
        "loading",
        "api",
        "compress",
        "server",
        "cli",
        "__main__",
        "testing",
    )
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
NATIVE = "_native"  # the compiled core: only what runs a plan or measures the machine may touch it
MAY_USE_NATIVE = {"env", "kernels", "plan", "engine", "quant", "bench", "testing"}
HEAVY = {"torch", "transformers", "openai", "httpx"}  # extras: never imported by a module of the package itself


def files() -> list[Path]:
    return sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in the file, inside functions and type-checking blocks too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write `from taut.…`"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "taut" else [module]
            yield from ((node.lineno, name) for name in names)


def violations(stage: str, imported: str) -> str | None:
    parts = imported.split(".")
    if parts[0] in HEAVY:
        return None if stage == "testing" else f"{parts[0]} is an extra"
    if parts[0] != "taut" or len(parts) == 1 or parts[1].startswith("__"):
        return None
    target = parts[1]
    if target == NATIVE:
        return None if stage in MAY_USE_NATIVE else f"{stage} may not touch the native core; kernels and engine do"
    if target not in RANK:
        return f"taut.{target} has no place in ORDER"
    if target == stage or RANK[target] < RANK[stage]:
        return None
    return f"{stage} may not import {target}, which stands {'beside' if RANK[target] == RANK[stage] else 'to the right of'} it"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_left(path: Path) -> None:
    stage = path.relative_to(SRC).parts[0].removesuffix(".py")
    assert stage in RANK, f"{path}: say in ORDER where the stage {stage} stands"
    found = [f"{path}:{line}: {problem}" for line, name in imports(path) if (problem := violations(stage, name))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("stage", "imported", "allowed"),
    [
        ("graph", "taut.ops.linear", True),
        ("graph", "taut.passes.pipeline", False),
        ("scheduler", "taut.bench.limits", False),
        ("server", "taut.api", True),
        ("plan", "taut.nowhere", False),
        ("server", "taut._native", False),
        ("engine", "torch.nn", False),
        ("ops", "numpy", True),
    ],
)
def test_the_rule_itself(stage: str, imported: str, allowed: bool) -> None:
    assert (violations(stage, imported) is None) is allowed


def test_files_and_functions_stay_short() -> None:
    """About 400 lines a file, 50 a function, 7 parameters (a command's options apart): beyond that it holds two things."""
    found = []
    for path in files():
        text = path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > 420:
            found.append(f"{path}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > 65:
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
            arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if "cli" not in path.parts and len(set(arguments) - {"self", "cls"}) > 7:
                found.append(f"{path}:{node.lineno}: {node.name} has {len(arguments)} parameters")
    assert not found, "\n".join(found)
