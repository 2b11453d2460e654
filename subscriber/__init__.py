"""Subscribe to a channel.

::

    async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
        data = await segment.read()
"""

from typing import TYPE_CHECKING

from tricklecast.trickle.lazy import lazy

if TYPE_CHECKING:
    from tricklecast.subscriber.archive import DamagedIndex as DamagedIndex
    from tricklecast.subscriber.archive import DirectoryInUse as DirectoryInUse
    from tricklecast.subscriber.archive import Entry as Entry
    from tricklecast.subscriber.archive import Recording as Recording
    from tricklecast.subscriber.archive import RecordOptions as RecordOptions
    from tricklecast.subscriber.archive import read_index as read_index
    from tricklecast.subscriber.archive import record as record
    from tricklecast.subscriber.client import ReaderOptions as ReaderOptions
    from tricklecast.subscriber.client import Subscriber as Subscriber
    from tricklecast.subscriber.core import AnyStart as AnyStart
    from tricklecast.subscriber.core import OnLag as OnLag
    from tricklecast.subscriber.events import Connected as Connected
    from tricklecast.subscriber.events import Ended as Ended
    from tricklecast.subscriber.events import Failed as Failed
    from tricklecast.subscriber.events import Gap as Gap
    from tricklecast.subscriber.events import Lagging as Lagging
    from tricklecast.subscriber.events import Restarted as Restarted
    from tricklecast.subscriber.events import Retrying as Retrying
    from tricklecast.subscriber.events import SegmentBroken as SegmentBroken
    from tricklecast.subscriber.events import SegmentResumed as SegmentResumed
    from tricklecast.subscriber.events import SegmentTruncated as SegmentTruncated
    from tricklecast.subscriber.events import SkippedAhead as SkippedAhead
    from tricklecast.subscriber.events import SubscriberEvent as SubscriberEvent
    from tricklecast.subscriber.events import SubscriberStatistics as SubscriberStatistics
    from tricklecast.subscriber.media.opening import NotMedia as NotMedia
    from tricklecast.subscriber.messages import BadMessage as BadMessage
    from tricklecast.subscriber.messages import Message as Message
    from tricklecast.subscriber.messages import MessageOptions as MessageOptions
    from tricklecast.subscriber.messages import Messages as Messages
    from tricklecast.subscriber.messages import json_lines as json_lines
    from tricklecast.subscriber.messages import json_messages as json_messages
    from tricklecast.subscriber.segment import Segment as Segment
    from tricklecast.subscriber.sinks import SinkFailed as SinkFailed
    from tricklecast.trickle.client.bridge import TrickleTransport as TrickleTransport
    from tricklecast.trickle.errors import Position as Position

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        ".archive": "DamagedIndex DirectoryInUse Entry RecordOptions Recording read_index record",
        ".client": "ReaderOptions Subscriber",
        ".core": "AnyStart OnLag",
        ".events": (
            "Connected Ended Failed Gap Lagging Restarted Retrying SegmentBroken SegmentResumed "
            "SegmentTruncated SkippedAhead SubscriberEvent SubscriberStatistics"
        ),
        ".media.opening": "NotMedia",
        ".messages": "BadMessage Message MessageOptions Messages json_lines json_messages",
        ".segment": "Segment",
        ".sinks": "SinkFailed",
        "tricklecast.trickle.client.bridge": "TrickleTransport",
        "tricklecast.trickle.errors": "Position",
    },
)
