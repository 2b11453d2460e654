"""The same routes as one would write them with FastAPI: a ``StreamingResponse`` per reader, a condition per segment.

Segments, waiting for the next one and relaying while it is written are all there; limits, takeover, epochs, windows
by bytes and age, eviction of slow readers and the access log are not. It runs on uvicorn with uvloop and httptools.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

KEPT = 16
"""Closed segments that a channel keeps."""


class Segment:
    """Bytes that arrive, and those who wait for them."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.closed = False
        self.changed = asyncio.Condition()

    async def append(self, chunk: bytes) -> None:
        """Add a chunk and wake the readers."""
        async with self.changed:
            self.chunks.append(chunk)
            self.changed.notify_all()

    async def close(self) -> None:
        """That was all."""
        async with self.changed:
            self.closed = True
            self.changed.notify_all()

    async def more_than(self, position: int) -> None:
        """Wait for more chunks than a reader has seen, or for the end."""
        async with self.changed:
            while len(self.chunks) == position and not self.closed:
                await self.changed.wait()

    async def follow(self) -> AsyncIterator[bytes]:
        """Every chunk, as it arrives."""
        position = 0
        while position < len(self.chunks) or not self.closed:
            await self.more_than(position)
            while position < len(self.chunks):
                yield self.chunks[position]
                position += 1


class Channel:
    """The last segments, by seq."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}

    def segment(self, seq: int) -> Segment:
        """The segment of that seq, whoever comes first for it."""
        if seq not in self.segments:
            self.segments[seq] = Segment()
            self.segments.pop(seq - KEPT, None)
        return self.segments[seq]


app = FastAPI()
channels: defaultdict[str, Channel] = defaultdict(Channel)


@app.post("/trickle/{name}")
async def create(name: str) -> Response:
    """Create a channel."""
    channels[name] = Channel()
    return Response()


@app.post("/trickle/{name}/{seq}")
async def publish(name: str, seq: int, request: Request) -> Response:
    """Publish a segment."""
    segment = channels[name].segment(seq)
    try:
        async for chunk in request.stream():
            if chunk:
                await segment.append(chunk)
    except ClientDisconnect:
        pass  # What arrived is the segment.
    await segment.close()
    return Response(headers={"Lp-Trickle-Seq": str(seq)})


@app.get("/trickle/{name}/{seq}")
async def read(name: str, seq: int) -> Response:
    """Read a segment; the answer begins with its first byte."""
    segment = channels[name].segment(seq)
    await segment.more_than(0)
    headers = {"Lp-Trickle-Seq": str(seq), "Cache-Control": "no-store"}
    return StreamingResponse(segment.follow(), media_type="video/mp2t", headers=headers)


def main() -> None:
    """Listen on a free port, say which, and run."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning", lifespan="off")
    sys.stdout.write(f"fastapi is listening on http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
