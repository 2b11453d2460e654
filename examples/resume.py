"""A reader that goes on where it stopped, even after it was killed: its position is kept in a file."""

import sys

import anyio

from tricklecast import Position, Subscriber
from tricklecast.subscriber import AnyStart


async def main(url: str, file: str) -> None:
    kept, written = anyio.Path(file), anyio.Path(f"{file}.new")
    start: AnyStart = "earliest"
    wait_s = 3.0  # for a publisher that begins later
    if await kept.exists():
        start, wait_s = Position.parse(await kept.read_text()), 0.0  # if the channel has ended there, that is the end
    async with Subscriber(
        url, start=start, on_lag="earliest", wait_for_channel_s=wait_s, reconnect_s=None
    ) as subscriber:
        async for segment in subscriber:
            if segment.gap:
                print(f"{segment.gap} segments were missed")
            print(segment.seq, len(await segment.read()))
            await written.write_text(str(subscriber.position))  # such as "128@1:9f86d081884c7d65"
            await written.rename(kept)  # at once: a kill leaves the former position, or this one


anyio.run(main, sys.argv[1], sys.argv[2])
