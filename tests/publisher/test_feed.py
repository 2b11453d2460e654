"""From a blocking source to segments: order, bounds, errors, cuts, pacing, joining, and segments that are lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest

from tests.publisher.fakes import Trickle, publisher, reply
from tests.support.peers import Head, Peer, fake_server, run
from tests.support.waiting import WITHIN_S, until
from tricklecast.publisher.feed import JOIN_BYTES, STEPS_AHEAD, Feed, Steps, Totals, stepping
from tricklecast.publisher.steps import Chunk, IsStopped, SegmentEnd, Step
from tricklecast.trickle import errors, wire


async def feed(
    trickle: Trickle,
    steps: list[Step],
    *,
    drops: bool = False,
    over: anyio.Event | None = None,
    retries: int = 0,
    buffer_bytes: int = 8 << 20,
    most: int | None = None,
) -> tuple[Totals, list[str]]:
    """Publish steps to a fake server, which has failed so many requests before; the totals and the warnings."""
    warnings: list[str] = []
    source = Steps()
    for step in steps:
        source.add(step)
    source.end()
    when_full = "drop" if drops else "wait"
    async with (
        fake_server(trickle) as server,
        publisher(server, start=0, when_full=when_full, buffer_bytes=buffer_bytes, most=most) as pub,
    ):
        await until(lambda: pub.statistics().retries == retries)
        await trickle.seen("POST 0")
        totals = await Feed(pub, source, drops=drops, warn=warnings.append).run()
        if over is not None:
            over.set()
        return totals, warnings


def test_steps_become_segments() -> None:
    """A cut ends a segment; the tail is one as well; no segment is empty."""

    async def main() -> None:
        trickle = Trickle()
        steps: list[Step] = [
            SegmentEnd(),
            Chunk(b"a"),
            SegmentEnd(),
            SegmentEnd(),
            Chunk(b"b"),
            Chunk(b"c"),
            SegmentEnd(),
            Chunk(b"d"),
        ]
        totals, warnings = await feed(trickle, steps)
        assert totals == Totals(segments=3, bytes=4, lost=0, seq=2)
        assert not warnings
        assert {seq: b"".join(chunks) for seq, chunks in trickle.stored.items() if chunks} == {
            "0": b"a",
            "1": b"bc",
            "2": b"d",
        }

    run(main())


def test_chunks_that_wait_are_written_as_one() -> None:
    """Up to the size that is passed on unsplit, and never beyond a cut."""

    async def main() -> None:
        trickle = Trickle()
        big = Chunk(b"x" * (JOIN_BYTES - 1))
        await feed(
            trickle, [Chunk(b"a"), Chunk(b"b"), SegmentEnd(), big, Chunk(b"y"), Chunk(b"z"), SegmentEnd(), big, big]
        )
        assert [len(chunk) for chunk in trickle.stored["0"]] == [2]
        assert [len(chunk) for chunk in trickle.stored["1"]] == [JOIN_BYTES, 1]
        assert [len(chunk) for chunk in trickle.stored["2"]] == [JOIN_BYTES - 1] * 2

    run(main())


def test_a_lost_segment_is_reported_and_skipped() -> None:
    """The rest of it is dropped, wherever it failed; the next one is published."""

    async def main() -> None:
        trickle = Trickle()

        async def too_large(peer: Peer, head: Head) -> None:
            await reply(413, after=1)(peer, head)

        trickle.instead = {"POST 0": [too_large], "POST 1": [too_large]}
        large = [Chunk(b"x" * JOIN_BYTES) for _ in range(200)]
        totals, warnings = await feed(trickle, [*large, SegmentEnd(), Chunk(b"y"), SegmentEnd(), Chunk(b"z")])
        assert (totals.segments, totals.lost, totals.seq) == (1, 2, 2)
        assert [warning.split(":")[0] for warning in warnings] == ["segment 0 is lost", "segment 1 is lost"]
        assert trickle.stored["2"] == [b"z"]

    run(main())


@pytest.mark.parametrize(
    ("headers", "error"), [({}, errors.ChannelNotFound), ({wire.CLOSED: "x"}, errors.ChannelEnded)]
)
def test_an_error_of_the_publisher_ends_it(headers: dict[str, object], error: type[Exception]) -> None:
    """Where no further segment can get through, the error is raised."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(404, headers)]}
        with pytest.raises(error):
            await feed(trickle, [Chunk(b"x"), SegmentEnd(), Chunk(b"y"), SegmentEnd(), Chunk(b"z")])

    run(main())


