"""Publish segments of a channel."""

from typing import TYPE_CHECKING

from tricklecast.trickle.lazy import lazy

if TYPE_CHECKING:
    from tricklecast.publisher.client import Publisher as Publisher
    from tricklecast.publisher.core import Closed as Closed
    from tricklecast.publisher.core import Receipt as Receipt
    from tricklecast.publisher.events import Disconnected as Disconnected
    from tricklecast.publisher.events import Failed as Failed
    from tricklecast.publisher.events import Finished as Finished
    from tricklecast.publisher.events import Forgotten as Forgotten
    from tricklecast.publisher.events import PublisherEvent as PublisherEvent
    from tricklecast.publisher.events import PublisherStatistics as PublisherStatistics
    from tricklecast.publisher.events import Reconnected as Reconnected
    from tricklecast.publisher.events import Renumbered as Renumbered
    from tricklecast.publisher.events import Retrying as Retrying
    from tricklecast.publisher.events import SegmentBegun as SegmentBegun
    from tricklecast.publisher.events import SegmentLost as SegmentLost
    from tricklecast.publisher.events import SegmentPublished as SegmentPublished
    from tricklecast.publisher.lines import JsonLines as JsonLines
    from tricklecast.publisher.writer import SegmentWriter as SegmentWriter

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        ".client": "Publisher",
        ".core": "Closed Receipt",
        ".events": (
            "Disconnected Failed Finished Forgotten PublisherEvent PublisherStatistics Reconnected Renumbered "
            "Retrying SegmentBegun SegmentLost SegmentPublished"
        ),
        ".lines": "JsonLines",
        ".writer": "SegmentWriter",
    },
)
