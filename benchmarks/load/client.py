"""One client at work, in a process of its own: ``python -m benchmarks.load.client CLIENT JOB`` prints its CPU time.

The job is :class:`benchmarks.clients.Work` as JSON, with ``url``. The clients are imported where they run: pytrickle
has an environment of its own, in which tricklecast is not installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Job = dict[str, Any]


async def feed(job: Job) -> int:
    """Publish what a subscriber is to read, and keep the channel until the process is killed."""
    from tricklecast import Publisher

    chunk = bytes(job["chunk_bytes"])
    async with Publisher(job["url"], buffer_bytes=0) as publisher:
        if job["pause_s"]:
            print("live", flush=True)
            await asyncio.to_thread(sys.stdin.readline)  # its reader is there
        for _ in range(job["segments"]):
            async with publisher.segment() as segment:
                for _ in range(job["chunks"]):
                    if job["pause_s"]:
                        await asyncio.sleep(job["pause_s"])
                    await segment.write(chunk)
        print("full", flush=True)
        await asyncio.sleep(3600)
    return 0


async def tricklecast(job: Job) -> int:
    """Our publisher or subscriber."""
    from tricklecast import Publisher, Subscriber

    if not job["publishes"]:
        async with Subscriber(job["url"], start=0, auth=job["token"]) as subscriber:
            return await _read(job, _opened(subscriber))
    chunk = bytes(job["chunk_bytes"])
    async with Publisher(job["url"], auth=job["token"]) as publisher:
        for _ in range(job["segments"]):
            async with publisher.segment() as segment:
                for _ in range(job["chunks"]):
                    await segment.write(chunk)
        return int(publisher.statistics().bytes)


async def _opened(subscriber: Any) -> AsyncIterator[Any]:
    async for segment in subscriber:
        yield segment


async def _read(job: Job, segments: AsyncIterator[Any]) -> int:
    count = total = 0
    async for segment in segments:
        async for data in segment:
            total += len(data)
        count += 1
        if count == job["segments"]:
            break
    return total


async def pytrickle(job: Job) -> int:
    """pytrickle's publisher or subscriber."""
    total = 0
    if not job["publishes"]:
        async with _pytrickle("subscriber").TrickleSubscriber(job["url"], start_seq=0) as subscriber:
            for _ in range(job["segments"]):
                segment = await subscriber.next()
                while data := await segment.read(1 << 16):
                    total += len(data)
        return total
    chunk = bytes(job["chunk_bytes"])
    async with _pytrickle("publisher").TricklePublisher(job["url"], "video/mp2t") as publisher:
        for _ in range(job["segments"]):
            async with await publisher.next() as segment:
                for _ in range(job["chunks"]):
                    await segment.write(chunk)
                    total += len(chunk)
            # Its next request is opened by a task; next() before that would use the same number again.
            while publisher.next_writer is None:  # noqa: ASYNC110  # it has no event that says so
                await asyncio.sleep(0)
        # Its writes only fill queues: they are over when the last segment can be read whole.
        await asyncio.to_thread(_wait_for, f"{job['url']}/{job['segments'] - 1}")
    return total


def _pytrickle(module: str) -> Any:
    return importlib.import_module(f"pytrickle.{module}")


def _wait_for(url: str) -> None:
    while True:
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(url, timeout=5).read()
            return
        time.sleep(0.1)


async def shortest(job: Job) -> int:
    """The floor: the shortest program that does the work."""
    from benchmarks.load import shortest

    return await shortest.run(job)


CLIENTS: dict[str, Callable[[Job], Awaitable[int]]] = {
    "feed": feed,
    "tricklecast": tricklecast,
    "asyncio": shortest,
    "pytrickle": pytrickle,
}


async def warm_up(name: str, job: Job) -> None:
    """Publish and read one small segment of another channel: modules that are imported late are not the work."""
    small = job | {"url": f"{job['url']}-warm", "segments": 1, "chunks": 1, "chunk_bytes": 1, "pause_s": 0.0}
    await CLIENTS[name](small | {"publishes": True})
    if not job["publishes"]:  # a channel that has ended can be read for some seconds
        await CLIENTS[name](small | {"publishes": False})


async def run(name: str, job: Job) -> None:
    """Let a client do its work, and print what it took."""
    client = CLIENTS[name]
    if name != "feed":
        await warm_up(name, job)
        print("ready", flush=True)
    begun = time.process_time()
    total = await client(job)
    print(json.dumps({"cpu_s": time.process_time() - begun, "bytes": total}), flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(sys.argv[1], json.loads(sys.argv[2])))
