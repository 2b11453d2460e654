"""An encoder never waits for the network: a segment's answer is awaited while the next ones are being written."""

import sys
import time

import anyio

from tricklecast import Publisher, TrickleError
from tricklecast.publisher import SegmentWriter


async def encode() -> bytes:
    await anyio.sleep(0.02)  # stands for a frame's worth of work
    return time.monotonic_ns().to_bytes(8) * 1000


async def main(url: str) -> None:
    async with Publisher(url, content_type="application/octet-stream") as publisher, anyio.create_task_group() as tasks:
        for _ in range(5):
            async with publisher.segment(wait=False) as segment:
                for _ in range(10):
                    await segment.write(await encode())
            tasks.start_soon(report, segment)
    print(publisher.statistics())


async def report(segment: SegmentWriter) -> None:
    try:
        receipt = await segment.settled()
        print(f"segment {receipt.seq}: {receipt.stored} bytes, answered after {receipt.answered_s:.2f} s")
    except TrickleError as error:
        print(f"lost: {error}")


anyio.run(main, sys.argv[1])
