"""``tricklecast logs tail``: the last records of logs of any format, and those that are added."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

import orjson

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import Format, Reading, find_logs
from tricklecast.analytics.lines.embedded import ChunkReader, read_lines
from tricklecast.analytics.lines.files import STDIN, LineReader, node_of, packed
from tricklecast.analytics.lines.reading import recognise_files
from tricklecast.analytics.lines.recognise import PARQUET
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.watch.followed import Followed
from tricklecast.trickle.records import Kind
from tricklecast.trickle.wire import Status

POLL_S: Final = 0.2
"""How often files that are followed are looked at."""

_STEP: Final = 1 << 16
_MAX_STEP: Final = 1 << 22

Record = dict[str, Any]
"""The columns of a line, with ``bad``: what is wrong with it, and ``line``: its text."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records are shown.

    Attributes:
        columns: names or patterns with ``*``, by the column that must have one of them: ``limit:*`` is any limit, an
            event's name counts as its ``op``. For a status see :func:`statuses`.
        failures: only refusals and errors: status 400 and above.
    """

    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    failures: bool = False

    def __call__(self, record: Record) -> bool:
        """Whether a record is shown; a line that cannot be read is, if there is no filter."""
        if not self.failures and not any(self.columns.values()):
            return True
        status = record["status"]
        if record["bad"] or (self.failures and (status is None or status < Status.BAD_REQUEST)):
            return False
        for column, patterns in self.columns.items():
            value = record["event" if column == "op" and record["kind"] == Kind.EVENT else column]
            if patterns and (value is None or not any(fnmatchcase(str(value), pattern) for pattern in patterns)):
                return False
        return True


def statuses(typed: Sequence[str]) -> list[str]:
    """Patterns of statuses as people type them: ``404``, ``5xx``, ``4*``.

    Raises:
        ValueError: no status is like one of them.
    """
    patterns = [one.lower().replace("x", "?") for one in typed]
    for one, pattern in zip(typed, patterns, strict=True):
        if not any(fnmatchcase(str(status), pattern) for status in range(1000)):
            raise ValueError(f"--status takes a status such as 404, 5xx or 4*, not {one!r}")
    return patterns


class Tail:
    """Reads the records of logs."""

    def __init__(self, wanted: Wanted, reading: Reading) -> None:
        """
        Args:
            wanted: the records that are given. reading: how lines are read.
        """
        self._con = embedded.connect(0)  # few lines at a time
        self._wanted = wanted
        self._reading = reading
        self._readers: dict[tuple[int, str | None], tuple[Format, ChunkReader]] = {}

    def records(self, logs: Sequence[str], count: int, *, follow: bool) -> Iterator[Record]:
        """The last records of each file, and what is added to it.

        Args:
            logs: files, folders, patterns; ``-`` is standard input, of which everything is given as it comes.
            count: how many of each file. follow: whether to go on for ever.

        Raises:
            BadInput: a file cannot be read, or its format cannot be told.
        """
        files = [log for log in logs if log != STDIN]
        # The places from which files are followed are known before what stands before them is read.
        followed = Followed(logs if follow else [STDIN], self._reading) if follow or STDIN in logs else None
        ends = {place.path: place.at for place in followed.positions()[0]} if followed else {}
        for log in files:
            try:
                found = find_logs([log])
            except BadInput:
                if not follow:
                    raise
                continue  # it may come
            recognised = recognise_files(found, self._reading)
            for name, form in zip(recognised.names, recognised.formats, strict=True):
                yield from self._last(name, form, count, ends.get(os.path.abspath(name)))
        while followed is not None:
            quiet = True
            for piece in followed.read():
                quiet = False
                yield from self._of(piece.form, node_of(piece.path), piece.block.split(b"\n"))
            if followed.ended:
                return
            if quiet:
                time.sleep(POLL_S)

    def _of(self, form: Format, node: str | None, lines: Sequence[bytes]) -> list[Record]:
        """The records that are wanted of some lines."""
        _, reader = self._readers.get((id(form), node)) or (None, None)
        if reader is None:
            reader = ChunkReader(self._con, form, self._reading, node)
            self._readers[id(form), node] = form, reader
        rows = reader.read(lines).to_pylist()
        records = [row | {"line": lines[row["no"] - 1]} for row in rows]
        return [record for record in records if self._wanted(record)]

    def _last(self, name: str, form: Format, count: int, end: int | None) -> Sequence[Record]:
        """The last records of a file that are wanted, in order.

        Args:
            end: so many bytes of the file are looked at; all for ``None``.
        """
        if not count:
            return ()
        if form.name == PARQUET:
            return self._last_rows(name, count)
        if packed(name):
            kept: deque[Record] = deque(maxlen=count)
            for block in LineReader(name).blocks():
                kept.extend(self._of(form, node_of(name), block.splitlines()))
            return kept
        found: list[Record] = []
        step, rest = _STEP, b""
        with open(name, "rb") as file:
            at = file.seek(0, os.SEEK_END) if end is None else end
            while at > 0 and len(found) < count:
                size = min(at, step)
                at -= size
                file.seek(at)
                block = file.read(size) + rest
                # What has no beginning yet belongs to the block before.
                begin = block.find(b"\n") + 1 if at else 0
                rest, block = (block[:begin], block[begin:]) if begin or not at else (block[:_MAX_STEP], b"")
                records = self._of(form, node_of(name), block.split(b"\n"))
                found = records[-(count - len(found)) :] + found
                step = min(4 * step, _MAX_STEP)
        return found

    def _last_rows(self, name: str, count: int) -> Sequence[Record]:
        read_lines(self._con, find_logs([name]), self._reading)
        answer = self._con.execute("SELECT * FROM parsed_line ORDER BY no DESC")
        columns = [column[0] for column in answer.description or ()]
        found: list[Record] = []
        while len(found) < count and (rows := answer.fetchmany(1000)):
            records = (dict(zip(columns, row, strict=True)) for row in rows)
            found += [record | {"line": _as_json(record)} for record in records if self._wanted(record)]
        answer.fetchall()
        return found[:count][::-1]


def _as_json(record: Record) -> bytes:
    inner = ("file", "no", "bad", "text", "blind")
    return orjson.dumps({name: value for name, value in record.items() if value is not None and name not in inner})
