"""The socket stream: independent directions, cancellation without loss, silence, connecting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
import ssl
import struct
from pathlib import Path

import aiohappyeyeballs
import anyio
import anyio.lowlevel
import pytest

from tests.support.peers import Peer, fake_server, run
from tricklecast.trickle.client import sockets
from tricklecast.trickle.client.sockets import (
    PEER_TIMEOUT_S,
    Silence,
    SocketStream,
    connect_tcp,
    connect_unix,
    reason,
    waiter_type,
)
from tricklecast.trickle.client.waking import Waiter


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
    """The bytes of one read are returned at once; the next read is a task switch."""

    async def main() -> None:
        stream, peer = pair()
        others: list[int] = []

        async def other() -> None:
            others.append(1)

        with peer:
            async with stream, anyio.create_task_group() as tasks:
                for part in (b"abc", b"d"):
                    others.clear()
                    peer.sendall(part)
                    tasks.start_soon(other)
                    assert await stream.receive(2) == part[:2]
                    assert others
                    assert not part[2:] or await stream.receive() == part[2:]

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


def test_what_tasks_of_asyncio_wait_for_is_imported_once() -> None:
    waiter_type.cache_clear()
    assert waiter_type() is Waiter
    assert (waiter_type(), waiter_type.cache_info().misses) == (Waiter, 1)


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


def test_every_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal the next address is tried at once, after silence a moment later."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.send(b"hello")
            await peer.closed()

        async with fake_server(script) as server:
            port = int(server.base.split(":")[2].split("/")[0])

            def resolve(*addresses: str) -> None:
                found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

                async def getaddrinfo(*_: object, **__: object) -> object:
                    return found

                monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)

            # 127.0.0.2 refuses; 192.0.2.1 is reserved for documentation, and answers nobody.
            resolve("127.0.0.2", "127.0.0.1")
            async with await connect_tcp("host", port) as stream:
                assert await stream.receive() == b"hello"
            resolve("127.0.0.2", "127.0.0.3")
            with pytest.raises(OSError) as refused:  # noqa: PT011  # its words are checked below
                await connect_tcp("host", port)
            assert reason(refused.value) == "Connection refused"

    run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_backend_connects(backend: str) -> None:
    """Stream and errors are the same under asyncio and trio."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            async with await connect_tcp("localhost", port) as stream:
                theirs, _ = listener.accept()
                with theirs:
                    await stream.send(b"hello")
                    assert theirs.recv(5) == b"hello"
                    theirs.sendall(b"there")
                    assert await stream.receive() == b"there"
        with pytest.raises(OSError) as refused:  # noqa: PT011  # its words are checked below
            await connect_tcp("127.0.0.1", port)
        assert reason(refused.value) == "Connection refused"
        with pytest.raises(OSError) as unknown:  # noqa: PT011
            await connect_tcp("no-such-host.invalid", port)
        assert "not known" in reason(unknown.value) or "resolution" in reason(unknown.value)

    anyio.run(main, backend=backend)


def test_an_error_of_uvloop_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop raises RuntimeError where asyncio raises OSError."""

    async def fail(*_: object, **__: object) -> socket.socket:
        raise RuntimeError("not connected")

    async def main() -> None:
        monkeypatch.setattr(aiohappyeyeballs, "start_connection", fail)
        with pytest.raises(OSError, match="not connected"):
            await connect_tcp("127.0.0.1", 1)

    run(main())


def test_an_answer_without_tls_is_named() -> None:
    """The message tells the user to try http:// instead of OpenSSL's words."""
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    assert "http://" in reason(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "certificate verify failed"), "certificate verify failed"),
        (OSError("all of them"), "all of them"),
        (UnicodeError("label too long"), "label too long"),
        (OSError(), "OSError"),
    ],
    ids=["errno", "resolver", "tls", "text", "host name", "nothing"],
)
def test_reasons_are_words(error: Exception, words: str) -> None:
    """The reason of an error in a group is that of its first cause."""
    assert reason(error) == words
    outer = OSError("all attempts failed")
    outer.__cause__ = ExceptionGroup("", [ExceptionGroup("", [error])])
    assert reason(outer) == (words if isinstance(error, OSError) else "all attempts failed")


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


def test_a_peer_that_vanishes_is_noticed_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket has keep-alive probes and a user timeout; unknown options are left out."""
    monkeypatch.setitem(sockets._OPTIONS, "TCP_OF_ANOTHER_SYSTEM", 1)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with await connect_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
                option = stream._socket.getsockopt
                assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == PEER_TIMEOUT_S * 1000

    run(main())


def test_a_unix_socket_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    """The connection is made when the server accepts one."""

    async def main() -> None:
        path = str(tmp_path / "socket")
        with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as waiting:
            listener.bind(path)
            listener.listen(0)
            while True:
                one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                if one.connect_ex(path) == errno.EAGAIN:
                    break
            async with anyio.create_task_group() as tasks:

                async def connect() -> None:
                    (await connect_unix(path)).close()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(connect)
                await anyio.wait_all_tasks_blocked()
                listener.setblocking(False)
                while True:
                    await anyio.wait_readable(listener)
                    listener.accept()[0].close()

    run(main())


def test_a_unix_socket_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """So is one on which nobody listens."""

    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await connect_unix(str(tmp_path / "socket"))
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(tmp_path / "socket"))
            with pytest.raises(ConnectionRefusedError):
                await connect_unix(str(tmp_path / "socket"))

    run(main())
