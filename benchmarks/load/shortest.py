"""The shortest program on asyncio that does a client's work: no retry, no time limit, no check of what comes.

It is no client, but a floor: what it takes is asyncio's, the interpreter's and the kernel's. ``benchmarks/clients.py``
runs it as ``asyncio alone``.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

Job = dict[str, Any]


class Peer(asyncio.Protocol):
    """One connection, which carries one request after the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.data = b""  # that came and was not read
        self.more: asyncio.Future[None] | None = None  # the task waits for more
        self.room: asyncio.Future[None] | None = None  # the kernel has taken less than all that was written

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(0)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        self.data = self.data + data if self.data else data
        if self.more is not None and not self.more.done():
            self.more.set_result(None)

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self.room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        assert self.room is not None
        self.room.set_result(None)
        self.room = None

    async def until(self, end: bytes) -> bytes:
        """Take what comes up to ``end``, and ``end`` itself."""
        while (at := self.data.find(end)) < 0:
            await self._wait()
        taken, self.data = self.data[: at + len(end)], self.data[at + len(end) :]
        return taken

    async def exactly(self, size: int) -> bytes:
        """Take the next ``size`` bytes."""
        while len(self.data) < size:
            await self._wait()
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    async def _wait(self) -> None:
        self.more = asyncio.get_running_loop().create_future()
        await self.more


async def run(job: Job) -> int:
    """Publish or read as the job says; returns the bytes."""
    parts = urlsplit(job["url"])
    loop = asyncio.get_running_loop()
    peers = [(await loop.create_connection(Peer, parts.hostname or "", parts.port or 0))[1] for _ in range(2)]
    try:
        return await (_publish if job["publishes"] else _read)(job, parts.path, parts.netloc, peers)
    finally:
        for peer in peers:
            peer.transport.close()


async def _publish(job: Job, path: str, host: str, peers: list[Peer]) -> int:
    """Each segment by a request whose head leaves while the one before is written."""

    def begin(seq: int) -> None:
        head = f"POST {path}/{seq} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
        peers[seq % 2].transport.write(head.encode())

    chunk = b"%x\r\n%b\r\n" % (job["chunk_bytes"], bytes(job["chunk_bytes"]))
    begin(0)
    for seq in range(job["segments"]):
        begin(seq + 1)
        peer = peers[seq % 2]
        for _ in range(job["chunks"]):
            peer.transport.write(chunk)
            if peer.room is not None:
                await peer.room
        peer.transport.write(b"0\r\n\r\n")
        head = await peer.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
    return int(job["segments"] * job["chunks"] * job["chunk_bytes"])


async def _read(job: Job, path: str, host: str, peers: list[Peer]) -> int:
    """Each segment by a request that is made when the one before is over."""
    peer, total = peers[0], 0
    for seq in range(job["segments"]):
        peer.transport.write(f"GET {path}/{seq} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = (await peer.until(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200 "), head
        if b"content-length: " in head:
            total += len(await peer.exactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])))
            continue
        while size := int((await peer.until(b"\r\n")).partition(b";")[0], 16):
            total += len(await peer.exactly(size))
            await peer.exactly(2)
        while await peer.until(b"\r\n") != b"\r\n":
            pass
    return total
