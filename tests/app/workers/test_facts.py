"""The facts of all workers in the front's log: in order, each once, whichever process dies."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.app.core.support import Told
from tests.app.test_changes import Start
from tests.support.waiting import WITHIN_S, until
from tricklecast.app import changes
from tricklecast.app.changes import Change, Changes, IndexGone
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import Writer
from tricklecast.app.storage.settle import folder_of
from tricklecast.app.workers import facts
from tricklecast.app.workers.facts import LOST, LogFollower, answer_facts
from tricklecast.app.workers.mesh import Mesh, Message, socket_pairs
from tricklecast.app.workers.questions import Questions
from tricklecast.trickle.wire import SEQ_NEXT


class Part:
    """One worker of two, as in a process of its own.

    Args:
        workers: both. number: this one's. instance: the name of its start.
    """

    def __init__(self, workers: Workers, number: int, instance: str) -> None:
        self.start: Start | None = None
        if workers.folder is None:
            self.registry = Registry(Limits(), autocreate=True, instance=instance)
            defer = asyncio.get_running_loop().call_soon
            self.changes = Changes(self.registry, defer=defer, keep=workers.keep)
        else:
            self.start = Start(folder_of(workers.folder, number), instance, workers.keep)
            self.registry, self.changes = self.start.registry, self.start.changes
        self.mesh = Mesh(workers.sockets, number)
        self.questions = Questions(self.mesh)
        self.questions.start({"facts": answer_facts(self.changes)})
        self.mesh.start(self._receive)
        self.following: asyncio.Task[None] | None = None
        if number == 0:
            position = None if self.start is None else self.start.archive.positions.get(1)
            follower = LogFollower(1, self.questions, self.changes, position, stored=self.start is not None)
            self.following = asyncio.create_task(follower.run())

    def _receive(self, message: Message) -> None:
        self.questions.receive(message)

    async def kill(self) -> None:
        """End without another word to anybody."""
        if self.following is not None:
            self.following.cancel()
            with suppress(asyncio.CancelledError):
                await self.following
        self.mesh.stop()
        await asyncio.sleep(0)  # answers that have only just been begun own their descriptors then
        answering = list(self.questions._answering)
        self.questions.end()
        await asyncio.gather(*answering, return_exceptions=True)
        if self.start is not None:
            await self.start.crash()

    async def flush(self) -> None:
        if self.start is not None:
            await self.start.archive.flush()

    def live(self) -> dict[str, int]:
        return {name: one.epoch for name, one in self.registry.channels.items() if not one.ended}


class Workers:
    """A front and another worker; names that begin with ``f`` are the front's.

    Args:
        folder: the data directory, if there is one. keep: facts that each log keeps.
    """

    def __init__(self, folder: Path | None, keep: int | None = None) -> None:
        self.folder, self.keep = folder, keep
        self.sockets = socket_pairs(2)
        self.starts = 0
        self.parts = [self._made(0), self._made(1)]

    def _made(self, number: int) -> Part:
        self.starts += 1
        return Part(self, number, f"start{self.starts}")

    @property
    def front(self) -> Changes:
        return self.parts[0].changes

    async def restart(self, number: int, between: Callable[[], None] = lambda: None) -> None:
        """Kill a worker, and start it again."""
        await self.parts[number].kill()
        between()
        self.parts[number] = self._made(number)

    def owner(self, name: str) -> Registry:
        return self.parts[not name.startswith("f")].registry

    def publish(self, name: str) -> None:
        self.owner(name).publish_own(name, "", b"x", 0.0)

    def live(self) -> dict[str, int]:
        return self.parts[0].live() | self.parts[1].live()

    def shown(self) -> dict[str, int] | None:
        """The live channels of a snapshot."""
        snapshot = self.front.snapshot()
        return None if snapshot is None else {one.channel: one.epoch for one in snapshot.channels}

    async def close(self) -> None:
        for part in self.parts:
            await part.kill()
        for pair in self.sockets:
            for one in pair:
                one.close()


class Client:
    """Follows the front's log by index and instance, and begins with a snapshot where it must."""

    def __init__(self) -> None:
        self.index, self.instance = 0, ""
        self.live: dict[str, int] = {}
        self.facts: list[Change] = []
        self.snapshots = 0

    def read(self, workers: Workers) -> bool:
        """Read all that has come, and ask for more; whether it could."""
        changes = workers.front
        changes.follow()
        try:
            changes.check(self.index, self.instance)
        except IndexGone:
            if (snapshot := changes.snapshot()) is None:
                return False
            self.snapshots += 1
            self.facts.clear()
            self.live = {one.channel: one.epoch for one in snapshot.channels}
            self.index, self.instance = snapshot.index, changes.instance
        for change in changes.facts_after(self.index, 10**6):
            self.facts.append(change)
            if change.kind == "added":
                self.live[change.channel] = change.epoch
            elif change.kind == "removed":
                self.live.pop(change.channel, None)
        self.index, self.instance = changes.index, changes.instance
        return True

    def told(self) -> list[tuple[str, str, int, int | None, str | None]]:
        return [(one.kind, one.channel, one.epoch, one.seq, one.reason) for one in self.facts]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "RETRY_S", 0.001)
    monkeypatch.setattr(facts, "LOOK_S", 0.01)
    monkeypatch.setattr(facts, "SOON_S", WITHIN_S)
    monkeypatch.setattr(changes, "TOLD_S", WITHIN_S)


