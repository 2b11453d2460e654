"""tricklecast: segmented HTTP pub/sub for live media.

::

    from tricklecast import Publisher, Subscriber

    async with Publisher("http://127.0.0.1:2939/trickle/chat") as publisher:
        await publisher.publish(b"a whole segment")

Every command imports this module, but few need a client. So a public name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from tricklecast.trickle import __version__ as __version__
from tricklecast.trickle.lazy import lazy

if TYPE_CHECKING:
    from tricklecast.publisher import Publisher as Publisher
    from tricklecast.subscriber import Subscriber as Subscriber
    from tricklecast.trickle.client.channel import Channel as Channel
    from tricklecast.trickle.client.listing import ChannelInfo as ChannelInfo
    from tricklecast.trickle.client.listing import Channels as Channels
    from tricklecast.trickle.client.listing import list_channels as list_channels
    from tricklecast.trickle.errors import BrokenByPeer as BrokenByPeer
    from tricklecast.trickle.errors import ChannelBusy as ChannelBusy
    from tricklecast.trickle.errors import ChannelEnded as ChannelEnded
    from tricklecast.trickle.errors import ChannelNotFound as ChannelNotFound
    from tricklecast.trickle.errors import ClosedHere as ClosedHere
    from tricklecast.trickle.errors import ConnectionLost as ConnectionLost
    from tricklecast.trickle.errors import InvalidChannelName as InvalidChannelName
    from tricklecast.trickle.errors import InvalidInput as InvalidInput
    from tricklecast.trickle.errors import InvalidSeq as InvalidSeq
    from tricklecast.trickle.errors import InvalidURL as InvalidURL
    from tricklecast.trickle.errors import LocalProtocolError as LocalProtocolError
    from tricklecast.trickle.errors import Position as Position
    from tricklecast.trickle.errors import PublisherFull as PublisherFull
    from tricklecast.trickle.errors import Refused as Refused
    from tricklecast.trickle.errors import RemoteProtocolError as RemoteProtocolError
    from tricklecast.trickle.errors import SegmentDropped as SegmentDropped
    from tricklecast.trickle.errors import SegmentMissing as SegmentMissing
    from tricklecast.trickle.errors import SegmentsUnconfirmed as SegmentsUnconfirmed
    from tricklecast.trickle.errors import SegmentTooLarge as SegmentTooLarge
    from tricklecast.trickle.errors import Superseded as Superseded
    from tricklecast.trickle.errors import TrickleError as TrickleError

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        ".publisher": "Publisher",
        ".subscriber": "Subscriber",
        ".trickle": "__version__",
        ".trickle.client.channel": "Channel",
        ".trickle.client.listing": "ChannelInfo Channels list_channels",
        ".trickle.errors": (
            "BrokenByPeer ChannelBusy ChannelEnded ChannelNotFound ClosedHere ConnectionLost "
            "InvalidChannelName InvalidInput InvalidSeq InvalidURL LocalProtocolError Position PublisherFull "
            "Refused RemoteProtocolError SegmentDropped SegmentMissing SegmentTooLarge SegmentsUnconfirmed "
            "Superseded TrickleError"
        ),
    },
)
