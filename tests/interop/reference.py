"""A server with the habits of the reference implementation (go-livepeer's `trickle`), as far as our clients meet them.

It keeps five segments in a ring; a POST of any seq takes its place there. Its head is one past the segment that last
got its first byte or ended empty, so it may go back. It appends every body to what a segment holds. `-N` beyond -2 is
no place it knows: most of them crash the request. It forgets a channel with its DELETE, and tells no sizes, epochs,
earliest seqs or waiting times. Each connection has a thread, so that requests are handled side by side, as in Go.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.support.waiting import WITHIN_S

RING: Final = 5
_LOOK_S: Final = 0.005


@dataclass
class _Segment:
    seq: int
    data: bytearray = field(default_factory=bytearray)
    closed: bool = False


@dataclass
class _Channel:
    content_type: str
    ring: dict[int, _Segment] = field(default_factory=dict)
    head: int = 0
    closed: bool = False

    def close(self, below: int | None = None) -> None:
        for segment in self.ring.values():
            segment.closed |= below is None or segment.seq < below


class Reference:
    """The server's state.

    Attributes:
        base: URL below which the channels are.
        requests: method and path of each request, in the order of their heads.
        heads: what the head becomes with the first byte of a seq, where that is not seq + 1: an older segment may end
            empty right behind it.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.requests: list[str] = []
        self.heads: dict[int, int] = {}
        self.channels: dict[str, _Channel] = {}
        self.connections: set[socket.socket] = set()
        self.changed = threading.Condition()

    def url(self, name: str) -> str:
        """A channel's URL."""
        return f"{self.base}/{name}"

    def restart(self) -> None:
        """Every connection breaks and every channel is gone; nobody is told that it ended."""
        with self.changed:
            for connection in list(self.connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for channel in self.channels.values():
                channel.close()
            self.channels.clear()
            self.changed.notify_all()

    def set_head(self, name: str, head: int) -> None:
        """Move the head."""
        with self.changed:
            self.channels[name].head = head


@contextlib.contextmanager
def reference_server() -> Iterator[Reference]:
    """Run one until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    state = server.reference = Reference(f"http://127.0.0.1:{server.server_address[1]}/trickle")  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=_LOOK_S), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.restart()
        server.shutdown()
        server.server_close()
        thread.join(WITHIN_S)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 0  # so that a look at the socket tells whether there is more

    def handle(self) -> None:
        """Serve a connection; one that breaks leaves its segment as it is."""
        connections = self.server.reference.connections  # type: ignore[attr-defined]
        connections.add(self.connection)
        with contextlib.suppress(ConnectionError, ValueError):
            super().handle()
        connections.discard(self.connection)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _route(self) -> tuple[Reference, str, str]:
        state: Reference = self.server.reference  # type: ignore[attr-defined]
        name, _, rest = self.path.removeprefix("/trickle/").partition("/")
        return state, name, rest

    def _note(self, state: Reference) -> None:
        """Tell of this request; with the lock held, so that who reads of it finds it handled, or waiting."""
        state.requests.append(f"{self.command} {self.path.removeprefix('/trickle/')}")

    def _reply(self, status: int, body: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # Publishing

    def do_POST(self) -> None:
        """Create a channel, or publish a segment."""
        state, name, rest = self._route()
        with state.changed:
            self._note(state)
            channel = state.channels.setdefault(name, _Channel(self.headers.get("Content-Type", "")))
            if rest:
                segment = self._place(channel, int(rest))
            if rest and self.headers.get("Lp-Trickle-Reset"):
                channel.close(below=segment.seq)
                state.changed.notify_all()
        if not rest:
            self._reply(200)
            return
        self._store(state, channel, segment)

    @staticmethod
    def _place(channel: _Channel, seq: int) -> _Segment:
        seq = channel.head if seq == -1 else seq
        segment = channel.ring.get(seq % RING)
        if segment is None or segment.seq != seq:
            if segment is not None:
                segment.closed = True
            segment = channel.ring[seq % RING] = _Segment(seq)
        return segment

    def _store(self, state: Reference, channel: _Channel, segment: _Segment) -> None:
        size = 0
        for chunk in self._chunks(segment):
            with state.changed:
                channel.head = channel.head if size else state.heads.get(segment.seq, segment.seq + 1)
                segment.data += chunk
                state.changed.notify_all()
            size += len(chunk)
        ended: dict[str, Any] = {}
        with state.changed:
            if not size:
                channel.head = segment.seq + 1
                ended = {"Connection": "close"} | ({"Lp_Trickle_Closed": "terminated"} if channel.closed else {})
            segment.closed = True
            state.changed.notify_all()
        self._reply(200, Lp_Trickle_Seq=segment.seq, **ended)

    def _chunks(self, segment: _Segment) -> Iterator[bytes]:
        """The body; none of it if the segment is closed before the first byte comes."""
        length = self.headers["Content-Length"]
        while length != "0" and not select.select([self.connection], [], [], _LOOK_S)[0]:
            if segment.closed:
                return
        if length:
            yield from [self._exactly(int(length))] if length != "0" else []
            return
        while size := int(self.rfile.readline(), 16):
            yield self._exactly(size)
            self.rfile.readline()
        self.rfile.readline()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.rfile.read(size - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def do_DELETE(self) -> None:
        """End a channel, which is forgotten at once, or close a segment."""
        state, name, rest = self._route()
        with state.changed:
            self._note(state)
            channel = state.channels.get(name) if rest else state.channels.pop(name, None)
            known = channel is not None
            if channel is not None and rest:
                segment = channel.ring.get(int(rest) % RING)
                known = segment is not None and segment.seq == int(rest)
                if segment is not None and known:
                    segment.closed = True
            elif channel is not None:
                channel.closed = True
                channel.close()
            state.changed.notify_all()
        self._reply(200 if known else 400)

    # Reading

    def do_GET(self) -> None:
        """Tell the head, or send a segment."""
        state, name, rest = self._route()
        with state.changed:
            self._note(state)
            channel = state.channels.get(name)
            if channel is None:
                self._reply(404, b"Stream not found\n")
            elif rest == "next":
                self._reply(200, str(channel.head).encode(), Lp_Trickle_Latest=channel.head)
            elif (seq := int(rest)) < -2 and seq % -RING:
                self.close_connection = True  # an index below zero, and the end of this request
            else:
                self._read(state, channel, seq)

    def _read(self, state: Reference, channel: _Channel, seq: int) -> None:
        head = channel.head
        seq = {-1: head, -2: max(0, head - 1)}.get(seq, seq)
        segment = channel.ring.get(seq % RING)
        if (segment is None or segment.seq != seq) and (seq == head or (head == 0 and seq == 1)):
            segment = channel.ring[seq % RING] = _Segment(seq)
        if segment is None or segment.seq != seq:
            self._reply(470, b"Entry not found", Lp_Trickle_Latest=head, Lp_Trickle_Seq=seq)
            return
        self._send(state, channel, segment, head)

    def _send(self, state: Reference, channel: _Channel, segment: _Segment, head: int) -> None:
        """Send a segment as it comes; called with the lock held, which waiting and sending give up."""
        sent = 0
        while not segment.closed or sent < len(segment.data):
            if sent == len(segment.data):
                state.changed.wait(_LOOK_S)
                continue
            if not sent:
                self.send_response(200)
                for key, value in (("Latest", head), ("Seq", segment.seq)):
                    self.send_header(f"Lp-Trickle-{key}", str(value))
                self.send_header("Content-Type", channel.content_type)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
            chunk = bytes(segment.data[sent:])
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            sent += len(chunk)
        if sent:
            self.wfile.write(b"0\r\n\r\n")
            return
        closed: dict[str, Any] = {"Lp_Trickle_Closed": "terminated"} if channel.closed else {}
        self._reply(200, Lp_Trickle_Seq=segment.seq, Lp_Trickle_Latest=channel.head, **closed)
