"""A body: from one writer to one request after the other, kept as long as that is allowed."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.support.peers import run
from tricklecast.publisher.body import BURST, CHUNK_OVERHEAD, Body, Buffer, Sending
from tricklecast.trickle.client import faults

ROOM = 10 + 2 * CHUNK_OVERHEAD
"""What two chunks of five bytes take."""


async def lets_wait(call: Coroutine[Any, Any, Any], then: Coroutine[Any, Any, Any]) -> None:
    """Begin one thing, which must wait, and let another one end that."""
    over = anyio.Event()

    async def first() -> None:
        await call
        over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert not over.is_set()
        await then


async def read(sending: Any, count: int) -> list[bytes]:
    """So many chunks, and the question for one more, as a transport asks it."""
    chunks = [await anext(sending) for _ in range(count)]
    with anyio.move_on_after(0):
        await anext(sending)
        raise AssertionError("there is more")
    return chunks


def test_put_returns_when_more_is_asked_for() -> None:
    """The next question of the transport says that the chunk was written."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        sending = body.send()

        async def take() -> None:
            assert await read(sending, 1) == [b"one"]

        await lets_wait(body.put(b"one"), take())
        assert (sending.sent, body.handed, sending.ended) == (3, 3, False)

    run(main())


def test_a_body_ends_behind_its_last_chunk() -> None:
    """The end is handed over when the transport has seen it; an empty body begins with it."""

    async def main() -> None:
        begun: list[str] = []
        body = Body(Buffer(ROOM))
        sending = body.send(lambda: begun.append("chunk"))

        async def take() -> None:
            assert [chunk async for chunk in sending] == [b"one"]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await body.put(b"one")
            body.end()
            assert await body.flush()
        assert sending.ended
        empty = Body(Buffer())
        empty.end()
        assert [chunk async for chunk in empty.send(lambda: begun.append("end"))] == []
        assert begun == ["chunk", "end"]

    run(main())


def test_the_next_request_gets_everything_again() -> None:
    """From the start, while the writer goes on: it does not wait for a request that has to catch up."""

    async def main() -> None:
        body = Body(Buffer(1000))
        body.rest()
        assert await body.put(b"one")
        first = body.send()
        await read(first, 1)
        body.rest()
        assert await body.put(b"two")
        second = body.send()
        assert await body.put(b"three")
        body.end()
        assert await body.flush()
        assert [chunk async for chunk in second] == [b"one", b"two", b"three"]
        assert (first.sent, second.sent, body.handed, body.held) == (3, 11, 11, True)

    run(main())


def test_a_request_that_breaks_sets_its_writer_free() -> None:
    """The chunk is kept, so there is nothing to wait for."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        body.send()

        async def lose() -> None:
            body.rest()

        await lets_wait(body.put(b"one"), lose())
        assert body.held

    run(main())


def test_a_writer_waits_for_room() -> None:
    """Without a request that takes it, no more is held than was allowed; small chunks count for what they cost."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        body.rest()
        await body.put(b"12345")
        await body.put(b"67890")

        async def resend() -> None:
            sending = body.send()
            assert [await anext(sending) for _ in range(3)] == [b"12345", b"67890", b"!"]
            await read(sending, 0)

        await lets_wait(body.put(b"!"), resend())
        assert not body.held
        assert body.handed == 11

    run(main())


def test_the_next_request_gets_a_chunk_that_nothing_may_keep() -> None:
    """Its writer waits while no request is under way; one that reads the body lets it go on."""

    async def main() -> None:
        body = Body(Buffer(0))
        body.rest()

        async def resend() -> None:
            assert await read(body.send(), 1) == [b"one"]

        await lets_wait(body.put(b"one"), resend())

    run(main())


