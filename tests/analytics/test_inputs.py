"""Arguments become files, each once; what cannot be read is said before Spark is started."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tricklecast.analytics.content import is_damaged
from tricklecast.analytics.durations import HOUR_US
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.inputs import Window, find_logs, link_readable


def touch(path: Path, data: bytes = b"{}\n") -> Path:
    """Creates a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_directory_is_searched_for_logs(tmp_path: Path) -> None:
    """A directory gives its logs, rotated and compressed ones too, and nothing else."""
    wanted = ["a/access.jsonl", "a/access.jsonl.1", "b/old.log.2.gz", "c.ndjson"]
    for name in [*wanted, "report.json", "notes.txt", ".hidden.jsonl", "access.jsonl.tmp"]:
        line = f"{name}\n".encode()
        touch(tmp_path / name, gzip.compress(line) if name.endswith(".gz") else line)
    assert find_logs([str(tmp_path)]).names == tuple(str(tmp_path / name) for name in wanted)


def test_glob_and_repetition(tmp_path: Path) -> None:
    """A glob gives its files in order; a file named twice, or through a link, is read once."""
    first, second = touch(tmp_path / "1.jsonl"), touch(tmp_path / "2.jsonl", b"{}\n{}\n")
    link = tmp_path / "link.jsonl"
    link.symlink_to(first)
    files = find_logs([str(tmp_path / "[12].jsonl"), str(second), str(link)])
    assert files.names == (str(first), str(second))
    assert files.size == 9


@pytest.mark.parametrize("argument", ["missing.jsonl", "*.jsonl", "empty", "bad\0name"])
def test_nothing_there(argument: str, tmp_path: Path) -> None:
    """An argument that matches nothing is bad input, and named in the message."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"no such log|no logs|cannot read"):
        find_logs([f"{tmp_path}/{argument}"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    """A file without permission is bad input."""
    touch(tmp_path / "a.jsonl").chmod(0)
    with pytest.raises(BadInput, match="permission"):
        find_logs([str(tmp_path / "a.jsonl")])


def test_uri_is_left_to_spark(tmp_path: Path) -> None:
    """A URI stands for itself, glob characters included."""
    (name,) = find_logs(["s3a://bucket/logs/*.jsonl"]).names
    assert link_readable(name, str(tmp_path), 0) == name == "s3a://bucket/logs/*.jsonl"


def test_damaged_gzip(tmp_path: Path) -> None:
    """A cut gzip and one that is none are told from a whole one; other files are not looked into."""
    whole = gzip.compress(b"{}\n" * 10_000)
    assert not is_damaged(str(touch(tmp_path / "whole.jsonl.gz", whole)))
    assert is_damaged(str(touch(tmp_path / "cut.jsonl.gz", whole[: len(whole) // 2])))
    assert is_damaged(str(touch(tmp_path / "none.jsonl.gz", b"plain text")))
    assert not is_damaged(str(touch(tmp_path / "plain.jsonl", b"plain text")))


@pytest.mark.parametrize("name", ["a:b.jsonl", "_a.jsonl", ".a.jsonl", "a[1]{x,y}*?.jsonl", "a\nb.jsonl", "ä.jsonl"])
def test_awkward_name_is_read_through_a_link(name: str, tmp_path: Path) -> None:
    """A name that Spark would misunderstand gets a plain one."""
    links = tmp_path / "links"
    links.mkdir()
    link = Path(link_readable(str(touch(tmp_path / name, b"content")), str(links), 0))
    assert link == links / "log-00000.jsonl"
    assert link.read_bytes() == b"content"


def test_plain_name_is_read_directly(tmp_path: Path) -> None:
    """A plain name is not linked."""
    path = str(touch(Path(os.path.realpath(tmp_path)) / "access 1.jsonl"))
    assert link_readable(path, str(tmp_path), 0) == path


def test_copies_are_left_out(tmp_path: Path) -> None:
    """A file with the bytes of another one is named and not read."""
    first = touch(tmp_path / "a.jsonl", b"same\n")
    second, third = touch(tmp_path / "b.jsonl", b"same\n"), touch(tmp_path / "c.jsonl", b"else\n")
    files = find_logs([str(tmp_path)])
    assert (files.names, files.duplicates, files.size) == ((str(first), str(third)), (str(second),), 10)


def test_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    """Work in progress lies below names that begin with a dot or an underscore; files of such names are logs."""
    for name in ("_work/a.jsonl", ".cache/b.jsonl", "d/_temporary/c.jsonl", "_d.jsonl"):
        touch(tmp_path / name, name.encode())
    assert find_logs([str(tmp_path)]).names == (str(tmp_path / "_d.jsonl"),)
    assert find_logs([str(tmp_path / "_work")]).names == (str(tmp_path / "_work/a.jsonl"),)


def test_a_glob_of_folders(tmp_path: Path) -> None:
    """A glob that matches only folders means the logs in them."""
    for day in (8, 9):
        touch(tmp_path / f"dt=2025-10-{day:02}/hr=00/a.parquet", b"%d" % day)
    assert len(find_logs([f"{tmp_path}/dt=*"]).names) == 2


NOON_US = 1_760_011_200_000_000
"""2025-10-09 12:00 UTC."""


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        (Window(), ["8", "9/11", "9/12", "9/13", "free", "odd"]),
        (Window(NOON_US, None), ["9/12", "9/13", "free", "odd"]),
        (Window(None, NOON_US), ["8", "9/11", "free", "odd"]),
        (Window(NOON_US + 1, NOON_US + 2), ["9/12", "free", "odd"]),
        (Window(NOON_US + HOUR_US - 1, NOON_US + HOUR_US), ["9/12", "free", "odd"]),
    ],
)
def test_partitions_of_other_hours(window: Window, wanted: list[str], tmp_path: Path) -> None:
    """Files of hours and days outside the window are left out; those of which that cannot be told are not."""
    folders = {
        "8": "dt=2025-10-08",
        "9/11": "dt=2025-10-09/hr=11",
        "9/12": "dt=2025-10-09/hr=12",
        "9/13": "dt=2025-10-09/hr=13",
        "free": "other",
        "odd": "dt=2025-99-99/hr=99",
    }
    paths = {touch(tmp_path / folder / "a.jsonl", name.encode()): name for name, folder in folders.items()}
    files = find_logs([str(tmp_path)], window)
    assert sorted(paths[Path(name)] for name in files.names) == wanted
    assert files.other_hours == len(folders) - len(wanted)


def test_nothing_of_that_time(tmp_path: Path) -> None:
    """If no partition is of that time, that is said: there is nothing to report on."""
    touch(tmp_path / "dt=2025-10-09/hr=11/a.jsonl")
    with pytest.raises(BadInput, match="another time"):
        find_logs([str(tmp_path)], Window(NOON_US, None))
