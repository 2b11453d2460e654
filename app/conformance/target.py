"""The server under test, as a case sees it: connections, fresh channels, and what the server was started with."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.connection import AT_ONCE_S, Connection, Headers, Transcript, Upload
from tricklecast.app.conformance.http1 import Response
from tricklecast.app.conformance.profiles import Settings
from tricklecast.app.conformance.verdicts import Failure, Skip
from tricklecast.trickle import wire

_CLEANUP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is.

    Attributes:
        host, port: of the server.
        base_path: below which the segment routes are, ``""`` for the root.
        tls: how to speak TLS to it; ``None`` for plain TCP.
    """

    host: str
    port: int
    base_path: str = wire.DEFAULT_BASE_PATH
    tls: ssl.SSLContext | None = None

    def connect(self, within_s: float = AT_ONCE_S) -> socket.socket:
        """Open a connection.

        Raises:
            OSError: there is nothing that accepts it, or no TLS.
        """
        sock = socket.create_connection((self.host, self.port), timeout=within_s)
        # A case's small writes must each leave when it says so.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if self.tls is None else self.tls.wrap_socket(sock, server_hostname=self.host)

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Target:
    """What one case works with. It closes its connections and ends its channels when the case is over.

    Args:
        address: where the server is.
        settings: what it was started with.
        at_once_s: how long "at once" may take.
    """

    def __init__(self, address: Address, settings: Settings | None = None, *, at_once_s: float = AT_ONCE_S) -> None:
        self.address = address
        self.at_once_s = at_once_s
        self.base = address.base_path
        self.settings = settings or Settings()
        self.transcript = Transcript()
        self._connections: list[Connection] = []
        self._channels: list[Channel] = []

    def open(self) -> Connection:
        """A new connection.

        Raises:
            Failure: the server does not accept it.
        """
        try:
            sock = self.address.connect(self.at_once_s)
        except OSError as error:
            raise Failure("a connection", str(error)) from None
        connection = Connection(
            sock, self.address.authority, len(self._connections) + 1, self.transcript, self.at_once_s
        )
        self._connections.append(connection)
        return connection

    def send(self, method: str, path: str, headers: Headers = (), body: bytes | None = None) -> Connection:
        """Send a request on a connection of its own, and leave the answer to be read."""
        connection = self.open()
        connection.request(method, path, headers, body)
        return connection

    def ask(self, method: str, path: str, headers: Headers = (), body: bytes | None = None) -> Response:
        """One request on a connection of its own, and its whole response, which must come at once."""
        connection = self.send(method, path, headers, body)
        response = connection.response()
        connection.close()
        return response

    def channel(self, name: str | None = None) -> Channel:
        """A channel that nobody else uses; it is not created yet.

        Args:
            name: for rules about names; the default is a fresh one.
        """
        channel = Channel(self, f"conformance-{secrets.token_hex(8)}" if name is None else name)
        self._channels.append(channel)
        return channel

    def settle(self) -> None:
        """Let the server handle what was sent so far.

        Two round trips on new connections: an event loop cannot answer the second before it has handled what
        arrived before the first. Rules are never judged by this alone; it makes a fault likely to be seen.
        """
        for _ in range(2):
            # Each time another one: a server may well hold back who asks for the same missing channel again and again.
            self.ask("GET", f"{self.base}/conformance-settle-{secrets.token_hex(4)}/next")

    @contextlib.contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """Skip the case if the enclosed steps took so long that the server may rightly have given up.

        Raises:
            Skip: they took longer than three quarters of the limit.
        """
        start = time.monotonic()
        failure: Failure | None = None
        try:
            yield
        except Failure as error:
            failure = error
        if time.monotonic() - start > 0.75 * limit_s:
            raise Skip(
                f"this machine is too slow to tell within {limit_s:g} s; a server with longer graces can"
            ) from None
        if failure:
            raise failure

    def cleanup(self) -> None:
        """Close every connection and end every channel that the case used, as far as the server lets us."""
        for connection in self._connections:
            connection.close()
        for channel in self._channels:
            with contextlib.suppress(Failure):
                connection = self.send("DELETE", channel.path)
                connection.response(_CLEANUP_S)
        for connection in self._connections:
            connection.close()


class Channel:
    """One channel on the target.

    Args:
        target: the server.
        name: decoded.
    """

    def __init__(self, target: Target, name: str) -> None:
        self.target = target
        self.name = name
        self.path = f"{target.base}/{quote(name, safe='')}"

    def at(self, seq: int | str) -> str:
        """The path of a segment, or of whatever else stands in its place."""
        return f"{self.path}/{seq}"

    def create(self, mime: str | None = None) -> Response:
        """Create it."""
        headers = {} if mime is None else {wire.EXPECT_CONTENT: mime}
        return expect.status(self.target.ask("POST", self.path, headers, b""), 200)

    def post(self, seq: int | str, body: bytes = b"x", headers: Headers = ()) -> Response:
        """Publish a segment with a counted body, whatever the answer is."""
        return self.target.ask("POST", self.at(seq), headers, body)

    def publish(self, seq: int, *bodies: bytes) -> None:
        """Publish segments from this seq on, which must succeed."""
        for number, body in enumerate(bodies or (b"x",), seq):
            expect.status(self.post(number, body), 200)

    def upload(self, seq: int, *chunks: bytes, headers: Headers = ()) -> Upload:
        """Begin to publish: the headers and so many chunks; without one it is a preconnect."""
        connection = self.target.open()
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
        head = connection.render("POST", self.at(seq), [*pairs, ("Transfer-Encoding", "chunked")])
        connection.send(head)
        connection.expects("POST")
        upload = Upload(connection)
        for chunk in chunks:
            upload.chunk(chunk)
        return upload

    def preconnect(self, seq: int) -> Upload:
        """Open a POST without a byte of body, and let it arrive."""
        upload = self.upload(seq)
        self.target.settle()
        return upload

    def started(self, seq: int, *chunks: bytes) -> tuple[Upload, Connection]:
        """An open segment, and a reader that has received all of its bytes so far."""
        upload = self.upload(seq, *chunks)
        # A server that handles requests side by side would tell the reader that the channel is missing.
        self.target.settle()
        reader = self.arrived(seq, b"".join(chunks))
        return upload, reader

    def arrived(self, seq: int, data: bytes) -> Connection:
        """Wait until the server has taken in these first bytes of a segment; the reader that saw them."""
        reader = self.read(seq)
        expect.status(reader.head(), 200)
        expect.equal("the bytes so far", reader.body(len(data)), data)
        return reader

    def read(self, seq: int | str, headers: Headers = ()) -> Connection:
        """Send a GET and leave the answer to be read."""
        return self.target.send("GET", self.at(seq), headers)

    def waiting(self, seq: int | str) -> Connection:
        """Send a GET that has to wait, and let it arrive."""
        reader = self.read(seq)
        self.target.settle()
        return reader

    def get(self, seq: int | str, headers: Headers = ()) -> Response:
        """A GET that is answered, and whose body ends, at once."""
        return self.target.ask("GET", self.at(seq), headers)

    def next_seq(self) -> int:
        """The head, as ``/next`` says."""
        response = expect.status(self.get(wire.NEXT_ROUTE), 200)
        text = response.body.decode("ascii", "replace").strip()
        return int(expect.matches("/next", text, r"[0-9]{1,15}"))

    def close(self, seq: int | str) -> Response:
        """Close one segment."""
        return self.target.ask("DELETE", self.at(seq))

    def end(self) -> Response:
        """End the channel, which must succeed."""
        return expect.status(self.target.ask("DELETE", self.path), 200)
