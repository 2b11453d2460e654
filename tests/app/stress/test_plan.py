"""Options become a plan, and a plan orders for each process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tricklecast.app.stress.plan import Plan, base_url, parse_sizes, segments_in
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.load import Load

LOAD = Load(seed=1, channels=3, segments=10, every_s=0.5, smallest=20, largest=40, chunk_bytes=10)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_sizes, "1kB", (1000, 1000)),
        (parse_sizes, "1KiB-1MiB", (1024, 1048576)),
    ],
)
def test_quantities(parse: Callable[[str], object], text: str, value: object) -> None:
    """Sizes and times may have a unit, sizes may be a range."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_sizes, "10kB-1kB"),
        (parse_sizes, "10"),
        (parse_sizes, "-"),
    ],
)
def test_what_is_no_quantity(parse: Callable[[str], object], text: str) -> None:
    """It is refused, in words; so is a segment that is smaller than what says where it belongs."""
    with pytest.raises(InvalidInput):
        parse(text)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:2939", "http://host:2939/trickle"),
        ("http://host:2939/", "http://host:2939"),
        ("https://host/live//trickle/", "https://host/live/trickle"),
    ],
)
def test_a_server_or_a_base_path(url: str, base: str) -> None:
    """A URL without a path means the usual one; one with a path means that."""
    assert base_url(url) == base


def test_a_url_of_nothing() -> None:
    """What is no URL of a server is refused."""
    with pytest.raises(InvalidInput):
        base_url("ftp://host/")


@pytest.mark.parametrize(("for_s", "every_s", "segments"), [(30, 0.5, 60), (0.3, 0.1, 3), (1, 0.3, 4), (0.1, 5, 1)])
def test_segments_fill_the_time(for_s: float, every_s: float, segments: int) -> None:
    """As many as begin within it, however floats round, and at least one."""
    assert segments_in(for_s, every_s) == segments


def test_everybody_has_one_seat() -> None:
    """Each channel has one publisher and all of its subscribers, spread evenly over the processes."""
    plan = Plan("http://host/trickle", "x", LOAD, subscribers=5, processes=2)
    publishing = [seat for orders in plan.publishers() for seat in orders.seats]
    assert sorted(seat.channel for seat in publishing) == [0, 1, 2]
    assert {seat.url for seat in publishing} == {f"http://host/trickle/stress-x-{number}" for number in range(3)}
    reading = [[(seat.channel, seat.number) for seat in orders.seats] for orders in plan.readers()]
    assert sorted(seat for seats in reading for seat in seats) == [
        (channel, number) for channel in range(3) for number in range(5)
    ]
    assert [len(seats) for seats in reading] == [8, 7]
    assert plan.for_s == 5.0


def test_no_process_is_idle() -> None:
    """More processes than seats: only as many are started."""
    assert len(Plan("http://host", "x", LOAD, subscribers=1, processes=9).publishers()) == 3
