"""Follows logs that grow and rotate: whole lines, from where the last look ended, whatever a file is called by now.

A file is known by its inode and its first line. After a rename both are as they were; after "copy and truncate" the
copy has the first line, and the bytes before the position, of a file that is known. What is compressed is not followed.

Catching up is the same with more bytes than are read at a time. Then the logs are read in the order of their times: the
one whose next line is the oldest goes first, so that what several servers wrote at one moment comes together.
"""

from __future__ import annotations

import glob
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import BadFormat, Format, Reading, UnknownFormat, recognise
from tricklecast.analytics.lines.files import BYTE_ORDER_MARK, COMPRESSED, REMOTE, STDIN, STDIN_SHOWN, looks_like_log
from tricklecast.analytics.lines.recognise import SAMPLE_LINES
from tricklecast.analytics.store.store import Position

PIECE: Final = 1 << 20
"""Bytes of one file that are read at a time; a longer line is skipped and counted."""

BATCH: Final = 8 << 20
"""Bytes of all files that are read at a time; what is left waits in the logs."""

LINE: Final = 400
"""Bytes that a line counts as, at least: of short lines come more rows."""

MAX_FILES: Final = 5_000
SEARCH_S: Final = 1.0
"""How often new files are looked for. Seconds."""

FORGET_US: Final = 3_600_000_000
"""A file that is nowhere to be found is remembered for so long: it may be out of reach for a while."""

DAY_US: Final = 86_400_000_000

_HEAD: Final = 4096
_TAIL: Final = 256
_SAMPLE: Final = 1 << 18
_ROTATED: Final = r"(-\d{{8}}T\d{{6}}-\d+{0}|{0}\.\d+|{0}-\d{{8}}(-?\d+)?)"
"""The end of the name of a rotated log, after its stem: our server's names, and logrotate's."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines that one log has gained.

    Attributes:
        path: the log. named: whether somebody gave it by name. form: its format. block: whole lines with their ends.
        too_long: how many lines were skipped because they are too long.
    """

    path: str
    named: bool
    form: Format
    block: bytes
    too_long: int = 0


Times = Callable[[Sequence[Piece]], Sequence[int | None]]
"""When the lines of some pieces arrived, microseconds since the epoch; ``None`` where that cannot be told."""


@dataclass(slots=True)
class _Log:
    """A log that is followed; see :class:`Position`.

    Attributes:
        form: its format. strange: that cannot be told. size: at the last look.
        next_us: when its next line arrived. off_us: by how much its clock is wrong, if that is known.
    """

    inode: int
    head: str
    path: str
    at: int = 0
    tail: str = ""
    skipping: bool = False
    seen_us: int = 0
    form: Format | None = None
    strange: bool = False
    size: int = 0
    next_us: int | None = None
    off_us: int | None = None


