"""The server under test: connections to it, fresh channels on it, and the settings it was started with."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tricklecast.app.tools.conformance.connection import (
    AT_ONCE_S,
    ChunkedPost,
    HeaderFields,
    RawConnection,
    Transcript,
    pairs,
)
from tricklecast.app.tools.conformance.profiles import ServerSettings
from tricklecast.app.tools.conformance.response import Failure, Response, equal, number
from tricklecast.trickle import wire

POLL_S: Final = 0.05
"""How long a case waits before it asks again for what may take a moment."""

CLEANUP_S: Final = 2.0
"""The time that a case has to end its channels."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server; the base path is empty for the root."""

    host: str
    port: int
    base_path: str = wire.DEFAULT_BASE_PATH
    tls: ssl.SSLContext | None = None
    """The trusted certificates; ``None`` for plain TCP."""
    unix: str | None = None
    """The path of the server's Unix socket; host and port then only make its name."""

    def connect(self, within_s: float = AT_ONCE_S) -> socket.socket:
        """Open a connection.

        Raises:
            OSError: the server does not accept it, or the TLS handshake failed.
        """
        if self.unix is None:
            sock = socket.create_connection((self.host, self.port), timeout=within_s)
            # A case decides which bytes leave together.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(within_s)
            try:
                sock.connect(self.unix)
            except OSError:
                sock.close()
                raise
        return sock if self.tls is None else self.tls.wrap_socket(sock, server_hostname=self.host)

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Target:
    """The server as one case sees it: its connections, its channels, and the settings that the server was started with.

    An answer that must come at once has ``at_once_s`` seconds.
    """

    def __init__(
        self, address: Address, settings: ServerSettings | None = None, *, at_once_s: float = AT_ONCE_S
    ) -> None:
        self.address = address
        self.at_once_s = at_once_s
        self.base = address.base_path
        self.settings = settings or ServerSettings()
        self.transcript = Transcript()
        self._connections: list[RawConnection] = []  # all that were opened
        self._channels: list[RemoteChannel] = []  # that are ended with the case
        self._interrupted = False  # no connection may be opened any more

    def open(self) -> RawConnection:
        connection = self._connect(self.at_once_s)
        if self._interrupted:
            raise Failure("the case to end", "an interrupt")
        return connection

    def send(
        self, method: str, path: str, headers: HeaderFields = (), body: bytes | None = None, version: str = "1.1"
    ) -> RawConnection:
        """Send a request on a new connection, and leave the response unread."""
        connection = self.open()
        connection.request(method, path, headers, body, version)
        return connection

    def ask(self, method: str, path: str, headers: HeaderFields = (), body: bytes | None = None) -> Response:
        """Send a request on a new connection, and return the whole response, which must come at once."""
        connection = self.send(method, path, headers, body)
        response = connection.response()
        connection.close()
        return response

    def channel(self, name: str | None = None) -> RemoteChannel:
        """A channel that no other client uses, by default of a random name. The server does not know it yet."""
        channel = RemoteChannel(self, f"conformance-{secrets.token_hex(8)}" if name is None else name)
        self._channels.append(channel)
        return channel

    def settle(self) -> None:
        """Give the server time to handle the requests that were sent so far.

        This takes four round trips on new connections. An event loop cannot answer the second one before it has handled
        the bytes that arrived before the first one; a server may have several loops, and the kernel chooses. No case
        judges by this alone; it makes a fault likely to show.
        """
        for _ in range(4):
            # Each time another channel, since a server may delay a client that repeats a fruitless request.
            self.ask("GET", f"{self.base}/conformance-settle-{secrets.token_hex(4)}/next")

    def interrupt(self) -> None:
        """Make the case fail soon, from another thread: end its connections, and refuse new ones."""
        self._interrupted = True
        for connection in list(self._connections):
            connection.interrupt()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def cleanup(self) -> None:
        """Close the case's connections, and end its channels if the server answers within :data:`CLEANUP_S`."""
        self.close()
        deadline = time.monotonic() + CLEANUP_S
        for channel in self._channels:
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            with contextlib.suppress(Failure):
                connection = self._connect(left_s)
                connection.request("DELETE", channel.path)
                connection.response(left_s)
        self.close()

    def _connect(self, within_s: float) -> RawConnection:
        try:
            sock = self.address.connect(within_s)
        except OSError as error:
            raise Failure("a connection", str(error)) from None
        count = len(self._connections) + 1
        connection = RawConnection(sock, self.address.authority, count, self.transcript, self.at_once_s)
        self._connections.append(connection)
        return connection


