"""What a mirror does in a world that behaves but for one thing, and what it says of itself. Time is virtual."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.app.mirror.world import BASE_S, ModelDestination, World
from tests.support.virtual_time import VirtualLoop
from tricklecast.app.core.segment import COMPLETE
from tricklecast.app.mirror import engine
from tricklecast.app.mirror.engine import Mirror
from tricklecast.app.mirror.registry import MirrorRegistry, RegistryError
from tricklecast.app.mirror.requests import Silent
from tricklecast.app.mirror.sides import (
    GoneThere,
    News,
    SourceAway,
    SourceChannel,
    SourceError,
    SourceLies,
    SourceSegment,
)
from tricklecast.trickle.errors import ConnectionLost


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Scene(World):
    """A world in which a test says what happens."""

    def begin(self, **options: Any) -> Mirror:
        self.mirror = Mirror(
            self.registry,
            self.source,
            self.destination,
            options.pop("channels", self.selected),
            wall=lambda: self.loop.time() + BASE_S,
            dice=self.dice,
            **options,
        )
        self._running = asyncio.ensure_future(self.mirror.run())
        return self.mirror

    async def until(self, true: Callable[[], object], within: float = 200.0) -> None:
        """Let time pass until something is true."""
        until = self.loop.time() + within
        while not true():
            assert self.loop.time() < until, f"not within {within} s: {self.mirror and self.mirror.status()}"
            await self.passes(0.1)

    async def same(self) -> None:
        """Let time pass until all is as at the source."""
        await self.until(lambda: not self.difference())

    def history(self, name: str, segments: int) -> None:
        for _ in range(segments):
            self.source.write(name, whole=True)


def play(what: Callable[[Scene], Awaitable[None]], *, stores: bool = True) -> None:
    """Let a test happen in virtual time."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def go() -> None:
            scene = Scene(1, loop)
            scene.destination = ModelDestination(scene, stores=stores)
            try:
                await what(scene)
            finally:
                await scene.end()

        runner.run(go())


def test_an_empty_source_is_complete() -> None:
    """0 of 0 is complete, and nothing is behind."""

    async def happens(scene: Scene) -> None:
        mirror = scene.begin(address="http://src")
        before = mirror.status()
        assert (before.complete, before.seconds_behind, before.last_contact) == (False, None, None)
        assert mirror.lost_if_promoted()
        await scene.until(lambda: mirror.status().complete)
        status = mirror.status()
        assert (status.source, status.state, status.channels, status.segments) == ("http://src", "following", {}, {})
        assert (status.seconds_behind, status.bytes_behind, status.seconds_left) == (0.0, 0, 0.0)
        assert not mirror.lost_if_promoted()
        await mirror.stop()
        assert mirror.status().state == "stopped"

    play(happens)


def test_history_comes_in_the_wanted_order_and_within_the_limit() -> None:
    """Bytes of copies and feeds together; what is not here yet is counted, and its time is told."""

    async def happens(scene: Scene) -> None:
        for _ in range(40):
            scene.history("a", 1)
            await scene.passes(0.01)
        life = scene.source.life("a")
        assert life is not None
        size = sum(one.size for one in scene.source.closed[life].values())
        mirror, began = scene.begin(newest_first=False, max_rate=10.0), scene.loop.time()
        await scene.until(lambda: mirror.status().bytes_behind and mirror.status().rate)
        status = mirror.status()
        assert 0 < status.rate <= 20.0
        assert status.seconds_left == status.bytes_behind / status.rate
        assert status.segments_behind == len(mirror.lost_if_promoted().segments)
        await scene.until(lambda: len(scene.destination.archive["a", 1]) > 20)
        here = [seq for seq in scene.destination.archive["a", 1] if seq < 38]
        assert set(here[:10]) <= set(range(10 + engine.COPIES))
        await scene.until(lambda: not scene.difference(), 1000.0)
        assert scene.loop.time() - began >= size / 10.0 - 10.0
        assert mirror.status().received >= size

    play(happens)


