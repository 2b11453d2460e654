"""The list of facts that followers read: what it tells, from where one can go on, and what a snapshot says."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pytest

from tests.app.core.support import created
from tests.support.waiting import until
from tricklecast.app.changes import KEPT_FACTS, Change, Changes, IndexGone
from tricklecast.app.core.facts import Journal
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import Writer
from tricklecast.app.core.window import Budget
from tricklecast.app.storage.archive import Archive
from tricklecast.app.storage.database import Batch, Database
from tricklecast.app.storage.restore import take_inventory

T_US = 1_700_000_000_000_000


class Bench:
    """A registry whose facts are kept, and the functions that were put off."""

    def __init__(self, keep: int | None = None) -> None:
        self.later: list[Callable[[], None]] = []
        self.registry = Registry(Limits(), autocreate=True, instance="me")
        self.changes = Changes(self.registry, defer=self.later.append, keep=keep, wall_us=lambda: T_US)

    def run(self) -> None:
        later = self.later[:]
        self.later.clear()
        for function in later:
            function()

    def told(self, after: int = 0) -> list[tuple[int, str, str]]:
        return shown(self.changes, after)


def shown(changes: Changes, after: int) -> list[tuple[int, str, str]]:
    changes.check(after)
    return [(change.index, change.kind, change.channel) for change in changes.facts_after(after, 10**6)]


def test_each_kind_of_fact_has_what_applies_to_it() -> None:
    """Fields that do not apply are left out of its dictionary."""
    bench = Bench()
    bench.registry.create("a", "text/plain", 0.0)
    bench.registry.publish_own("a", "", b"four", 0.0)
    bench.registry.end("a", 0.0)
    about = {"time": T_US / 1e6, "channel": "a", "epoch": 1}
    assert [change.as_dict() for change in bench.changes.facts_after(0, 9)] == [
        {"index": 1, "kind": "added", **about, "content_type": "text/plain"},
        {"index": 3, "kind": "closed", **about, "seq": 0, "state": "complete", "bytes": 4},
        {"index": 4, "kind": "removed", **about, "seq": 1, "reason": "deleted"},
    ]


def test_names_of_the_server_are_left_out_and_counted() -> None:
    """A follower is told nothing about them, and goes on behind them."""
    bench = Bench()
    bench.registry.create("_own", "", 0.0, force=True)
    bench.registry.create("a", "", 0.0)
    bench.registry.publish_own("_own", "", b"x", 0.0)
    assert bench.told() == [(2, "added", "a")]
    assert bench.changes.index == bench.registry.journal.index == 4
    assert bench.told(4) == []


def test_a_part_begins_behind_the_cursor_and_has_a_limit() -> None:
    """It is the same however it is cut."""
    bench = Bench()
    for name in "abcde":
        bench.registry.create(name, "", 0.0)
    whole = bench.changes.facts_after(0, 9)
    assert [change.index for change in bench.changes.facts_after(1, 2)] == [2, 3]
    assert bench.changes.facts_after(0, 2) + bench.changes.facts_after(2, 2) + bench.changes.facts_after(4, 2) == whole


def test_the_oldest_facts_are_dropped_and_the_floor_says_so() -> None:
    """A cursor below the floor is refused, never moved; one at the floor misses nothing."""
    bench = Bench(keep=8)
    for number in range(30):
        bench.registry.create(f"c{number}", "", 0.0)
    floor = bench.changes.floor
    assert 30 - 8 - 1 <= floor <= 30 - 8
    assert [index for index, _, _ in bench.told(floor)] == list(range(floor + 1, 31))
    with pytest.raises(IndexGone, match=f"facts up to index {floor} are no longer kept") as gone:
        bench.changes.check(floor - 1)
    assert (gone.value.floor, gone.value.index, gone.value.instance) == (floor, 30, "me")


def test_without_storage_ten_thousand_facts_are_kept() -> None:
    """At least so many, and not many more."""
    bench = Bench()
    for _ in range(2 * KEPT_FACTS):
        created(bench.registry.journal, "a")
    assert KEPT_FACTS <= 2 * KEPT_FACTS - bench.changes.floor <= KEPT_FACTS * 9 // 8


def test_an_index_of_another_numbering_is_refused() -> None:
    """One that was not told yet, and any that another life without storage has told."""
    bench = Bench()
    bench.registry.create("a", "", 0.0)
    bench.changes.check(1, "me")
    with pytest.raises(IndexGone, match="index 2 comes from another start"):
        bench.changes.check(2)
    with pytest.raises(IndexGone, match="another start"):
        bench.changes.check(0, "someone else")


def test_a_snapshot_is_that_of_its_index() -> None:
    """At every moment: the facts behind it lead from its channels to those of the next snapshot."""
    bench = Bench()
    registry = bench.registry
    steps: list[Callable[[], object]] = [
        lambda: registry.create("a", "x/y", 0.0),
        lambda: registry.publish_own("a", "", b"x", 0.0),
        lambda: registry.create("b", "", 0.0),
        lambda: registry.end("a", 0.0),
        lambda: registry.create("_own", "", 0.0, force=True),
        lambda: registry.create("a", "", 0.0),
        lambda: registry.end("b", 0.0),
    ]
    taken = []
    for step in steps:
        step()
        snapshot = bench.changes.snapshot()
        assert snapshot is not None
        assert snapshot.index == registry.journal.index
        taken.append(snapshot)
    assert [(live.channel, live.epoch, live.content_type) for live in taken[2].channels] == [
        ("a", 1, "x/y"),
        ("b", 1, ""),
    ]
    for snapshot in taken:
        live = {channel.channel: channel.epoch for channel in snapshot.channels}
        for change in bench.changes.facts_after(snapshot.index, 99):
            if change.kind == "added":
                live[change.channel] = change.epoch
            elif change.kind == "removed":
                assert live.pop(change.channel) == change.epoch
        assert live == {"a": 2}


def test_watchers_are_called_once_for_many_facts_after_the_change() -> None:
    """A follower is never called in the middle of a change."""
    bench = Bench()
    calls: list[int] = []
    bench.registry.create("early", "", 0.0)
    assert bench.later == []
    bench.changes.watchers.append(lambda: calls.append(bench.changes.index))
    bench.registry.create("a", "", 0.0)
    bench.registry.create("b", "", 0.0)
    assert (calls, len(bench.later)) == ([], 1)
    bench.run()
    assert calls == [3]


def test_listeners_get_all_facts_of_a_turn_but_whole_segments() -> None:
    """One that raises is a fault of its own: the others hear of the facts, and waiting requests of the index."""
    bench = Bench()
    faults: list[Exception] = []
    bench.registry.faults.deliver_to(lambda victim, error: faults.append(error))
    heard: list[list[tuple[int, str]]] = []
    bench.changes.listeners.append(lambda facts: 1 / 0)  # type: ignore[arg-type]
    bench.changes.listeners.append(lambda facts: heard.append([(fact.index, fact.kind) for fact in facts]))
    bench.changes.watchers.append(lambda: heard.append([]))
    bench.registry.create("a", "", 0.0)
    bench.registry.publish_own("a", "", b"whole", 0.0)
    writer = bench.registry.reserve("a", 1, Owner(), 0.0)
    assert isinstance(writer, Writer)
    writer.channel.append(writer, [b"half"], 0.0)
    bench.registry.close_segment("a", 1, 0.0, truncate=True)
    assert heard == []
    bench.run()
    assert heard == [[(1, "added"), (5, "closed")], []]
    assert [type(fault) for fault in faults] == [ZeroDivisionError]
    bench.registry.end("a", 0.0)
    bench.run()
    assert heard[2] == [(6, "removed")]


def test_listeners_get_a_limited_number_of_facts_of_a_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says how many are left out; followers get all of them, and listeners all of the next turn."""
    monkeypatch.setattr("tricklecast.app.changes.MAX_UNHEARD", 3)
    bench, heard = Bench(), list[list[int]]()
    bench.changes.listeners.append(lambda facts: heard.append([fact.index for fact in facts]))
    for name in "abcde":
        bench.registry.create(name, "", 0.0)
    bench.run()
    assert "2 facts are missing" in caplog.text
    caplog.clear()
    bench.registry.end("a", 0.0)
    bench.run()
    assert (heard, caplog.text) == ([[1, 2, 3], [6]], "")
    assert len(bench.told()) == 6