def run(
    main: Callable[[Workers, Client], Coroutine[Any, Any, None]], folder: Path | None = None, keep: int | None = None
) -> None:
    async def whole() -> None:
        workers = Workers(folder, keep)
        try:
            client = Client()
            await until(lambda: client.read(workers))
            await main(workers, client)
        finally:
            await workers.close()

    asyncio.run(whole())


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_whoever_follows_the_front_misses_nothing(tmp_path: Path, seed: int, stored: bool) -> None:
    """Channels come and go on both workers, which are killed now and then: the client's table is right at each rest,
    no fact comes twice, and with a data directory none is missing, and no follower has to begin again."""

    async def main(workers: Workers, client: Client) -> None:
        rng = random.Random(seed)
        if not stored:
            client.snapshots = 0
        for _ in range(60):
            match rng.randrange(12):
                case 0:
                    await workers.restart(rng.randrange(2))
                case 1 | 2:
                    client.read(workers)
                case 3:
                    await asyncio.sleep(0)
                case 4:
                    await workers.parts[rng.randrange(2)].flush()
                case 5:
                    name = rng.choice("fg") + str(rng.randrange(3))
                    if workers.owner(name).live(name) is not None:
                        workers.owner(name).end(name, 0.0)
                case 6 | 7:
                    name = rng.choice("fg") + str(rng.randrange(3))
                    if name not in workers.owner(name).channels:
                        workers.owner(name).create(name, "", 0.0)
                case _:
                    if live := sorted(workers.live()):
                        workers.publish(rng.choice(live))
            if rng.random() < 0.1:
                await rest(workers, client)
        await rest(workers, client)
        if stored:
            assert client.snapshots == 1, "it began with one"

    async def rest(workers: Workers, client: Client) -> None:
        await workers.parts[1].flush()
        await workers.parts[0].flush()
        await until(lambda: client.read(workers) and client.live == workers.live() == workers.shown())
        if stored:
            await until(lambda: client.read(workers) and closed_now(workers) <= closed(client))
        told = [one for one in client.told() if one[0] == "closed"]
        begun = [one for one in client.told() if one[4] == LOST]
        assert len(told) == len(set(told)) or begun, "no segment closes twice, but in a new life of a lost channel"
        for name in {one.channel for one in client.facts}:
            seqs = [one.seq or 0 for one in client.facts if one.channel == name and one.kind == "closed"]
            lives = [one for one in client.facts if one.channel == name and one.kind != "closed"]
            assert seqs == sorted(seqs) or len(lives) > 1, "in order within a life"

    def closed_now(workers: Workers) -> set[tuple[str, int, int]]:
        channels = [one for part in workers.parts for one in part.registry.channels.values()]
        return {(one.name, one.epoch, seq) for one in channels for seq, it in one.segments.items() if it.closed}

    def closed(client: Client) -> set[tuple[str, int, int]]:
        return {(one.channel, one.epoch, one.seq or 0) for one in client.facts if one.kind == "closed"}

    run(main, tmp_path if stored else None)


def test_channels_of_a_worker_that_died_are_removed(tmp_path: Path) -> None:
    """Without a data directory, with a reason of its own; also one that has been created again with the same epoch."""

    async def main(workers: Workers, client: Client) -> None:
        for name in ("f", "g", "h"):
            workers.owner(name).create(name, "", 0.0)
        workers.publish("g")
        await until(lambda: client.read(workers) and len(client.facts) == 4)
        await workers.restart(1)
        workers.owner("g").create("g", "", 0.0)
        workers.publish("g")
        await until(lambda: client.read(workers) and len(client.facts) == 8)
        assert client.told()[4:] == [
            ("removed", "g", 1, None, LOST),
            ("removed", "h", 1, None, LOST),
            ("added", "g", 1, None, None),
            ("closed", "g", 1, 0, None),
        ]
        assert client.live == {"f": 1, "g": 1} == workers.shown()

    run(main)


