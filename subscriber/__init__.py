"""Subscribe to a channel.

::

    async with Subscriber("http://host:2939/trickle/camera", start="current") as subscriber:
        async for segment in subscriber:
            data = await segment.read()
"""

from subscriber.client import Subscriber
from subscriber.runtime import Runtime
from subscriber.segment import Segment
from subscriber.start import AnyStart
from subscriber.statistics import Statistics
from subscriber.transport import TrailerTransport
from subscriber.verdicts import OnLag
from trickle.position import Position

__all__ = ["AnyStart", "OnLag", "Position", "Runtime", "Segment", "Statistics", "Subscriber", "TrailerTransport"]
