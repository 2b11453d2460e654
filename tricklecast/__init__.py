"""tricklecast: segmented HTTP pub/sub for live media.

::

    from tricklecast import Publisher, Subscriber

    async with Publisher("http://127.0.0.1:2939/trickle/chat") as publisher:
        await publisher.publish(b"a whole segment")

Every command imports this module, but few need a client. So a public name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tricklecast.trickle import __version__

if TYPE_CHECKING:
    from tricklecast.publisher import Publisher
    from tricklecast.subscriber import Subscriber
    from tricklecast.trickle.client.channel import Channel
    from tricklecast.trickle.client.listing import ChannelInfo, Channels, list_channels
    from tricklecast.trickle.errors import (
        BrokenByPeer,
        ChannelBusy,
        ChannelEnded,
        ChannelNotFound,
        ClosedHere,
        ConnectionLost,
        InvalidChannelName,
        InvalidInput,
        InvalidSeq,
        InvalidURL,
        LocalProtocolError,
        Position,
        PublisherFull,
        Refused,
        RemoteProtocolError,
        SegmentDropped,
        SegmentMissing,
        SegmentsUnconfirmed,
        SegmentTooLarge,
        Superseded,
        TrickleError,
    )

# The modules of the public names; those that are not listed are in trickle.errors.
_HOMES = {
    "Channel": ".trickle.client.channel",
    "ChannelInfo": ".trickle.client.listing",
    "Channels": ".trickle.client.listing",
    "Publisher": ".publisher",
    "Subscriber": ".subscriber",
    "list_channels": ".trickle.client.listing",
}

__all__ = [
    "BrokenByPeer",
    "Channel",
    "ChannelBusy",
    "ChannelEnded",
    "ChannelInfo",
    "ChannelNotFound",
    "Channels",
    "ClosedHere",
    "ConnectionLost",
    "InvalidChannelName",
    "InvalidInput",
    "InvalidSeq",
    "InvalidURL",
    "LocalProtocolError",
    "Position",
    "Publisher",
    "PublisherFull",
    "Refused",
    "RemoteProtocolError",
    "SegmentDropped",
    "SegmentMissing",
    "SegmentTooLarge",
    "SegmentsUnconfirmed",
    "Subscriber",
    "Superseded",
    "TrickleError",
    "__version__",
    "list_channels",
]


def __getattr__(name: str) -> object:
    """Load a public name (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, ".trickle.errors"), __name__), name)
