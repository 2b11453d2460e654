"""Publishes and reads with `async`."""

from __future__ import annotations

from typing import assert_type

from tests.typed_example import events
from tricklecast import Channel, Publisher, Subscriber
from tricklecast.publisher import Receipt, SegmentWriter
from tricklecast.subscriber import Message, MessageOptions, Recording, Segment, json_messages, record


async def publish(url: str, words: list[str]) -> list[int]:
    """Publish each word as a segment; return their numbers."""
    told: list[str] = []
    async with Publisher(url, on_event=lambda event: told.append(events.published(event))) as publisher:
        receipts = [await publisher.publish(word.encode()) for word in words]
        async with publisher.segment() as segment:
            assert_type(segment, SegmentWriter)
            await segment.write(b"end")
        assert_type(segment.receipt, Receipt)
        await publisher.detach()
    assert told[-1] == "left"
    return [receipt.seq for receipt in receipts]


async def read(url: str) -> list[bytes]:
    """Read a channel from its oldest segment until its end."""
    told: list[str] = []
    found: list[bytes] = []
    async with Subscriber(url, start="earliest", on_event=lambda event: told.append(events.read(event))) as subscriber:
        async for segment in subscriber:
            assert_type(segment, Segment)
            found.append(await segment.read())
            if found[-1] == b"end":
                await Channel(url).end()
    assert (told[0], told[-1]) == ("connected", "ended")
    return found


async def publish_events(url: str, numbers: list[int]) -> None:
    """Publish each number as a segment of JSON, and end the channel."""
    async with Publisher(url) as publisher:
        for number in numbers:
            await publisher.publish_json({"number": number})


async def read_events(url: str) -> list[int]:
    """Read a channel's events from the oldest one, until its end."""
    options: MessageOptions = {"start": "earliest", "reconnect_s": None}
    found: list[int] = []
    async with json_messages(url, on_error="skip", **options) as messages:
        async for message in messages:
            assert_type(message, Message)
            found.append(message.value["number"])
    return found


async def keep(url: str, folder: str) -> int:
    """Record a channel from its oldest segment; return how many there were."""
    recording = await record(url, folder, start="earliest", on_lag="fail", verify=True)
    assert_type(recording, Recording)
    return recording.segments
