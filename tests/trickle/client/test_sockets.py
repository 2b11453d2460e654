"""The socket stream: independent directions, cancellation without loss, silence; and a task that waits is run in the
turn in which it may go on."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from contextvars import ContextVar
from time import monotonic

import anyio
import anyio.lowlevel
import pytest

from tests.support.peers import run
from tricklecast.trickle.client.sockets import MAX_STEPS, Silence, SocketStream, Waiter, clock_of, running_loop


def pair() -> tuple[SocketStream, socket.socket]:
    """A stream and its peer, connected over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setblocking(False)
    return SocketStream(ours), theirs


def test_reading_and_writing_wait_for_each_other_s_end() -> None:
    """Data larger than both buffers go through, and their end is seen."""

    async def main() -> None:
        stream, peer = pair()
        data = bytes(range(256)) * 40_000

        def drain() -> bytes:
            with peer:
                received = b""
                while part := peer.recv(1 << 20):
                    received += part
                peer.sendall(b"done")
                return received

        async with stream, anyio.create_task_group() as tasks:
            received: list[bytes] = []

            async def collect() -> None:
                received.append(await anyio.to_thread.run_sync(drain))

            tasks.start_soon(collect)
            assert stream.is_silent()
            await stream.send(data)
            await stream.send_eof()
            assert await stream.receive() == b"done"
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            assert not stream.is_silent()
        assert received == [data]

    run(main())


def test_what_the_peer_said_is_read_after_a_write_was_rejected() -> None:
    """A reset during a write does not lose the response."""

    async def main() -> None:
        stream, peer = pair()
        await stream.send(b"unread")
        peer.sendall(b"answer")
        peer.close()  # with unread bytes: the kernel resets the connection
        while not stream.peer_stopped_reading:
            await stream.send(b"x")
            await anyio.lowlevel.checkpoint()
        await stream.send(b"dropped")
        assert await stream.receive() == b"answer"
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
        await stream.aclose()

    run(main())


def test_parts_are_written_as_one() -> None:
    """The rest for which there is no room is returned; a peer that has gone takes nothing."""

    async def main() -> None:
        stream, peer = pair()
        with peer:
            assert stream.send_now([b"5\r\n", b"hello", b"\r\n"]) == b""
            assert peer.recv(100) == b"5\r\nhello\r\n"
            data = bytes(64 << 20)
            assert 0 < len(stream.send_now([b"head", data])) < len(data)
            while len(stream.send_now([data])) < len(data):
                pass
            stream.close()
            for _ in range(2):
                assert stream.send_now([b"x"]) == b""
                assert stream.peer_stopped_reading

    run(main())


def test_a_writer_that_waits_learns_that_the_stream_was_closed() -> None:
    """The rest of its bytes is dropped without an error."""

    async def main() -> None:
        stream, peer = pair()
        with peer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, bytes(64 << 20))
                await anyio.wait_all_tasks_blocked()
                stream.close()
            assert stream.peer_stopped_reading

    run(main())


def test_a_connection_that_breaks_is_told_from_one_that_ends() -> None:
    """A reset is an error; a close is the end of the stream."""

    async def main() -> None:
        stream, peer = pair()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        async with stream:
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()

    run(main())


def test_a_stream_that_always_has_data_lets_others_run() -> None:
    """The bytes of one read are returned at once; the next reads are task switches.

    asyncio begins another task before it runs one that waits for a socket; uvloop does so in its next turn.
    """

    async def main() -> None:
        stream, peer = pair()
        others: list[int] = []

        async def other() -> None:
            others.append(1)

        with peer:
            async with stream, anyio.create_task_group() as tasks:
                for _ in range(3):
                    others.clear()
                    tasks.start_soon(other)
                    reads = 0
                    while not others:
                        peer.sendall(b"abc")
                        assert await stream.receive(2) == b"ab"
                        assert await stream.receive() == b"c"
                        reads += 1
                        assert reads <= 2

    run(main())


def test_a_task_that_is_cancelled_has_read_nothing() -> None:
    """A cancellation between the bytes and the waiting task loses nothing, also one by asyncio itself."""

    async def main() -> None:
        stream, peer = pair()
        with peer:
            async with stream:
                for steps in range(6):
                    reading = asyncio.ensure_future(stream.receive())
                    await asyncio.sleep(0)
                    peer.sendall(b"abc")
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    reading.cancel()
                    await asyncio.wait([reading])
                    assert (await stream.receive() if reading.cancelled() else reading.result()) == b"abc"

    run(main())


