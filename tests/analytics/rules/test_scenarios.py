"""Scenarios written by hand, each on a server of its own: storms are told with their counts, look-alikes are silent."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.analytics.support.jsonl import read_jsonl
from tests.analytics.support.rules import rules
from tests.analytics.support.scenarios import write_all
from tests.analytics.support.scenes import TWO_SERVERS, write_scenes
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.rules.incidents import Incident, incidents
from tricklecast.analytics.scan import embedded

FLEETS = {"overload_amplification", "thundering_herd", "small_herd_across_seconds"}
"""Their servers restart at the same moment: one restart is one incident."""


def _found(path: Path) -> list[Incident]:
    """Also by rules that are planned once."""
    with embedded.connect(0) as connection:
        read_jsonl(connection, [path])
        found = incidents(connection)
        assert rules().of(connection) == found
    return found


def test_every_scenario(tmp_path: Path) -> None:
    """Each storm is a phase with its requests; a cascade is one incident; look-alikes are silent."""
    lines, truths = write_all(7)
    found = _found(write_lines(tmp_path / "log.jsonl", lines))
    told: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for incident in found:
        for node in incident.nodes:
            told[node] += [(phase.storm.value, phase.n) for phase in incident.phases]
    for node, storms in truths.items():
        if node not in FLEETS:
            assert sorted(told[node]) == sorted((one.storm, one.n) for one in storms), node
    restart = [one for one in found if FLEETS & set(one.nodes)]
    assert [(set(one.nodes), one.trigger) for one in restart] == [(FLEETS, "server_ready")]


def test_scenes_of_somebody_else(tmp_path: Path) -> None:
    """What was once wrong, told by somebody who did not know the rules."""
    lines, truths = write_scenes(7)
    found = _found(write_lines(tmp_path / "log.jsonl", lines))
    for name, stories in truths.items():
        nodes = {"left", "right"} if name == TWO_SERVERS else {name}
        mine = [one for one in found if nodes & set(one.nodes)]
        told = sorted((one.storm.value, one.n, len(one.clients), one.trigger) for one in mine)
        wanted = sorted(
            (storm, n if n is not None else told[0][1], clients, trigger) for storm, n, clients, trigger in stories
        )
        assert told == wanted, name
