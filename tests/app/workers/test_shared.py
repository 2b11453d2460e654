"""Limits that hold over all workers: counts, and the memory of all segments."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.core.support import Told
from tests.support.forked import python
from tests.support.waiting import WITHIN_S
from tricklecast.app.core.limits import UNLIMITED, Capacity, Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ending
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import SEGMENT_COST, State, Writer
from tricklecast.app.core.window import Budget
from tricklecast.app.workers.shared import Figure, Shared, SharedLimits, share_of

ROOT = Path(__file__).parents[3]
LIMIT = 10
WORKERS = 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["come", "come", "leave", "die"]), st.integers(0, WORKERS - 1)), max_size=60))
def test_workers_admit_as_one_process(steps: list[tuple[str, int]]) -> None:
    """The limit, and the part that only clients that go on may use, hold for the sum, whoever dies."""
    shared, one = Shared(WORKERS), Capacity(LIMIT)
    workers = [shared.capacity(LIMIT, Figure.READERS, number) for number in range(WORKERS)]
    for step, number in steps:
        if step == "come":
            workers[number].take()
            one.take()
        elif step == "leave" and workers[number].used:
            workers[number].give_back()
            one.give_back()
        elif step == "die":
            for _ in range(workers[number].used):
                one.give_back()
            shared.clear(number)
            workers[number].used = 0
        for worker in workers:
            assert (worker.joinable, worker.full) == (one.joinable, one.full)
            for join in (False, True):
                assert worker.admits(join=join) == one.admits(join=join)
        assert sum(worker.used for worker in workers) == one.used


@pytest.mark.parametrize(("limit", "joins"), [(None, True), (0, False)])
def test_a_limit_may_be_none_or_nothing(limit: int | None, joins: bool) -> None:
    """Any number may come, or nobody."""
    capacity = Shared(2).capacity(limit, Figure.CHANNELS, 1)
    assert (capacity.joinable, capacity.full, capacity.admits(join=True)) == (joins, not joins, joins)
    assert capacity.limit == (UNLIMITED if joins else 0)


def in_processes(count: int, work: Callable[[int], None]) -> list[int | None]:
    """Run a function in ``count`` processes at once, and return their exit codes.

    The calling process must have one thread only (:func:`alone`).
    """
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(WITHIN_S)
    return [process.exitcode for process in processes]


def alone(function: Callable[[], None]) -> None:
    """Call a function of a test module in a program of its own, which may fork: pytest's process has threads."""
    program = f"from {function.__module__} import {function.__name__}; {function.__name__}()"
    done = subprocess.run([python(), "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=2 * WITHIN_S)
    assert done.returncode == 0, done.stderr


def test_racing_workers_exceed_a_limit_by_one_for_each_other_worker() -> None:
    """Processes that admit as fast as they can, all at the same time."""
    alone(race_for_readers)


def race_for_readers() -> None:
    workers, limit = 4, 400
    shared = Shared(workers)

    def work(number: int) -> None:
        capacity = shared.capacity(limit, Figure.READERS, number)
        beats = shared.column(Figure.BEAT_MS)
        beats[number] = 1
        while not all(beats):
            pass
        while capacity.admits(join=False):
            capacity.take()

    for _ in range(5):
        assert in_processes(workers, work) == [0] * workers
        assert limit <= sum(shared.column(Figure.READERS)) <= limit + workers - 1
        for number in range(workers):
            shared.clear(number)


def test_a_killed_worker_has_nothing_any_more() -> None:
    """Its readers, and its part of memory, are free for the others."""
    alone(kill_a_worker)


def kill_a_worker() -> None:
    shared = Shared(2)

    def work(number: int) -> None:
        limits = SharedLimits(Limits(readers=3), shared, 1, lambda: 0.0)
        for _ in range(3):
            limits.capacities.readers.take()
        os.kill(os.getpid(), signal.SIGKILL)

    mine = SharedLimits(Limits(readers=3), shared, 0, lambda: 0.0)
    free = mine.memory.free
    assert in_processes(1, work) == [-signal.SIGKILL]
    assert mine.capacities.readers.full
    assert mine.memory.free == free - mine.memory.margin
    shared.clear(1)
    assert mine.capacities.readers.admits(join=True)
    assert mine.memory.free == free


def test_tables_are_divided() -> None:
    """What only bounds memory is an equal part in each worker; limits of users are those of the server."""
    limits = SharedLimits(Limits(), Shared(4), 0, lambda: 0.0).limits
    assert (limits.clients, limits.tombstones, limits.readers) == (25_000, 2_500, 50_000)


def test_an_equal_part_beside_what_there_is() -> None:
    """Of what is free each may have a part, and of the limit in any case."""
    column = Shared(2).column(Figure.STORED)
    column[0] = 60
    assert [share_of(100, column, worker) for worker in range(2)] == [80, 50]


def test_readers_of_a_channel_are_counted_at_all_workers() -> None:
    """Where they have a limit; otherwise nothing is shared."""
    shared = Shared(2)
    assert SharedLimits(Limits(), shared, 0, lambda: 0.0).reading is None
    here, there = (SharedLimits(Limits(readers_per_channel=10), shared, worker, lambda: 0.0) for worker in range(2))
    assert here.reading is not None
    assert there.reading is not None
    one, same, another = here.reading("a"), there.reading("a"), there.reading("b")
    for _ in range(5):
        one.take()
        same.take()
    assert (one.full, same.full, another.full) == (True, True, False)
    one.give_back()
    assert (one.full, same.full, same.joinable) == (False, False, False)
    shared.clear(0)
    assert same.joinable


# Memory.

TOTAL = 1 << 20
SIZE = 4096
TICK_S = 0.25


class Workers:
    """Workers of one server, each with a registry, on the same memory."""

    def __init__(self, count: int, **limits: Any) -> None:
        self.now = 1000.0
        self.shared = Shared(count)
        self.limits = Limits(total_bytes=TOTAL, window_segments=10_000, channels=1000, **limits)
        self.parts = [SharedLimits(self.limits, self.shared, number, lambda: self.now) for number in range(count)]
        self.registries = [self.registry(part) for part in self.parts]

    def registry(self, part: SharedLimits) -> Registry:
        registry = Registry(part.limits, autocreate=True, capacities=part.capacities, payers=part.payers)
        registry.budget = Budget(part.memory.margin, registry.faults, part.memory)
        return registry

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += TICK_S
            for part, registry in zip(self.parts, self.registries, strict=True):
                part.tick(registry)

    def write(self, worker: int, channel: str, size: int = SIZE) -> tuple[Writer[OwnedChannel], bool]:
        """Begin a segment; whether its bytes were stored."""
        registry = self.registries[worker]
        writer = registry.reserve(channel, -1, Told(), self.now)
        assert isinstance(writer, Writer)
        return writer, writer.channel.append(writer, [b"x" * size], self.now) is None

    def publish(self, worker: int, channel: str, count: int = 1) -> None:
        """Publish segments."""
        for _ in range(count):
            writer, stored = self.write(worker, channel)
            if stored:
                writer.channel.finish(writer, (), self.now)

    def held(self, worker: int, channel: str) -> int:
        return self.registries[worker].channels[channel].window.held

    def used(self) -> list[int]:
        return [registry.budget.used for registry in self.registries]

    def check(self) -> None:
        """The limit holds for all together."""
        reserved = self.shared.column(Figure.RESERVED)
        assert [registry.budget.limit for registry in self.registries] == list(reserved)
        assert sum(reserved) <= TOTAL
        assert all(used <= part for used, part in zip(self.used(), reserved, strict=True))


def test_one_worker_may_have_nearly_all_memory() -> None:
    """Seven eighths, without an eviction, and however fast they come."""
    workers = Workers(4)
    while workers.used()[0] < TOTAL * 7 // 8:
        workers.publish(0, "a")
    workers.check()
    assert not any(workers.registries[0].evictions().values())


def test_memory_that_is_not_used_is_given_back() -> None:
    """Within a tick, but for a little."""
    workers = Workers(2)
    workers.publish(0, "a", 100)
    workers.registries[0].end("a", workers.now)
    workers.registries[0].expire(workers.now + 1000)
    workers.tick()
    assert workers.shared.column(Figure.RESERVED)[0] == workers.parts[0].memory.margin


def test_a_worker_that_comes_late_gets_its_part() -> None:
    """A sixteenth of the memory with each tick, and more at once where a channel would be refused."""
    workers = Workers(2)
    for _ in range(10):
        workers.publish(0, "a", TOTAL // SIZE // 8)
        workers.tick()
    full = workers.used()[0]
    assert full > TOTAL * 3 // 4
    ticks = 0
    while workers.held(1, "b") < TOTAL * 3 // 8 if "b" in workers.registries[1].channels else True:
        workers.publish(1, "b", TOTAL // 16 // (SIZE + SEGMENT_COST + 200))
        workers.tick()
        workers.check()
        ticks += 1
    assert ticks <= 7
    assert not any(workers.registries[1].evictions().values())


def test_the_channel_that_holds_most_gives_first_in_whichever_worker() -> None:
    """Small channels beside a large one lose nothing, also where another worker needs memory."""
    workers = Workers(2)
    for number in range(8):
        workers.publish(0, f"small{number}", 5)
    for _ in range(12):
        workers.publish(0, "large", 20)
        workers.tick()
    for _ in range(12):
        workers.publish(1, "b", 5)
        workers.tick()
        workers.check()
    smalls = [workers.registries[0].channels[f"small{number}"] for number in range(8)]
    assert [len(small.window) for small in smalls] == [5] * 8
    assert len(workers.registries[1].channels["b"].window) == 60
    assert workers.registries[0].channels["large"].window.evicted


def test_segments_that_are_being_written_are_cut_for_a_channel_of_another_worker() -> None:
    """A publisher that ends nothing does not starve those of other workers, and only these make that happen."""
    workers = Workers(2, channel_bytes=None)
    writers = []
    while (begun := workers.write(0, "greedy"))[1]:
        writers.append(begun[0])
    workers.tick(4)
    assert {writer.segment.state for writer in writers} == {State.OPEN}
    lacking = workers.parts[1].memory.free
    assert lacking < TOTAL // 16
    refused = 0
    for _ in range(12):
        if not workers.write(1, "modest", TOTAL // 32)[1]:
            refused += 1
        workers.tick()
    assert 1 <= refused <= 2
    cut = [writer for writer in writers if writer.segment.state is State.TRUNCATED]
    assert cut
    assert all(writer.outcome is not None and writer.outcome.ending is Ending.OVER_BUDGET for writer in cut)
    workers.check()


def test_no_channel_gives_to_a_larger_one_of_another_worker() -> None:
    """The one that asks is refused, and waits for nobody."""
    workers = Workers(2, channel_bytes=None)
    while workers.write(0, "large")[1]:
        pass
    used = workers.used()[0]
    workers.publish(1, "small", 2)
    workers.tick()
    assert not workers.write(0, "large", TOTAL // 4)[1]
    workers.tick(4)
    assert len(workers.registries[1].channels["small"].window) == 2
    assert workers.used()[0] <= used


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, WORKERS - 1), st.integers(0, 5), st.integers(1, 60), st.booleans(), st.booleans()),
        max_size=60,
    )
)
def test_the_memory_of_all_workers_never_exceeds_the_limit(steps: list[tuple[int, int, int, bool, bool]]) -> None:
    """Whatever is published, where, and in which order ticks come; and no tick takes from a small channel."""
    workers = Workers(WORKERS)
    for worker, channel, count, ends, ticks in steps:
        name = f"{worker}.{channel}"
        if ends:
            workers.publish(worker, name, count)
        else:
            workers.write(worker, name, count * 256)
        workers.check()
        if ticks:
            everything = [one for registry in workers.registries for one in registry.channels.values()]
            share = TOTAL * 3 // (4 * len(everything))
            small = {one: one.window.held for one in everything if one.window.held < share}
            asked = any(workers.shared.column(Figure.ASKS))
            workers.tick()
            workers.check()
            if not asked:
                assert small == {one: one.window.held for one in small}
