"""Subscribe to a channel.

::

    async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
        data = await segment.read()
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tricklecast.subscriber.archive import DamagedIndex, DirectoryInUse, Entry, Recording, read_index, record
    from tricklecast.subscriber.client import Subscriber, json_lines, json_messages
    from tricklecast.subscriber.core import AnyStart, OnLag
    from tricklecast.subscriber.events import (
        Connected,
        Ended,
        Failed,
        Gap,
        Lagging,
        Restarted,
        Retrying,
        SegmentBroken,
        SegmentResumed,
        SegmentTruncated,
        SkippedAhead,
        SubscriberEvent,
        SubscriberStatistics,
    )
    from tricklecast.subscriber.fetch import Runtime
    from tricklecast.subscriber.media.joiner import NotMedia
    from tricklecast.subscriber.messages import BadMessage, Message, Messages
    from tricklecast.subscriber.segment import Segment
    from tricklecast.subscriber.sinks import SinkFailed
    from tricklecast.trickle.client.transport import TrickleTransport
    from tricklecast.trickle.errors import Position

_HOMES = {
    "AnyStart": ".core",
    "BadMessage": ".messages",
    "Connected": ".events",
    "DamagedIndex": ".archive",
    "DirectoryInUse": ".archive",
    "Ended": ".events",
    "Entry": ".archive",
    "Failed": ".events",
    "Gap": ".events",
    "Lagging": ".events",
    "Message": ".messages",
    "Messages": ".messages",
    "NotMedia": ".media.joiner",
    "OnLag": ".core",
    "Position": "tricklecast.trickle.errors",
    "Recording": ".archive",
    "Restarted": ".events",
    "Retrying": ".events",
    "Runtime": ".fetch",
    "Segment": ".segment",
    "SegmentBroken": ".events",
    "SegmentResumed": ".events",
    "SegmentTruncated": ".events",
    "SinkFailed": ".sinks",
    "SkippedAhead": ".events",
    "Subscriber": ".client",
    "SubscriberEvent": ".events",
    "SubscriberStatistics": ".events",
    "TrickleTransport": "tricklecast.trickle.client.transport",
    "json_lines": ".client",
    "json_messages": ".client",
    "read_index": ".archive",
    "record": ".archive",
}

__all__ = [
    "AnyStart",
    "BadMessage",
    "Connected",
    "DamagedIndex",
    "DirectoryInUse",
    "Ended",
    "Entry",
    "Failed",
    "Gap",
    "Lagging",
    "Message",
    "Messages",
    "NotMedia",
    "OnLag",
    "Position",
    "Recording",
    "Restarted",
    "Retrying",
    "Runtime",
    "Segment",
    "SegmentBroken",
    "SegmentResumed",
    "SegmentTruncated",
    "SinkFailed",
    "SkippedAhead",
    "Subscriber",
    "SubscriberEvent",
    "SubscriberStatistics",
    "TrickleTransport",
    "json_lines",
    "json_messages",
    "read_index",
    "record",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562): a command's ``--help`` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
