"""The busiest channels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.app.metrics.scrape import labelled, scrape
from tricklecast.app.metrics.top import MIN_INTERVAL_S, OTHER, TopChannels

RECEIVED = "tricklecast_channel_received_bytes_per_second"
SENT = "tricklecast_channel_sent_bytes_per_second"


class Clock:
    """It stands still unless it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def channel(received: int = 0, sent: int = 0, epoch: int = 1) -> Any:
    """One that so much went through."""
    return SimpleNamespace(epoch=epoch, bytes_in=received, bytes_out=sent)


def after(clock: Clock, top: TopChannels, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """A scrape so much later: received and sent, by channel."""
    clock.now += seconds
    found = scrape(top)
    return labelled(found, RECEIVED, "channel"), labelled(found, SENT, "channel")


def test_the_busiest_are_named_and_the_rest_is_one() -> None:
    """By what went through since the last scrape, in and out together."""
    clock, channels = Clock(), {name: channel(1000, 1000) for name in "abcd"}
    top = TopChannels(channels, clock, 2)
    channels["a"].bytes_in += 100
    channels["b"].bytes_out += 300
    channels["c"].bytes_in += 10
    channels["d"].bytes_in += 20
    received, sent = after(clock, top, 10)
    assert received == {"b": 0, "a": 10, OTHER: 3}
    assert sent == {"b": 30, "a": 0, OTHER: 0}


def test_a_scrape_that_comes_too_soon_gets_the_rates_of_the_one_before() -> None:
    """One just below the interval; at the interval the rates are new."""
    clock, channels = Clock(), {"a": channel()}
    top = TopChannels(channels, clock, 1)
    assert after(clock, top, 0) == ({}, {})
    channels["a"].bytes_in = 80
    assert after(clock, top, 8)[0] == {"a": 10, OTHER: 0}
    assert after(clock, top, MIN_INTERVAL_S - 0.5)[0] == {"a": 10, OTHER: 0}
    assert after(clock, top, 0.5)[0] == {"a": 0, OTHER: 0}


def test_a_channel_that_is_new_or_lives_again_counts_from_its_beginning() -> None:
    """And one that has gone is not there any more."""
    clock, channels = Clock(), {"old": channel(1000), "again": channel(1000)}
    top = TopChannels(channels, clock, 3)
    del channels["old"]
    channels["again"] = channel(50, epoch=2)
    channels["new"] = channel(100)
    assert after(clock, top, 10)[0] == {"new": 10, "again": 5, OTHER: 0}


def test_with_zero_no_channel_is_named() -> None:
    """Not even their sum."""
    clock, channels = Clock(), {"a": channel()}
    assert after(clock, TopChannels(channels, clock, 0), 10) == ({}, {})


@given(st.dictionaries(st.text(min_size=1), st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), max_size=30))
def test_labels_are_few_and_nothing_is_lost(counts: dict[str, tuple[int, int]]) -> None:
    """Whatever channels are called: at most one more than asked for, and together they have all bytes."""
    clock, channels = Clock(), {f"c{name}": channel() for name in counts}
    top = TopChannels(channels, clock, 5)
    for name, (received, sent) in counts.items():
        channels[f"c{name}"].bytes_in, channels[f"c{name}"].bytes_out = received, sent
    clock.now += 8
    shown = next(iter(top.collect())).samples
    assert len(shown) <= 6
    assert sum(sample.value for sample in shown) * 8 == sum(received for received, _ in counts.values())
