"""Storage beside the core: readers that replay into live, retention behind them, deletion, and crashes at any moment.

The core, the archive, SQLite and the files are the real ones; the machine decides when the storage thread finishes a
batch, so that everything else happens before, between and after batches. The oracle is what was published.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.app.core.support import Told, owned
from tricklecast.app.core.facts import Journal
from tricklecast.app.core.invariants import check_channel
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Gone, Outcome
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Segment, State, Writer
from tricklecast.app.core.state import MAX_LIVES, Channel, Ready, Upcoming
from tricklecast.app.core.window import Budget
from tricklecast.app.storage import archive as module
from tricklecast.app.storage.archive import Ack, Archive, Retention
from tricklecast.app.storage.database import Database
from tricklecast.app.storage.restore import take_inventory
from tricklecast.trickle.wire import Life

NAMES = ("a", "b")
READERS = 3
LIMITS = Limits(window_segments=2, channel_drain_s=5, publisher_grace_s=1000, overtaking_grace_s=0)
RETENTION = Retention(channel_segments=8, total_bytes=40_000)

Key = tuple[str, int, int]
"""Name, epoch and seq of a segment."""


class Steps(Executor):
    """An executor whose jobs run when the machine says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, fn, args))
        return future

    def step(self, error: Exception | None = None) -> None:
        """Do the next job, or let it fail without having done anything."""
        future, job, args = self.jobs.pop(0)
        if error is not None:
            future.set_exception(error)
            return
        try:
            future.set_result(job(*args))
        except Exception as raised:
            future.set_exception(raised)


class Reader:
    """Reads a channel from a seq on, one segment after the other, as a subscriber does.

    Attributes:
        at: the next seq; none before the first read. epoch: in which it reads. gaps: what it was told to pass over.
    """

    def __init__(self) -> None:
        self.name = NAMES[0]
        self.at: int | None = None
        self.epoch = 0
        self.segment: Segment | None = None
        self.channel: Channel | None = None
        self.frames = 0
        self.got = b""

    def wake(self) -> None: ...

    def evict(self) -> None:
        raise AssertionError("nobody is short of memory here")

    def leave(self, registry: Registry) -> None:
        """Detach, in the middle of a segment or at its end."""
        if self.segment is not None and self.channel is not None:
            registry.detach(self, self.channel, self.segment)
            if self.segment.source is not None:
                self.segment.source.more()
        self.segment = self.channel = None
        self.frames, self.got = 0, b""


