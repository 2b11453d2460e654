"""Bodies of requests that write themselves, never end, or never begin, and a client of httpx that sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import httpx

from tricklecast.trickle.client.bridge import Streamed, TrickleTransport
from tricklecast.trickle.client.connection import BodyWriter, LiveBody


def http_client(**timeouts: float) -> httpx.AsyncClient:
    """An httpx client on the transport under test."""
    return httpx.AsyncClient(transport=TrickleTransport(), timeout=httpx.Timeout(**{"timeout": 10.0, **timeouts}))


async def endless(chunk: bytes = b"x" * 1000) -> AsyncIterator[bytes]:
    """A body that never ends."""
    while True:
        yield chunk
        await anyio.lowlevel.checkpoint()


class Silent(httpx.AsyncByteStream):
    """A body whose first chunk never comes; it records how it ended."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.asked.set()
        try:
            await anyio.sleep_forever()
            yield b""
        except BaseException:
            self.cancelled = True
            raise


class Written(LiveBody):
    """A body that a test writes through ``writer``.

    Attributes:
        starts: how often it was started.
    """

    def __init__(self) -> None:
        self.writer: BodyWriter | None = None
        self.starts = 0
        self.begun = anyio.Event()
        self.resumed = anyio.Event()

    def start(self, writer: BodyWriter) -> None:
        self.writer = writer
        self.starts += 1
        self.begun.set()

    def resume(self) -> None:
        resumed, self.resumed = self.resumed, anyio.Event()
        resumed.set()

    def detach(self) -> None:
        self.writer = None


def live(http: httpx.AsyncClient, url: str, body: LiveBody) -> httpx.Request:
    """A request with a live body."""
    request = http.build_request("POST", url, headers={"Transfer-Encoding": "chunked"})
    request.stream = Streamed(body)
    return request


class Chunks(httpx.AsyncByteStream):
    """A body of given chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
