"""Subscribe to a channel.

::

    async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
        data = await segment.read()
"""

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
from tricklecast.subscriber.messages import BadMessage, Message, Messages
from tricklecast.subscriber.remux.source import NotMedia
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import SinkFailed
from tricklecast.trickle.client.transport import TrickleTransport
from tricklecast.trickle.errors import Position

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
