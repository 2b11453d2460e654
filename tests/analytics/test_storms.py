"""Every class of storm is found, named, counted and given its trigger; every look-alike stays silent."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.analytics.conftest import Known
from tests.analytics.support.scenarios import STORMS, TRAPS, Truth
from tricklecast.analytics.report_old.model import Episode


@pytest.fixture(scope="module")
def by_node(known: Known) -> dict[str | None, list[Episode]]:
    """The episodes of each node, in the order of time."""
    found: dict[str | None, list[Episode]] = defaultdict(list)
    for episode in sorted(known.report.episodes, key=lambda episode: episode.start_us):
        found[episode.node].append(episode)
    return found


@pytest.mark.parametrize("name", STORMS)
def test_storm(name: str, by_node: dict[str | None, list[Episode]], known: Known) -> None:
    """The storm is found once, with its class, requests, clients and trigger."""
    told = [Truth(str(found.storm), found.n, found.n_clients, found.trigger) for found in by_node[name]]
    assert told == known.truths[name]


@pytest.mark.parametrize("name", TRAPS)
def test_look_alike_is_silent(name: str, by_node: dict[str | None, list[Episode]]) -> None:
    """What is no storm is not reported as one."""
    assert by_node[name] == []