def test_whoever_waits_is_woken_or_gets_to_know_that_the_time_is_over() -> None:
    """Facts that are there are not waited for."""

    async def main() -> None:
        registry = Registry(Limits(), autocreate=True)
        changes = Changes(registry, defer=asyncio.get_running_loop().call_soon)
        await changes.more(0, 0.001)
        assert changes.index == 0
        waiting = [asyncio.ensure_future(changes.more(0, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        registry.create("a", "", 0.0)
        await asyncio.gather(*waiting)
        await changes.more(0, 60)

    asyncio.run(main())


# With storage.


class Disk(Database):
    """A data directory that fails when it is told to.

    Attributes:
        broken: whether it fails. held: commits wait for this.
    """

    broken = False

    def commit(self, batch: Batch) -> None:
        if self.broken:
            raise sqlite3.OperationalError("disk I/O error")
        super().commit(batch)

    def recover(self, batch: Batch, channels: Iterable[int]) -> int:
        if self.broken:
            raise OSError("still broken")
        return super().recover(batch, channels)


class Start:
    """A server's core with storage, from one start to the next."""

    def __init__(self, folder: Path, instance: str, keep: int | None = None) -> None:
        self.disk = Disk(folder)
        # A clock that never says the same twice.
        ticks = count(T_US)
        inventory = take_inventory(self.disk, next(ticks))
        journal, limits = Journal(index=inventory.index), Limits()
        budget = Budget(limits.total_bytes, journal.faults)
        self.archive = Archive(self.disk, inventory, journal, budget, wall_us=lambda: next(ticks))
        self.registry = Registry(
            limits, autocreate=True, instance=instance, journal=journal, budget=budget, storage=self.archive
        )
        self.archive.bring_back(self.registry, 0.0)
        defer = asyncio.get_running_loop().call_soon
        self.changes = Changes(self.registry, self.archive, defer=defer, keep=keep)

    def told(self, after: int = 0) -> list[tuple[int, str, str]]:
        return shown(self.changes, after)

    def live(self) -> dict[str, int]:
        snapshot = self.changes.snapshot()
        assert snapshot is not None
        return {live.channel: live.epoch for live in snapshot.channels}

    async def crash(self) -> None:
        """End without another word to the disk."""
        self.archive._closing = True
        if self.archive._timer is not None:
            self.archive._timer.cancel()
        while self.archive._busy is not None:
            await asyncio.wait([self.archive._busy])
        self.archive._thread.abandon()
        self.disk.close()

    async def retry(self) -> None:
        """Let storage try again, as it does by itself after some seconds."""
        self.archive._retry()
        await until(lambda: self.archive._busy is None)


def test_a_fact_is_told_when_storage_has_it(tmp_path: Path) -> None:
    """Not before, and neither is it in a snapshot; what a crash loses has been told to nobody."""

    async def main() -> None:
        first = Start(tmp_path, "one")
        heard: list[int] = []
        first.changes.listeners.append(lambda facts: heard.extend(fact.index for fact in facts))
        first.registry.create("a", "x/y", 0.0)
        await first.archive.flush()
        assert (first.told(), first.live()) == ([(1, "added", "a")], {"a": 1})
        first.registry.create("lost", "", 0.0)
        await asyncio.sleep(0)
        assert heard == [1, 2], "listeners keep no index, and do not wait for storage"
        assert (first.told(), first.live(), first.changes.index) == ([(1, "added", "a")], {"a": 1}, 1)
        with pytest.raises(IndexGone):
            first.changes.check(2)
        await first.crash()
        second = Start(tmp_path, "two")
        assert (second.told(), second.live()) == ([(1, "added", "a")], {"a": 1})
        second.registry.create("b", "", 0.0)
        await second.archive.flush()
        assert second.told(1) == [(2, "added", "b")]
        await second.crash()

    asyncio.run(main())


def test_facts_of_before_the_restart_are_what_they_were(tmp_path: Path) -> None:
    """All kinds of them; a segment that was being written closes as truncated, which is a fact; the index goes on."""

    async def main() -> None:
        first = Start(tmp_path, "one")
        first.registry.create("_own", "", 0.0, force=True)
        first.registry.create("a", "x/y", 0.0)
        first.registry.publish_own("a", "", b"four", 0.0)
        first.registry.end("a", 0.0)
        first.registry.create("b", "", 0.0)
        writer = first.registry.reserve("b", 0, Owner(), 0.0)
        assert isinstance(writer, Writer)
        writer.channel.append(writer, [b"abc"], 0.0)
        await first.archive.flush()
        before = first.changes.facts_after(0, 99)
        await first.crash()
        second = Start(tmp_path, "two")
        after = second.changes.facts_after(0, 99)
        assert after[: len(before)] == before
        assert after[len(before) :] == [
            Change(before[-1].index + 2, after[-1].time, "closed", "b", 1, 0, "truncated", 3),
        ]
        assert second.live() == {"b": 1}
        assert second.changes.floor == 0
        await second.crash()

    asyncio.run(main())


def test_an_index_goes_with_the_life_that_told_it(tmp_path: Path) -> None:
    """One of an earlier start is known up to what was kept of it: a machine that crashes may lose what was told."""

    async def main() -> None:
        ends = []
        for instance in ("one", "two", "three"):
            life = Start(tmp_path, instance)
            life.registry.create(f"of-{instance}", "", 0.0)
            await life.archive.flush()
            ends.append(life.changes.index)
            await life.crash()
        assert ends == [1, 2, 3]
        last = Start(tmp_path, "four")
        for instance, end in zip(("one", "two", "three"), ends, strict=True):
            last.changes.check(end, instance)
            with pytest.raises(IndexGone, match="another start"):
                last.changes.check(end + 1, instance)
        with pytest.raises(IndexGone, match="another start"):
            last.changes.check(1, "five")
        await last.crash()

    asyncio.run(main())


def test_what_happens_while_the_disk_fails_is_told_when_it_works_again(tmp_path: Path) -> None:
    """Nothing before; then all of it, to those who follow; after a restart they begin with a snapshot."""

    async def main() -> None:
        life = Start(tmp_path, "one")
        life.registry.create("a", "", 0.0)
        await life.archive.flush()
        life.disk.broken = True
        life.registry.create("b", "", 0.0)
        await life.archive.flush()
        life.registry.create("c", "", 0.0)
        life.registry.end("a", 0.0)
        assert life.archive.failed
        await life.retry()
        assert (life.told(), life.live()) == ([(1, "added", "a")], {"a": 1})
        life.disk.broken = False
        await life.retry()
        await life.archive.flush()
        assert life.told(1) == [(2, "added", "b"), (3, "added", "c"), (4, "removed", "a")]
        assert life.live() == {"b": 1, "c": 1}
        await life.crash()
        again = Start(tmp_path, "two")
        assert (again.changes.floor, again.changes.index, again.live()) == (4, 4, {"b": 1, "c": 1})
        again.changes.check(4, "one")
        with pytest.raises(IndexGone):
            again.changes.check(3, "one")
        await again.crash()

    asyncio.run(main())


def test_more_facts_than_are_kept_while_the_disk_fails(tmp_path: Path) -> None:
    """There is no snapshot until the disk works, and whoever followed begins with it then."""

    async def main() -> None:
        life = Start(tmp_path, "one", keep=8)
        life.registry.create("a", "", 0.0)
        await life.archive.flush()
        life.disk.broken = True
        for number in range(20):
            life.registry.create(f"c{number}", "", 0.0)
        await life.archive.flush()
        for number in range(20, 40):
            life.registry.create(f"c{number}", "", 0.0)
        assert life.changes.snapshot() is None
        with pytest.raises(IndexGone, match="no longer kept"):
            life.changes.check(1)
        life.disk.broken = False
        await life.retry()
        await life.archive.flush()
        assert len(life.live()) == 41
        assert life.changes.index == 41
        await life.crash()

    asyncio.run(main())


def test_a_hole_in_the_facts_of_before_is_the_floor(tmp_path: Path) -> None:
    """Facts that the directory lacks cannot be requested."""

    async def main() -> None:
        life = Start(tmp_path, "one")
        for name in "abcde":
            life.registry.create(name, "", 0.0)
        await life.archive.flush()
        await life.crash()
        with sqlite3.connect(tmp_path / "journal.sqlite") as sql:
            sql.execute("DELETE FROM fact WHERE number = 3")
        sql.close()
        again = Start(tmp_path, "two")
        assert (again.changes.floor, again.told(3)) == (3, [(4, "added", "d"), (5, "added", "e")])
        await again.crash()

    asyncio.run(main())


class Owner:
    """A publisher whom nothing interests."""

    def preempted(self, outcome: object) -> None: ...
