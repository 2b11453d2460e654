"""Publishes and reads without `async`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from tests.typed_example import events
from tricklecast.publisher import Receipt
from tricklecast.subscriber import Message, Position
from tricklecast.sync import Channel, Publisher, PublisherOptions, Segment, Subscriber

OPTIONS: PublisherOptions = {"content_type": "application/json", "when_full": "drop"}


def publish(url: str, words: list[str]) -> list[int]:
    """Publish each word as a segment of JSON; return their numbers."""
    with Publisher(url, **OPTIONS) as publisher:
        receipts = [publisher.publish_json(word) for word in words]
        segment = publisher.begin()
        segment.write(b'"end"')
        assert_type(segment.end(), Receipt)
        assert_type(publisher.detach(), tuple[int, ...])
    return [receipt.seq for receipt in receipts]


def read(url: str) -> list[object]:
    """Read a channel from its oldest segment, as messages, until its end."""
    found: list[object] = []
    told: list[str] = []
    with Subscriber(url, start="earliest", on_event=lambda event: told.append(events.read(event))) as subscriber:
        segments: Iterator[Segment] = subscriber
        assert iter(segments) is subscriber
        assert_type(subscriber.position, Position | None)
        for message in subscriber.messages():
            assert_type(message, Message)
            found.append(message.value)
            if message.value == "end":
                Channel(url).end()
    assert (told[0], told[-1]) == ("connected", "ended")
    return found
