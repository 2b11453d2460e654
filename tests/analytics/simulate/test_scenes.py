"""Pauses, scripts and sizes: what was asked for is what is drawn."""

from __future__ import annotations

import random
from itertools import islice
from statistics import median

import pytest

from tricklecast.analytics.simulate.clients import LONGEST_S, Pace, behind_nat, make_client, pauses, polite
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.scenes import scripts
from tricklecast.analytics.simulate.truth import Set
from tricklecast.trickle.errors import InvalidInput


def gaps(pace: Pace, gap_s: float, count: int = 400) -> list[float]:
    """Some pauses."""
    return list(islice(pauses(random.Random(1), pace, gap_s), count))


@pytest.mark.parametrize("pace", list(Pace))
def test_pauses(pace: Pace) -> None:
    """No rhythm stands still, and none pauses so long that it would be two storms."""
    found = gaps(pace, 1.0)
    assert all(0 < gap <= LONGEST_S for gap in found)
    assert 0.3 < median(found) < 1.1


def test_growth() -> None:
    """An exponential back-off grows up to its longest pause, and stays there."""
    found = gaps(Pace.EXPONENTIAL, 2.0)
    assert found[0] < 0.2 < found[4]
    assert all(1.9 < gap < 2.1 for gap in found[20:])


def test_politeness() -> None:
    """A polite client never comes back sooner than told, and its pauses grow."""
    found = polite(random.Random(1), 1.0, 30.0, 200)
    assert min(found) >= 1.0
    assert median(found[20:]) > 5 * median(found[:2])


def test_clients() -> None:
    """Clients of one address without names share a key; with names they do not; connections are used as said."""
    rng = random.Random(1)
    nat = behind_nat(rng, 5)
    assert len({client.key for client in nat}) == 1
    assert len({make_client(rng, ip="192.0.2.1", named=True).key for _ in range(5)}) == 5
    two = make_client(rng, conns=2)
    assert len({two.conn() for _ in range(6)}) == 2
    two.reconnects, two.conns = True, [7]
    assert len({two.conn() for _ in range(6)}) == 6


def test_the_catalogue() -> None:
    """Every class is played in several ways, and names are unique."""
    standard = scripts(Set.STANDARD)
    counts = {kind: sum(script.kind == kind for script in standard) for kind in {script.kind for script in standard}}
    assert len(counts) == 15
    assert min(counts.values()) >= 5
    assert {script.servers for script in standard} == {0, 1, 2}
    for kind in (Set.STANDARD, Set.GREY):
        assert len({script.name for script in scripts(kind)}) == len(scripts(kind))
    assert scripts(Set.HEALTHY) == ()


@pytest.mark.parametrize("kind", [Set.STANDARD, Set.GREY])
def test_scenes_are_repeatable(kind: Set) -> None:
    """A scene depends on its seed and number, and on nothing else in the log."""
    for script in scripts(kind)[::12]:
        one, same, other = script.scene(1, 0), script.scene(1, 0), script.scene(1, 1)
        assert one.entries == same.entries
        assert one.entries != other.entries
        assert one.labels


def test_sizes_follow_from_each_other() -> None:
    """What is not given follows: fewer lines, less time; more clients, more lines."""
    assert sizes(lines=1000).duration_us < sizes(lines=100_000).duration_us == 7_200_000_000
    assert sizes(clients=1000, duration_s=600).lines > 5 * sizes(clients=100, duration_s=600).lines
    assert sizes(lines=50_000, nodes=7).nodes == 7
    assert sizes(lines=5_000_000).planted < 2_000_000
    assert sizes(lines=10_000, kind=Set.HEALTHY).planted == 0


@pytest.mark.parametrize("lines", [1, 99, 10**10])
def test_impossible_sizes(lines: int) -> None:
    """Too few or too many lines are refused."""
    with pytest.raises(InvalidInput):
        sizes(lines=lines)
