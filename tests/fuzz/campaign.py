"""Random sessions of ordinary and hostile clients over raw sockets against a real server process with small limits.

Everything that a session does follows from its seed; only the order in which concurrent sessions meet is the machine's.
A *finding* is any of these:

- the server ends, writes a stack trace, answers 500, or counts an error;
- a request is neither answered nor closed within :data:`ANSWER_S`, or a connection is not closed after its end;
- a response that is complete holds other bytes than the publisher of its segment has sent;
- the gauges of ``/metrics`` (channels, segments, bytes, readers, publishers, connections) do not return to what they
  were once all clients have gone, or the memory of the process grows.

The sessions of one batch run against one server, so that a finding is seen again with the seed of its batch only.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tests.fuzz.requests import Requests
from tests.support.resets import reset
from tests.support.server import RunningServer, serve

BATCH: Final = 500
"""Sessions per server."""

CONCURRENT: Final = 40
ANSWER_S: Final = 20.0
"""Longest time, in seconds, that any request may stay without an answer: far more than all timeouts below together,
since the machine may be busy; a request that hangs reaches it all the same."""

SETTLE_S: Final = 20.0
"""Longest time, in seconds, from the end of the last client until nothing is left of any of them."""

PROBE_S: Final = 0.25
SEGMENT_BYTES: Final = 65_536
RSS_BYTES: Final = 96 << 20
"""Growth of the process's resident memory in one batch that is no leak: buffers, pools and fragmentation."""

LIMITS: Final = {
    "max-channels": 60,
    "max-readers": 150,
    "max-publishers": 80,
    "max-connections": 300,
    "max-segment-bytes": SEGMENT_BYTES,
    "max-total-bytes": 1 << 20,
    "window-segments": 4,
    "window-bytes": SEGMENT_BYTES,
    "window-age-s": 1,
    "publisher-grace-s": 0.3,
    "skip-grace-s": 0.2,
    "overtaking-grace-s": 0.2,
    "channel-drain-s": 0.2,
    "idle-timeout-s": 1.5,
    "head-timeout-s": 1,
    "keep-alive-s": 2,
    "reader-lag-s": 1,
    "reader-lag-bytes": 262_144,
}
"""Settings of the server under which every limit is reached and every timeout passes within a few seconds."""

GAUGES: Final = (
    "channels",
    "channels_draining",
    "segments_written",
    "segments_orphaned",
    "preconnects",
    "readers",
    "readers_waiting",
    "connections",
    "stalled_connections",
    "overtaking_posts",
)
"""Names of the gauges, without their prefix, that must return to exactly what they were."""

HELD_SLACK: Final = 4096
"""Bytes by which ``held_bytes`` may differ: the newest segment of the changefeed is kept, whatever its length."""


class Finding(Exception):
    """Something that must not happen; the message says what."""


@dataclass(frozen=True)
class Answer:
    """A response.

    Attributes:
        status: of its head. headers: by lower-case name. body: what has arrived of it.
        complete: whether its end has arrived; else the connection broke.
    """

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    complete: bool


