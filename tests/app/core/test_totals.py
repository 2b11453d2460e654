"""Sums over channels."""

from __future__ import annotations

from tests.app.core.support import Bench
from tricklecast.app.core.facts import EndReason
from tricklecast.app.core.totals import Totals, totals_of


def test_no_channels_are_nothing() -> None:
    """All sums are 0."""
    assert totals_of([]) == Totals()


def test_everything_is_told_apart() -> None:
    """Live and draining channels; segments kept, written, preconnected, orphaned; readers that wait."""
    busy, ended = Bench("busy"), Bench("ended")
    busy.publish(0, b"abc")
    busy.orphan(1, b"de")
    busy.open(2, b"f")
    busy.reserve(3)
    busy.wait(3)
    busy.wait(3)
    busy.attach(busy.serve(2))
    ended.publish(0, b"abc")
    ended.publish(1, b"abc")
    ended.channel.end(EndReason.DELETED, 1.0)
    assert totals_of([busy.channel, ended.channel]) == Totals(
        live=1, draining=1, segments=3, writing=1, preconnected=1, orphaned=1, waiting=2
    )
