"""Which log a file is: by its content, whatever it is called and however it is packed."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.incremental.identity import identify, stamp_of

LOG = b"".join(b'{"ts_us":%d}\n' % (1_760_000_000_000_000 + number) for number in range(300_000))


def test_packing_and_names_do_not_matter(tmp_path: Path) -> None:
    """A rotated log is the same log, plain or compressed."""
    (tmp_path / "access.jsonl").write_bytes(LOG)
    (tmp_path / "access-1.jsonl.gz").write_bytes(gzip.compress(LOG, 1))
    (tmp_path / "access-1.jsonl.bz2").write_bytes(bz2.compress(LOG, 1))
    found = {identify(str(path)) for path in tmp_path.iterdir()}
    assert len(found) == 1
    assert next(iter(found)).size == len(LOG)


def test_a_log_that_has_grown_begins_as_before(tmp_path: Path) -> None:
    """Its first bytes have the checksum that the shorter log had, wherever in a block that ended."""
    path = tmp_path / "access.jsonl"
    sizes = (0, 1, 20, 4096, 1 << 20, (1 << 20) + 1, len(LOG) - 1)
    ids = {}
    for size in sizes:
        path.write_bytes(LOG[:size])
        ids[identify(str(path)).id] = size
    path.write_bytes(LOG)
    whole = identify(str(path), (*sizes, len(LOG), len(LOG) + 5))
    assert {ids[name] for name in whole.begins} == set(sizes)
    assert whole.first_line == identify(str(path)).first_line


def test_another_content_is_another_log(tmp_path: Path) -> None:
    """One byte makes the difference, at the same size."""
    for name, data in (("a", b"1\n2\n"), ("b", b"1\n3\n")):
        (tmp_path / name).write_bytes(data)
    a, b = (identify(str(tmp_path / name), [2]) for name in "ab")
    assert a.id != b.id
    assert a.begins == b.begins
    assert a.first_line == b.first_line


@pytest.mark.parametrize("data", [gzip.compress(LOG, 1)[:-1000], b"no gzip at all", b"", b"\x1f\x8b"])
def test_damaged_archives_have_an_identity(data: bytes, tmp_path: Path) -> None:
    """What is readable of them is their content, the same every time."""
    path = tmp_path / "access.jsonl.gz"
    path.write_bytes(data)
    assert identify(str(path)) == identify(str(path))


def test_a_damaged_bz2_has_an_identity(tmp_path: Path) -> None:
    """As above."""
    path = tmp_path / "access.jsonl.bz2"
    path.write_bytes(b"no bzip2")
    assert identify(str(path)).size == 0


def test_renaming_keeps_the_stamp_and_writing_does_not(tmp_path: Path) -> None:
    """What the file system says tells when a file has to be read again."""
    path = tmp_path / "access.jsonl"
    path.write_bytes(b"1\n")
    before = stamp_of(str(path))
    path = path.rename(tmp_path / "access-1.jsonl")
    assert stamp_of(str(path)) == before
    with path.open("ab") as file:
        file.write(b"2\n")
    assert stamp_of(str(path)) != before


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """It is bad input, in one line."""
    for look in (identify, stamp_of):
        with pytest.raises(BadInput, match="No such file"):
            look(str(tmp_path / "gone.jsonl"))
