"""A log is known by its content: nothing of it is taken twice, and nothing is left out."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.logs.ledger import Ledger, blocks, load_ledger, new_pieces

LONG_AGO = 1_000_000_000


def lines(first: int, last: int) -> bytes:
    """Lines with numbers."""
    return b"".join(b'{"line":%d}\n' % number for number in range(first, last))


def write(path: Path, data: bytes) -> str:
    """Writes a file that has not been touched for long."""
    path.write_bytes(data)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return str(path)


def take(ledger: Ledger, *names: str) -> tuple[bytes, Ledger]:
    """What is new in the files, and the ledger after it."""
    pieces = new_pieces(names, ledger)
    taken = b"".join(b"".join(blocks(piece.name, piece.start))[: piece.end - piece.start] for piece in pieces)
    return taken, ledger.with_pieces(pieces)


def test_growing_renamed_compressed(tmp_path: Path) -> None:
    """Over a log's life each of its lines is taken once."""
    path = tmp_path / "access.jsonl"
    taken, ledger = take(Ledger(), write(path, lines(0, 100)))
    assert taken == lines(0, 100)
    assert take(ledger, str(path)) == (b"", ledger)
    taken, ledger = take(ledger, write(path, lines(0, 150) + b'{"li'))
    assert taken == lines(100, 150)
    rotated = str(path.rename(tmp_path / "access-1.jsonl"))
    fresh = write(path, lines(500, 510))
    taken, ledger = take(ledger, write(Path(rotated), lines(0, 160)), fresh)
    assert taken == lines(150, 160) + lines(500, 510)
    packed = write(tmp_path / "access-1.jsonl.gz", gzip.compress(lines(0, 160)))
    assert take(ledger, packed, rotated, fresh) == (b"", ledger)
    taken, ledger = take(ledger, write(Path(packed), gzip.compress(lines(0, 170))))
    assert taken == lines(160, 170)
    assert len(ledger.logs) == 2


def test_copies_of_an_earlier_state(tmp_path: Path) -> None:
    """A shorter copy beside a log, or after it, adds nothing."""
    long, short = write(tmp_path / "a.jsonl", lines(0, 200)), write(tmp_path / "b.jsonl", lines(0, 100))
    taken, ledger = take(Ledger(), short, long)
    assert taken == lines(0, 200)
    assert take(ledger, short)[0] == b""
    tiny = [write(tmp_path / f"{name}.jsonl", lines(0, name)) for name in (1, 2)]
    assert take(Ledger(), *tiny)[0] == lines(0, 2)


def test_the_last_line(tmp_path: Path) -> None:
    """A record without its line's end is taken, and not again when the end comes; half a record waits."""
    path = tmp_path / "a.jsonl"
    taken, ledger = take(Ledger(), write(path, b'{"a":1}\n{"b":2}'))
    assert taken == b'{"a":1}\n{"b":2}'
    taken, ledger = take(ledger, write(path, b'{"a":1}\n{"b":2}\n{"c"'))
    assert taken == b"\n"
    assert take(ledger, write(path, b'{"a":1}\n{"b":2}\n{"c":3}\n'))[0] == b'{"c":3}\n'
    assert take(Ledger(), write(path, b""), write(tmp_path / "b.jsonl", b'{"half'))[0] == b""


def test_what_is_read_as_it_is(tmp_path: Path) -> None:
    """Only a file at rest, of which all is new, is read where it lies."""
    rest = write(tmp_path / "rest.jsonl", lines(0, 10))
    (tmp_path / "live.jsonl").write_bytes(lines(10, 20))
    half = write(tmp_path / "half.jsonl", lines(20, 30) + b"{")
    pieces = {
        Path(piece.name).name: piece.direct
        for piece in new_pieces([rest, str(tmp_path / "live.jsonl"), half], Ledger())
    }
    assert pieces == {"rest.jsonl": True, "live.jsonl": False, "half.jsonl": False}


def test_ledger_on_disk(tmp_path: Path) -> None:
    """It is read as it was written; a damaged one, or that of another version, is refused."""
    _, ledger = take(Ledger(), write(tmp_path / "a.jsonl", lines(0, 10)))
    path = tmp_path / "ledger.json"
    assert load_ledger(path) == Ledger()
    path.write_text(ledger.as_json())
    assert load_ledger(path) == ledger
    for text in ("{", "[]", '{"version": 1}', '{"version": 1, "logs": {"a": {}}}', '{"version": 2, "logs": {}}'):
        path.write_text(text)
        with pytest.raises(BadInput):
            load_ledger(path)


def test_unreadable(tmp_path: Path) -> None:
    """A file that has gone, or that is no archive, is bad input."""
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    for name in ("missing.jsonl", "a.jsonl.gz"):
        with pytest.raises(BadInput, match="cannot read"):
            new_pieces([str(tmp_path / name)], Ledger())
