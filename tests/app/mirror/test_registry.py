"""The rows of a mirror: what a compare-and-set lets through, what is due in which order, what a file survives."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tricklecast.app.core.segment import State
from tricklecast.app.mirror.registry import (
    CONTACT,
    MAX_PAUSE_S,
    TOMBSTONE_S,
    ChannelRow,
    MirrorRegistry,
    RegistryError,
    RegistryUnusable,
    RowState,
)
from tricklecast.app.mirror.sides import HeldCopy, SourceChannel, SourceSegment


@pytest.fixture
def registry() -> Iterator[MirrorRegistry]:
    registry = MirrorRegistry()
    yield registry
    counted = {kind: sum(rows for (of, _), (rows, _) in registry.counts().items() if of == kind) for kind in KINDS}
    for kind, where in KINDS.items():
        assert registry._ask(f"SELECT count(*) FROM {where}") == [(counted[kind],)]
    registry.close()


KINDS = {"channel": "channel", "segment": "segment", "verified": "segment WHERE verified AND state = 'synced'"}


A = SourceChannel("a", 1)


def told(seq: int, size: int = 10, crc: int | None = 7) -> SourceSegment:
    return SourceSegment(seq, State.COMPLETE, size, crc, seq * 1_000_000, seq * 1_000_000 + 1)


def learned(registry: MirrorRegistry, name: str = "a", epoch: int = 1) -> ChannelRow:
    """A channel that lives, and on which work goes on."""
    registry.mark([name], 1.0)
    (row,) = registry.take_channels(2.0, 1)
    assert registry.learn(row, SourceChannel(name, epoch), "one")
    return row


def test_a_channel_that_nothing_happens_to_is_synced(registry: MirrorRegistry) -> None:
    """Work on it, and the row says what was learned."""
    row = learned(registry)
    assert registry.is_current(row)
    assert registry.finish_channel(row, 3.0)
    after = registry.channel("a")
    assert after is not None
    assert (after.state, after.epoch, after.instance, after.error) == (RowState.SYNCED, 1, "one", "")
    assert registry.channels() == {"a": after}
    assert registry.oldest_dirty() is None


def test_work_that_was_overtaken_changes_nothing(registry: MirrorRegistry) -> None:
    """An event between the look at the source and the write: what was learned is dropped."""
    row = learned(registry)
    registry.mark(["a", "a"], 2.5)
    assert not registry.is_current(row)
    assert not registry.learn(row, SourceChannel("a", 9), "one")
    assert not registry.finish_channel(row, 3.0)
    assert not registry.bury(row, 3.0)
    assert not registry.fail_channel(row, 3.0, 4.0, "no")
    found = registry.channel("a")
    assert found is not None
    assert (found.state, found.epoch, found.dirty_at) == (RowState.PENDING, 1, 1.0)


def test_a_row_that_was_made_again_is_another_one(registry: MirrorRegistry) -> None:
    """A name was let go and is wanted again: work from before does not write to its new row."""
    row = learned(registry)
    registry.let_go(["a"])
    again = learned(registry)
    assert not registry.finish_channel(row, 3.0)
    assert registry.finish_channel(again, 3.0)


def test_a_copy_is_shown_only_while_its_channel_lives_in_its_epoch(registry: MirrorRegistry) -> None:
    """A delete, or the next epoch, during the copy."""
    channel = learned(registry)
    registry.add(A, [told(0), told(1)], 2.0)
    assert registry.finish_channel(channel, 2.0)
    copies = []
    while (pending := registry.next_segment(newest=False)) is not None:
        copies.append(registry.start_segment(pending, 2.0))
    assert [copy.seq for copy in copies] == [0, 1]
    assert registry.finish_segment(copies[0], 7, 3.0)
    registry.mark(["a"], 3.0)
    (again,) = registry.take_channels(3.0, 9)
    assert registry.bury(again, 3.0)
    assert not registry.finish_segment(copies[1], 7, 4.0)
    assert registry.synced("a", 1) == {0: 7}
    # Even if its row was still there.
    registry.add(A, [told(1)], 4.0)
    (late,) = registry.missing(reachable=True)[1]
    assert not registry.finish_segment(registry.start_segment(late, 4.0), 7, 4.0)


def test_a_segment_that_comes_by_the_feed_overtakes_its_copy(registry: MirrorRegistry) -> None:
    """Whoever is first has it; the other one's bytes are for nothing."""
    learned(registry)
    registry.add(A, [told(0)], 2.0)
    pending = registry.next_segment(newest=True)
    assert pending is not None
    copy = registry.start_segment(pending, 2.0)
    registry.arrived(A, [HeldCopy(0, 10, 7), HeldCopy(1, 5, None)], 3.0)
    assert not registry.finish_segment(copy, 7, 4.0)
    assert registry.synced("a", 1) == {0: 7, 1: None}
    assert registry.counts()["segment", "synced"] == (2, 15)
    registry.forget("a", 1, [0])
    assert registry.synced("a", 1) == {1: None}


