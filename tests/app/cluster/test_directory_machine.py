"""The directory under everything that can happen to nodes, ways and the bucket, in any order.

A machine of hypothesis runs three nodes on virtual time, with a model of the bucket. Every 20 ms of it, it asks each
node whether it would answer a publisher of each channel, and compares the answers. A short walk does the same with a
real NATS server, in real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.app.cluster.model import Message, ModelNats, Way
from tests.support.nats import NatsServer, Relay, nats_server, relay
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.cluster.bucket import AnyBucket, Bucket
from tricklecast.app.cluster.directory import Claimed, Directory, NodeFacts
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.names import to_token
from tricklecast.app.cluster.view import Place

NODES: Final = ("a", "b", "c")
CHANNELS: Final = ("x", "y.1")
LEASE_S: Final = 2.0
LEASE_S_REAL: Final = 0.3

nodes = st.sampled_from(NODES)
channels = st.sampled_from(CHANNELS)


@dataclass(eq=False)
class Process:
    """A node: what a test knows of it.

    Attributes:
        data: what its data directory would have: the epochs of the channels that it owns.
        remembered: the highest epoch of each channel that it has had, with a data directory over a restart.
    """

    world: World
    name: str
    way: Way | Relay
    pace: float = 1.0
    ahead: float = 0.0
    data: dict[str, int] = field(default_factory=dict)
    remembered: dict[str, int] = field(default_factory=dict)
    directory: Directory | None = None
    starting: asyncio.Task[bool] | None = None

    def clock(self) -> float:
        return self.world.loop.time() * self.pace + self.ahead

    def start(self, owned: dict[str, int]) -> None:
        self.data = dict(owned)
        self.directory = Directory(
            lambda: self.world.open(self.way),
            NodeFacts(self.name, f"http://{self.name}"),
            self,
            lease_s=self.world.lease_s,
            tombstone_s=1e6,
            clock=self.clock,
            wall=self.world.wall,
            dice=self.world.dice,
        )
        self.starting = asyncio.ensure_future(self.directory.start(owned))

    def crash(self) -> None:
        """As by kill -9: nothing more is sent, and what is on its way may arrive."""
        directory, self.directory = self.directory, None
        if directory is not None:
            assert self.starting is not None
            self.starting.cancel()
            for task in (directory._running, directory._writing, *directory._claims.values()):
                if task is not None:
                    task.cancel()

    # Listeners.

    def moved(self, channel: str, place: Place | None) -> None: ...

    def lost(self, channel: str, epoch: int) -> None:
        self.data.pop(channel, None)

    def given(self, channel: str, epoch: int) -> bool:
        self.world.holders[channel, epoch] = self.name
        self.data[channel] = epoch
        return True


class World:
    """The nodes and the bucket, and all that was promised."""

    def __init__(
        self,
        seed: int,
        loop: asyncio.AbstractEventLoop,
        lease_s: float = LEASE_S,
        ways: Sequence[Way | Relay] = (),
    ) -> None:
        self.loop, self.lease_s = loop, lease_s
        self.dice = Random(seed)
        self.nats = None if ways else ModelNats(self.dice, loop)
        ways = ways or [Way(self.dice) for _ in NODES]
        self.processes = {name: Process(self, name, way) for name, way in zip(NODES, ways, strict=True)}
        self.holders: dict[tuple[str, int], str] = {}
        self.highest: dict[str, int] = {}
        self.snapshot: tuple[dict[str, Message], int] | None = None
        self.knower: Process | None = None
        self.was_lost = False
        self.both: dict[str, float] = {}
        self.slowest_stop = 0.0
        self._wall_us = 0
        self.answered = 0
        self.violations: list[str] = []

    def wall(self) -> int:
        """Microseconds; no two are the same."""
        self._wall_us = max(self._wall_us + 1, round(self.loop.time() * 1e6))
        return self._wall_us

    async def watch(self) -> None:
        """Look at the promises all the time."""
        while True:
            self.look()
            await asyncio.sleep(0.02)

    def look(self) -> None:
        for channel in CHANNELS:
            sure = []
            for process in self.processes.values():
                directory = process.directory
                if directory is not None and directory.lease.fresh and directory.owns(channel):
                    sure.append((process.name, directory.view.mine[channel]))
            # A lost bucket may have forgotten which nodes were deposed: then only the epochs tell them apart, when the
            # lower one has heard of the higher one.
            since = self.both.setdefault(channel, self.loop.time()) if len(sure) > 1 else self.both.pop(channel, 0.0)
            if len(sure) > 1 and self.loop.time() - since >= (0.1 if self.was_lost else 0.0):
                self.violations.append(f"two nodes answer for {channel}: {sure}")
            for name, epoch in sure:
                self.answered += 1
                if self.holders.setdefault((channel, epoch), name) != name:
                    self.violations.append(f"{(channel, epoch)} is {self.holders[channel, epoch]}'s, not {name}'s")

    def claimed(self, process: Process, channel: str, epoch: int) -> None:
        if process.data.get(channel) == epoch:
            return  # it had the channel already
        if epoch <= self.highest.get(channel, 0):
            self.violations.append(f"{process.name} claims {channel} in epoch {epoch} after {self.highest[channel]}")
        self.highest[channel] = max(epoch, self.highest.get(channel, 0))
        if self.holders.setdefault((channel, epoch), process.name) != process.name:
            self.violations.append(f"{(channel, epoch)} is claimed again by {process.name}")
        process.data[channel] = epoch
        process.remembered[channel] = max(epoch, process.remembered.get(channel, 0))

    async def open(self, way: Way | Relay) -> AnyBucket:
        """A connection of a node."""
        if isinstance(way, Relay):
            return await Bucket.open(NatsOptions((way.url,)), "test")
        assert self.nats is not None
        return await self.nats.open(way)

    async def claim(self, process: Process, channel: str) -> None:
        """A publisher comes to a node."""
        directory = process.directory
        if directory is not None:
            result = await directory.claim(channel, process.remembered.get(channel, 0))
            if isinstance(result, Claimed) and process.directory is directory:
                self.claimed(process, channel, result.epoch)

    async def hand_over(self, process: Process, channel: str, to: str) -> None:
        """A node gives a channel away, if it has it."""
        directory = process.directory
        epoch = None if directory is None else directory.view.mine.get(channel)
        if directory is None or epoch is None or process.name == to:
            return
        if await directory.hand_over(channel, epoch, to) is True:
            process.data.pop(channel, None)

    def end(self, process: Process, channel: str) -> None:
        """A channel ends, if this node has it."""
        if process.directory is not None and (epoch := process.data.pop(channel, None)) is not None:
            process.directory.ended(channel, epoch)

    async def restart(self, process: Process, *, with_data: bool, crash: bool) -> None:
        """A node is stopped, or killed, and started again."""
        if not crash and process.directory is not None:
            began = self.loop.time()
            await process.directory.stop()
            self.slowest_stop = max(self.slowest_stop, self.loop.time() - began)
        process.crash()
        if not with_data:
            process.remembered.clear()
        process.start(process.data if with_data else {})

    def differences(self) -> str:
        """Where the nodes do not agree; nowhere, if all has been well for a while."""
        directories = [process.directory for process in self.processes.values() if process.directory is not None]
        for one in directories:
            if one.degraded:
                return f"{one.me.name}: {one.degraded}"
        for channel in CHANNELS:
            places = [directory.place(channel) for directory in directories]
            if len(set(places)) > 1:
                return f"{channel}: {places}"
            owners = {one.me.name: one.view.mine[channel] for one in directories if one.owns(channel)}
            there = places[0]
            if owners != ({there.node: there.epoch} if there is not None and there.reachable else {}):
                return f"{channel}: {owners} own it, and it is at {there}"
        return ""

    def restored(self) -> bool:
        """Whether a node that remembers everything has put it back into the bucket."""
        if self.knower is None:
            return True
        assert self.nats is not None
        directory = self.knower.directory
        assert directory is not None
        done = True
        for channel, entry in directory.channels.items():
            value, _ = self.nats.get(f"channel.{to_token(channel)}")
            done = done and value is not None and orjson.loads(value)["epoch"] >= entry.epoch
        if done:
            self.knower = None
        return done


class DirectoryMachine(RuleBasedStateMachine):
    """What users, operators and the network do."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.runner = asyncio.Runner(loop_factory=lambda: self.loop)
        self.tasks: set[asyncio.Task[Any]] = set()

    def run(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))
        for fault in self.nats.faults:
            raise fault
        assert not self.world.violations, self.world.violations[0]

    @initialize(seed=st.integers(0, 2**32), paces=st.tuples(*[st.sampled_from((0.95, 1.0, 1.05))] * 3))
    def begin(self, seed: int, paces: tuple[float, float, float]) -> None:
        self.world = World(seed, self.loop)

        async def start() -> None:
            self.tasks.add(asyncio.ensure_future(self.world.watch()))
            for process, pace in zip(self.world.processes.values(), paces, strict=True):
                process.pace = pace
                process.way.open.set()
                process.start({})

        self.runner.run(start())
        self.run(3 * LEASE_S)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.converges()
        finally:
            self.runner.run(self._end())
            self.runner.close()

    async def _end(self) -> None:
        for process in self.world.processes.values():
            process.crash()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()

    def converges(self) -> None:
        """When all is well for a while, every node says the same, and the owner agrees."""
        world = self.world
        self.nats.up, self.nats.deaf = True, 0
        for process in world.processes.values():
            process.way.open.set()
        self.runner.run(self._start_all())
        self.run(8 * LEASE_S)
        self.runner.run(_call(self._agree))

    def _agree(self) -> None:
        assert not (differences := self.world.differences()), differences

    @property
    def nats(self) -> ModelNats:
        """The model."""
        assert self.world.nats is not None
        return self.world.nats

    async def _start_all(self) -> None:
        for process in self.world.processes.values():
            if process.directory is None:
                process.start({})

    # What happens.

    @rule(seconds=st.sampled_from((0.0, 0.03, 0.3, 0.6, 1.0, 1.7, 2.1, 5.0)))
    def time_passes(self, seconds: float) -> None:
        self.run(seconds)

    @rule(name=nodes, channel=channels, seconds=st.sampled_from((0.0, 0.1, 3.0)))
    def a_publisher_comes(self, name: str, channel: str, seconds: float) -> None:
        self._begin(self.world.claim(self.world.processes[name], channel))
        self.run(seconds)

    @rule(name=nodes, channel=channels)
    def a_channel_ends(self, name: str, channel: str) -> None:
        self.runner.run(_call(partial(self.world.end, self.world.processes[name], channel)))

    @rule(name=nodes, channel=channels, to=nodes)
    def a_channel_is_handed_over(self, name: str, channel: str, to: str) -> None:
        self._begin(self.world.hand_over(self.world.processes[name], channel, to))

    @rule(name=nodes, channel=channels, seconds=st.sampled_from((0.0, 1.0)))
    def a_segment_is_to_be_answered(self, name: str, channel: str, seconds: float) -> None:
        directory = self.world.processes[name].directory
        if directory is not None and (epoch := directory.view.mine.get(channel)) is not None:
            self._begin(directory.confirmed(channel, epoch))
            self.run(seconds)

    @rule(name=nodes, with_data=st.booleans(), crash=st.booleans())
    def a_node_is_restarted(self, name: str, with_data: bool, crash: bool) -> None:
        process = self.world.processes[name]
        if self.world.restored() or self.world.knower is not process:
            self.runner.run(self.world.restart(process, with_data=with_data, crash=crash))
            assert self.world.slowest_stop < 2, "a stop has a deadline"

    @rule(name=nodes)
    def a_node_crashes(self, name: str) -> None:
        process = self.world.processes[name]
        if self.world.restored() or self.world.knower is not process:
            self.runner.run(_call(process.crash))
            process.remembered.clear()

    @rule(name=nodes)
    def a_way_is_cut(self, name: str) -> None:
        if self.world.restored() or self.world.knower is not self.world.processes[name]:
            self.world.processes[name].way.open.clear()

    @rule(name=nodes)
    def a_way_is_healed(self, name: str) -> None:
        self.runner.run(_call(self.world.processes[name].way.open.set))

    @rule(name=nodes, seconds=st.sampled_from((0.5, 1.0, 3.0)))
    def a_machine_is_suspended(self, name: str, seconds: float) -> None:
        self.world.processes[name].ahead += seconds

    @rule()
    def connections_break(self) -> None:
        self.runner.run(_call(self.nats.break_all))

    @rule(answers=st.integers(1, 3))
    def answers_get_lost(self, answers: int) -> None:
        self.nats.deaf = answers

    @rule(seconds=st.sampled_from((0.3, 1.0, 4.0)), restart=st.booleans())
    def nats_is_down(self, seconds: float, restart: bool) -> None:
        self.nats.up = False
        self.runner.run(_call(self.nats.restart if restart else self.nats.break_all))
        self.run(seconds)
        self.nats.up = True

    @rule()
    def the_store_is_copied(self) -> None:
        self.world.snapshot = dict(self.nats.messages), self.nats.last

    @precondition(lambda self: self.knows_all() is not None)
    @rule(how=st.sampled_from(("purge", "delete", "roll back")))
    def the_bucket_is_lost(self, how: str) -> None:
        """While at least one node knows all of it: nobody can know what nobody remembers."""
        world = self.world
        world.knower = self.knows_all()
        world.was_lost = True
        match how:
            case "purge":
                self.runner.run(_call(self.nats.purge))
            case "delete":
                self.runner.run(_call(self.nats.delete))
            case "roll back" if world.snapshot is not None:
                self.runner.run(_call(lambda: self.nats.roll_back(*world.snapshot)))
        self.run(0.01)

    @rule(channel=channels)
    def a_person_deletes_a_key(self, channel: str) -> None:
        world, key = self.world, f"channel.{to_token(channel)}"
        if self.nats.get(key)[1] and (knower := self.knows_all()) is not None:
            world.knower = knower
            self.runner.run(_call(lambda: self.nats.put(key, None, None, 0)))
            self.run(0.1)

    def knows_all(self) -> Process | None:
        """A node that has read what is in the bucket, if all that is on its way has arrived."""
        world = self.world
        if not world.restored():
            return None
        for process in world.processes.values():
            directory = process.directory
            if directory is None or directory._bucket is None or not process.way.open.is_set():
                continue
            if directory.lease.valid and directory._settled.is_set() and directory._seen == self.nats.last:
                return process
        return None

    def _begin(self, work: Any) -> None:
        async def begin() -> None:
            task = asyncio.ensure_future(work)
            self.tasks.add(task)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        self.runner.run(begin())


