"""The socket stream: what event-loop transports do not give."""

from __future__ import annotations

import contextlib
import socket

import anyio
import anyio.lowlevel
import pytest

from tests.publisher.peers import Peer, fake_server, run
from tricklecast.publisher import sockets
from tricklecast.publisher.sockets import PEER_TIMEOUT_S, SocketStream, connect_tcp


def pair() -> tuple[SocketStream, socket.socket]:
    """A stream and its peer, connected over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setblocking(False)
    return SocketStream(ours), theirs


def test_reading_and_writing_wait_for_each_other_s_end() -> None:
    """Large data goes through although neither side's buffer can hold it; the end of it is seen."""

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
    """A reset under a write does not take the answer away."""

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


def test_closing_wakes_the_reader() -> None:
    """A reader that waits learns that the stream was closed here, and so does a later one."""

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
    """An address that refuses costs nothing, one that is silent a moment; without any there is an error for each."""

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
            with pytest.raises(OSError, match="refused"):
                await connect_tcp("host", port)

    run(main())


def test_a_silent_address_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the stagger, the next address is tried beside it; whichever answers first wins, the other is closed."""

    async def main() -> None:
        monkeypatch.setattr(sockets, "STAGGER_S", 0.01)
        ours, theirs = socket.socketpair()

        async def connect(family: int, address: tuple[str | int, ...]) -> socket.socket:
            if address[0] == "silent":
                await anyio.sleep_forever()
            return ours

        async def getaddrinfo(*_: object, **__: object) -> object:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 1)) for name in ("silent", "fast")]

        monkeypatch.setattr(sockets, "_connect", connect)
        monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
        with theirs:
            async with await connect_tcp("host", 1) as stream:
                assert isinstance(stream, SocketStream)

    run(main())


def test_what_the_peer_has_not_received_is_known() -> None:
    """All that lies between here and there; nothing once it was read."""

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
    """A write goes on for as long as the peer receives something, however little."""

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


def test_a_peer_that_vanishes_is_noticed_by_the_kernel() -> None:
    """By probes of a quiet connection, and by what is not acknowledged of a busy one."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with await connect_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
                option = stream._socket.getsockopt
                assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == PEER_TIMEOUT_S * 1000

    run(main())
