"""Where an artefact or an export grows: beside the place where it is to be, which it takes when it is complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from taut.errors import CompressionError, UsageError


def check_free(place: Path) -> None:
    """UsageError where something is already, be it a link that leads nowhere."""
    if os.path.lexists(place):
        raise UsageError(f"{str(place)!r} is there already; give the name of something new, or remove it")


def make_folder(folder: Path) -> Path:
    """A folder that is there and may be written, or UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {str(folder)!r}: {reason}; give a place that may be written") from None
    return folder


@contextlib.contextmanager
def growing(place: Path) -> Iterator[Path]:
    """A folder PLACE.partial for one run at a time; moved to `place` at the end. After a failure it stays for the next try unless it is
    empty. UsageError where another run has it, CompressionError where writing fails."""
    work = make_folder(place.with_name(place.name + ".partial"))
    handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(handle, work)
        try:
            with failures_told(work, "what was written stays: the same command goes on from there"):
                yield work
        except BaseException:
            with contextlib.suppress(OSError):
                work.rmdir()
            raise
        try:
            os.rename(work, place)
        except OSError as error:
            raise CompressionError(
                f"cannot move {str(work)!r} to {str(place)!r}: {error.strerror}; it is complete: move it by hand"
            ) from None
    finally:
        os.close(handle)


def _lock(handle: int, work: Path) -> None:
    """The system gives it back however the run ends. Not every file system has locks; there two runs are not told apart."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another run is writing {str(work)!r}; wait for its end, or give another place") from None
    except OSError:
        pass


@contextlib.contextmanager
def failures_told(place: Path, then: str) -> Iterator[None]:
    """What the system refuses becomes a CompressionError that says what stays."""
    try:
        yield
    except OSError as error:
        raise CompressionError(f"writing {str(place)!r} failed: {error.strerror or error}; {then}") from error
