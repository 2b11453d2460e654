"""Passes a channel on to another server, chunk by chunk, while it is being written."""

import sys

import anyio

from tricklecast import BrokenByPeer, Publisher, Subscriber
from tricklecast.subscriber import Segment


class Truncated(Exception):
    """A segment came truncated."""


async def main(source: str, target: str) -> None:
    async with Subscriber(source, start="current", on_broken="raise", wait_for_channel_s=60) as subscriber:
        begun = await anext(subscriber)
        async with Publisher(target, content_type=begun.content_type) as publisher:
            segment: Segment | None = begun
            while segment is not None:
                try:
                    # A segment that arrives truncated leaves truncated: no reader takes a part for the whole.
                    async with publisher.segment() as copy:
                        async for chunk in segment:
                            await copy.write(chunk)
                        if segment.truncated is not None:
                            raise Truncated(f"the source cut it short ({segment.truncated})")
                except (BrokenByPeer, Truncated) as error:
                    if publisher.error is not None:
                        raise
                    print(f"segment {segment.seq} is lost: {error}", file=sys.stderr)
                segment = await anext(subscriber, None)


anyio.run(main, sys.argv[1], sys.argv[2])
