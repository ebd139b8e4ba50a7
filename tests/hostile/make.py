"""Every malformed model of these tests. `python -m hostile.make DIR` (from tests/) writes them, with the error expected
of each.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hostile import folder_cases, gguf_cases, safetensors_cases
from hostile.case import Case

GROUPS = {"safetensors": safetensors_cases.CASES, "gguf": gguf_cases.CASES, "folder": folder_cases.CASES}
CASES: dict[str, Case] = {f"{group}/{case.name}": case for group, cases in GROUPS.items() for case in cases}
assert len(CASES) == sum(map(len, GROUPS.values())), "two cases have one name"


def write_case(name: str, root: Path) -> Path:
    """Writes one case below `root`; returns what to open."""
    folder = root / name
    folder.mkdir(parents=True)
    return CASES[name].write(folder)


def main() -> None:
    root = Path(sys.argv[1])
    for name, case in CASES.items():
        print(f"{write_case(name, root)}\t{case.rule}\t{case.error.__name__}\t{case.message}")


if __name__ == "__main__":
    main()