def test_another_epoch_ends_the_copies_of_the_one_before(registry: MirrorRegistry) -> None:
    """What is here of it stays."""
    learned(registry)
    registry.add(A, [told(0)], 2.0)
    registry.arrived(A, [HeldCopy(1, 5, 1)], 2.0)
    registry.mark(["a"], 3.0)
    (row,) = registry.take_channels(3.0, 1)
    assert registry.learn(row, SourceChannel("a", 2), "one")
    assert registry.next_segment(newest=True) is None
    assert registry.synced("a", 1) == {1: 1}


def test_a_source_that_counts_epochs_anew(registry: MirrorRegistry) -> None:
    """An epoch with another beginning is another channel: its copies are not shown, and what is here is told apart."""
    registry.mark(["a"], 1.0)
    (row,) = registry.take_channels(1.0, 1)
    before, after = SourceChannel("a", 1, 100), SourceChannel("a", 1, 200)
    assert registry.learn(row, before, "one")
    registry.add(before, [told(0), told(1)], 2.0)
    pending = registry.next_segment(newest=False)
    assert pending is not None
    copy = registry.start_segment(pending, 2.0)
    registry.arrived(before, [HeldCopy(2, 5, 1)], 2.0)
    assert not registry.has_others(before)
    assert registry.has_others(after)
    assert registry.learn(row, after, "two")
    assert not registry.finish_segment(copy, 7, 3.0)
    assert registry.missing(reachable=True)[1] == []
    assert registry.synced("a", 1) == {2: 1}


def test_what_is_due_and_in_which_order(registry: MirrorRegistry) -> None:
    """Channels by how long they have been dirty, segments by when they closed."""
    for at, name in enumerate(("b", "a", "c")):
        registry.mark([name], float(at))
    registry.mark(["b"], 9.0)
    assert [row.name for row in registry.take_channels(10.0, 2)] == ["b", "a"]
    (c,) = registry.take_channels(10.0, 9)
    registry.add(SourceChannel("c", 0), [told(seq) for seq in (3, 1, 2)], 10.0)
    assert [getattr(registry.next_segment(newest=newest), "seq", None) for newest in (True, False)] == [3, 1]
    assert registry.oldest_dirty() == ("b", 0.0)
    assert registry.fail_channel(c, 11.0, 15.0, "why not")
    registry.revive(14.0)
    assert registry.next_due() == 15.0
    assert registry.take_channels(14.0, 9) == []
    registry.revive(15.0)
    (c,) = registry.take_channels(15.0, 9)
    assert (c.attempts, c.error, c.next_at) == (1, "why not", None)
    assert registry.next_due() is None


def test_segments_that_fail(registry: MirrorRegistry) -> None:
    """One is tried again in time, one when it is found at the source again, one when somebody says so."""
    assert registry.finish_channel(learned(registry), 1.0)
    registry.add(A, map(told, range(3)), 2.0)
    for next_at in (5.0, None, 1e9):
        pending = registry.next_segment(newest=False)
        assert pending is not None
        copy = registry.start_segment(pending, 2.0)
        assert registry.finish_segment(copy, 7, 2.0)  # and then the disk is full
        assert registry.fail_segment(copy, 2.0, next_at, "gone at the source")
    assert registry.next_segment(newest=False) is None
    assert registry.next_due() == 5.0
    registry.revive(5.0)
    assert getattr(registry.next_segment(newest=False), "seq", None) == 0
    registry.add(A, map(told, range(3)), 6.0)
    assert {row.seq: row.state for row in registry.missing(reachable=True)[1]} == {
        0: "pending",
        1: "pending",
        2: "failed",
    }
    assert registry.failed_names() == {"a"}
    registry.resync(["a"], 7.0)
    assert {row.state for row in registry.missing(reachable=True)[1]} == {"pending"}
    assert [row.name for row in registry.missing(reachable=True)[0]] == ["a"]
    registry.arrived(A, [HeldCopy(9, 1, 1)], 8.0)
    registry.let_go(["a"])
    assert registry.missing(reachable=True) == ([], [])
    assert registry.synced("a", 1) == {9: 1}