async def silent(peer: Peer, head: Head) -> None:
    """Read, but answer nothing."""
    await peer.closed()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for long."""
    monkeypatch.setattr("tricklecast.publisher.feed.CONFIRM_S", 0.3)


def segments(count: int, size: int = 1) -> list[Step]:
    """So many segments of one chunk each."""
    return [step for number in range(count) for step in (Chunk(bytes([number]) * size), SegmentEnd())]


@pytest.mark.usefixtures("hasty")
def test_a_stalled_segment_holds_up_no_other() -> None:
    """Live media goes on beside it, also in bursts; what was never answered is said in the end."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [silent]}
        totals, warnings = await feed(trickle, segments(8), drops=True)
        assert totals == Totals(segments=7, bytes=8, lost=1, seq=7)
        assert warnings == ["segment 0 is lost: no answer within 0.3 s"]

    run(main())


@pytest.mark.usefixtures("hasty")
def test_too_many_stalled_segments_are_dropped() -> None:
    """The oldest first, those that wait for a connection before those that have one, while the source goes on."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {f"POST {seq}": [silent] for seq in range(2)}
        totals, warnings = await feed(trickle, segments(6, 100), drops=True, most=3)
        assert (totals.segments, totals.dropped, totals.lost) == (1, 3, 2)
        assert warnings[:3] == ["a segment is dropped: the network is too slow"] * 3
        assert {warning.split(":")[0] for warning in warnings[3:]} == {"segment 0 is lost", "segment 1 is lost"}
        assert trickle.stored["2"] == [bytes([5]) * 100]

    run(main())


@pytest.mark.usefixtures("hasty")
def test_a_dropped_segment_is_not_blamed_on_the_network_if_the_server_said_no() -> None:
    """Its own words are what the user is told."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(503, {"Retry-After": 200}, b"Limit reached: publishers\n")]}
        totals, warnings = await feed(trickle, segments(6, 100), drops=True, most=3, retries=1)
        assert (totals.segments, totals.dropped) == (0, 3)
        reason = "refused by the server: Limit reached: publishers (HTTP 503, segment 0)"
        assert warnings[:3] == [f"a segment is dropped: {reason}"] * 3

    run(main())


def test_what_waits_for_a_connection_is_bounded() -> None:
    """A segment that the network takes too slowly is dropped, before memory is full of it."""

    async def main() -> None:
        trickle, over = Trickle(), anyio.Event()

        async def stall(peer: Peer, head: Head) -> None:
            await over.wait()

        trickle.instead = {"POST 0": [stall]}
        much: list[Step] = [Chunk(bytes(JOIN_BYTES))] * 1000
        steps = [*much, SegmentEnd(), Chunk(b"next")]
        totals, warnings = await feed(trickle, steps, drops=True, over=over, buffer_bytes=1_000_000)
        assert (totals.segments, totals.dropped, totals.lost) == (1, 1, 0)
        assert warnings == ["segment 0 is dropped: the network is too slow"]
        assert trickle.stored["1"] == [b"next"]

    run(main())


def test_a_file_waits_instead() -> None:
    """Where nothing may be dropped, the source is read no faster than the network takes it."""

    async def main() -> None:
        trickle = Trickle()
        resume = anyio.Event()

        async def slow(peer: Peer, head: Head) -> None:
            await resume.wait()
            trickle.stored["0"] = await peer.body()
            await peer.answer(200, {"Lp-Trickle-Size": sum(map(len, trickle.stored["0"]))})

        trickle.instead = {"POST 0": [slow]}
        source = Steps()
        async with fake_server(trickle) as server, publisher(server, start=0, when_full="wait") as pub:
            pump = Feed(pub, source, drops=False, warn=pytest.fail)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pump.run)
                taken = 0
                with anyio.move_on_after(1.0):
                    while True:
                        await anyio.to_thread.run_sync(source.room.acquire, abandon_on_cancel=True)
                        source.add(Chunk(bytes(JOIN_BYTES)))
                        taken += 1
                assert taken < 2000  # what sockets, the publisher and the queue hold; not what there is
                source.add(SegmentEnd())
                source.end()
                resume.set()
        assert pump.totals.segments == 1
        assert pump.totals.bytes == sum(map(len, trickle.stored["0"])) == taken * JOIN_BYTES

    run(main())


