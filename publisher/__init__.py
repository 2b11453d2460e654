"""Publish segments of a channel."""

from typing import TYPE_CHECKING

from tricklecast.trickle.lazy import lazy

if TYPE_CHECKING:
    from tricklecast.publisher.client import Publisher as Publisher
    from tricklecast.publisher.core import Closed as Closed
    from tricklecast.publisher.core import Receipt as Receipt
    from tricklecast.publisher.events import PublisherEvent as PublisherEvent
    from tricklecast.publisher.lines import JsonLines as JsonLines
    from tricklecast.publisher.segments import PublisherStatistics as PublisherStatistics
    from tricklecast.publisher.segments import SegmentWriter as SegmentWriter

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        ".client": "Publisher",
        ".core": "Closed Receipt",
        ".events": "PublisherEvent",
        ".lines": "JsonLines",
        ".segments": "PublisherStatistics SegmentWriter",
    },
)
