"""Subscribe to a channel.

::

    async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
        data = await segment.read()
"""

from tricklecast.subscriber.archive.disk import DirectoryInUse
from tricklecast.subscriber.archive.index import DamagedIndex, Entry
from tricklecast.subscriber.archive.record import Recording, read_index, record
from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.media.joiner import NotMedia
from tricklecast.subscriber.messages import BadMessage, Message, Messages, json_lines, json_messages
from tricklecast.subscriber.runtime import Runtime
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import SinkFailed
from tricklecast.subscriber.start import AnyStart
from tricklecast.subscriber.statistics import Statistics
from tricklecast.subscriber.transport import TrailerTransport
from tricklecast.subscriber.verdicts import OnLag
from tricklecast.trickle.errors import Position

__all__ = [
    "AnyStart",
    "BadMessage",
    "DamagedIndex",
    "DirectoryInUse",
    "Entry",
    "Message",
    "Messages",
    "NotMedia",
    "OnLag",
    "Position",
    "Recording",
    "Runtime",
    "Segment",
    "SinkFailed",
    "Statistics",
    "Subscriber",
    "TrailerTransport",
    "json_lines",
    "json_messages",
    "read_index",
    "record",
]
