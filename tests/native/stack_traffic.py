"""Finds hot loops that touch the stack in an object file: a register tile that the compiler spilled runs at half speed or less.

    python tests/native/stack_traffic.py OBJECT...

A hot loop is an innermost loop in which at least a third (of int4: a quarter) of the instructions multiply and add; a spill is a vector
instruction that addresses the stack. Knows objdump's text and nothing else.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MULTIPLY = re.compile(r"\bv(fmadd|fnmadd|dpbf16ps|pdpbusd|pmaddwd|pmaddubsw)")
SPILL = re.compile(r"^v.*\(%r[sb]p[,)]")
INTEGER = re.compile(r"\bv(pdpbusd|pmaddwd|pmaddubsw)")
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$")
JUMP = re.compile(r"^j\w+\s+([0-9a-f]+)\b")


@dataclass(frozen=True)
class Loop:
    """An innermost loop: `instructions` in order."""

    address: int
    instructions: tuple[str, ...]

    @property
    def multiplies(self) -> int:
        return sum(bool(MULTIPLY.search(line)) for line in self.instructions)

    @property
    def integer_multiplies(self) -> int:
        return sum(bool(INTEGER.search(line)) for line in self.instructions)

    @property
    def stack_accesses(self) -> int:
        return sum(bool(SPILL.search(line)) for line in self.instructions)


def disassemble(path: Path) -> str:
    return subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], check=True, capture_output=True, text=True).stdout


def innermost_loops(text: str) -> list[Loop]:
    """Loops without another loop inside, from backward jumps. Every section counts its addresses from 0."""
    return [loop for section in text.split("Disassembly of section ") for loop in section_loops(section)]


def section_loops(text: str) -> list[Loop]:
    rows = [(int(match[1], 16), match[2]) for line in text.splitlines() if (match := LINE.match(line))]
    order = {address: index for index, (address, _) in enumerate(rows)}
    spans = set()
    for index, (address, instruction) in enumerate(rows):
        jump = JUMP.match(instruction)
        if jump and int(jump[1], 16) <= address and int(jump[1], 16) in order:
            spans.add((order[int(jump[1], 16)], index))
    inner, least_end = [], len(rows)
    for begin, end in sorted(spans, key=lambda span: (-span[0], span[1])):  # a loop inside comes before the one around it
        if end < least_end:
            inner.append((begin, end))
            least_end = end
    return [Loop(rows[begin][0], tuple(text for _, text in rows[begin : end + 1])) for begin, end in sorted(inner)]


def hot_loops(path: Path, share: int = 3) -> list[Loop]:
    """Innermost loops of which at least one instruction in `share` multiplies."""
    return [loop for loop in innermost_loops(disassemble(path)) if loop.multiplies * share >= len(loop.instructions)]


def integer_loops(path: Path) -> list[Loop]:
    """Innermost loops of integer products. With unpacking and signs a multiplication takes up to six instructions."""
    return [loop for loop in innermost_loops(disassemble(path)) if 4 <= loop.integer_multiplies >= len(loop.instructions) / 6]


def main(paths: list[str]) -> int:
    bad = 0
    for name in paths:
        for loop in hot_loops(Path(name)):
            if loop.stack_accesses:
                bad += 1
                print(f"{name}: loop at {loop.address:#x}: {loop.stack_accesses} stack accesses, {loop.multiplies} multiplies")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