def test_segments_that_are_left_out(registry: MirrorRegistry) -> None:
    """They are counted and not missing; found again they stay so, or are pending, and those not found are forgotten."""
    assert registry.finish_channel(learned(registry), 1.0)
    registry.arrived(A, [HeldCopy(9, 1, 1)], 1.0)
    registry.leave_out(A, map(told, (0, 1, 9)), 2.0)
    registry.add(A, [told(2)], 2.0)
    pending = registry.next_segment(newest=False)
    assert pending is not None
    copy = registry.start_segment(pending, 3.0)
    assert registry.finish_segment(copy, 7, 3.0)
    assert registry.left_out(copy, 3.0)
    registry.arrived(A, [HeldCopy(2, 10, 7)], 3.0)
    assert not registry.left_out(copy, 4.0), "it has come by the feed"
    counts = registry.counts()
    assert (counts["segment", "beyond"], counts["segment", "synced"]) == ((2, 20), (2, 11))
    assert registry.missing(reachable=True) == ([], [])
    assert (registry.failed_names(), registry.next_segment(newest=True)) == (set(), None)
    registry.leave_out(A, [told(1)], 5.0)
    registry.forget_left_out("a", 1, 5.0)
    assert registry.counts()["segment", "beyond"] == (1, 10)
    registry.add(A, [told(1)], 6.0)
    assert getattr(registry.next_segment(newest=True), "seq", None) == 1


def test_when_the_source_was_heard(registry: MirrorRegistry) -> None:
    """The last time is kept."""
    assert registry.contact() is None
    registry.heard(1.5)
    registry.heard(2.5)
    registry.commit()
    assert registry.contact() == 2.5
    registry.change_settings({CONTACT: None})
    assert registry.contact() is None


def test_a_file_of_a_release_with_fewer_states(tmp_path: Path) -> None:
    """Rows of a state that it did not know are counted from then on."""
    path = tmp_path / "mirror.sqlite"
    MirrorRegistry(path).close()
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("DELETE FROM count WHERE state = 'beyond'")
        sql.commit()
    registry = MirrorRegistry(path)
    registry.leave_out(A, [told(1)], 1.0)
    assert registry.counts()["segment", "beyond"] == (1, 10)
    registry.close()


def test_a_channel_that_is_not_followed_any_more(registry: MirrorRegistry) -> None:
    """It waits, but not if something happens to it; work that counts on the follower waits, too."""
    row = learned(registry)
    registry.lost("a", 3.0, 9.0, 2, "the connection broke")
    assert not registry.finish_channel(row, 3.0)
    for at in (4.0, 5.0):
        found = registry.channel("a")
        assert found is not None
        assert (found.state, found.next_at, found.attempts) == (RowState.FAILED, 9.0, 2)
        registry.resync(["a"], at)
        (row,) = registry.take_channels(at, 1)
        assert registry.finish_channel(row, at)
        registry.lost("a", at, 9.0, 2, "the connection broke")
    registry.mark(["a"], 6.0)
    assert len(registry.take_channels(6.0, 1)) == 1


def test_verification(registry: MirrorRegistry) -> None:
    """The longest unchecked first; what has changed meanwhile is not said to be right."""
    registry.arrived(A, [HeldCopy(0, 10, None)], 1.0)
    registry.arrived(A, [HeldCopy(1, 20, 7)], 2.0)
    first, second = registry.unverified(10.0, 9)
    assert (first.seq, second.seq) == (0, 1)
    registry.verified(first, 5, 11.0)
    registry.verified(second, 7, 12.0)
    assert registry.unverified(10.0, 9) == []
    assert registry.counts()["verified", "synced"] == (2, 30)
    assert registry.synced("a", 1) == {0: 5, 1: 7}
    registry.reverify(["a"])
    assert len(registry.unverified(10.0, 9)) == 2
    registry.forget("a", 1, [0])  # it is not here after all
    registry.add(A, [told(0), told(1)], 13.0)
    registry.verified(first, 5, 14.0)
    assert registry.counts()["verified", "synced"] == (1, 20)


