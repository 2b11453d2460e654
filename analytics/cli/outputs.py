"""Where a report goes: checked before the work, written so that nobody ever reads half of it."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from tricklecast.analytics.errors import CannotWrite

STDOUT: Final = "-"


def check_outputs(files: dict[str, str]) -> None:
    """Finds out before the work, rather than after it, that its results have nowhere to go.

    Args:
        files: option and file of each; ``-`` is standard output.

    Raises:
        ValueError: with the option, and what is wrong.
    """
    taken: dict[str, str] = {}
    for option, file in files.items():
        target = file if file == STDOUT else os.path.realpath(file)
        if target in taken:
            raise ValueError(f"{option} and {taken[target]} both write to {file!r}")
        taken[target] = option
        if file == STDOUT:
            continue
        path = Path(target)
        if not file or path.is_dir():
            raise ValueError(f"{option}: {file!r} is a folder")
        special = path.exists() and not path.is_file()
        if not os.access(path if special else path.parent, os.W_OK):
            raise ValueError(f"{option}: cannot write {file!r}")


def write_at_once(file: str, text: str) -> None:
    """Writes a text so that a reader of the file sees the old one or the new one.

    Args:
        file: ``-`` for standard output. A device or pipe is written to as it is.

    Raises:
        CannotWrite: it cannot be written.
    """
    if file == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_text(text, encoding="utf-8")
            return
        handle, unfinished = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        try:
            with open(handle, "w", encoding="utf-8") as opened:
                opened.write(text)
                # Who may read a new file is for the user's umask to say.
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask())
            os.replace(unfinished, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
    except OSError as error:
        raise CannotWrite(f"cannot write {file!r}: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