class Wire:
    """A raw connection of a client: whatever the server does with it, within :data:`ANSWER_S`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, *, receive_bytes: int | None = None) -> Wire:
        """Connect to the server, with a small receive buffer if one is given."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
                return cls(*await asyncio.open_connection(sock=sock, limit=SEGMENT_BYTES))
        except TimeoutError:
            sock.close()
            raise Finding(f"no connection within {ANSWER_S:g} s") from None

    async def send(self, data: bytes, *, pieces: int = 1) -> None:
        """Send bytes in so many packets. A server that has closed is no error: what it said can still be read."""
        size = -(-len(data) // pieces) or 1
        try:
            async with asyncio.timeout(ANSWER_S):
                for at in range(0, len(data), size):
                    if self._writer.is_closing():
                        return
                    self._writer.write(data[at : at + size])
                    await self._writer.drain()
                    if pieces > 1:
                        await asyncio.sleep(0)
        except ConnectionError:
            pass
        except TimeoutError:
            raise Finding(f"the server read nothing for {ANSWER_S:g} s, and did not close") from None

    async def answer(self, *, head_only: bool = False) -> Answer | None:
        """The next final response; ``None`` if the server closed the connection instead.

        Raises:
            Finding: neither happened in time, or the response is a 500 or not HTTP.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    answer = await self._response(head_only=head_only)
                    if answer is None or answer.status >= 200:
                        break
        except TimeoutError:
            raise Finding(f"a request was neither answered nor closed within {ANSWER_S:g} s") from None
        if answer is not None and answer.status == 500:
            raise Finding(f"500: {answer.body!r}")
        return answer

    async def _response(self, *, head_only: bool) -> Answer | None:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        line, *fields = head[:-4].split(b"\r\n")
        if not (found := re.match(rb"HTTP/1\.1 ([1-5]\d\d)(?: |$)", line)):
            raise Finding(f"not a status line: {line!r}")
        status = int(found[1])
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(b":") for field in fields)}
        if head_only or status < 200 or status in (204, 304):
            return Answer(status, headers, b"", True)
        body = bytearray()
        try:
            if headers.get(b"transfer-encoding") == b"chunked":
                while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                    body += await self._reader.readexactly(size)
                    await self._reader.readexactly(2)
                while await self._reader.readuntil(b"\r\n") != b"\r\n":
                    pass
            elif b"content-length" in headers:
                body += await self._reader.readexactly(int(headers[b"content-length"]))
            else:
                body += await self._reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(status, headers, bytes(body), False)
        return Answer(status, headers, bytes(body), True)

    async def read(self, count: int) -> bytes:
        """Up to so many bytes of what is there; nothing at the end of the connection."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._reader.read(count)
        except ConnectionError:
            return b""
        except TimeoutError:
            raise Finding(f"nothing came and nothing was closed for {ANSWER_S:g} s") from None

    async def until_closed(self) -> None:
        """Read until the server closes the connection.

        Raises:
            Finding: the server does not close it in time, or answers 500.
        """
        until, said = time.monotonic() + ANSWER_S, b""
        while data := await self.read(1 << 16):
            said = (said + data)[-(1 << 16) :]
            if b"HTTP/1.1 500 " in said:
                raise Finding(f"500: {said[-300:]!r}")
            if time.monotonic() > until:
                raise Finding(f"the connection was not closed within {ANSWER_S:g} s of its end")

    async def half_close(self) -> None:
        """Say that nothing more will be sent, and wait until the server closes, too."""
        with suppress(OSError):
            self._writer.write_eof()
        await self.until_closed()

    def close(self) -> None:
        """Close without a word."""
        self._writer.close()

    def reset(self) -> None:
        """Break the connection as a crash does."""
        reset(self._writer)

    async def closed(self) -> None:
        """Close, unless that has been done, and wait until the socket is closed."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@dataclass
class Session:
    """One session.

    Attributes:
        rng: all its choices follow from it. port: of the server. own: a channel that no other session knows.
        wires: all that it has opened.
    """

    rng: random.Random
    port: int
    own: str
    wires: list[Wire] = field(default_factory=list)

    async def wire(self, *, receive_bytes: int | None = None) -> Wire:
        """A new connection."""
        wire = await Wire.connect(self.port, receive_bytes=receive_bytes)
        self.wires.append(wire)
        return wire

    @property
    def channel(self) -> str:
        """A channel: mostly one that other sessions use, too."""
        return self.own if self.rng.random() < 0.3 else f"shared{self.rng.randrange(6)}"

    async def leave(self, wire: Wire) -> None:
        """End a connection in one of several ways."""
        match self.rng.randrange(5):
            case 0 | 1:
                wire.close()
            case 2:
                wire.reset()
            case 3:
                await wire.half_close()
            case _:
                await wire.until_closed()  # by the server's own timeouts

    async def pause(self) -> None:
        """Let other sessions and the server's timeouts come in between."""
        await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.01, 0.06, 0.25)))