class Followed:
    """The logs that are followed.

    Attributes:
        problems: what cannot be read, by path. lost: bytes that were gone before they could be read.
        behind: bytes that wait in the logs. ended: nothing will come any more (standard input has ended).
        past_us: since when the lines that were read last had waited in their log, by its clock; 0 if that cannot be
            told, ``None`` if they had just been written. Microseconds since the epoch.
    """

    def __init__(
        self,
        logs: Sequence[str],
        reading: Reading | None = None,
        positions: Sequence[Position] = (),
        *,
        earliest: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """
        Args:
            logs: files, which need not exist yet, folders, patterns, or ``-``.
            reading: how lines are read. positions: where an earlier run ended.
            earliest: begin with what is there already, if there are no positions.
            clock: seconds; wall_us: microseconds since the epoch.

        Raises:
            BadInput: there is no such log. BadFormat: as of :meth:`Reading.check`.
        """
        self._reading = reading or Reading()
        self._reading.check()
        self._clock, self._wall_us = clock, wall_us
        self._logs = [found for log in logs for found in _checked(log)]
        self._stdin = b"" if STDIN in self._logs else None
        self._stdin_form: Format | None = None
        self._names: dict[str, bool] = {}
        self._search_at = float("-inf")
        self._followed: dict[str, list[_Log]] = {}
        self._looked: dict[str, tuple[int, int]] = {}
        self._changed: dict[tuple[int, str], _Log] = {}
        self._gone: list[tuple[int, str]] = []
        self.problems: dict[str, str] = {}
        self.lost = self.behind = 0
        self.ended = False
        self.past_us: int | None = None
        for p in positions:
            log = _Log(p.inode, p.head, p.path, p.at, p.tail, p.skipping, p.seen_us)
            self._followed.setdefault(p.head, []).append(log)
        for path, descriptor, status in self._files():
            if earliest or positions:
                known = self._log_of(path, descriptor, status)
                self.behind += status.st_size - known.at if known else 0
            else:
                self._behind_all(path, descriptor, status)

    def positions(self) -> tuple[list[Position], list[tuple[int, str]]]:
        """The changes since the last call: how far logs were read, and those that have gone for good."""
        changed, gone = list(self._changed.values()), list(self._gone)
        self._changed.clear()
        self._gone.clear()
        return [Position(p.inode, p.head, p.at, p.tail, p.skipping, p.path, p.seen_us) for p in changed], gone

    def read(self, times: Times = lambda pieces: [None] * len(pieces)) -> list[Piece]:
        """The lines that were added since the last look; some may be left for the next one.

        Args:
            times: by which the order of logs is told, where there is more than is read at a time.

        Raises:
            UnknownFormat: that of a file which somebody gave by name cannot be told.
        """
        self.problems.clear()
        left = BATCH
        pieces = list(self._standard_input()) if self._stdin is not None and not self.ended else []
        unread = []
        for path, descriptor, status in self._files():
            log = self._log_of(path, descriptor, status)
            if log is not None:
                log.path, log.inode, log.size, log.seen_us = path, status.st_ino, status.st_size, self._wall_us()
                if log.at < log.size:
                    unread.append(log)
                else:
                    self._looked[path] = (log.inode, log.size)
        self.past_us = None
        if unread and self.behind:
            self._date([log for log in unread if log.next_us is None], times)
            unread.sort(key=lambda log: log.next_us or 0)
            self.past_us = unread[0].next_us or 0
        self.behind = 0
        for log in unread:
            with self._open(log) as opened:
                while opened is not None and left > 0 and log.at < log.size:
                    piece, size = self._piece(log, opened)
                    log.next_us = None
                    left -= max(size, piece.block.count(b"\n") * LINE if piece else 0)
                    pieces += [] if piece is None else [piece]
                    if not size:
                        break
                else:
                    self.behind += log.size - log.at
        return pieces

    @property
    def several(self) -> bool:
        """Whether there is more than one log."""
        return len(self._names) + (self._stdin is not None) > 1

    # --- files --------------------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[tuple[str, int, os.stat_result]]:
        """The files that have changed since the last look, open."""
        if self._clock() >= self._search_at:
            self._search_at = self._clock() + SEARCH_S
            self._names = dict(islice((found for log in self._logs for found in self._expand(log)), MAX_FILES))
            self._forget()
        if len(self._names) == MAX_FILES:
            self.problems["*"] = f"there are more than {MAX_FILES:,} files; the rest is not followed"
        for path, named in self._names.items():
            try:
                status = os.stat(path)
                if self._looked.get(path) == (status.st_ino, status.st_size):
                    continue
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            except FileNotFoundError:
                # Renamed a moment ago, or not there yet: the next search finds out which.
                if self._looked.pop(path, None) is not None:
                    self._search_at = float("-inf")
                if named:
                    known = any(log.path == path for alike in self._followed.values() for log in alike)
                    absent = "the file is gone; waiting for a new one" if known else "there is no such file yet"
                    self.problems[path] = absent
                continue
            except OSError as error:
                self.problems[path] = error.strerror or str(error)
                continue
            try:
                status = os.fstat(descriptor)
                if self._looked.get(path, (status.st_ino, 0))[0] != status.st_ino:
                    self._search_at = float("-inf")  # what it was is elsewhere now
                yield path, descriptor, status
            except OSError as error:
                self.problems[path] = error.strerror or str(error)
            finally:
                os.close(descriptor)

    def _expand(self, log: str) -> Iterator[tuple[str, bool]]:
        path = Path(log)
        if log == STDIN:
            return
        if path.is_dir():
            for folder, _, names in os.walk(log):
                yield from ((os.path.join(folder, name), False) for name in names if is_log(name))
            return
        rotated = re.compile(re.escape(path.stem) + _ROTATED.format(re.escape(path.suffix)))
        try:
            with os.scandir(path.parent) as entries:
                yield from ((entry.path, False) for entry in entries if rotated.fullmatch(entry.name))
        except OSError as error:
            self.problems[log] = error.strerror or str(error)
        yield str(path), True

    def _log_of(self, path: str, descriptor: int, status: os.stat_result) -> _Log | None:
        """Which log a file is; ``None`` if that cannot be told yet, or it is a copy that is not complete."""
        head = _head(descriptor)
        if head is None:
            return None
        alike = self._followed.setdefault(head, [])
        # The furthest first: of a log that was copied, an earlier position may be known as well.
        for log in sorted(alike, key=lambda log: -log.at):
            if status.st_size >= log.at and _tail(descriptor, log.at) == log.tail:
                return log
        same = [log for log in alike if log.inode == status.st_ino]
        if not same and any(status.st_size < log.at for log in alike):
            return None
        for log in same:  # cut, and begun again with the same line
            self.lost += max(0, log.size - log.at)
            alike.remove(log)
        alike.append(_Log(status.st_ino, head, path))
        return alike[-1]

    def _behind_all(self, path: str, descriptor: int, status: os.stat_result) -> None:
        """Begins behind the last whole line of a file."""
        log = self._log_of(path, descriptor, status)
        if log is not None:
            begin = max(0, status.st_size - PIECE)
            end = os.pread(descriptor, PIECE, begin).rfind(b"\n") + 1
            log.at = begin + end if end else status.st_size
            log.tail, log.seen_us, log.size = _tail(descriptor, log.at), self._wall_us(), status.st_size
            self._changed[log.inode, log.head] = log

    def _forget(self) -> None:
        before = self._wall_us() - FORGET_US
        for head, logs in list(self._followed.items()):
            for log in [log for log in logs if log.seen_us < before and log.path not in self._names]:
                self.lost += max(0, log.size - log.at)
                self._gone.append((log.inode, log.head))
                logs.remove(log)
            if not logs:
                del self._followed[head]

    # --- lines --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _open(self, log: _Log) -> Iterator[int | None]:
        """The log's file; ``None`` if it has another name by now."""
        try:
            descriptor = os.open(log.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            yield None
            return
        try:
            yield descriptor if os.fstat(descriptor).st_ino == log.inode else None
        finally:
            os.close(descriptor)

    def _date(self, logs: Iterable[_Log], times: Times) -> None:
        """Sets when the next lines of logs arrived.

        A clock that is a day behind, or more, when the file was written last is wrong: that is when its last line came.
        """
        parts: list[tuple[_Log, int, Piece]] = []
        for log in logs:
            log.next_us = 0
            with self._open(log) as descriptor:
                form = None if descriptor is None else self._form(log, descriptor)
                if descriptor is None or form is None:
                    continue
                written_us = os.fstat(descriptor).st_mtime_ns // 1000
                places = (log.at, 0), (max(log.at, log.size - _HEAD), written_us)
                for at, end_us in places if log.off_us is None else places[:1]:
                    block = os.pread(descriptor, _HEAD, at)
                    block = block[block.find(b"\n") + 1 if end_us else 0 : block.rfind(b"\n") + 1] or block
                    parts.append((log, end_us, Piece(log.path, False, form, block)))
        found = times([piece for _, _, piece in parts]) if parts else ()
        for (log, end_us, _), at_us in zip(parts, found, strict=True):
            if end_us:
                off_us = end_us - (at_us or end_us)
                log.off_us = off_us if off_us > DAY_US else 0
            else:
                log.next_us = at_us or 0
        for log in {id(log): log for log, _, _ in parts}.values():
            log.next_us = (log.next_us or 0) + (log.off_us or 0)

    def _form(self, log: _Log, descriptor: int) -> Format | None:
        """The format of a log; ``None`` if that cannot be told."""
        if log.form is None and not log.strange:
            try:
                log.form = self._recognised(log.path, os.pread(descriptor, _SAMPLE, 0).rpartition(b"\n")[0])
            except (UnknownFormat, BadFormat) as error:
                if self._names.get(log.path) or isinstance(error, BadFormat):
                    raise
                log.strange = True
        if log.strange:
            self.problems[log.path] = "its format is unknown"
        return log.form

    def _piece(self, log: _Log, descriptor: int) -> tuple[Piece | None, int]:
        """The next lines of a log, and how many bytes were taken."""
        data = os.pread(descriptor, min(PIECE, log.size - log.at), log.at)
        begin = data.find(b"\n") + 1 if log.skipping else 0
        end = data.rfind(b"\n") + 1
        if end <= begin and len(data) < PIECE:
            # Nothing to read before it grows.
            self._looked[log.path] = (log.inode, log.size)
            end = begin
        too_long = int(end <= begin and not (log.skipping and not begin) and len(data) == PIECE)
        taken = end if end > begin or len(data) < PIECE else len(data)
        if not taken:
            return None, 0
        block = data[begin:end].removeprefix(b"" if log.at else BYTE_ORDER_MARK)
        log.skipping = taken > end or (log.skipping and not begin)
        log.at += taken
        log.tail = _tail(descriptor, log.at)
        self._changed[log.inode, log.head] = log
        form = self._form(log, descriptor) if block.strip() else log.form
        if form is None or not (block or too_long):
            return None, taken
        return Piece(log.path, self._names.get(log.path, False), form, block, too_long), taken

    def _recognised(self, path: str, sample: bytes) -> Format:
        lines = [line for line in sample.removeprefix(BYTE_ORDER_MARK).split(b"\n") if line.strip()]
        return recognise(path, lines[:SAMPLE_LINES], self._reading.format)

    def _standard_input(self) -> Iterator[Piece]:
        assert self._stdin is not None
        descriptor = sys.stdin.fileno()
        while len(self._stdin) < BATCH and select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, PIECE)
            self._stdin += data
            if not data:
                self._stdin += b"\n" if self._stdin else b""
                self.ended = self._logs == [STDIN]
                break
        block, newline, rest = self._stdin.rpartition(b"\n")
        too_long = int(len(rest) >= BATCH)
        self._stdin = b"" if too_long else rest
        if block.strip() and self._stdin_form is None:
            self._stdin_form = self._recognised(STDIN_SHOWN, block)
        if self._stdin_form is not None and (newline or too_long):
            yield Piece(STDIN_SHOWN, True, self._stdin_form, block + newline, too_long)


def is_log(name: str) -> bool:
    """Whether a file of a folder is called like a log that is, or was, written to."""
    return looks_like_log(name) and not name.endswith((*COMPRESSED, ".parquet"))


def _checked(log: str) -> list[str]:
    if log == STDIN:
        return [log]
    if REMOTE.match(log):
        raise BadInput(f"cannot watch {log!r}: files, folders, or - for standard input")
    path = Path(log)
    if not path.exists():
        if matches := sorted(glob.glob(log, recursive=True)):
            return [os.path.abspath(match) for match in matches]
        # A file that is not there yet is waited for; a folder cannot be told from a typing error.
        if not path.suffix or not path.absolute().parent.is_dir():
            raise BadInput(f"no such log: {log!r}")
    elif not os.access(path, os.R_OK):
        raise BadInput(f"cannot read {log!r}: permission denied")
    elif path.is_file() and log.endswith(COMPRESSED):
        raise BadInput(f"cannot watch {log!r}: a compressed log does not grow")
    return [os.path.abspath(log)]


def _head(descriptor: int) -> str | None:
    """Hash of a file's first line; ``None`` before it has one."""
    line, newline, _ = (found := os.pread(descriptor, _HEAD, 0)).partition(b"\n")
    return None if not newline and len(found) < _HEAD else blake2b(line, digest_size=8).hexdigest()


def _tail(descriptor: int, at: int) -> str:
    """Hash of the bytes before a position."""
    size = min(at, _TAIL)
    return blake2b(os.pread(descriptor, size, at - size), digest_size=8).hexdigest() if size else ""
