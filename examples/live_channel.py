"""A live channel: one task writes a segment, the other one reads it while it is being written."""

import asyncio
import sys

from tricklecast import Publisher, Subscriber


async def publish(url: str) -> None:
    async with Publisher(url) as publisher, publisher.segment() as segment:
        for text in (b"three", b"two", b"one"):
            await segment.write(text)
            await asyncio.sleep(0.5)


async def read(url: str) -> None:
    async for segment in Subscriber(url, start=0, wait_for_channel_s=9):
        async for chunk in segment:
            print(segment.seq, chunk.decode())


async def main(url: str) -> None:
    await asyncio.gather(publish(url), read(url))


asyncio.run(main(sys.argv[1]))