def head(method: str, path: str, *fields: str) -> bytes:
    """The head of a request."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *fields, "", "")).encode("latin-1")


def chunked(body: bytes, size: int) -> bytes:
    """A body in HTTP chunks of this size, without its end."""
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


END: Final = b"0\r\n\r\n"
STREAMED: Final = "Transfer-Encoding: chunked"


def post(channel: str, seq: int, body: bytes, *fields: str) -> bytes:
    """A whole POST."""
    return head("POST", f"/trickle/{channel}/{seq}", f"Content-Length: {len(body)}", *fields) + body


def get(channel: str, seq: int | str) -> bytes:
    """A whole GET."""
    return head("GET", f"/trickle/{channel}/{seq}")


def create(channel: str) -> bytes:
    """A whole POST that creates a channel."""
    return head("POST", f"/trickle/{channel}", "Expect-Content: video/mp2t", "Content-Length: 0")


def begin(channel: str, seq: int, *fields: str) -> bytes:
    """The head of a POST whose body comes in chunks."""
    return head("POST", f"/trickle/{channel}/{seq}", STREAMED, *fields)


async def follow(session: Session) -> None:
    """A publisher with a preconnect and a reader of the same channel: what is read complete is what was published."""
    rng = session.rng
    bodies = [rng.randbytes(rng.choice((1, 200, 5000, 30_000))) for _ in range(rng.randint(1, 4))]
    wires = [await session.wire(), await session.wire()]
    await wires[0].send(begin(session.own, 0))
    reader = await session.wire()
    reading = asyncio.create_task(_read_all(session, reader, bodies))
    try:
        for seq, body in enumerate(bodies):
            wire, other = wires[seq % 2], wires[1 - seq % 2]
            if seq + 1 < len(bodies):
                await other.send(begin(session.own, seq + 1))
            await session.pause()
            await wire.send(chunked(body, rng.choice((7, 1000, 40_000))) + END, pieces=rng.choice((1, 1, 4)))
            answer = await wire.answer()
            if answer is None or answer.status != 200:
                break  # a limit, or the end of the channel
        await reading
    finally:
        reading.cancel()
    if rng.random() < 0.5:
        await wires[0].send(head("DELETE", f"/trickle/{session.own}"))
        await wires[0].answer()


async def _read_all(session: Session, reader: Wire, bodies: list[bytes]) -> None:
    for seq, body in enumerate(bodies):
        await reader.send(get(session.own, seq))
        answer = await reader.answer()
        if answer is None or answer.status != 200 or not answer.complete:
            return
        whole = not answer.headers.keys() & {b"lp-trickle-closed", b"lp-trickle-truncated", b"trailer"}
        if whole and answer.body not in (body, b""):
            raise Finding(f"segment {seq}: {len(answer.body)} bytes instead of {len(body)}, or others")


async def publish(session: Session) -> None:
    """Several segments on one connection, some of them empty or too large, in order or not."""
    rng, channel = session.rng, session.channel
    wire = await session.wire()
    for seq in range(rng.randint(1, 6)):
        body = bytes(rng.choice((0, 1, 200, 20_000, SEGMENT_BYTES, SEGMENT_BYTES + 1)))
        fields = rng.choice(((), (), ("Lp-Trickle-Reset: 1",), ("Idempotency-Key: k",)))
        await wire.send(post(channel, rng.choice((-1, -1, seq, seq + rng.randrange(4))), body, *fields))
        if await wire.answer() is None:
            return
    await session.leave(wire)


async def jumps(session: Session) -> None:
    """Readers and publishers of numbers with gaps, quickly or slowly: some wait, some are skipped, some are evicted."""
    rng, channel = session.rng, session.own if session.rng.random() < 0.8 else session.channel
    quickly = rng.random() < 0.6
    creator = await session.wire()
    await creator.send(create(channel))
    await creator.answer()
    wires, seq = [creator], 0
    for _ in range(rng.randint(2, 8)):
        wire = await session.wire()
        wires.append(wire)
        match rng.randrange(6):
            case 0 | 1:
                await wire.send(get(channel, seq))
            case 2:
                await wire.send(begin(channel, seq) + chunked(bytes(rng.choice((0, 1, 5000))), 1000))
            case _:
                await wire.send(post(channel, seq, bytes(rng.choice((1, SEGMENT_BYTES)))))
                if quickly:
                    await wire.answer()
        seq += rng.choice((1, 1, 2, 2, 2))
        if not quickly:
            await session.pause()
    await _leave_all(session, wires)


async def gaps(session: Session) -> None:
    """A publisher leaves out every second number; readers wait for those, and the last segment may evict the others."""
    rng, channel, publisher = session.rng, session.own, await session.wire()
    await publisher.send(create(channel))
    await publisher.answer()
    readers, last = [], 2 * rng.randint(1, 5) - 1
    for seq in range(1, last + 1, 2):
        if rng.random() < 0.5:
            readers.append(await session.wire())
            await readers[-1].send(get(channel, seq - 1))
        await publisher.send(post(channel, seq, bytes(rng.choice((1, SEGMENT_BYTES)) if seq == last else 1)))
        if await publisher.answer() is None:
            break
    await session.pause()
    await _leave_all(session, [publisher, *readers])


async def abandoned(session: Session) -> None:
    """Many preconnects with a reader each; all are abandoned, and a POST far ahead follows."""
    rng, channel, count = session.rng, session.own, session.rng.randint(2, 15)
    wires, readers = [], []
    for seq in range(count):
        wires.append(await session.wire())
        await wires[-1].send(begin(channel, seq))
        readers.append(await session.wire())
        await readers[-1].send(get(channel, seq))
    await session.pause()
    for wire in wires:
        if rng.random() < 0.9:
            (wire.reset if rng.random() < 0.5 else wire.close)()
    last = await session.wire()
    await last.send(post(channel, count + rng.choice((-1, 0, 1, 5)), b"x", "Lp-Trickle-Reset: 1"))
    await last.answer()
    await _leave_all(session, readers)


async def _leave_all(session: Session, wires: list[Wire]) -> None:
    """End all connections at the same time, each in its own way."""
    async with asyncio.TaskGroup() as group:
        for wire in wires:
            group.create_task(session.leave(wire))


async def takeover(session: Session) -> None:
    """Two publishers of one segment, their bytes mixed, and a reader of it."""
    rng, channel = session.rng, session.channel
    wires = [await session.wire(), await session.wire()]
    reader = await session.wire()
    await reader.send(get(channel, rng.choice((0, 1, "-1", "-2"))))
    seq = rng.choice((0, 0, 1, -1))
    for wire in wires:
        await wire.send(begin(channel, seq))
    for _ in range(rng.randrange(6)):
        await rng.choice(wires).send(chunked(bytes(rng.randint(1, 3000)), 1000))
        await session.pause()
    await rng.choice(wires).send(END)
    await _leave_all(session, [*wires, reader])


async def deleted(session: Session) -> None:
    """A segment or a channel is deleted while it is written, waited for and read; it may begin anew."""
    rng, channel = session.rng, session.channel
    writer, waiting, deleter = await session.wire(), await session.wire(), await session.wire()
    await writer.send(begin(channel, 0, "Lp-Trickle-Reset: 1") + chunked(bytes(rng.choice((0, 10, 9000))), 3000))
    await waiting.send(get(channel, rng.choice((0, 1, "-1"))))
    await session.pause()
    for _ in range(rng.randint(1, 3)):
        await deleter.send(head("DELETE", f"/trickle/{channel}" + rng.choice(("", "/0", "/1"))))
        if await deleter.answer() is None:
            break
        if rng.random() < 0.3:
            await deleter.send(create(channel))
            if await deleter.answer() is None:
                break
    await writer.send(rng.choice((END, chunked(b"late", 4), b"")))
    await _leave_all(session, [writer, waiting, deleter])


async def resets(session: Session) -> None:
    """A connection breaks in the middle of a head, of a body, or of an answer."""
    rng, channel = session.rng, session.channel
    for _ in range(rng.randint(1, 5)):
        data = rng.choice((get(channel, "-1"), post(channel, -1, bytes(3000)), begin(channel, -1) + b"5\r\nhello\r\n"))
        wire = await session.wire()
        await wire.send(data[: rng.randint(1, len(data))])
        if rng.random() < 0.3:
            await session.pause()
        wire.reset()


async def half_closed(session: Session) -> None:
    """A client that sends its request, or a part of it, and then says that nothing more will come."""
    rng, channel = session.rng, session.channel
    data = rng.choice(
        (get(channel, rng.choice(("-1", "-2", 0, 1))), post(channel, -1, bytes(100)), begin(channel, -1) + b"5\r\nhel")
    )
    wire = await session.wire()
    await wire.send(data[: rng.choice((len(data), len(data), rng.randint(1, len(data))))])
    await wire.half_close()


async def garbage(session: Session) -> None:
    """Strange and damaged requests, or mere bytes, after some good ones."""
    rng = session.rng
    requests = Requests(rng)
    good = b"".join(requests.valid() for _ in range(rng.choice((0, 0, 1, 4))))
    bad = rng.randbytes(rng.randint(1, 3000)) if rng.random() < 0.2 else requests.any()
    wire = await session.wire()
    for packet in requests.packets(good + bad):
        await wire.send(packet)
    await session.leave(wire)


async def slow_head(session: Session) -> None:
    """A head that comes byte by byte: it is cut short by the server, or answered."""
    rng = session.rng
    wire = await session.wire()
    data = head("GET", "/trickle/shared0/next", "X: " + "x" * rng.choice((1, 200)))
    for byte in data:
        await wire.send(bytes((byte,)))
        await asyncio.sleep(rng.choice((0, 0, 0.02)))
    await wire.answer()
    await session.leave(wire)


async def body_on_get(session: Session) -> None:
    """A GET with a body that nobody reads: short, endless in tiny chunks, or longer than it arrives."""
    rng, channel = session.rng, session.channel
    wire = await session.wire()
    path = f"/trickle/{channel}/{rng.choice(('0', '-1', 'next'))}"
    match rng.randrange(3):
        case 0:
            await wire.send(head("GET", path, "Content-Length: 5") + b"hello")
        case 1:
            await wire.send(head("GET", path, STREAMED))
            for _ in range(rng.randint(1, 20)):
                await wire.send(chunked(bytes(1000), 1))
            if rng.random() < 0.5:
                await wire.send(END)
        case _:
            await wire.send(head("GET", path, "Content-Length: 100000") + bytes(rng.randrange(1000)))
    await session.leave(wire)


async def pipelined(session: Session) -> None:
    """Many requests in one packet, one of which may wait; each of them is answered, or the connection closed."""
    rng = session.rng
    requests = Requests(rng)
    wire = await session.wire()
    data = b"".join(requests.valid() for _ in range(rng.randint(2, 40)))
    if rng.random() < 0.5:
        data += get(session.channel, "-1") + b"".join(requests.valid() for _ in range(rng.randint(0, 40)))
    await wire.send(data, pieces=rng.choice((1, 1, 3)))
    await session.leave(wire)


async def huge_head(session: Session) -> None:
    """A target, a field or a number of fields that is too large."""
    rng = session.rng
    size = rng.choice((5000, 20_000, 70_000, 300_000))
    wire = await session.wire()
    match rng.randrange(3):
        case 0:
            data = get("x" * size, 0)
        case 1:
            data = head("GET", "/trickle/shared0/next", "X: " + "x" * size)
        case _:
            data = head("GET", "/trickle/shared0/next", *(f"X{number}: y" for number in range(size // 10)))
    await wire.send(data, pieces=rng.choice((1, 9)))
    await session.leave(wire)


async def wrong_length(session: Session) -> None:
    """A body that is shorter or longer than announced, or announced twice."""
    rng, channel = session.rng, session.channel
    wire = await session.wire()
    fields = rng.choice((("Content-Length: 10",), ("Content-Length: 10", STREAMED), ("Content-Length: 10",) * 2))
    await wire.send(head("POST", f"/trickle/{channel}/-1", *fields) + bytes(rng.choice((3, 10, 500))))
    await session.leave(wire)


async def tiny_chunks(session: Session) -> None:
    """A segment in 1-byte chunks and its readers, some of whom come late."""
    rng, channel = session.rng, session.own
    publisher = await session.wire()
    await publisher.send(begin(channel, 0))
    readers = []
    for _ in range(rng.randint(1, 3)):
        readers.append(await session.wire())
        await readers[-1].send(get(channel, 0))
        await publisher.send(chunked(b"x" * rng.randint(1, 3000), 1))
    await publisher.send(END)
    await _leave_all(session, [publisher, *readers])


async def expectation(session: Session) -> None:
    """A publisher that waits for ``100 Continue``, or for something that does not exist."""
    rng = session.rng
    wire = await session.wire()
    fields = ("Content-Length: 4", rng.choice(("Expect: 100-continue", "Expect: tea")))
    await wire.send(head("POST", f"/trickle/{session.channel}/-1", *fields))
    if rng.random() < 0.7:
        await wire.read(1000)
    await wire.send(b"body")
    await session.leave(wire)


async def upgrade(session: Session) -> None:
    """A client that wants to speak something else."""
    wire = await session.wire()
    fields = ("Connection: Upgrade", f"Upgrade: {session.rng.choice(('websocket', 'h2c', 'x'))}")
    path = session.rng.choice(("/trickle/shared0/-1", "/healthz", "/"))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    await wire.send(session.rng.choice((head("GET", path, *fields, "Sec-WebSocket-Key: eA=="), preface)))
    await session.leave(wire)


async def not_reading(session: Session) -> None:
    """A reader that requests much and reads nothing: the server cuts it off, or it goes."""
    rng, channel = session.rng, session.own
    publisher, reader = await session.wire(), await session.wire(receive_bytes=4096)
    await publisher.send(post(channel, 0, bytes(SEGMENT_BYTES)))
    await publisher.answer()
    await reader.send(get(channel, 0) * rng.choice((1, 20)))
    await asyncio.sleep(rng.choice((0.1, 1.5, 2.5)))
    await _leave_all(session, [publisher, reader])


async def control_plane(session: Session) -> None:
    """Questions to the control plane and the changefeed, some with a body, on one connection."""
    rng = session.rng
    wire = await session.wire()
    for _ in range(rng.randint(1, 4)):
        path = rng.choice(("/healthz", "/readyz", "/metrics", "/api/v1/channels", "/trickle/_changes/-2", "/nothing"))
        method = rng.choice(("GET", "GET", "GET", "HEAD", "DELETE", "POST"))
        body = bytes(rng.choice((0, 0, 50)))
        await wire.send(head(method, path, f"Content-Length: {len(body)}") + body)
        if await wire.answer(head_only=method == "HEAD") is None:
            return
    await session.leave(wire)


KINDS: Final[dict[Callable[[Session], Awaitable[None]], int]] = {
    follow: 5,
    publish: 4,
    jumps: 4,
    gaps: 3,
    abandoned: 2,
    takeover: 2,
    deleted: 2,
    resets: 2,
    half_closed: 2,
    garbage: 4,
    slow_head: 1,
    body_on_get: 2,
    pipelined: 2,
    huge_head: 1,
    wrong_length: 1,
    tiny_chunks: 1,
    expectation: 1,
    upgrade: 1,
    not_reading: 1,
    control_plane: 2,
}
"""Kinds of sessions, and how often each is chosen."""


@dataclass
class Outcome:
    """What a batch has shown.

    Attributes:
        seed: of the batch. findings: each with how often it was met. sessions: that have run.
        slowest_probe_s: the longest time that ``GET /healthz`` took meanwhile.
        rss_growth: bytes of resident memory, from before the first session to after the last.
    """

    seed: int
    findings: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    slowest_probe_s: float = 0.0
    rss_growth: int = 0


def batch(seed: int, sessions: int) -> Outcome:
    """Run sessions against a server of their own."""
    outcome = Outcome(seed)
    with _server() as (server, errors):
        asyncio.run(_Batch(server, outcome).run(sessions))
        errors.seek(0)
        said = errors.read()
        if (code := server.process.poll()) is not None:
            last = said.strip().rpartition("\n")[2]
            outcome.findings[f"the server ended with {code}: {last}"] += 1
        if "Traceback" in said:
            trace = said[said.index("Traceback") :]
            last = next((line for line in trace.splitlines()[1:] if line and not line[0].isspace()), "")
            outcome.findings[f"a stack trace: {last}; from {_frames(trace)}"] += said.count("Traceback")
    return outcome


def _frames(trace: str) -> str:
    """The innermost calls of a stack trace."""
    return " < ".join(f"{name}:{line}" for line, name in re.findall(r"line (\d+), in (\w+)", trace)[:-6:-1])


@contextmanager
def _server() -> Iterator[tuple[RunningServer, IO[str]]]:
    arguments = [f"--{name}={value}" for name, value in LIMITS.items()]
    with (
        tempfile.TemporaryFile("w+") as errors,
        serve(*arguments, "--shutdown-deadline-s=1", stderr=errors, fork=False) as server,
    ):
        yield server, errors


class _Batch:
    def __init__(self, server: RunningServer, outcome: Outcome) -> None:
        self._server = server
        self._outcome = outcome
        self._over = False

    async def run(self, sessions: int) -> None:
        """All sessions, so many at a time; afterwards nothing may be left of them."""
        await self._warm_up()
        before, rss = await self._gauges(), self._rss()
        numbers = iter(range(sessions))
        probing = asyncio.create_task(self._probe())
        async with asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENT, sessions)):
                group.create_task(self._work(numbers))
        self._over = True
        await probing
        if self._alive():
            await self._settle(before)
            self._outcome.rss_growth = self._rss() - rss
            if self._outcome.rss_growth > RSS_BYTES:
                self._found(f"{self._outcome.rss_growth >> 20} MiB more memory than before")

    def _found(self, what: str) -> None:
        self._outcome.findings[what] += 1

    def _alive(self) -> bool:
        return self._server.process.poll() is None

    def _rss(self) -> int:
        pages = Path(f"/proc/{self._server.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * 4096

    async def _warm_up(self) -> None:
        """Publish something, so that the changefeed holds its newest segment before the gauges are read."""
        session = Session(random.Random(0), self._server.port, "warm-up")
        wire = await session.wire()
        for data in (post("warm-up", 0, b"x"), head("DELETE", "/trickle/warm-up")):
            await wire.send(data)
            await wire.answer()
        await wire.closed()
        await asyncio.sleep(0.5)  # the drain of the channel

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if not self._alive():
                return
            rng = random.Random(f"{self._outcome.seed}/{number}")
            (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
            session = Session(rng, self._server.port, f"own{number}")
            self._outcome.sessions += 1
            try:
                await kind(session)
            except* ConnectionError:
                pass  # refused by the limit on connections, or the server has gone, which is found elsewhere
            except* Finding as group:
                for error in _leaves(group):
                    self._found(f"{kind.__name__}: {error}")
            finally:
                for wire in session.wires:
                    await wire.closed()

    async def _probe(self) -> None:
        """Ask for the server's health all the time."""
        while not self._over and self._alive():
            begun = time.monotonic()
            try:
                wire = await Wire.connect(self._server.port)
                await wire.send(head("GET", "/healthz", "Connection: close"))
                await wire.answer()
                await wire.closed()
            except ConnectionError:
                pass  # one connection too many: the limit
            except Finding as finding:
                self._found(f"/healthz: {finding}")
            self._outcome.slowest_probe_s = max(self._outcome.slowest_probe_s, time.monotonic() - begun)
            await asyncio.sleep(PROBE_S)

    async def _gauges(self) -> dict[str, float]:
        wire = await Wire.connect(self._server.port)
        await wire.send(head("GET", "/metrics", "Connection: close"))
        answer = await wire.answer()
        await wire.closed()
        if answer is None or answer.status != 200:
            raise Finding("no metrics")
        found = re.findall(rb"^tricklecast_(\w+) (\S+)$", answer.body, re.MULTILINE)
        return {name.decode(): float(value) for name, value in found}

    async def _settle(self, before: dict[str, float]) -> None:
        """Wait until the gauges are what they were."""
        until = time.monotonic() + SETTLE_S
        while left := self._left(before, now := await self._gauges()):
            if time.monotonic() > until:
                self._found("left over: " + ", ".join(f"{name} {now[name]:g}" for name in left))
                break
            await asyncio.sleep(0.1)
        if now["errors_total"]:
            self._found(f"errors_total is {now['errors_total']:g}")

    def _left(self, before: dict[str, float], now: dict[str, float]) -> list[str]:
        left = [name for name in GAUGES if now[name] != before[name]]
        return left + ["held_bytes"] * (now["held_bytes"] > before["held_bytes"] + HELD_SLACK)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, and of the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def campaign(sessions: int, seed: int) -> int:
    """Run batches until there were so many sessions, and print what they have found; the exit code."""
    done, findings = 0, 0
    while done < sessions:
        outcome = batch(seed, min(BATCH, sessions - done))
        done += outcome.sessions  # fewer than planned where the server ended
        findings += outcome.findings.total()
        print(
            f"seed {seed}: {outcome.sessions} sessions, slowest /healthz {outcome.slowest_probe_s:.2f} s,"
            f" memory {outcome.rss_growth / (1 << 20):+.0f} MiB, {outcome.findings.total()} findings",
            flush=True,
        )
        for finding, count in outcome.findings.most_common():
            print(f"  {count} x {finding}", flush=True)
        seed += 1
    print(f"{findings} findings in {done} sessions")
    return 1 if findings else 0
