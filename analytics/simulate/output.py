"""Writes the log's files as servers do: one per server, renamed when it is large or old; all of them or none."""

from __future__ import annotations

import gzip
import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Final

from tricklecast.analytics.errors import CannotWrite
from tricklecast.analytics.simulate.entries import Line
from tricklecast.analytics.simulate.formats import Format
from tricklecast.analytics.simulate.truth import FILE

ROTATE_BYTES: Final = 256 << 20
ROTATE_S: Final = 3600.0
"""As the server's defaults (docs/reference/access-log.md)."""

_QUICK: Final = 1
"""gzip level: the log is to be read once or twice."""


class NodeLog:
    """The log of one server, in one or several files.

    Args:
        folder: where they lie. node: whose log it is.
        form: of its lines. packed: with gzip.
        rotate_bytes, rotate_us: begin the next file at this size or age.
    """

    def __init__(
        self, folder: Path, node: str, form: Format, *, packed: bool, rotate_bytes: int, rotate_us: int
    ) -> None:
        self._folder = folder
        self._stem = f"access-{node}"
        self._form = form
        self._packed = packed
        self._rotate_bytes = rotate_bytes
        self._rotate_us = rotate_us
        self._file: IO[bytes] | _Packed | None = None
        self._size = 0
        self._opened_us = 0
        self._rotations = 0
        self.bytes = 0
        self.files = 0

    def write(self, lines: Sequence[Line], now_us: int) -> int:
        """Append lines; ``now_us`` is the log's own clock.

        Returns:
            how many were written: some forms have no lines for events.
        """
        data = self._form.encode(lines)
        if self._file is not None and (self._size >= self._rotate_bytes or now_us - self._opened_us >= self._rotate_us):
            self._rotate(now_us)
        if self._file is None:
            self._file = self._open()
            self._size, self._opened_us = 0, now_us
        self._file.write(data)
        self._size += len(data)
        self.bytes += len(data)
        return data.count(b"\n")

    def close(self) -> None:
        """No more lines will come."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _name(self) -> str:
        return f"{self._stem}{self._form.suffix}{'.gz' if self._packed else ''}"

    def _open(self) -> IO[bytes] | _Packed:
        self.files += 1
        raw = (self._folder / self._name).open("wb", buffering=1 << 20)
        if not self._packed:
            return raw
        # No name and no time inside: the same log is the same bytes.
        return _Packed(raw)

    def _rotate(self, now_us: int) -> None:
        self.close()
        self._rotations += 1
        stamp = datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y%m%dT%H%M%S")
        current = self._folder / self._name
        current.rename(
            current.with_name(current.name.replace(self._stem, f"{self._stem}-{stamp}-{self._rotations:04d}"))
        )


class _Packed(io.RawIOBase):
    """A gzip file that closes what it writes to."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._zip = gzip.GzipFile(filename="", mode="wb", compresslevel=_QUICK, fileobj=raw, mtime=0)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self._zip.write(data)

    def close(self) -> None:
        if not self.closed:
            self._zip.close()
            self._raw.close()
        super().close()


@contextmanager
def complete_folder(out: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write into, which takes its place in one step when all is written, and vanishes if it is not.

    Raises:
        CannotWrite: there is something already, and ``force`` is not set; or nothing can be written there.
    """
    _check_free(out, force=force)
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    except OSError as error:
        raise CannotWrite(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    try:
        unfinished.chmod(0o755)
        yield unfinished
        if out.exists():
            old = Path(mkdtemp(prefix=f".{out.name}-old-", dir=out.absolute().parent))
            out.rename(old / "old")
            unfinished.rename(out)
            shutil.rmtree(old)
        else:
            unfinished.rename(out)
    except OSError as error:
        raise CannotWrite(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_free(out: Path, *, force: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise CannotWrite(f"{str(out)!r} is no folder")
    if any(out.iterdir()):
        if not force:
            raise CannotWrite(f"{str(out)!r} is not empty; --force replaces an earlier simulation")
        if not (out / FILE).is_file():
            raise CannotWrite(f"{str(out)!r} has other things in it than a simulation: not even --force replaces that")
