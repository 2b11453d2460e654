"""Subscribe to a channel.

::

    async with Subscriber("http://host:2939/trickle/camera", start="current") as subscriber:
        async for segment in subscriber:
            data = await segment.read()
"""

from subscriber.client import Runtime, Subscriber
from subscriber.segment import Segment
from subscriber.statistics import Statistics
from subscriber.transport import TrailerTransport
from subscriber.verdicts import OnLag

__all__ = ["OnLag", "Runtime", "Segment", "Statistics", "Subscriber", "TrailerTransport"]