class RemoteChannel:
    """One channel on the server, by its decoded name."""

    def __init__(self, target: Target, name: str) -> None:
        self.target = target
        self.name = name
        self.path = f"{target.base}/{quote(name, safe='')}"

    def at(self, seq: int | str) -> str:
        """The path of a segment, or of any text in the place of a seq."""
        return f"{self.path}/{seq}"

    # Requests that must succeed, and expectations of the channel itself: others can follow

    def create(self, mime: str | None = None) -> RemoteChannel:
        self.ask("POST", {} if mime is None else {wire.EXPECT_CONTENT: mime}, b"").expect(200)
        return self

    def publish(self, seq: int, *bodies: bytes) -> RemoteChannel:
        """Publish segments from this seq on; by default one."""
        for at, body in enumerate(bodies or (b"x",), seq):
            self.post(at, body).expect(200)
        return self

    def has(self, seq: int, body: bytes, **headers: str | int | None) -> RemoteChannel:
        """Expect that a segment is kept, with this body and these headers."""
        self.get(seq).segment(seq, body, **headers)
        return self

    def head_is(self, seq: int) -> RemoteChannel:
        equal("the head", self.next_seq(), seq)
        return self

    def next_seq(self) -> int:
        """The head, as ``/next`` answers it."""
        return number("/next", self.get(wire.NEXT_ROUTE).expect(200).body.decode("ascii", "replace").strip())

    def unknown(self) -> None:
        self.get(wire.NEXT_ROUTE).expect(404)

    def end(self) -> Response:
        """End the channel, which must succeed."""
        return self.ask("DELETE").expect(200)

    # Requests that may be refused

    def ask(self, method: str, headers: HeaderFields = (), body: bytes | None = None) -> Response:
        return self.target.ask(method, self.path, headers, body)

    def post(self, seq: int | str, body: bytes = b"x", headers: HeaderFields = ()) -> Response:
        """Publish a segment with a counted body."""
        return self.target.ask("POST", self.at(seq), headers, body)

    def get(self, seq: int | str, headers: HeaderFields = ()) -> Response:
        """Read a segment whose body ends at once."""
        return self.target.ask("GET", self.at(seq), headers)

    def close(self, seq: int | str, headers: HeaderFields = ()) -> Response:
        """Send a DELETE of one segment."""
        return self.target.ask("DELETE", self.at(seq), headers)

    # Readers and publishers whose requests stay open

    def read(self, seq: int | str, headers: HeaderFields = ()) -> RawConnection:
        """Send a GET, and leave the response unread."""
        return self.target.send("GET", self.at(seq), headers)

    def waiting(self, seq: int | str) -> RawConnection:
        """Send a GET that has to wait, and let it arrive."""
        reader = self.read(seq)
        self.target.settle()
        return reader

    def upload(self, seq: int, *chunks: bytes, headers: HeaderFields = ()) -> ChunkedPost:
        """Begin a chunked POST: the head and these chunks. Without a chunk it is a preconnect."""
        headers = [*pairs(headers), ("Transfer-Encoding", "chunked")]
        upload = ChunkedPost(self.target.send("POST", self.at(seq), headers))
        for chunk in chunks:
            upload.chunk(chunk)
        return upload

    def preconnect(self, seq: int) -> ChunkedPost:
        """Open a POST without a byte of body, and let it arrive."""
        upload = self.upload(seq)
        self.target.settle()
        return upload

    def started(self, seq: int, *chunks: bytes, headers: HeaderFields = ()) -> tuple[ChunkedPost, RawConnection]:
        """An open segment with these chunks, and a reader that has received all of them."""
        upload = self.upload(seq, *chunks, headers=headers)
        # A server that handles requests in parallel could otherwise tell the reader that the channel is missing.
        self.target.settle()
        return upload, self.arrived(seq, b"".join(chunks))

    def arrived(self, seq: int, data: bytes) -> RawConnection:
        """Wait until the server has these first bytes of a segment; returns the reader that received them."""
        deadline = time.monotonic() + self.target.at_once_s
        while (head := (reader := self.read(seq)).head()).status == 404 and time.monotonic() < deadline:
            reader.close()  # the channel's first POST, on another connection, is still on its way
            time.sleep(POLL_S)
        head.expect(200)
        return reader.gets(data)

    def lose(self, client: ChunkedPost | RawConnection) -> None:
        """Reset a client's connection, and let the server notice."""
        client.abort()
        self.target.settle()
