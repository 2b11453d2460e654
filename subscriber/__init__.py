"""Subscribe to a channel.

::

    async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
        data = await segment.read()
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tricklecast.subscriber.archive.disk import DirectoryInUse
    from tricklecast.subscriber.archive.index import DamagedIndex, Entry
    from tricklecast.subscriber.archive.record import Recording, read_index, record
    from tricklecast.subscriber.client import Subscriber
    from tricklecast.subscriber.messages import BadMessage, Message, Messages, json_lines, json_messages
    from tricklecast.subscriber.remux.source import NotMedia
    from tricklecast.subscriber.runtime import Runtime
    from tricklecast.subscriber.segment import Segment
    from tricklecast.subscriber.sinks import SinkFailed
    from tricklecast.subscriber.start import AnyStart
    from tricklecast.subscriber.statistics import Statistics
    from tricklecast.subscriber.transport import TrailerTransport
    from tricklecast.subscriber.verdicts import OnLag
    from tricklecast.trickle.errors import Position

_HOMES = {
    "AnyStart": ".start",
    "BadMessage": ".messages",
    "DamagedIndex": ".archive.index",
    "DirectoryInUse": ".archive.disk",
    "Entry": ".archive.index",
    "Message": ".messages",
    "Messages": ".messages",
    "NotMedia": ".remux.source",
    "OnLag": ".verdicts",
    "Position": "tricklecast.trickle.errors",
    "Recording": ".archive.record",
    "Runtime": ".runtime",
    "Segment": ".segment",
    "SinkFailed": ".sinks",
    "Statistics": ".statistics",
    "Subscriber": ".client",
    "TrailerTransport": ".transport",
    "json_lines": ".messages",
    "json_messages": ".messages",
    "read_index": ".archive.record",
    "record": ".archive.record",
}

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


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562): a command's ``--help`` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
