"""CPU time of the publisher: per MiB of 64 KiB chunks, per segment of 200 bytes, and per chunk of one byte.

::

    python -m benchmarks.clients

The server runs in a process of its own, so the figures are those of the client alone. pytrickle is measured beside it
if it can be imported. Compare figures of one run only: they depend on the machine and on its load.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.support.server import serve
from tricklecast.publisher import Publisher

CHUNK: Final = bytes(64 * 1024)
CHUNKS: Final = 64
SEGMENTS: Final = 8
SMALL: Final = bytes(200)
SMALL_SEGMENTS: Final = 500
TINY_CHUNKS: Final = 20_000

MIB: Final = SEGMENTS * CHUNKS * len(CHUNK) / (1 << 20)

Write = Callable[[str, list[list[bytes]]], Coroutine[Any, Any, None]]
"""Publishes segments, given as lists of chunks, to the channel at a URL."""


async def ours(url: str, segments: list[list[bytes]]) -> None:
    """Publish with this package."""
    async with Publisher(url, when_full="wait") as publisher:
        for chunks in segments:
            if len(chunks) == 1:
                await publisher.publish(chunks[0])
                continue
            async with publisher.segment() as segment:
                for chunk in chunks:
                    await segment.write(chunk)


async def pytrickle(url: str, segments: list[list[bytes]]) -> None:
    """Publish with pytrickle."""
    module: Any = importlib.import_module("pytrickle")
    async with module.TricklePublisher(url, "application/octet-stream") as publisher:
        for chunks in segments:
            async with await publisher.next() as segment:
                for chunk in chunks:
                    await segment.write(chunk)


def cpu_s(write: Write, url: str, segments: list[list[bytes]]) -> float:
    """CPU seconds of this process for publishing the segments; the better one of two runs."""

    def once(number: int) -> float:
        begun_s = time.process_time()
        asyncio.run(write(f"{url}-{number}", segments))
        return time.process_time() - begun_s

    return min(once(number) for number in range(2))


def main() -> None:
    """Measure, and print a line for each client."""
    writers: dict[str, Write] = {"tricklecast": ours}
    if importlib.util.find_spec("pytrickle") is not None:
        writers["pytrickle"] = pytrickle
    large, small = [[CHUNK] * CHUNKS] * SEGMENTS, [[SMALL]] * SMALL_SEGMENTS
    tiny = [[b"x"] * TINY_CHUNKS]
    print("client         64 KiB chunks   200 B segments   1 B chunks")
    with serve() as server:
        for name, write in writers.items():
            url = f"{server.base}/{name}"
            per_mib = cpu_s(write, f"{url}-large", large) * 1e3 / MIB
            per_segment = cpu_s(write, f"{url}-small", small) * 1e3 / SMALL_SEGMENTS
            per_chunk = cpu_s(write, f"{url}-tiny", tiny) * 1e6 / TINY_CHUNKS
            print(f"{name:12s} {per_mib:8.2f} ms/MiB   {per_segment:9.2f} ms     {per_chunk:7.1f} µs")


if __name__ == "__main__":
    main()