def test_a_body_that_is_over_holds_no_request() -> None:
    """Nor does the request that has ended keep the body: no cycle of objects is left of a segment."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        sending = weakref.ref(body.send())
        body.stop()
        assert sending() is None

    run(main())


def test_a_body_that_grew_too_large_is_passed_on_chunk_by_chunk() -> None:
    """From then on it cannot be sent again, and only the chunk under way is in memory."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        sending = body.send()

        taken: list[bytes] = []

        async def take() -> None:
            taken.extend([chunk async for chunk in sending])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            for number in range(20):
                assert await body.put(b"%05d" % number)
                assert len(body._chunks) <= 2
                assert body.held == (number < 2)
            body.end()
        assert taken == [b"%05d" % number for number in range(20)]
        assert body.held is False
        assert body._held_bytes == 0

    run(main())


def test_what_was_taken_last_is_held_until_it_was_written() -> None:
    """A chunk larger than everything that may be kept can still be sent again, if it never left."""

    async def main() -> None:
        body = Body(Buffer(0))
        sending = body.send()

        async def refuse() -> None:
            assert await anext(sending) == b"large"
            assert body.held
            body.rest()

        await lets_wait(body.put(b"large"), refuse())
        assert await read(body.send(), 1) == [b"large"]
        assert not body.held

    run(main())


def test_a_cancelled_put_takes_back_only_what_was_not_taken() -> None:
    """A chunk is sent whole or not at all, and never after its writer was told that it was not."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        sending = body.send()
        with anyio.move_on_after(0):
            await body.put(b"back")
        assert (body.handed, body.count) == (0, 0)
        taking = body.send()

        async def take() -> None:
            assert await anext(taking) == b"gone"
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(body.put, b"gone")
            await take()
        assert (body.handed, body.count, sending.sent) == (4, 1, 0)
        with anyio.CancelScope() as scope:
            scope.cancel()
            body.rest()
            await body.put(b"never")
        assert body.handed == 4

    run(main())


def test_everything_can_be_taken_back_before_it_is_sent() -> None:
    """Only as long as no request has any of it."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        body.rest()
        await body.put(b"one")
        body.end()
        sending = body.send()
        assert body.take_all_back()
        assert (body.handed, body.over, body.count) == (0, False, 0)
        body.rest()
        await body.put(b"two")
        sending = body.send()
        assert await anext(sending) == b"two"
        assert not body.take_all_back()

    run(main())


def test_who_was_taken_back_adds_nothing_to_the_next_writers_body() -> None:
    """Wherever the first writer still waits, for room, for its chunk or for the end: it is told, and that is all."""

    async def main() -> None:
        for resting in (True, False):
            body = Body(Buffer(0))
            body.rest() if resting else body.send()
            results: list[bool] = []

            async def put(body: Body = body, results: list[bool] = results) -> None:
                results.append(await body.put(b"first"))

            async def take_back(body: Body = body) -> None:
                assert body.take_all_back()

            await lets_wait(put(), take_back())
            assert results == [False]
            assert (body.handed, body.count) == (0, 0)
            assert not body._is_open_to(0)
        body.send()
        body.end()
        await lets_wait(body.flush(), take_back(body))

    run(main())


def test_who_is_cancelled_after_that_takes_nothing_from_the_next_writers_body() -> None:
    """Its chunk is gone already; what lies there now is another's."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        body.send()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(body.put, b"first")
            await anyio.lowlevel.checkpoint()
            assert body.take_all_back()
            tasks.cancel_scope.cancel()
        body.rest()
        await body.put(b"second")
        assert [await anext(body.send())] == [b"second"]

    run(main())


def test_the_first_request_is_waited_for() -> None:
    """A chunk that is there before any request was made is not handed over until one has written it."""

    async def main() -> None:
        body = Body(Buffer(ROOM))

        async def begin() -> None:
            assert await read(body.send(), 1) == [b"early"]

        await lets_wait(body.put(b"early"), begin())

    run(main())


def test_stopping_wakes_the_writer() -> None:
    """It learns that nobody takes its chunks any more, wherever it waits."""

    async def main() -> None:
        for retain_bytes in (0, ROOM):
            body = Body(Buffer(retain_bytes))
            if retain_bytes:
                body.send()
            results: list[bool] = []

            async def put(body: Body = body, results: list[bool] = results) -> None:
                results.append(await body.put(b"x"))

            async def stop(body: Body = body) -> None:
                body.stop()

            await lets_wait(put(), stop())
            assert results == [False]
            assert not await body.put(b"y")
            assert not await body.flush()
            assert not body.held or not body.count

    run(main())


@pytest.mark.parametrize("ended", [True, False])
def test_flushing_waits_for_a_request_that_has_caught_up(ended: bool) -> None:
    """Its end is handed over like a chunk; if the request breaks first, the end is kept."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        sending = body.send()
        body.end()

        async def go_on() -> None:
            if ended:
                with pytest.raises(StopAsyncIteration):
                    await anext(sending)
            else:
                body.rest()

        await lets_wait(body.flush(), go_on())
        assert sending.ended == ended

    run(main())