async def _call(what: Any) -> None:
    what()


PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


class TestDirectory(DirectoryMachine.TestCase):  # type: ignore[valid-type, misc]
    """A few walks, for each run of the tests."""

    settings = settings(max_examples=20, stateful_step_count=25, deadline=None, phases=PHASES)


@pytest.mark.long
class TestDirectoryForLong(DirectoryMachine.TestCase):  # type: ignore[valid-type, misc]
    """Many long walks."""

    settings = settings(max_examples=400, stateful_step_count=50, deadline=None, phases=PHASES)


def test_a_walk_on_a_real_server() -> None:
    """The same promises hold with NATS itself, in real time."""
    asyncio.run(_walk(1, ("delete", "roll back"), 3))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_long_walks_on_a_real_server(seed: int) -> None:
    """Each way to lose the bucket, after much has happened."""
    asyncio.run(_walk(seed, ("none", "purge", "delete", "roll back"), 8))


async def _walk(seed: int, losses: Sequence[str], steps: int) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(WITHIN_S):
        server = stack.enter_context(nats_server())
        ways = [await stack.enter_async_context(relay(server.port)) for _ in NODES]
        world = World(seed, asyncio.get_running_loop(), LEASE_S_REAL, ways)
        dice = Random(seed)  # not the world's: its nodes throw those as often as their timers say
        watching = asyncio.ensure_future(world.watch())
        tasks = []
        for process in world.processes.values():
            process.start({})
        await until(lambda: not world.differences())
        await world.claim(world.processes["a"], CHANNELS[0])
        await until(lambda: bool(world.answered))
        copy = server.save()
        for loss in losses:
            await _lose(server, copy, loss)
            world.was_lost = world.was_lost or loss != "none"
            await asyncio.sleep(LEASE_S_REAL)  # one that has not heard of it must not be the last one that remembers
            await until(lambda: not world.differences())
            for _ in range(steps):
                process, channel = dice.choice(list(world.processes.values())), dice.choice(CHANNELS)
                match dice.choice(("claim", "claim", "claim", "hand over", "end", "restart", "cut", "reset")):
                    case "claim":
                        tasks.append(asyncio.ensure_future(world.claim(process, channel)))
                    case "hand over":
                        tasks.append(asyncio.ensure_future(world.hand_over(process, channel, dice.choice(NODES))))
                    case "end":
                        world.end(process, channel)
                    case "restart":
                        crash, with_data = dice.random() < 0.5, dice.random() < 0.5
                        await world.restart(process, with_data=with_data, crash=crash)
                    case "cut":
                        process.way.open.clear()
                    case "reset":
                        assert isinstance(process.way, Relay)
                        process.way.break_all()
                await asyncio.sleep(dice.choice((0.0, 0.05, 0.3)))
            for process in world.processes.values():
                process.way.open.set()
            await asyncio.gather(*tasks)
            await until(lambda: not world.differences())
            assert world.violations == []
        watching.cancel()
        for process in world.processes.values():
            assert process.directory is not None
            await process.directory.stop()


async def _lose(server: NatsServer, copy: Path, how: str) -> None:
    if how == "roll back":
        server.roll_back(copy)
        return
    bucket = await Bucket.open(NatsOptions((server.url,)), "admin")
    stream = bucket._client.jetstream()
    match how:
        case "purge":
            await stream.purge_stream("KV_trickle")
        case "delete":
            await stream.delete_stream("KV_trickle")
    await bucket.close()
