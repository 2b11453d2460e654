"""The folder of a state: whose it is, one run at a time, and nothing left over from one that was interrupted."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tricklecast.analytics.errors import BadInput, Busy, CannotWrite
from tricklecast.analytics.incremental import manifest as manifests
from tricklecast.analytics.incremental.manifest import Manifest

HOURS: Final = "hours"
WORK: Final = "work"
"""Where a run writes what does not count yet."""

LOCK: Final = "lock"

_OURS: Final = frozenset({manifests.NAME, f"{manifests.NAME}.tmp", HOURS, WORK, LOCK})


@contextmanager
def held(path: str) -> Iterator[Path]:
    """The folder, made if it is not there, for one run alone.

    Raises:
        BadInput: it has something else in it.
        Busy: another run has it.
        CannotWrite: it cannot be made or written.
    """
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in _OURS)
        if strangers:
            raise BadInput(f"{path!r} is no state of storms: it has {strangers[0]!r} in it")
        (folder / HOURS).mkdir(exist_ok=True)
        lock = (folder / LOCK).open("a+", encoding="ascii")
    except OSError as error:
        raise CannotWrite(f"cannot keep a state in {path!r}: {error.strerror}") from error
    with lock:
        _take(lock, path)
        yield folder


def _take(lock: IO[str], path: str) -> None:
    """The system gives a lock back when its process ends, however it ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read(20).strip()
        raise Busy(f"{path!r} is being used by another run (process {owner or '?'}); try again later") from None
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def clean(folder: Path, manifest: Manifest) -> None:
    """Removes what does not count: what an interrupted run has left, or what the manifest no longer names."""
    shutil.rmtree(folder / WORK, ignore_errors=True)
    (folder / f"{manifests.NAME}.tmp").unlink(missing_ok=True)
    counted = manifest.parts()
    for path in (folder / HOURS).iterdir():
        if path.name not in counted:
            path.unlink()
