"""Publishes an event per line of standard input: each is a segment of its own, which nobody has to put together."""

import sys
import time

import anyio

from tricklecast import Publisher


async def main(url: str) -> None:
    async with Publisher(url, content_type="application/json") as publisher:
        async for line in anyio.wrap_file(sys.stdin):
            event = {"text": line.rstrip("\n"), "at": time.time()}
            receipt = await publisher.publish_json(event)
            print(f"event {receipt.seq}: {receipt.stored} bytes")


anyio.run(main, sys.argv[1])