def test_a_source_that_cannot_be_reached_is_asked_every_few_seconds() -> None:
    """One question at a time, not one per channel; lag is counted from when it was last heard."""

    async def happens(scene: Scene) -> None:
        for name in ("a", "b", "tv.1"):
            scene.history(name, 5)
        mirror = scene.begin()
        await scene.same()
        scene.source.go_down()
        await scene.until(lambda: mirror.status().state == "unreachable")
        await scene.passes(60.0)
        asked = scene.source.asked.copy()
        await scene.passes(1800.0)
        more = scene.source.asked - asked
        assert set(more) == {"look"}
        assert 1800 / 10.0 <= more["look"] < 600
        status = mirror.status()
        assert status.unreachable_since is not None
        assert status.last_contact is not None
        assert status.seconds_behind == scene.loop.time() + BASE_S - status.last_contact > 1800
        assert mirror.lost_if_promoted().contact_age == status.seconds_behind
        assert set(scene.destination.channels()) == {"a", "b", "tv.1"}, "readers stay"
        scene.source.up = True
        await scene.same()

    play(happens)


def test_a_source_that_is_back_is_followed_soon() -> None:
    """However long it was away: no channel waits for a backoff that has grown meanwhile."""

    async def happens(scene: Scene) -> None:
        for name in ("a", "b", "tv.1"):
            scene.history(name, 5)
        mirror = scene.begin()
        await scene.same()
        for away_s in (1.0, 20.0, 600.0, *[10.0] * 12):
            await scene.passes(300.0)
            scene.source.go_down()
            await scene.passes(away_s)
            scene.source.up = True
            began = scene.loop.time()
            await scene.until(lambda: mirror.status().live == 3)
            assert scene.loop.time() - began <= 20.0, "an answer takes seconds here, and a backoff up to a minute"

    play(happens)


def test_a_source_that_comes_and_goes_is_followed_soon() -> None:
    """However often it has been away shortly before, and also if it is missed by an answer that does not come."""

    async def happens(scene: Scene) -> None:
        for name in ("a", "b", "tv.1"):
            scene.history(name, 5)
        mirror = scene.begin()
        await scene.same()
        for turn in range(40):
            scene.source.go_down()
            await scene.passes(1.0 + turn % 3)
            scene.source.up = True
            began = scene.loop.time()
            await scene.until(lambda: mirror.status().live == 3)
            assert scene.loop.time() - began <= 30.0, "an answer takes seconds here, and a backoff up to a minute"
            await scene.passes(turn % 4)

    play(happens)


def test_a_source_that_is_away_is_asked_often_enough() -> None:
    """One that nonsense comes from is left alone for longer and longer; the pauses of both have a bound."""
    dice = random.Random(1)
    for error in (SourceAway(), Silent(), ConnectionLost()):
        assert max(engine.pause_s(error, failures, dice) for failures in range(1, 61)) <= 2.0
        assert max(engine.pause_s(error, failures, dice) for failures in range(61, 200)) <= 10.0
    for other in (SourceLies(), None):
        assert 10.0 < max(engine.pause_s(other, failures, dice) for failures in range(1, 200)) <= 60.0


def test_the_newest_problem_is_shown() -> None:
    """A source that fails in another way is told so; the same words again are nothing new."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 1)
        mirror = scene.begin()
        await scene.same()
        words = "one"

        async def look() -> None:
            raise SourceError(words)

        vars(scene.source).update(look=look)
        scene.source.go_down()
        mirror.look_again()
        await scene.until(lambda: mirror.status().errors[-1:] and mirror.status().errors[-1].text == "one", 100.0)
        before = mirror.status().failures
        await scene.passes(300.0)
        assert mirror.status().failures == before
        words = "two"
        await scene.until(lambda: mirror.status().errors[-1].text == "two", 100.0)

    play(happens)


def test_damage_is_found_and_mended() -> None:
    """Bytes that have changed here since are copied again, and so it is told."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 8)
        mirror = scene.begin()
        await scene.same()
        scene.destination.archive["a", 1][3] = b"damaged"
        del scene.destination.archive["a", 1][4]
        await mirror.reverify(mirror.matching(["a"]))
        await scene.same()
        status = mirror.status()
        assert status.mismatches == 1
        assert "segment 3 is damaged here" in status.errors[-1].text
        assert status.verified >= 6
        await mirror.reverify(mirror.matching(["*"]))
        await scene.until(lambda: mirror.status().verified == 8)

    play(happens)


