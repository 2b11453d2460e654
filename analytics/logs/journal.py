"""Puts files in their places all at once, as far as anybody can tell afterwards.

What is to be done is written down first, then done; a run that finds such a note finishes it. Each step can be done
again without harm, so it does not matter where the last run was interrupted.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tricklecast.analytics.errors import BadInput, Busy, CannotWrite

FOLDER: Final = "_compacted"
"""Hidden from everything that searches folders for logs."""

LEDGER: Final = "ledger.json"
_PENDING: Final = "pending.json"
_WORK: Final = "work"


@contextmanager
def held(out: Path) -> Iterator[Path]:
    """The folder for notes and work in progress, for one run alone; what the last run left undone has been done.

    Raises:
        Busy: another run has it.
        CannotWrite: it cannot be made.
    """
    folder = out / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a", encoding="ascii")
    except OSError as error:
        raise CannotWrite(f"cannot write to {str(out)!r}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another run is compacting into {str(out)!r}") from None
        finish(out)
        for unfinished in folder.glob("*.tmp"):
            unfinished.unlink()
        work = folder / _WORK
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def commit(out: Path, moves: Mapping[Path, Path], ledger: str) -> None:
    """Moves files to their places and makes this the ledger.

    Args:
        moves: from where to where; all below ``out``.
        ledger: its new content.

    Raises:
        CannotWrite: it could not be written down; nothing has changed.
    """
    note = {
        "moves": [[str(source.relative_to(out)), str(target.relative_to(out))] for source, target in moves.items()],
        "ledger": ledger,
    }
    try:
        for source in moves:
            _synced(source)
        _replaced(out / FOLDER / _PENDING, json.dumps(note))
        finish(out)
    except OSError as error:
        raise CannotWrite(f"cannot write to {str(out)!r}: {error.strerror}") from error


def finish(out: Path) -> None:
    """Does what was written down and not done.

    Raises:
        BadInput: the note cannot be read.
    """
    pending = out / FOLDER / _PENDING
    try:
        note = json.loads(pending.read_text(encoding="utf-8"))
        moves = [(out / source, out / target) for source, target in note["moves"]]
        ledger = str(note["ledger"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{str(pending)!r} is damaged") from error
    for source, target in moves:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.exists():  # else it was moved before
            source.replace(target)
    _replaced(out / FOLDER / LEDGER, ledger)
    pending.unlink()


def _replaced(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    _synced(unfinished)
    unfinished.replace(path)


def _synced(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
