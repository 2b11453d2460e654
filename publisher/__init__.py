"""Publish segments of a channel."""

from tricklecast.publisher.client import Publisher
from tricklecast.publisher.segment import Segment
from tricklecast.publisher.statistics import Statistics
from tricklecast.publisher.verdicts import Closed, Receipt

__all__ = ["Closed", "Publisher", "Receipt", "Segment", "Statistics"]