def test_the_sweep(registry: MirrorRegistry) -> None:
    """Works that never end, pauses that a clock made long, and tombstones that are old, or too many."""
    row = learned(registry)
    registry.add(A, [told(0)], 2.0)
    pending = registry.next_segment(newest=True)
    assert pending is not None
    copy = registry.start_segment(pending, 5.0)
    assert registry.sweep(9.0, 4.0) == 1
    assert not registry.finish_channel(row, 9.0)
    (again,) = registry.take_channels(9.0, 1)
    assert registry.sweep(9.0, 9.0) == 2
    assert not registry.finish_segment(copy, 7, 9.0)
    (again,) = registry.take_channels(9.0, 1)
    registry.fail_channel(again, 9.0, 10 * MAX_PAUSE_S, "")
    registry.sweep(9.0, 0.0)
    assert registry.next_due() == 9.0
    registry.mark(["b"], 9.0)
    assert registry.bury(registry.take_channels(9.0, 1)[0], 9.0)
    registry.sweep(9.0 + TOMBSTONE_S - 1, 0.0)
    assert "b" in registry.channels()
    registry.sweep(9.0 + TOMBSTONE_S, 0.0)
    assert "b" not in registry.channels()


def test_tombstones_are_bounded(registry: MirrorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many the oldest ones go."""
    monkeypatch.setattr("tricklecast.app.mirror.registry.MAX_TOMBSTONES", 2)
    for at, name in enumerate("abc"):
        registry.mark([name], float(at))
        assert registry.bury(registry.take_channels(float(at), 1)[0], float(at))
    registry.sweep(3.0, 3.0)
    assert set(registry.channels()) == {"b", "c"}


def test_ten_thousand_channels_in_one_transaction(registry: MirrorRegistry) -> None:
    """Also those that are there already."""
    names = [f"channel-{n}" for n in range(10_000)]
    begun: list[int] = []
    registry.begun = lambda: begun.append(1)
    for _ in range(2):
        registry.mark(names, 1.0)
    assert begun == [1]
    assert registry.counts()["channel", "pending"] == (10_000, 0)
    registry.let_go(names)


# Files.


def test_a_file_keeps_rows_and_settings(tmp_path: Path) -> None:
    """Only its owner may read it. What was not committed is lost by a crash."""
    path = tmp_path / "mirror.sqlite"
    registry = MirrorRegistry(path)
    assert path.stat().st_mode & 0o777 == 0o600
    registry.mark(["a"], 1.0)
    registry.change_settings({"source": "http://a", "token": "secret", "old": "x"})
    registry.change_settings({"old": None})
    registry.mark(["b"], 1.0)
    registry.commit()
    registry.checkpoint()
    registry.mark(["c"], 1.0)
    registry.roll_back()
    registry.close()
    again = MirrorRegistry(path)
    assert set(again.channels()) == {"a", "b"}
    assert again.settings() == {"source": "http://a", "token": "secret"}
    again.close()


@pytest.mark.parametrize("damage", ["text", "page", "tables"])
def test_a_damaged_file(tmp_path: Path, damage: str) -> None:
    """It is told apart from a disk that fails, and says what to do."""
    path = tmp_path / "mirror.sqlite"
    MirrorRegistry(path).close()
    match damage:
        case "text":
            path.write_text("this is no database, but it is long enough to look like one" * 10)
        case "page":
            content = bytearray(path.read_bytes())
            content[100:200] = os.urandom(100)
            path.write_bytes(content)
        case "tables":
            with sqlite3.connect(path) as sql:
                sql.execute("DROP TABLE segment")
            sql.close()
    with pytest.raises(RegistryUnusable, match="remove it"):
        MirrorRegistry(path)


def test_a_file_of_another_version(tmp_path: Path) -> None:
    """It is not touched."""
    path = tmp_path / "mirror.sqlite"
    MirrorRegistry(path).close()
    with sqlite3.connect(path) as sql:
        sql.execute("PRAGMA user_version = 99")
    sql.close()
    with pytest.raises(RegistryUnusable, match="version 99"):
        MirrorRegistry(path)


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    """The error names it."""
    with pytest.raises(RegistryError, match=r"mirror\.sqlite"):
        MirrorRegistry(tmp_path / "missing" / "mirror.sqlite")


def test_a_disk_that_fails(tmp_path: Path) -> None:
    """Nothing is kept by halves: what waited for the commit is lost, and the caller hears of it."""
    registry = MirrorRegistry(tmp_path / "mirror.sqlite")
    registry._sql.execute("PRAGMA max_page_count = 20")
    with pytest.raises(RegistryError, match="cannot be written"):
        registry.mark([f"{n:0200}" for n in range(1000)], 1.0)
    registry.roll_back()
    assert registry.channels() == {}
    registry.close()