def test_a_segment_that_is_another_one_at_the_source() -> None:
    """What is here stays until the other one has come."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 8)
        mirror = scene.begin()
        await scene.same()
        life = scene.source.life("a")
        assert life is not None
        told = scene.source.closed[life][3]
        before = scene.destination.archive["a", 1][3]
        scene.source.closed[life][3] = told._replace(crc=1)
        await mirror.reverify(["a"])
        await scene.until(lambda: mirror.status().mismatches)
        await scene.until(lambda: "not as it was listed" in mirror.status().errors[-1].text)
        assert scene.destination.archive["a", 1][3] == before
        await scene.until(lambda: mirror.status().segments.get("failed") == 1)
        scene.source.closed[life][3] = told
        assert mirror.resync(mirror.matching(["*"]), failed=True) == 1
        await scene.until(lambda: not scene.difference(), 400.0)

    play(happens)


def test_a_source_that_lies() -> None:
    """Wrong bytes are never shown, and are asked for again after a pause."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 3)
        scene.source.lies = 5
        mirror = scene.begin()
        await scene.same()
        assert any("not as it was listed" in one.text for one in mirror.status().errors)
        assert scene.source.asked["read"] == 6

    play(happens)


def test_answers_that_contradict_others() -> None:
    """An epoch, an index or a list that goes back: a clear word, nothing changes, and it is asked again in time."""

    async def happens(scene: Scene) -> None:
        source = scene.source
        scene.history("a", 5)
        mirror = scene.begin()
        await scene.same()
        channel, segments, news = source.channel, source.segments, source.news

        async def earlier(name: str) -> SourceChannel | None:
            return SourceChannel(name, 0, 1)

        async def backwards(name: str, epoch: int, after: int) -> Sequence[SourceSegment]:
            return [*reversed(await segments(name, epoch, -1))]

        async def old_news(after: int, instance: str) -> News:
            await asyncio.sleep(1.0)
            return News(after - 1, ())

        for wrong, words in (
            ({"channel": earlier}, "its epochs go back from 1 to 0"),
            ({"segments": backwards}, "goes back, or has no end"),
            ({"news": old_news}, "its news go back"),
        ):
            vars(source).update(wrong)
            mirror.resync(["a"])
            mirror.look_again()
            await scene.until(lambda words=words: any(words in one.text for one in mirror.status().errors))  # type: ignore[misc]
            vars(source).update(channel=channel, segments=segments, news=news)
            await scene.same()
        assert scene.destination.held["a"].live

    play(happens)


