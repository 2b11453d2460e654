"""Where a report goes: checked before the work, written so that nobody ever reads half of it."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from tricklecast.analytics.errors import CannotWrite

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

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
            why = f"there is no folder {str(path.parent)!r}"
            if path.parent.is_dir():
                is_fixed = os.statvfs(path.parent).f_flag & os.ST_RDONLY
                why = os.strerror(errno.EROFS if is_fixed else errno.EACCES)
            raise ValueError(f"{option}: cannot write {file!r}: {why}")


def write_at_once(file: str, text: str) -> None:
    """Writes a text so that a reader of the file sees the old one or the new one.

    Args:
        file: ``-`` for standard output. A device or pipe is written to as it is.

    Raises:
        CannotWrite: it cannot be written.
    """
    with _at_once(file) as opened:
        opened.write(text.encode())


def write_rows(file: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes rows as they come, by the rules of :func:`write_at_once`, and returns how many.

    Args:
        file: Parquet if its name ends so, else an object of JSON per line, without nulls.
    """
    import msgspec

    count = 0
    with _at_once(file) as opened, ExitStack() as held:
        writer = None
        encode = msgspec.json.Encoder().encode
        for batch in batches:
            count += len(batch)
            if not file.endswith(".parquet"):
                rows = ({key: value for key, value in row.items() if value is not None} for row in batch.to_pylist())
                opened.write(b"".join(encode(row) + b"\n" for row in rows))
                continue
            if writer is None:
                from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]  # it ships no types

                writer = held.enter_context(ParquetWriter(opened, batch.schema, compression="zstd"))
            writer.write_batch(batch)
    return count


@contextmanager
def _at_once(file: str) -> Iterator[IO[bytes]]:
    if file == STDOUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with target.open("wb") as opened:
                yield opened
            return
        handle, unfinished = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        try:
            with open(handle, "wb") as opened:
                yield opened
                # Who may read a new file is for the user's umask to say.
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask())
            os.replace(unfinished, target)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
    except OSError as error:
        raise CannotWrite(f"cannot write {file!r}: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
