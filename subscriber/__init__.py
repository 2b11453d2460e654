"""Subscribe to a channel.

::

    async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
        data = await segment.read()
"""

from subscriber.archive.disk import DirectoryInUse
from subscriber.archive.index import DamagedIndex, Entry
from subscriber.archive.record import Recording, read_index, record
from subscriber.client import Subscriber
from subscriber.messages import BadMessage, Message, Messages, json_lines, json_messages
from subscriber.remux.source import NotMedia
from subscriber.runtime import Runtime
from subscriber.segment import Segment
from subscriber.sinks import SinkFailed
from subscriber.start import AnyStart
from subscriber.statistics import Statistics
from subscriber.transport import TrailerTransport
from subscriber.verdicts import OnLag
from trickle.position import Position

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
