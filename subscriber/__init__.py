"""Subscribe to a channel.

::

    async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
        data = await segment.read()
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tricklecast.subscriber.archive import (
        DamagedIndex,
        DirectoryInUse,
        Entry,
        Recording,
        RecordOptions,
        read_index,
        record,
    )
    from tricklecast.subscriber.client import ReaderOptions, Subscriber
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
    from tricklecast.subscriber.media.opening import NotMedia
    from tricklecast.subscriber.messages import BadMessage, Message, MessageOptions, Messages, json_lines, json_messages
    from tricklecast.subscriber.segment import Segment
    from tricklecast.subscriber.sinks import SinkFailed
    from tricklecast.trickle.client.bridge import TrickleTransport
    from tricklecast.trickle.errors import Position

_HOMES = {
    ".archive": "DamagedIndex DirectoryInUse Entry RecordOptions Recording read_index record",
    ".client": "ReaderOptions Subscriber",
    ".core": "AnyStart OnLag",
    ".events": "Connected Ended Failed Gap Lagging Restarted Retrying SegmentBroken SegmentResumed SegmentTruncated "
    "SkippedAhead SubscriberEvent SubscriberStatistics",
    ".media.opening": "NotMedia",
    ".messages": "BadMessage Message MessageOptions Messages json_lines json_messages",
    ".segment": "Segment",
    ".sinks": "SinkFailed",
    "tricklecast.trickle.client.bridge": "TrickleTransport",
    "tricklecast.trickle.errors": "Position",
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
    "MessageOptions",
    "Messages",
    "NotMedia",
    "OnLag",
    "Position",
    "ReaderOptions",
    "RecordOptions",
    "Recording",
    "Restarted",
    "Retrying",
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
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
