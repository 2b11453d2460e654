"""Publish segments of a channel."""

from tricklecast.publisher.client import Publisher, Segment
from tricklecast.publisher.core import Closed, Receipt
from tricklecast.publisher.events import PublisherEvent
from tricklecast.publisher.segments import PublisherStatistics

__all__ = ["Closed", "Publisher", "PublisherEvent", "PublisherStatistics", "Receipt", "Segment"]
