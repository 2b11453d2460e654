"""Publish segments of a channel."""

from publisher.client import Publisher, Segment
from publisher.core import Closed, Receipt

__all__ = ["Closed", "Publisher", "Receipt", "Segment"]