@pytest.mark.parametrize("drops", [False, True])
def test_a_source_that_fails_truncates_its_last_segment(drops: bool) -> None:
    """Complete segments are confirmed, the one being written is cut off, and the error comes out."""

    async def main() -> None:
        trickle = Trickle()
        source = Steps()
        for step in (Chunk(b"a"), SegmentEnd(), Chunk(b"b")):
            source.add(step)
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            pump = Feed(pub, source, drops=drops, warn=pytest.fail)
            async with anyio.create_task_group() as tasks:

                async def fail() -> None:
                    await until(lambda: pump.totals.bytes == 2)
                    source.end(LookupError("half-way"))

                tasks.start_soon(fail)
                with pytest.raises(LookupError, match="half-way"):
                    await pump.run()
            await until(lambda: pub.statistics().in_flight == 0)
            assert (pump.totals.segments, pub.statistics().segments) == (1, 1)

    run(main())


async def collect(steps: Steps, into: list[Step] | None = None) -> list[Step]:
    """All steps, to the end."""
    seen: list[Step] = [] if into is None else into
    with suppress(anyio.EndOfStream):
        while True:
            seen.append(await steps.receive())
    return seen


def test_steps_arrive_in_order() -> None:
    """All of them, to the end; chunks that lie there together come as one."""
    made = [step for number in range(300) for step in (Chunk(b"%d" % number), Chunk(b","), SegmentEnd())]

    async def main() -> list[Step]:
        async with stepping(lambda _: iter(made)) as steps:
            return await collect(steps)

    seen = run(main())
    assert b"".join(step.data if isinstance(step, Chunk) else b"|" for step in seen) == b"".join(
        b"%d,|" % number for number in range(300)
    )


def test_a_source_is_only_so_far_ahead() -> None:
    """It waits while nobody takes its steps, and is told to stop when the block is left."""
    made: list[int] = []
    full, over = threading.Event(), threading.Event()

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        try:
            for number in range(10 * STEPS_AHEAD):
                made.append(number)
                if number > STEPS_AHEAD:
                    full.set()
                yield Chunk(b"x")
        finally:
            assert is_stopped()
            over.set()

    async def main() -> None:
        async with stepping(source) as steps:
            await steps.receive()
            await anyio.to_thread.run_sync(full.wait, 10)
        await anyio.to_thread.run_sync(over.wait, 10)

    run(main())
    assert over.is_set()
    assert len(made) <= 2 * STEPS_AHEAD + 3  # those that were taken at once, and those that wait


def test_a_source_that_cannot_be_opened_raises_before_the_block() -> None:
    """What depends on the source is not even begun."""

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        raise LookupError("no such source")

    async def main() -> None:
        async with stepping(source):
            raise AssertionError("not reached")

    # The generator behind the context manager ends without a value; the source's error must be what is seen.
    with pytest.raises(LookupError, match="no such source"):
        run(main())


def test_a_source_that_breaks_raises_after_its_steps() -> None:
    """Nothing that was made before is lost."""
    seen: list[Step] = []

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        yield Chunk(b"a")
        yield Chunk(b"b")
        raise LookupError("half-way")

    async def main() -> None:
        async with stepping(source) as steps:
            await collect(steps, seen)

    with pytest.raises(LookupError, match="half-way"):
        run(main())
    assert b"".join(step.data for step in seen if isinstance(step, Chunk)) == b"ab"


def test_the_blocks_own_error_is_raised_as_it_is() -> None:
    """Not wrapped into a group, nor replaced by what the source says once it is stopped."""

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        while not is_stopped():
            yield Chunk(b"x")
        raise AssertionError("of no interest")

    async def main() -> None:
        async with stepping(source):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main())


@pytest.mark.parametrize("opened", [False, True])
def test_cancelling_does_not_wait_for_a_read_that_blocks(opened: bool) -> None:
    """The event loop goes on although the thread hangs, in opening or in reading."""
    hanging, release = threading.Event(), threading.Event()

    def hang() -> Iterator[Step]:
        hanging.set()
        release.wait(WITHIN_S)
        yield Chunk(b"late")

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        return hang() if opened else iter(list(hang()))

    async def consume() -> None:
        async with stepping(source) as steps:
            await steps.receive()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await anyio.to_thread.run_sync(hanging.wait, 10)
            tasks.cancel_scope.cancel()
        assert not release.is_set()
        release.set()

    run(main())


def test_a_loop_that_is_gone_does_not_matter() -> None:
    """The thread ends by itself after its loop was closed."""
    hanging, release, ended = threading.Event(), threading.Event(), threading.Event()

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        hanging.set()
        release.wait(WITHIN_S)
        yield Chunk(b"late")
        ended.set()

    async def main() -> None:
        async with stepping(source):
            await anyio.to_thread.run_sync(hanging.wait, 10)

    run(main())
    release.set()
    for thread in threading.enumerate():
        if thread.name == "tricklecast source":
            thread.join(WITHIN_S)
            assert not thread.is_alive()
    assert not ended.is_set()
