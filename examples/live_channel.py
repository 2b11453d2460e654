"""A live channel in fifteen lines: one task publishes, the other one reads what is still being written."""

import sys

import anyio

from tricklecast import Publisher, Subscriber


async def publish(url: str) -> None:
    async with Publisher(url) as publisher:
        for text in (b"three", b"two", b"one"):
            await publisher.publish(text)


async def main(url: str) -> None:
    async with anyio.create_task_group() as tasks, Subscriber(url, start=0, wait_for_channel_s=9) as subscriber:
        tasks.start_soon(publish, url)
        async for segment in subscriber:
            async for chunk in segment:
                print(segment.seq, chunk.decode())


anyio.run(main, sys.argv[1])