def test_bytes_that_nobody_takes_stay_in_the_kernel() -> None:
    """A peer that sends faster than the reader takes is held back, and no byte is lost."""

    async def main() -> None:
        stream, peer = pair()
        data = bytes(range(256)) * 256
        with peer:
            async with stream:
                peer.sendall(b"begin")
                assert await stream.receive() == b"begin"
                peer.setblocking(False)
                sent = full = 0
                while full < 10:  # turns of the loop in a row without room for another byte
                    await anyio.sleep(0.001)
                    try:
                        sent += peer.send(data[sent % len(data) :])
                        full = 0
                    except BlockingIOError:
                        full += 1
                received = b""
                while len(received) < sent:
                    received += await stream.receive()
                assert received == (data * (sent // len(data) + 1))[:sent]

    run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_silence_is_an_error_after_which_reading_goes_on(backend: str) -> None:
    """The limit counts from the beginning of each wait, and may change between two waits."""

    async def main() -> None:
        stream, peer = pair()
        with peer:
            async with stream:
                for receive_s in (60.0, 0.3):
                    stream.receive_s = receive_s
                    peer.sendall(b"abc")
                    assert await stream.receive() == b"abc"
                    await anyio.sleep(0.03)  # the next wait ends so much later than this one would have
                for _ in range(2):
                    with pytest.raises(Silence):
                        await stream.receive()
                peer.sendall(b"def")
                assert await stream.receive() == b"def"
                stream.receive_s = None  # a timer that is still set does nothing
                with anyio.move_on_after(0.6):
                    await stream.receive()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_limit_of_a_wait_can_be_set_and_lifted_while_it_lasts(backend: str) -> None:
    """A wait without a limit gets one, which counts from then on; lifted, it ends nothing."""

    async def main() -> None:
        stream, peer = pair()
        with peer:
            async with stream:

                async def receive() -> None:
                    with pytest.raises(Silence):
                        await stream.receive()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receive)
                    for seconds in (60.0, 61.0, None, 0.05):
                        await anyio.wait_all_tasks_blocked()
                        stream.limit_wait(seconds)
                        assert stream.receive_s == seconds

    anyio.run(main, backend=backend)


def test_what_knows_the_running_loop_is_imported_once() -> None:
    running_loop.cache_clear()
    assert running_loop() is asyncio.get_running_loop
    assert (running_loop(), running_loop.cache_info().misses) == (asyncio.get_running_loop, 1)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_bytes_wake_the_task_that_waits_for_them(backend: str) -> None:
    """An idle stream that has received bytes is not silent."""

    async def main() -> None:
        stream, peer = pair()
        with peer:
            async with stream:

                async def receive() -> None:
                    assert await stream.receive() == b"abc"

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receive)
                    await anyio.wait_all_tasks_blocked()
                    assert stream.is_silent()
                    peer.sendall(b"abc")
                peer.sendall(b"d")
                select.select([stream._socket], [], [])
                assert not stream.is_silent()

    anyio.run(main, backend=backend)


def test_a_stream_can_be_used_in_another_event_loop() -> None:
    """A client may keep its idle connections from one ``asyncio.run()`` to the next."""
    made: list[tuple[SocketStream, socket.socket]] = []

    async def use() -> None:
        if not made:
            made.append(pair())
        stream, peer = made[0]
        assert stream.is_silent()  # as the client makes sure of, before it uses the connection again
        stream.receive_s = 60.0
        peer.sendall(b"abc")
        assert await stream.receive() == b"abc"

    async def leave() -> None:
        stream, peer = made[0]
        peer.close()
        await stream.aclose()

    for main in (use, use, leave):
        run(main())


def test_closing_wakes_the_reader() -> None:
    """A waiting reader gets an error, and so does a later one."""

    async def main() -> None:
        stream, peer = pair()

        async def close() -> None:
            await anyio.lowlevel.checkpoint()
            await stream.aclose()

        with peer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(close)
                with pytest.raises(anyio.ClosedResourceError):
                    await stream.receive()
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()
            assert not stream.is_silent()
            await stream.aclose()
            await stream.send(b"x")
            assert stream.peer_stopped_reading

    run(main())


def test_what_the_peer_has_not_received_is_known() -> None:
    """All bytes on the way count; none once the peer has them."""

    async def main() -> None:
        stream, peer = pair()
        with peer:
            async with stream:
                stream.stall_s = 0.05
                with pytest.raises(TimeoutError):
                    await stream.send(bytes(64 << 20))
                assert stream.unacknowledged > 0
                peer.setblocking(False)
                while stream.unacknowledged:
                    with contextlib.suppress(BlockingIOError):
                        peer.recv(1 << 20)
            assert stream.unacknowledged == 0

    run(main())