class Socket:
    """A writer for a live body, with room for so many chunks; :meth:`make_room` makes room for as many as wanted."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.written: list[bytes] = []
        self.pauses = 0

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        self.written.append(chunk + b"$" * last)
        self.room -= 1
        return self.room >= 0

    def end(self) -> bool:
        self.written.append(b"$")
        return True

    def pause(self) -> None:
        self.pauses += 1

    async def make_room(self, sending: Sending) -> None:
        self.room = 1000
        sending.resume()


def test_a_live_body_is_written_in_the_task_of_its_writer() -> None:
    """No other task has to run in between; what was kept is written again first, and so is the end told."""

    async def main() -> None:
        body = Body(Buffer(1000))
        body.rest()
        await body.put(b"kept")
        begun: list[int] = []
        sending = body.send(lambda: begun.append(sending.written))
        socket = Socket()
        sending.start(socket)
        assert socket.written == [b"kept"]
        await body.put(b"live")
        assert socket.written == [b"kept", b"live"]
        assert (body.handed, sending.sent, sending.written) == (8, 8, 2)
        body.end()
        assert socket.written == [b"kept", b"live", b"$"]
        assert await body.flush()
        sending.detach()
        assert (begun, sending.ended) == ([1], True)

    run(main())


def test_a_chunk_that_came_before_the_connection_leaves_with_it() -> None:
    """Its writer waits for that."""

    async def main() -> None:
        body = Body(Buffer(1000))
        sending, socket = body.send(), Socket()

        async def connect() -> None:
            sending.start(socket)

        await lets_wait(body.put(b"early"), connect())
        assert socket.written == [b"early"]

    run(main())


@pytest.mark.parametrize("goes_on", [True, False])
def test_without_room_the_writer_waits(goes_on: bool) -> None:
    """Until the socket has taken the chunk, or the request is over."""

    async def main() -> None:
        body = Body(Buffer(1000))
        sending, socket = body.send(), Socket(room=1)
        sending.start(socket)
        assert await body.put(b"one")

        async def go_on() -> None:
            assert socket.written == [b"one", b"two"]
            if goes_on:
                await socket.make_room(sending)
            else:
                sending.detach()
                body.rest()

        await lets_wait(body.put(b"two"), go_on())
        assert sending.written == (2 if goes_on else 1)

    run(main())


def test_the_last_chunk_brings_the_end() -> None:
    """In one write, if there is room; otherwise the end is told once it has left. The server may answer before that."""

    async def main() -> None:
        for room in (1, 0):
            body = Body(Buffer(1000))
            sending, socket = body.send(), Socket(room)
            sending.start(socket)
            assert not sending.is_whole

            async def look_and_make_room(sending: Sending = sending, socket: Socket = socket) -> None:
                assert (sending.ended, sending.is_whole) == (False, True)
                await socket.make_room(sending)

            if room:
                assert await body.put(b"all", last=True)
            else:
                await lets_wait(body.put(b"all", last=True), look_and_make_room())
            assert await body.flush()
            assert (socket.written, sending.ended, body.over) == ([b"all$"], True, True)

    run(main())


def test_what_was_kept_waits_for_room_as_well() -> None:
    """A request that has to catch up writes no faster than the socket takes it."""

    async def main() -> None:
        body = Body(Buffer(1000))
        body.rest()
        await body.put(b"one")
        await body.put(b"two")
        body.end()
        sending, socket = body.send(), Socket(room=0)
        sending.start(socket)
        sending.push()
        assert (sending.taken, sending.written, socket.written) == (1, 0, [b"one"])
        await socket.make_room(sending)
        assert (sending.written, sending.ended, socket.written) == (2, True, [b"one", b"two$"])

    run(main())


def test_many_small_chunks_are_let_go_and_sent_again_in_linear_time() -> None:
    """The step at which the body outgrows its limit frees all chunks at once, and a burst lets other tasks run."""

    async def main() -> None:
        count = 73_000
        body = Body(Buffer(count * (1 + CHUNK_OVERHEAD)))
        body.rest()
        body._chunks.extend([b"x"] * count)
        body._held_bytes = body._buffer.used = count * (1 + CHUNK_OVERHEAD)
        body.count = body.handed = count
        sending, socket = body.send(), Socket(room=10**9)
        sending.start(socket)
        while sending.written < count:
            assert sending.written % BURST == 0
            sending.resume()
        assert socket.pauses == (count - 1) // BURST
        assert await body.put(b"one more")
        assert (body.held, body._held_bytes, body._buffer.used) == (False, 0, 0)
        assert len(socket.written) == count + 1

    run(main())


def test_a_writer_that_never_waits_lets_other_tasks_run() -> None:
    """After each burst, so that the answer of the server is seen."""

    async def main() -> None:
        body = Body(Buffer(0))
        body.send().start(Socket(room=10**9))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            for _ in range(10 * BURST):
                await body.put(b"x")
            tasks.cancel_scope.cancel()
        assert turns >= 9

    run(main())


def test_a_chunk_that_does_not_wait_is_kept_as_long_as_there_is_room() -> None:
    """What was written is let go for it; what has yet to be written is not, and then the chunk is refused."""

    async def main() -> None:
        body = Body(Buffer(ROOM))
        assert body.put_nowait(b"12345")
        assert body.put_nowait(b"67890")
        assert not body.put_nowait(b"!")
        assert (body.handed, body.held) == (10, True)
        socket = Socket(room=2)
        sending = body.send()
        sending.start(socket)
        assert body.put_nowait(b"abcde")
        assert body.put_nowait(b"fghij")
        assert not body.put_nowait(b"!")
        await socket.make_room(sending)
        assert body.put_nowait(b"$$$$$")
        assert socket.written == [b"12345", b"67890", b"abcde", b"fghij", b"$$$$$"]
        assert not body.held
        body.stop()
        assert not body.put_nowait(b"?")
        assert Body(Buffer(0)).put_nowait(b"one is always taken")

    run(main())


def test_bodies_share_a_buffer() -> None:
    """One that finds no room waits until another one lets go; what was given up makes room at once."""

    async def main() -> None:
        buffer = Buffer(ROOM)
        old, new, other = Body(buffer), Body(buffer), Body(buffer)
        for body in (old, new, other):
            body.rest()
        assert await old.put(b"12345")
        assert await old.put(b"67890")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(new.put, b"abcde")
            tasks.start_soon(other.put, b"fghij")
            await anyio.wait_all_tasks_blocked()
            assert (new.handed, other.handed, len(buffer.waiting)) == (0, 0, 2)
            old.forget()
        assert (new.handed, other.handed, buffer.used, buffer.waiting) == (5, 5, ROOM, set())
        old.stop()
        assert buffer.used == ROOM
        new.stop()
        assert buffer.used == ROOM // 2

    run(main())


def test_a_body_that_was_let_go_is_not_begun_again() -> None:
    """An authentication that makes the request again gets an error, not a part of the body."""

    async def main() -> None:
        body = Body(Buffer(0))
        sending, socket = body.send(), Socket()
        sending.start(socket)
        for _ in range(2):
            await body.put(b"x")
        sending.detach()
        with pytest.raises(faults.WriteError):
            sending.start(socket)

    run(main())