def test_a_body_without_end() -> None:
    """No more is read than was listed."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 3)
        sent = 0

        async def endless(name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
            nonlocal sent
            while True:
                await asyncio.sleep(0.01)
                sent += 1000
                yield b"x" * 1000

        vars(scene.source)["read"] = endless
        mirror = scene.begin()
        await scene.until(lambda: mirror.status().segments.get("failed"))
        assert sent == 1000
        assert scene.destination.archive["a", 1].keys() == {1, 2}

    play(happens)


def test_a_source_that_falls_silent() -> None:
    """A copy, and a look, do not wait for ever."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 3)
        read = scene.source.read

        async def silent(name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
            await asyncio.sleep(1e6)
            yield b""

        vars(scene.source)["read"] = silent
        mirror = scene.begin()
        await scene.until(lambda: mirror.status().segments.get("failed"))
        assert "nothing came for 15 s" in mirror.lost_if_promoted().segments[0].error
        vars(scene.source)["read"] = read
        await scene.same()

    play(happens)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_channel_that_ends_before_all_of_it_is_copied(goes_on: bool) -> None:
    """How many of its segments will never be here is told once, also if the next epoch has begun by then."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 30)
        mirror = scene.begin(max_rate=10.0)
        await scene.until(lambda: mirror.status().segments_behind)
        scene.source.delete("a")
        if goes_on:
            scene.history("a", 1)
        lacking = mirror.status().segments_behind
        await scene.same()
        told = [one.text for one in mirror.status().errors if "before" in one.text]
        assert told == [f"it ended at the source before {lacking} of its segments were copied"]

    play(happens)


def test_channels_are_live_before_their_history_is_listed() -> None:
    """However long the lists take, and no more lists are asked for at a time than may be."""

    async def happens(scene: Scene) -> None:
        for number in range(3 * engine.LOOKS):
            scene.history(f"c{number}", 2)
        segments, asked = scene.source.segments, list[str]()

        async def late(name: str, epoch: int, after: int) -> Sequence[SourceSegment]:
            asked.append(name)
            await asyncio.sleep(20.0)
            return await segments(name, epoch, after)

        vars(scene.source)["segments"] = late
        mirror = scene.begin(channels=("*",))
        await scene.until(lambda: mirror.status().live == 3 * engine.LOOKS, within=15.0)
        assert len(asked) == engine.LISTS
        await scene.until(lambda: mirror.status().complete, 1000.0)

    play(happens)


def test_a_copy_under_way_when_a_feed_breaks_off_counts() -> None:
    """Its checksum tells whether it is right: a source that was started anew may have other bytes."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 30)
        read, begun, go = scene.source.read, asyncio.Event(), asyncio.Event()

        async def held(name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
            begun.set()
            await go.wait()
            async for chunk in read(name, epoch, segment):
                yield chunk

        vars(scene.source)["read"] = held
        mirror = scene.begin()
        await begun.wait()
        mirror._unfollow("a")  # as when the source is started anew
        go.set()
        await scene.until(lambda: mirror.status().segments_behind == 0)
        assert not mirror.status().failures

    play(happens)


def test_a_part_stays_whose_segment_has_gone_at_the_source() -> None:
    """It has its row again, as all that is here."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 3)
        mirror = scene.begin()
        await scene.same()
        truth, rows = mirror._followers["a"].truth, scene.registry.synced("a", 1)

        async def gone(name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
            raise GoneThere("no such segment")
            yield b""

        vars(scene.source)["read"] = gone
        mirror._copy_again(truth, [SourceSegment(0, COMPLETE, 1_000, 1, 0, 0)])
        mirror._wake.set()
        await scene.until(lambda: mirror.status().segments == {"failed": 1, "synced": 2})
        await scene.until(lambda: mirror.status().segments == {"synced": 3})
        assert scene.registry.synced("a", 1).keys() == rows.keys() == scene.destination.archive["a", 1].keys()

    play(happens)


def test_rules_that_change() -> None:
    """Channels that are not mirrored any more end here; what is stored of them stays, and is not copied again."""

    async def happens(scene: Scene) -> None:
        for name in ("a", "tv.1"):
            scene.history(name, 6)
        mirror = scene.begin()
        await scene.same()
        copied = scene.source.asked["read"]
        mirror.select(["tv.*"])
        assert set(scene.destination.channels()) == {"tv.1"}
        assert len(scene.destination.archive["a", 1]) == 6
        assert "a" not in scene.registry.channels()
        assert not mirror.selected("_changes")
        await scene.same()
        mirror.select(["*"])
        await scene.same()
        assert scene.source.asked["read"] == copied

    play(happens)


def test_a_full_disk() -> None:
    """The copy is not here, says why, and is made when there is room."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 5)
        scene.destination.full = True
        mirror = scene.begin()
        await scene.until(lambda: mirror.status().segments.get("failed") == 3)
        assert {one.error for one in mirror.lost_if_promoted().segments} == {"[Errno 28] no space left"}
        scene.destination.full = False
        await scene.same()

    play(happens)


def test_a_copy_that_the_destination_could_not_keep() -> None:
    """It is made again."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 5)
        mirror = scene.begin()
        await scene.same()
        del scene.destination.archive["a", 1][1]
        mirror.not_kept("a", 1, 1)
        await scene.same()

    play(happens)


def test_no_room_behind_the_window() -> None:
    """A segment that the destination will not take is given up, and listed."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 4)
        vars(scene.destination)["insert"] = lambda *about: False
        mirror = scene.begin()
        await scene.until(lambda: mirror.status().segments.get("failed") == 2)
        assert {one.error for one in mirror.lost_if_promoted().segments} == {"there is no room for it here"}

    play(happens)


def test_a_destination_that_keeps_less() -> None:
    """What it would not keep is told apart, and neither read nor missing; it comes when the destination keeps more."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 12)
        scene.destination.lowest = 4
        mirror = scene.begin()
        await scene.until(lambda: mirror.status().complete)
        assert mirror.status().segments == {"synced": 8, "beyond": 4}
        assert (mirror.status().bytes_behind, mirror.lost_if_promoted().segments) == (0, [])
        assert scene.source.asked["read"] == 6, "not those of the window"
        mirror.resync(mirror.matching(["*"]))
        await scene.until(lambda: mirror.status().complete)
        life = scene.source.life("a")
        assert life is not None
        del scene.source.closed[life][0]
        mirror.resync(mirror.matching(["*"]))
        await scene.until(lambda: mirror.status().segments == {"synced": 8, "beyond": 3})
        assert scene.source.asked["read"] == 6
        scene.destination.lowest = 0
        mirror.resync(mirror.matching(["*"]))
        await scene.same()
        assert mirror.status().segments == {"synced": 11}

    play(happens)


def test_a_destination_that_has_become_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be copied is left out, a part of it at a time, also where a copy is under way."""
    monkeypatch.setattr(engine, "LEFT_OUT", 2)

    async def happens(scene: Scene) -> None:
        scene.history("a", 20)
        mirror = scene.begin(newest_first=True)
        await scene.until(lambda: mirror.status().segments.get("started"))
        scene.destination.lowest = 19
        await scene.until(lambda: mirror.status().complete)
        assert mirror.status().segments["beyond"] >= 13
        assert not mirror.status().errors

    play(happens)


def test_a_destination_in_memory_has_the_windows() -> None:
    """No history is copied, and no segment is counted."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 9)
        mirror = scene.begin()
        await scene.same()
        status = mirror.status()
        assert (status.stores, status.complete, status.segments, status.live) == (False, True, {}, 1)
        assert scene.source.asked["segments"] == scene.source.asked["read"] == 0

    play(happens, stores=False)


def test_more_channels_than_are_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others fail, and say so."""
    monkeypatch.setattr(engine, "MAX_CHANNELS", 1)

    async def happens(scene: Scene) -> None:
        for name in ("a", "b", "tv.1"):
            scene.history(name, 1)
        mirror = scene.begin()
        await scene.until(lambda: mirror.status().channels == {"synced": 1, "failed": 2})
        texts = [one.text for one in mirror.status().errors]
        assert "it has 3 channels of these names; at most 1 are mirrored" in texts
        assert "1 channels are followed already: mirror fewer of them" in texts

    play(happens)


def test_bytes_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large segment waits until the others are here, and is copied alone."""
    monkeypatch.setattr(engine, "IN_FLIGHT", 20)

    async def happens(scene: Scene) -> None:
        scene.history("a", 30)
        read, flying, most = scene.source.read, 0, 0

        async def watched(name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
            nonlocal flying, most
            most = max(most, flying + segment.size if flying else 0)
            flying += segment.size
            async for chunk in read(name, epoch, segment):
                yield chunk
            flying -= segment.size

        vars(scene.source)["read"] = watched
        scene.begin()
        await scene.until(lambda: not scene.difference(), 1000.0)
        assert 0 < most <= 20

    play(happens)


def test_a_registry_that_fails_is_begun_anew() -> None:
    """All is found out again; nothing is copied twice."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 6)
        mirror = scene.begin()
        await scene.same()
        copied, commit = scene.source.asked["read"], scene.registry.commit

        def fail() -> None:
            scene.registry.roll_back()
            vars(scene.registry)["commit"] = commit
            raise RegistryError("the disk is full")

        vars(scene.registry)["commit"] = fail
        scene.history("b", 2)
        await scene.until(lambda: any(one.text == "the disk is full" for one in mirror.status().errors))
        await scene.same()
        assert scene.source.asked["read"] == copied

    play(happens)


def test_a_fault_of_the_mirror_is_told_and_does_no_harm() -> None:
    """One row fails; the others go on."""

    async def happens(scene: Scene) -> None:
        logging.disable(logging.CRITICAL)
        scene.history("a", 1)
        scene.history("b", 1)
        hold = scene.destination.hold

        def broken(name: str, epoch: int, closed: Any) -> Any:
            return hold(name, epoch, closed) if name != "a" else 1 // 0

        vars(scene.destination)["hold"] = broken
        mirror = scene.begin()
        await scene.until(lambda: mirror.status().channels == {"synced": 1, "failed": 1})
        vars(scene.destination)["hold"] = hold
        await scene.same()

    play(happens)


def test_a_work_without_end_is_swept() -> None:
    """A row that has been started for longer than a copy takes is begun again."""

    async def happens(scene: Scene) -> None:
        mirror = scene.begin()
        await scene.same()
        scene.registry.mark(["x"], BASE_S - engine.COPY_S)
        scene.registry.take_channels(BASE_S - engine.COPY_S, 1)
        await scene.until(lambda: mirror.status().channels.get("deleted") == 1)
        assert "1 copies had no end, and begin again" in mirror.status().errors[-1].text

    play(happens)


def test_a_stop_has_a_deadline() -> None:
    """Also while much is under way; and who cancels the mirror is told so."""

    async def happens(scene: Scene) -> None:
        scene.history("a", 30)
        mirror = scene.begin(max_rate=1.0)
        await scene.until(lambda: mirror.status().segments.get("started"))
        began = scene.loop.time()
        await mirror.stop()
        assert scene.loop.time() - began < 1.0
        assert scene._running is not None
        await scene._running
        again = scene.begin()
        await scene.same()
        scene._running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scene._running
        assert again.status().state == "stopped"

    play(happens)


def test_a_registry_in_a_file_is_moved_on(tmp_path: Path) -> None:
    """Its log does not grow for ever: a thread moves it into the file."""

    async def happens(registry: MirrorRegistry) -> None:
        class Nothing:
            async def look(self) -> Any:
                raise SourceError("nobody is there")

        done = asyncio.Event()
        loop, checkpoint = asyncio.get_running_loop(), registry.checkpoint

        def told() -> None:
            checkpoint()
            loop.call_soon_threadsafe(done.set)

        vars(registry)["checkpoint"] = told
        mirror = Mirror(registry, Nothing(), Nothing(), ["*"])  # type: ignore[arg-type]
        running = asyncio.ensure_future(mirror.run())
        async with asyncio.timeout(10.0):
            await done.wait()
        await mirror.stop()
        await running

    registry = MirrorRegistry(tmp_path / "mirror.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "SWEEP_S", 0.01)
        asyncio.run(happens(registry))
    registry.close()
