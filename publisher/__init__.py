"""Publish segments of a channel."""

from publisher.client import Publisher
from publisher.segment import Segment
from publisher.statistics import Statistics
from publisher.verdicts import Closed, Receipt

__all__ = ["Closed", "Publisher", "Receipt", "Segment", "Statistics"]