class StorageMachine(RuleBasedStateMachine):
    """Drives a registry with an archive.

    Attributes:
        sent: what was published, as far as it was. acked: what publishers were told that storage has. numberings: the
            name of each segment's, as readers were told it.
        read, cutovers: how many segments were read whole, and how often a reader went from the disk to memory.
    """

    ack = Ack.JOURNAL
    cutovers = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="storage-machine-"))
        self.sent: dict[Key, bytes] = {}
        self.closed: dict[Key, State] = {}
        self.acked: dict[Key, int] = {}
        self.numberings: dict[Key, str] = {}
        self.writers: dict[Key, tuple[Writer[OwnedChannel], Told]] = {}
        self.readers = [Reader() for _ in range(READERS)]
        self.last_source: dict[int, bool] = {}
        self.now = 1000.0
        self.starts = 0
        self.rng = random.Random(0)

    def run_async(self, call: Callable[[], Any]) -> Any:
        """Call something in the loop, and let callbacks run."""

        async def main() -> Any:
            found = call()
            if asyncio.iscoroutine(found):
                found = await found
            for _ in range(4):
                await asyncio.sleep(0)
            return found

        return self.runner.run(main())

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        """The first start."""
        self.rng.seed(seed)
        self.run_async(self.start)

    def start(self) -> None:
        """A server starts on what is there."""
        self.starts += 1
        self.database = Database(self.folder)
        inventory = take_inventory(self.database, round(self.now * 1e6))
        assert inventory.damaged == []
        journal = Journal(index=inventory.index)
        budget = Budget(LIMITS.total_bytes, journal.faults)
        self.archive = Archive(
            self.database,
            inventory,
            journal,
            budget,
            ack=self.ack,
            retention=RETENTION,
            wall_us=lambda: round(self.now * 1e6),
        )
        self.registry = Registry(
            LIMITS,
            autocreate=True,
            instance=f"start{self.starts}",
            journal=journal,
            budget=budget,
            storage=self.archive,
        )
        self.archive._thread.abandon()
        self.steps = Steps()
        self.archive._thread = self.steps  # type: ignore[assignment]
        self.archive.bring_back(self.registry, self.now)

    def key(self, channel: Channel, seq: int) -> Key:
        return channel.name, channel.epoch, seq

    def when_kept(self, key: Key) -> None:
        """The publisher of this segment is answered when storage has it."""

        def told(kept: bool) -> None:
            if kept and self.archive.failed is None:
                self.acked[key] = len(self.sent[key])

        self.archive.when_stored(told)

    # Publishers.

    def reserve(self, name: str) -> Writer[OwnedChannel] | None:
        present = self.registry.channels.get(name)
        seq = 0 if present is None or present.ended else -1
        told = Told()
        writer = self.registry.reserve(name, seq, told, self.now)
        assert isinstance(writer, Writer), writer
        key = self.key(writer.channel, writer.segment.seq)
        assert key not in self.sent or key in self.writers, "a seq is given out once"
        self.sent.setdefault(key, b"")
        self.writers[key] = writer, told
        return writer

    def send(self, key: Key, sizes: list[int]) -> None:
        writer, _ = self.writers[key]
        chunks = [self.rng.randbytes(size) for size in sizes]
        if writer.channel.append(writer, chunks, self.now) is None:
            self.sent[key] += b"".join(chunks)
        self.numberings[key] = writer.channel.life.name

    def finish(self, key: Key) -> None:
        writer, _ = self.writers.pop(key)
        outcome: Outcome = writer.channel.finish(writer, (), self.now)
        assert outcome.size == len(self.sent[key])
        self.numberings[key] = writer.channel.life.name
        self.closed[key] = writer.segment.state
        self.when_kept(key)

    @rule(
        name=st.sampled_from(NAMES),
        segments=st.lists(st.lists(st.integers(1, 3000), max_size=3), min_size=1, max_size=6),
    )
    def publish(self, name: str, segments: list[list[int]]) -> None:
        """Whole segments, some of them empty."""

        def act() -> None:
            for sizes in segments:
                writer = self.reserve(name)
                assert writer is not None
                key = self.key(writer.channel, writer.segment.seq)
                if sizes:
                    self.send(key, sizes)
                self.finish(key)

        self.run_async(act)

    @rule(name=st.sampled_from(NAMES), sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=2))
    def open(self, name: str, sizes: list[int]) -> None:
        """A segment begins."""

        def act() -> None:
            writer = self.reserve(name)
            assert writer is not None
            self.send(self.key(writer.channel, writer.segment.seq), sizes)

        self.run_async(act)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), size=st.integers(1, 3000), end=st.booleans())
    def go_on(self, data: st.DataObject, size: int, end: bool) -> None:
        """A segment that has begun goes on, or ends."""
        key = data.draw(st.sampled_from(sorted(self.writers)))

        def act() -> None:
            writer, _ = self.writers[key]
            if writer.outcome is not None:  # its channel ended
                del self.writers[key]
                self.closed[key] = writer.segment.state
            elif end:
                self.finish(key)
            else:
                self.send(key, [size])

        self.run_async(act)

    @rule(name=st.sampled_from(NAMES))
    def end(self, name: str) -> None:
        """A channel ends; its drain begins."""
        self.run_async(lambda: self.registry.end(name, self.now))

    @rule(seconds=st.sampled_from([1.0, 6.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        """Drains end, and names are forgotten."""

        def act() -> None:
            self.now += seconds
            self.registry.expire(self.now)
            self.archive.tick()

        self.run_async(act)

    # Storage.

    @precondition(lambda self: self.steps.jobs)
    @rule(batches=st.integers(1, 4))
    def written(self, batches: int) -> None:
        """The storage thread finishes a batch or several."""
        while batches and self.steps.jobs:
            self.run_async(self.steps.step)
            batches -= 1

    @precondition(lambda self: self.steps.jobs and self.archive.failed is None)
    @rule()
    def fails(self) -> None:
        """The storage thread cannot write a batch; later it can again."""

        def act() -> None:
            self.steps.step(OSError(28, "No space left on device"))

        self.run_async(act)
        assert self.archive.failed is not None

    @precondition(lambda self: self.archive.failed is not None and not self.steps.jobs)
    @rule()
    def recovers(self) -> None:
        """The directory can be written again."""
        self.run_async(self.archive._retry)
        self.run_async(self.steps.step)
        if self.archive.failed is not None:  # it has made room; now it writes what the windows have
            self.run_async(self.steps.step)
        assert self.archive.failed is None

    @rule()
    def crash(self) -> None:
        """The server is killed, and another one starts on what is there."""
        heads = {name: (channel.epoch, channel.next_seq) for name, channel in self.registry.channels.items()}

        def act() -> None:
            self.steps.jobs.clear()
            for timer in (self.archive._timer,):
                if timer is not None:
                    timer.cancel()
            self.archive._closing = True
            for reader in self.readers:
                reader.leave(self.registry)
            self.database.close()
            self.start()

        self.run_async(act)
        self.writers.clear()
        for reader in self.readers:
            reader.at = None  # it may have read what was never stored: its life is another one's (Lp-Trickle-Life)
        self.check_acked()
        self.check_numberings()
        for name, (epoch, _) in heads.items():
            channel = self.registry.channels.get(name)
            if channel is not None:
                assert channel.epoch <= epoch
        self.forget_unstored()

    def check_numberings(self) -> None:
        """No segment is there of a numbering that nobody knows any more: they are written together."""
        for channel in self.registry.channels.values():
            known = [name for name, _ in channel.lives]
            for seq in self.archive.latest[channel.name].entries:
                assert self.numberings[self.key(channel, seq)] in known or len(known) == MAX_LIVES
            assert not known or channel.life == Life(known[-1])

    def forget_unstored(self) -> None:
        """What the crash took was never acknowledged; its numbers may be given out again."""
        heads = {name: (channel.epoch, channel.next_seq) for name, channel in self.registry.channels.items()}
        for key in list(self.sent):
            name, epoch, seq = key
            if key in self.acked:
                continue
            known, head = heads.get(name, (self.archive.last_epoch(name), 0))
            if epoch > known or (epoch == known and seq >= head):
                del self.sent[key]
                self.closed.pop(key, None)
            elif (entry := self.entry(key)) is not None:
                assert self.sent[key][: entry.size].startswith(b"")
                self.sent[key] = self.sent[key][: entry.size]
                self.closed[key] = entry.state

    def forget_old(self) -> None:
        """Let go of what no reader can ask for any more, in a long run."""
        heads = {name: (channel.epoch, channel.next_seq) for name, channel in self.registry.channels.items()}
        for key in list(self.sent):
            name, epoch, seq = key
            known, head = heads.get(name, (epoch + 1, 0))
            if key not in self.writers and (epoch, seq) < (known, head - 50):
                for kept in (self.sent, self.closed, self.acked):
                    kept.pop(key, None)

    def entry(self, key: Key) -> Any:
        stored = self.archive.latest.get(key[0])
        return None if stored is None or stored.row.epoch != key[1] else stored.entries.get(key[2])

    def check_acked(self) -> None:
        """What publishers were told that storage has is there, unless retention has removed it."""
        for (name, epoch, seq), size in self.acked.items():
            assert self.archive.last_epoch(name) >= epoch
            stored = self.archive.latest.get(name)
            if stored is None or stored.row.epoch != epoch:
                continue
            assert stored.row.next_seq > seq or stored.entries.get(seq), "the head is past it"
            entry = stored.entries.get(seq)
            if entry is None:
                assert not stored.seqs or seq < stored.seqs[0] or self.starts, "only retention removes"
            else:
                assert entry.size >= size

    # Readers.

    @rule(
        number=st.integers(0, READERS - 1),
        name=st.sampled_from(NAMES),
        back=st.integers(0, 12),
        steps=st.integers(0, 12),
    )
    def subscribe(self, number: int, name: str, back: int, steps: int) -> None:
        """A reader begins somewhere, perhaps far behind, and may come far."""
        reader = self.readers[number]
        channel = self.registry.channels.get(name)
        if channel is None:
            return
        self.run_async(lambda: reader.leave(self.registry))
        reader.name, reader.at, reader.epoch = name, max(0, channel.next_seq - back), channel.epoch
        self.read(number, steps)

    @rule(number=st.integers(0, READERS - 1), steps=st.integers(1, 12))
    def goes_on(self, number: int, steps: int) -> None:
        """A reader reads on where it is."""
        self.read(number, steps)

    def read(self, number: int, steps: int) -> None:
        """A reader goes on, over as many segments as it can."""
        reader = self.readers[number]
        for _ in range(steps):
            if reader.at is None or not self.run_async(lambda: self.one(reader)):
                return

    async def one(self, reader: Reader) -> bool:
        """One step of a reader; whether there may be another one."""
        channel = self.registry.channels.get(reader.name)
        if reader.segment is None:
            if channel is None or channel.epoch != reader.epoch:
                reader.at = None
                return False
            assert reader.at is not None
            found = self.registry.resolve(reader.name, reader.at)
            if isinstance(found, Gone):
                self.check_gap(channel, found)
                reader.at = found.following
                return True
            if not isinstance(found, Ready):
                if isinstance(found, Upcoming):
                    channel.release(found.segment)
                return False
            reader.channel, reader.segment = channel, found.segment
            self.registry.attach(reader, channel, found.segment)
            replayed = found.segment.source is not None
            if self.last_source.get(id(reader)) and not replayed:
                StorageMachine.cutovers += 1
            self.last_source[id(reader)] = replayed
        return await self.take(reader)

    async def take(self, reader: Reader) -> bool:
        segment, channel = reader.segment, reader.channel
        assert segment is not None
        assert channel is not None
        key = self.key(channel, segment.seq)
        while True:
            reader.got += b"".join(segment.payload(reader.frames))
            reader.frames = len(segment.frames)
            assert self.sent[key].startswith(reader.got), "what is read was published under this number"
            if segment.is_loaded and segment.closed:
                break
            if segment.source is None:
                return False
            held = reader.frames
            segment.source.more()
            while len(segment.frames) == held and segment.source is not None and not segment.is_loaded:  # noqa: ASYNC110  # its wake() is not awaited
                await asyncio.sleep(0)
        if segment.state is State.COMPLETE or segment.source is not None:
            assert reader.got == self.sent[key], "all of it"
        reader.leave(self.registry)
        reader.at = segment.seq + 1
        return True

    def check_gap(self, channel: Channel, gone: Gone) -> None:
        """A reader is told of a gap only where nothing is kept any more."""
        stored = self.archive.latest[channel.name]
        for seq in range(gone.seq, gone.following):
            assert seq not in stored.entries
            assert seq not in channel.segments
        assert gone.following > gone.seq

    # Always.

    @invariant()
    def sound(self) -> None:
        """The core's invariants hold; the archive's sums are right."""
        if not self.starts:
            return
        for name in self.registry.channels:
            check_channel(owned(self.registry, name))
        entries = {id(one): one for one in (*self.archive.latest.values(), *self.archive.ended.values())}.values()
        assert self.archive.bytes == sum(entry.size for one in entries for entry in one.entries.values())
        assert self.archive.segments == sum(len(one.entries) for one in entries)
        for one in entries:
            assert sorted(one.entries) == one.seqs
            assert one.bytes == sum(entry.size for entry in one.entries.values())
            assert self.steps.jobs or self.archive.failed or len(one.seqs) <= RETENTION.channel_segments

    def teardown(self) -> None:
        if self.starts:

            def act() -> None:
                self.archive._closing = True
                for reader in self.readers:
                    reader.leave(self.registry)
                if self.archive._timer is not None:
                    self.archive._timer.cancel()

            self.run_async(act)
            self.database.close()
        self.runner.close()
        shutil.rmtree(self.folder)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are handed to the storage thread without a pause."""
    monkeypatch.setattr(module, "BEHIND_S", 0.0)


TestStorage = StorageMachine.TestCase
TestStorage.settings = settings(
    max_examples=30, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow], deadline=None
)


@pytest.mark.parametrize("cutovers", [150, pytest.param(100_000, marks=pytest.mark.long)])
def test_readers_that_catch_up(cutovers: int) -> None:
    """Readers go from the disk to memory, again and again, without a gap, a double or another order."""
    machine = StorageMachine()
    machine.begin(seed=1)
    rng = random.Random(2)
    before = StorageMachine.cutovers
    try:
        while StorageMachine.cutovers - before < cutovers:
            name = rng.choice(NAMES)
            machine.publish(name, [[rng.randrange(1, 3000)] for _ in range(rng.randrange(1, 3))])
            if rng.random() < 0.7:
                machine.written(rng.randrange(1, 3))
            for number in range(READERS):
                machine.subscribe(number, rng.choice(NAMES), rng.randrange(9), rng.randrange(12))
            if rng.random() < 0.01:
                machine.end(name)
            if rng.random() < 0.01:
                machine.crash()
            machine.sound()
            if len(machine.sent) > 1000:
                machine.forget_old()
    finally:
        machine.teardown()