def test_a_slow_peer_is_not_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write goes on while the peer receives any byte."""

    async def main() -> None:
        stream, peer = pair()
        left = iter([9, 8, 8, 7, 7, 7])
        monkeypatch.setattr(SocketStream, "unacknowledged", property(lambda _: next(left)))
        with peer:
            async with stream:
                stream.stall_s = 0.02
                with pytest.raises(TimeoutError):
                    await stream.send(bytes(64 << 20))
        assert list(left) == []

    run(main())


NAME: ContextVar[str] = ContextVar("NAME")


def test_the_task_runs_before_the_callback_goes_on() -> None:
    """It runs in its own context, and is the present task."""
    seen: list[object] = []

    async def main() -> None:
        waiter = Waiter()

        async def wait() -> None:
            NAME.set("the task's")
            await waiter
            seen.append((NAME.get(), asyncio.current_task()))

        def wake() -> None:
            waiter.wake_now()
            seen.append(NAME.get("none"))

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(wake)
        await task
        assert seen == [("the task's", task), "none"]

    asyncio.run(main())


@pytest.mark.parametrize("end", ["result", "error", "cancel"])
def test_all_others_complete_it_as_any_future(end: str) -> None:
    """The task runs in the next turn, also where a task completes what another one waits for."""

    async def main() -> str:
        waiter = Waiter()

        async def wait() -> str:
            try:
                await waiter
            except KeyError:
                return "error"
            except asyncio.CancelledError:
                return "cancel"
            return "result"

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        if end == "cancel":
            task.cancel()
        elif end == "error":
            waiter.fail(KeyError())
        else:
            waiter.wake_soon()
        waiter.wake_now()  # too late: it is over
        assert waiter.done()
        assert not waiter.cancel()
        return await task

    assert asyncio.run(main()) == end


def test_a_task_waits_as_often_as_it_likes() -> None:
    """Each wake ends one wait; one that comes between two waits ends none."""

    async def main() -> None:
        waiter = Waiter()
        waiter.wake_now()
        loop = asyncio.get_running_loop()
        for wake in (waiter.wake_now, waiter.wake_soon, waiter.wake_now):
            loop.call_soon(wake)
            await waiter
            loop.call_soon(waiter.fail, KeyError())
            with pytest.raises(KeyError):
                await waiter

    asyncio.run(main())


def test_it_is_of_one_loop() -> None:
    """A task of another one may not wait for it."""

    async def main(waiters: list[Waiter]) -> None:
        waiters.append(Waiter())
        assert asyncio.isfuture(waiters[0])
        if len(waiters) > 1:
            with pytest.raises(RuntimeError, match="different loop"):
                await waiters[0]

    waiters: list[Waiter] = []
    for _ in range(2):
        asyncio.run(main(waiters))


def test_a_task_that_is_cancelled_in_the_same_turn_is_cancelled() -> None:
    """The cancellation came first."""

    async def main() -> None:
        waiter = Waiter()

        async def wait() -> None:
            await waiter

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        asyncio.get_running_loop().call_soon(waiter.wake_now)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_task_that_another_one_wakes_follows_it_in_the_same_turn() -> None:
    """So does a third one, up to a limit; the others run in the next turn, and nothing is lost."""
    woken: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        count = MAX_STEPS + 3
        waiters = [Waiter() for _ in range(count)]

        async def wait(number: int) -> None:
            await waiters[number]
            woken.append(number)
            if number + 1 < count:
                waiters[number + 1].wake_soon()

        tasks = [asyncio.create_task(wait(number)) for number in range(count)]
        await asyncio.sleep(0)
        loop.call_soon(waiters[0].wake_now)
        loop.call_soon(lambda: woken.append(-1))
        await asyncio.gather(*tasks)
        assert woken == [*range(MAX_STEPS), -1, *range(MAX_STEPS, count)]
        waiters[0].wake_soon()  # too late: it is over

    asyncio.run(main())


def test_a_task_that_ends_the_program_holds_up_no_other() -> None:
    """What it has woken is completed."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first, second = Waiter(), Waiter()

        async def wait() -> None:
            await first
            second.wake_soon()
            raise SystemExit

        ended: list[bool] = []

        def wake() -> None:
            with pytest.raises(SystemExit):
                first.wake_now()
            ended.append(True)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        loop.call_soon(wake)
        await second
        assert ended
        assert isinstance(task.exception(), SystemExit)

    asyncio.run(main())


def test_a_loop_of_another_kind_keeps_its_clock() -> None:
    """The clock of asyncio's own loops is asked without them."""

    class Other(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return 7.0

    own, other = asyncio.SelectorEventLoop(), Other()
    assert (clock_of(own), clock_of(other)()) == (monotonic, 7.0)
    own.close()
    other.close()
