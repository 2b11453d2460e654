"""Which logs are new to a state, over days of rotation, growth and copies; no Spark is needed to tell."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.incremental.intake import Intake, look_through
from tricklecast.analytics.incremental.manifest import Manifest
from tricklecast.analytics.inputs import LogFiles, find_logs

LINES = [f'{{"ts_us":{1_760_000_000_000_000 + number},"kind":"exchange"}}\n' for number in range(500)]


class Days:
    """A folder of logs, and what a state would know after each run over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest({})

    def write(self, name: str, lines: list[str]) -> None:
        """Writes a log; compressed if its name says so."""
        data = "".join(lines).encode()
        (self.folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    def run(self) -> Intake:
        """What one run would do, which is done to the manifest."""
        found = look_through(find_logs([str(self.folder)]), self.manifest)
        left = {key: log for key, log in self.manifest.logs.items() if key not in found.outdated}
        read = {key: replace(log, hours=(1,)) for key, log in found.fresh.items()}
        self.manifest = replace(self.manifest, logs=left | found.seen | read)
        return found

    def sizes(self) -> list[int]:
        """Lines of each known log."""
        return sorted(log.size // len(LINES[0]) for log in self.manifest.logs.values())


@pytest.fixture
def days(tmp_path: Path) -> Days:
    """An empty folder."""
    return Days(tmp_path)


def test_a_second_run_has_nothing_to_do(days: Days) -> None:
    """Nothing is new, nothing outdated, and no file is opened."""
    days.write("a.jsonl", LINES[:100])
    days.run()
    (days.folder / "a.jsonl").chmod(0o600)
    found = days.run()
    assert (found.fresh, found.outdated, found.doubles) == ({}, frozenset(), ())
    assert list(found.seen) == list(days.manifest.logs)


def test_a_known_log_that_was_touched(days: Days) -> None:
    """Its content is as before: what is known of it stays."""
    days.write("a.jsonl", LINES[:100])
    days.run()
    (days.folder / "a.jsonl").replace(days.folder / "b.jsonl")
    days.write("b.jsonl.gz", LINES[:100])
    (days.folder / "b.jsonl").unlink()
    (log,) = days.run().seen.values()
    assert (log.hours, log.name) == ((1,), str(days.folder / "b.jsonl.gz"))


def test_rotation(days: Days) -> None:
    """A log that grew takes the place of what it was; renamed and compressed it is known."""
    days.write("access.jsonl", LINES[:100])
    days.run()
    days.write("access.jsonl", LINES[:150])
    assert len(days.run().outdated) == 1
    (days.folder / "access.jsonl").rename(days.folder / "access-1.jsonl")
    days.write("access.jsonl", LINES[150:300])
    found = days.run()
    assert (len(found.fresh), len(found.seen), found.outdated) == (1, 1, frozenset())
    days.write("access-1.jsonl.gz", LINES[:150])
    (days.folder / "access-1.jsonl").unlink()
    found = days.run()
    assert (found.fresh, found.outdated) == ({}, frozenset())
    assert [log.name for log in found.seen.values() if log.name.endswith(".gz")]
    assert days.sizes() == [150, 150]


def test_a_log_that_grew_in_rotation(days: Days) -> None:
    """What was read half is read whole under its new name."""
    days.write("access.jsonl", LINES[:100])
    days.run()
    days.write("access-1.jsonl.gz", LINES[:150])
    days.write("access.jsonl", LINES[150:300])
    found = days.run()
    assert (len(found.fresh), len(found.outdated)) == (2, 1)
    assert days.sizes() == [150, 150]


def test_copies(days: Days) -> None:
    """The same content twice counts once, and so does a copy that was made while the log grew, in either order."""
    days.write("access.jsonl", LINES[:150])
    days.write("b.jsonl.gz", LINES[:150])
    assert days.run().doubles == (str(days.folder / "b.jsonl.gz"),)
    days.write("early copy.jsonl", LINES[:70])
    found = days.run()
    assert found.fresh == {}
    assert str(days.folder / "early copy.jsonl") in found.doubles
    days.write("access.jsonl", LINES[:200])
    found = days.run()
    assert len(found.fresh) == 1
    assert days.sizes() == [200]
    assert days.run().fresh == {}


def test_a_log_that_was_written_again(days: Days) -> None:
    """The same name and first line: corrected or cut, it takes the place of the old one. Another first line is new."""
    days.write("access.jsonl", LINES[:100])
    days.run()
    days.write("access.jsonl", [*LINES[:50], *LINES[400:420]])
    assert len(days.run().outdated) == 1
    assert days.sizes() == [70]
    days.write("access.jsonl", LINES[200:210])
    assert days.run().outdated == frozenset()
    assert days.sizes() == [10, 70]


def test_other_logs_with_the_same_first_line(days: Days) -> None:
    """Proxies that a health check asks in the same second can begin alike: they are two logs all the same."""
    days.write("proxy-a.log", ["GET /health\n", *LINES[:10]])
    days.run()
    days.write("proxy-b.log", ["GET /health\n", *LINES[10:15]])
    assert days.run().outdated == frozenset()
    assert len(days.manifest.logs) == 2


def test_empty_logs(days: Days) -> None:
    """An empty log is one like any other, until it grows."""
    days.write("a.jsonl", [])
    days.write("b.jsonl", LINES[:5])
    days.run()
    days.write("c.jsonl", LINES[20:25])
    assert days.run().outdated == frozenset()
    days.write("a.jsonl", LINES[10:15])
    days.run()
    assert days.sizes() == [0, 5, 5, 5]
    assert days.run().fresh == {}


def test_what_cannot_be_taken_in(days: Days) -> None:
    """Remote logs have no checksum without being read; a file may go away meanwhile."""
    for name, message in (("s3a://bucket/log", "files of this machine"), ("/gone.jsonl", "No such file")):
        with pytest.raises(BadInput, match=message):
            look_through(LogFiles((name,), 0, ()), days.manifest)
