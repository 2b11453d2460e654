"""Says what a client's events mean, with a `match` over each kind."""

from __future__ import annotations

from typing import assert_never

from tricklecast import publisher as publishing
from tricklecast import subscriber as subscribing
from tricklecast.publisher import PublisherEvent
from tricklecast.subscriber import SubscriberEvent


def published(event: PublisherEvent) -> str:
    """One word for each event of a publisher."""
    match event:
        case publishing.SegmentBegun(seq):
            return f"begun {seq}"
        case publishing.SegmentPublished(receipt):
            return f"published {receipt.seq}"
        case publishing.SegmentLost(seq, error):
            return f"lost {seq}: {error}"
        case publishing.Retrying(error, delay_s):
            return f"again in {delay_s:.1f} s: {error}"
        case publishing.Disconnected(error) | publishing.Failed(error):
            return f"trouble: {error}"
        case publishing.Reconnected(outage_s):
            return f"back after {outage_s:.1f} s"
        case publishing.Forgotten(first, last):
            return f"lost {first} to {last}"
        case publishing.Renumbered(old, new):
            return f"{old} is {new}"
        case publishing.Finished(ended):
            return "ended" if ended else "left"
    assert_never(event)


def read(event: SubscriberEvent) -> str:
    """One word for each event of a subscriber."""
    match event:
        case subscribing.Connected():
            return "connected"
        case subscribing.Gap(first, last):
            return f"missed {first} to {last}"
        case subscribing.Retrying(error=error, attempt=attempt):
            return f"attempt {attempt}: {error}"
        case subscribing.SkippedAhead(wanted, seq):
            return f"{seq} for {wanted}"
        case subscribing.Restarted(seq):
            return f"restarted at {seq}"
        case subscribing.Lagging(seq, lag):
            return f"{seq} is {lag} behind"
        case subscribing.SegmentTruncated(seq, reason):
            return f"{seq} {reason}"
        case subscribing.SegmentResumed(seq) | subscribing.SegmentBroken(seq):
            return f"{seq} was cut"
        case subscribing.Ended():
            return "ended"
        case subscribing.Failed(error):
            return f"failed: {error}"
    assert_never(event)
