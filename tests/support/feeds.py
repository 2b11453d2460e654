"""A client that follows a channel by its feed, over a real socket, and holds a copy of it."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from types import TracebackType

from tests.support.waiting import WITHIN_S
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.state import Channel
from tricklecast.app.replication.records import FeedEnd
from tricklecast.app.replication.replica import Replica

UPGRADE = {"Connection": "Upgrade", "Upgrade": "trickle-feed"}


class Follower:
    """Asks a server for the feed of a channel, and waits for the answer.

    Args:
        target: of the request. headers: beside those of every such request. tls: how it speaks TLS, if it does.

    Attributes:
        status, headers: of the answer; names in small letters.
        replica: of the channel. told: the segments that have closed in it: seq, size and checksum.
        over: why the feed has ended.
    """

    def __init__(
        self, port: int, target: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WITHIN_S)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._target, self._headers, self._rest = target, UPGRADE | dict(headers or {}), b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.told: list[tuple[int, int, int]] = []
        name = target.partition("?")[0].rpartition("/")[2]
        registry = Registry(Limits(), autocreate=True)
        self.replica = Replica(
            name, registry, lambda: 7.0, lambda at_us: at_us / 1e6, closed=lambda *about: self.told.append(about)
        )
        self.over: FeedEnd | None = None
        lines = [f"GET {target} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in self._headers.items())]
        self._socket.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())

    def answered(self) -> int:
        """Wait for the head of the answer; its status."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = self._socket.recv(65536)
            assert more, f"the server closed the connection behind {data!r}"
            data += more
        head, _, self._rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return self.status

    def follow(self) -> Follower:
        """Begin the feed."""
        assert self.answered() == 101
        self._socket.sendall(self.replica.hello())
        return self

    def until(self, holds: Callable[[], object]) -> Channel:
        """Apply what comes until something is so, or the feed ends; the channel."""
        while not holds() and self.over is None:
            if data := self._socket.recv(65536):
                self.over = self.replica.receive(data)
            else:
                break
        assert self.replica.channel is not None
        return self.replica.channel

    def until_live(self) -> Channel:
        """Apply all of the snapshot; the channel."""
        return self.until(lambda: self.replica.live)

    def gone(self) -> bool:
        """Wait for the end of the connection, whatever comes before it."""
        try:
            while self._socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def send(self, data: bytes) -> None:
        """Send something else."""
        self._socket.sendall(data)

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def abort(self) -> None:
        """Reset the connection, as a client that crashes."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
