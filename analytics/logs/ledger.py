"""What has been compacted already: which bytes of which logs, whatever the files are called by now.

A log is known by its content, decompressed: rotation renames it, something else compresses it, and it grows meanwhile.
One that begins with the whole content of a known log is that log, grown: only what is new in it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tricklecast.analytics.content import OPAQUE, PACKED, last_piece, open_log
from tricklecast.analytics.errors import BadInput

VERSION: Final = 1

AT_REST_S: Final = 60.0
"""A file that was written to in the last so many seconds may be written to while it is read: it is copied before."""

_BLOCK: Final = 1 << 20
_HEAD: Final = 512
"""Bytes, two or three lines."""


@dataclass(frozen=True, slots=True)
class Known:
    """A log, as far as it has been compacted.

    Attributes:
        name: where it was; size: bytes of it, decompressed; head: checksum of its first bytes.
    """

    name: str
    size: int
    head: str


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in a file.

    Attributes:
        name: the file; start, end: from which byte to which, decompressed.
        id: checksum of all up to the end; grown_from: that of all up to the start, if the log is known so far.
        head: checksum of the first bytes.
        direct: the file can be read as it is.
        stat: size and time of the file when it was looked at.
    """

    name: str
    start: int
    end: int
    id: str
    grown_from: str | None
    head: str
    direct: bool
    stat: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ledger:
    """All logs that have been compacted, by their checksum."""

    logs: Mapping[str, Known] = field(default_factory=dict)

    def with_pieces(self, pieces: Iterable[Piece]) -> Ledger:
        """The ledger after these have been compacted, too."""
        logs = dict(self.logs)
        for piece in pieces:
            if piece.grown_from is not None:
                logs.pop(piece.grown_from, None)
            logs[piece.id] = Known(piece.name, piece.end, piece.head)
        return Ledger(logs)

    def as_json(self) -> str:
        """The ledger's file."""
        logs = {key: asdict(known) for key, known in self.logs.items()}
        return json.dumps({"version": VERSION, "logs": logs}, indent=1, sort_keys=True) + "\n"


def load_ledger(path: Path) -> Ledger:
    """Reads a ledger; an empty one if there is none.

    Raises:
        BadInput: it is damaged or of another version.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="ascii"))
        if document["version"] != VERSION:
            raise BadInput(f"{str(path)!r} was written by another version")
        return Ledger({key: Known(**known) for key, known in document["logs"].items()})
    except FileNotFoundError:
        return Ledger()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"cannot read {str(path)!r}: it is damaged; compact into a new folder") from error


def new_pieces(names: Iterable[str], ledger: Ledger) -> list[Piece]:
    """What is new in the files; nothing for those that are known.

    Raises:
        BadInput: a file cannot be read.
    """
    pieces: dict[str, Piece] = {}
    for name in names:
        try:
            piece = _new_piece(name, ledger)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"cannot read {name!r}: {error}") from error
        if piece is not None:
            pieces.setdefault(piece.id, piece)
    found = list(pieces.values())
    # A copy that was made earlier may lie beside the log that has grown since: its lines are in that one.
    return [piece for piece in found if not _within_another(piece, found)]


def _within_another(piece: Piece, pieces: list[Piece]) -> bool:
    longer = [other for other in pieces if other.end > piece.end and other.start == piece.start]
    alike = [other for other in longer if other.head == piece.head or piece.end < _HEAD]
    return any(piece.id in _checksums(other.name, [piece.end]).values() for other in alike)


def _head(name: str) -> str:
    with open_log(name) as file:
        return hashlib.sha256(file.read(_HEAD)).hexdigest()


def _new_piece(name: str, ledger: Ledger) -> Piece | None:
    status = os.stat(name)
    end = _whole_lines(name)
    marks = _checksums(name, [*(known.size for known in ledger.logs.values()), end])
    head = _head(name)
    if end == 0 or marks[end] in ledger.logs or _beginning_of_known(head, end, ledger):
        return None
    start = max((size for size, mark in marks.items() if size < end and mark in ledger.logs), default=0)
    at_rest = time.time() - status.st_mtime > AT_REST_S and (name.endswith(PACKED) or end == status.st_size)
    return Piece(
        name=name,
        start=start,
        end=end,
        id=marks[end],
        grown_from=marks[start] if start else None,
        head=head,
        direct=start == 0 and (at_rest or name.endswith(OPAQUE)),
        stat=(status.st_size, status.st_mtime_ns),
    )


def _beginning_of_known(head: str, end: int, ledger: Ledger) -> bool:
    """Whether it is an early copy of a known log: no two logs have the same times in their first lines."""
    return end >= _HEAD and any(known.head == head and known.size > end for known in ledger.logs.values())


def _whole_lines(name: str) -> int:
    """Bytes of a log, decompressed, up to the end of its last whole line."""
    if name.endswith(OPAQUE):
        return os.path.getsize(name)
    if not name.endswith(PACKED):
        size, tail = os.path.getsize(name), last_piece(name) or b""
    else:
        size, tail = 0, b""
        for block in blocks(name):
            size += len(block)
            end = block.rfind(b"\n")
            tail = tail + block if end < 0 else block[end + 1 :]
    # Where only the line's end is missing, the record is there.
    return size if _is_record(tail) else size - len(tail)


def _is_record(tail: bytes) -> bool:
    try:
        return isinstance(json.loads(tail), dict)
    except (ValueError, RecursionError):
        return False


def _checksums(name: str, sizes: Iterable[int]) -> dict[int, str]:
    """The checksum of the first bytes of a log, for each of these sizes that it has."""
    content = hashlib.sha256()
    at = 0
    marks: dict[int, str] = {}
    pending = sorted(set(sizes), reverse=True)
    for block in blocks(name):
        done = 0
        while pending and pending[-1] <= at + len(block):
            size = pending.pop()
            content.update(block[done : size - at])
            done = size - at
            marks[size] = content.hexdigest()
        if not pending:
            break
        content.update(block[done:])
        at += len(block)
    return marks


def blocks(name: str, start: int = 0) -> Iterator[bytes]:
    """A log's content in pieces, decompressed."""
    with open_log(name) as file:
        file.seek(start)
        while block := file.read(_BLOCK):
            yield block