@pytest.mark.parametrize("stored", [False, True])
def test_a_front_that_is_too_far_behind_lets_nobody_go_on(tmp_path: Path, stored: bool) -> None:
    """Facts are missing then, of a channel that lives on: followers begin with a snapshot."""

    async def main(workers: Workers, client: Client) -> None:
        workers.owner("g").create("g", "", 0.0)
        await until(lambda: client.read(workers) and client.live == {"g": 1})
        before, snapshots = client.index, client.snapshots
        for _ in range(100):
            workers.publish("g")
        await workers.parts[1].flush()
        await until(lambda: client.read(workers) and client.snapshots > snapshots and client.live)
        assert workers.front.floor > before
        assert client.live == {"g": 1} == workers.shown()
        workers.publish("g")
        await until(lambda: client.read(workers) and client.told() == [("closed", "g", 1, 100, None)])

    run(main, tmp_path if stored else None, keep=20)


def test_a_restarted_front_goes_on_at_its_index(tmp_path: Path) -> None:
    """Its snapshot waits for the other workers, whose earlier facts it does not tell again."""

    async def main(workers: Workers, client: Client) -> None:
        workers.owner("g").create("g", "x/y", 0.0)
        await until(lambda: client.read(workers) and client.live == {"g": 1})
        index = client.index
        await workers.parts[1].kill()
        await workers.restart(0)
        assert workers.front.snapshot() is None, "nobody knows whether g lives"
        workers.parts[1] = workers._made(1)
        await asyncio.wait_for(workers.front.known(60), 60)
        snapshot = workers.front.snapshot()
        assert snapshot is not None
        assert [(one.channel, one.epoch, one.content_type) for one in snapshot.channels] == [("g", 1, "x/y")]
        assert (client.read(workers), client.snapshots, workers.front.index) == (True, 1, index)

    run(main, tmp_path)


@pytest.mark.parametrize("damage", ["UPDATE position SET number = number - 1", "DELETE FROM position"])
def test_a_front_that_has_lost_its_position_lets_nobody_go_on(tmp_path: Path, damage: str) -> None:
    """A flipped bit in it would double facts, or lose some."""

    async def main(workers: Workers, client: Client) -> None:
        workers.owner("g").create("g", "", 0.0)
        workers.publish("g")
        await until(lambda: client.read(workers) and len(client.facts) == 2)

        def between() -> None:
            with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as sql, sql:
                sql.execute(damage)

        await workers.restart(0, between)
        await until(lambda: client.read(workers) and client.snapshots == 2)
        await until(lambda: client.read(workers) and client.live == {"g": 1} == workers.shown())

    run(main, tmp_path)


def test_facts_that_come_while_the_fronts_disk_fails_are_told_when_it_works_again(tmp_path: Path) -> None:
    """They are not in the directory, so after a restart nobody goes on from before them."""

    async def main(workers: Workers, client: Client) -> None:
        front = workers.parts[0].start
        assert front is not None
        front.disk.broken = True
        workers.owner("g").create("g", "", 0.0)
        await until(lambda: front.archive.failed is not None)
        workers.publish("g")
        workers.publish("g")
        await workers.parts[1].flush()
        await until(lambda: workers.front._journal.index >= 3)
        client.read(workers)
        assert client.facts == []
        front.disk.broken = False
        await front.retry()
        await until(lambda: client.read(workers) and len(client.facts) == 3)
        before = client.index
        await workers.restart(0)
        assert workers.front.floor == before
        workers.publish("g")
        await until(lambda: client.read(workers) and client.told()[3:] == [("closed", "g", 1, 2, None)])

    run(main, tmp_path)


def test_a_long_list_of_channels_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame has more than :data:`~facts.FRAME_FACTS` of them, so it stays below the largest one that is read."""
    monkeypatch.setattr(facts, "FRAME_FACTS", 7)

    async def main(workers: Workers, client: Client) -> None:
        for number in range(50):
            workers.owner("g").create(f"g{number}", "", 0.0)
        await until(lambda: client.read(workers) and len(client.live) == 50)
        await workers.restart(0)
        await until(lambda: client.read(workers) and client.snapshots == 2 and len(client.live) == 50)
        assert client.live == workers.shown()

    run(main)


class Held:
    """The way to a worker that reads nothing."""

    def __init__(self, asked: list[bytes]) -> None:
        self.write = asked.append


async def turns() -> None:
    """Let everything happen that happens without a clock: both workers are in this event loop."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_whole_segments_wait_until_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks finds all that has happened; what listeners hear comes by itself, and what was before it."""
    monkeypatch.setattr(facts, "LIVE_S", 0.0)

    async def main(workers: Workers, client: Client) -> None:
        workers.owner("g").create("g", "", 0.0)
        await until(lambda: workers.shown() == {"g": 1})
        index = workers.front.index
        for _ in range(5):
            workers.publish("g")
        await turns()
        assert workers.front.index == index
        await workers.front.catch_up()
        assert client.read(workers)
        assert client.told() == [("added", "g", 1, None, None), *(("closed", "g", 1, seq, None) for seq in range(5))]
        workers.publish("g")
        workers.owner("g").end("g", 0.0)
        await until(lambda: client.read(workers) and client.live == {})
        assert [one[0] for one in client.told()[6:]] == ["closed", "removed"]

    run(main)


