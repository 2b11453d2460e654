"""Publish pictures from numpy arrays, and read them back: ``python examples/frames.py http://127.0.0.1:2939/trickle/cam``."""

import sys

import anyio
import numpy as np

from tricklecast.media import MediaPublisher, frames


async def publish(url: str, seconds: float) -> None:
    async with MediaPublisher(url, fps=30) as publisher:
        for number in range(round(30 * seconds)):
            picture = np.zeros((360, 640, 3), np.uint8)
            picture[:, number * 7 % 600 : number * 7 % 600 + 40] = (255, 160, 0)  # a bar that moves
            await publisher.write(picture)  # its time is now
            await anyio.sleep(1 / 30)


async def main(url: str, seconds: float = 5.0) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish, url, seconds)
        async for frame in frames(url, format="rgb24", start="earliest", wait_for_channel_s=10):
            print(frame.pts, frame.array.shape, frame.array.mean().round(1), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5.0)