def test_what_was_stored_before_a_question_is_in_its_answer(tmp_path: Path) -> None:
    """The question waits until the front's directory has it, too."""

    async def main(workers: Workers, client: Client) -> None:
        for number in range(3):
            workers.owner("g").create(f"g{number}", "", 0.0)
            workers.publish(f"g{number}")
            await workers.parts[1].flush()
            await workers.front.catch_up()
            assert client.read(workers)
            assert client.told()[-1] == ("closed", f"g{number}", 1, 0, None)

    run(main, tmp_path)


def test_whoever_did_not_follow_when_a_worker_died_begins_with_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that nobody had asked for are gone with it. Listeners hear which channels are."""
    monkeypatch.setattr(facts, "LIVE_S", 0.0)

    async def main(workers: Workers, client: Client) -> None:
        heard: list[tuple[str, str]] = []
        workers.front.listeners.append(lambda told: heard.extend((one.kind, one.channel) for one in told))
        workers.owner("g").create("g", "", 0.0)
        await until(lambda: client.read(workers) and client.live == {"g": 1})
        workers.publish("g")
        snapshots = client.snapshots
        await workers.restart(1)
        await until(lambda: client.read(workers) and client.live == {} == workers.shown())
        assert client.snapshots == snapshots + 1
        await until(lambda: len(heard) == 2)  # listeners are called a turn of the loop after the fact
        assert heard == [("added", "g"), ("removed", "g")]

    run(main)


def test_a_gap_of_whole_segments_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """More wait than are kept: followers begin with a snapshot, and listeners hear all that they hear otherwise."""
    monkeypatch.setattr(facts, "LIVE_S", 0.0)
    monkeypatch.setattr(facts, "LOOK_S", 0.0)

    async def main(workers: Workers, client: Client) -> None:
        heard: list[tuple[str, int | None]] = []
        workers.front.listeners.append(lambda told: heard.extend((one.kind, one.seq) for one in told))
        registry = workers.owner("g")
        registry.create("g", "", 0.0)
        await until(lambda: client.read(workers) and client.live == {"g": 1})
        await workers.front.catch_up()
        for _ in range(100):
            workers.publish("g")
        await turns()
        index = workers.front.index
        channel = registry.live("g")
        assert channel is not None
        writer = channel.reserve(SEQ_NEXT, Told(), 1, 0.0)
        assert isinstance(writer, Writer)
        channel.append(writer, (b"x",), 0.0)
        channel.abort(writer, 0.0)
        registry.expire(9.0)
        registry.end("g", 0.0)
        await until(lambda: heard[-1][0] == "removed")
        assert heard == [("added", None), ("closed", 100), ("removed", 101)]
        assert workers.front.floor > index
        await until(lambda: client.read(workers) and client.live == {} == workers.shown())
        assert client.snapshots == 2

    run(main, keep=20)


def test_a_question_waits_once_for_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its facts come when it goes on, and then questions wait for it again."""
    monkeypatch.setattr(facts, "SOON_S", 0.01)

    async def main(workers: Workers, client: Client) -> None:
        asked: list[bytes] = []
        follower = workers.front._others[1]
        assert isinstance(follower, LogFollower)
        writer = follower._writer
        assert writer is not None
        monkeypatch.setattr(follower, "_writer", Held(asked))
        for _ in range(9):
            await workers.front.catch_up()
            workers.front.follow()
        assert asked == [b"?"]
        workers.owner("g").create("g", "", 0.0)
        workers.publish("g")
        monkeypatch.setattr(facts, "SOON_S", WITHIN_S)
        monkeypatch.setattr(follower, "_writer", writer)
        writer.write(b"?")
        await until(lambda: client.read(workers) and len(client.facts) == 2)
        workers.publish("g")
        await workers.front.catch_up()
        assert client.read(workers)
        assert len(client.facts) == 3

    run(main)
