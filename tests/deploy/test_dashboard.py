"""The dashboard: Grafana's format, queries that Prometheus takes, about metrics that exist."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.support import DEPLOY, asked_for, load, promtool, unknown

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "tricklecast.json").read_text("utf-8"))
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
QUERIES += [(note["name"], note["expr"]) for note in DASHBOARD["annotations"]["list"]]


def plain(expression: str) -> str:
    """As Grafana sends it: variables filled in."""
    return expression.replace("$instance", ".*").replace("$__rate_interval", "1m")


def test_there_is_a_row_for_each_concern() -> None:
    """And a panel in each."""
    titles = [row["title"] for row in ROWS]
    concerns = ["Traffic", "Latency", "Readers and lag", "Refusals and guard", "Memory", "Storms", "Process"]
    assert [title.partition(" (")[0] for title in titles] == concerns
    tops = [row["gridPos"]["y"] for row in ROWS]
    for top, below in zip(tops, [*tops[1:], 10_000], strict=True):
        assert [panel for panel in PANELS if top < panel["gridPos"]["y"] < below]


def test_panels_do_not_overlap() -> None:
    """Each has its own number and its own place, within the 24 columns."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_is_complete(panel: dict[str, Any]) -> None:
    """It says what it shows, in which unit, from the chosen data source; its series have legends."""
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    for query in [panel, *panel["targets"]]:
        assert query["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["legendFormat"] for target in panel["targets"])
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_asks_for_what_there_is(title: str, expression: str) -> None:
    """Names and labels of metrics; at least one."""
    assert asked_for(expression)
    assert unknown(plain(expression)) == []


def test_prometheus_takes_all_queries(tmp_path: Path) -> None:
    """Its own parser reads them, as the expressions of rules."""
    rules = [{"record": f"panel:{n}", "expr": plain(expression)} for n, (_, expression) in enumerate(QUERIES)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)


def test_the_dashboard_shows_server_and_storm_report() -> None:
    """Both kinds of metrics."""
    names = {name for _, expression in QUERIES for name, _ in asked_for(expression)}
    assert {name.startswith("tricklecast_storms_") for name in names} == {True, False}


def test_it_is_provisioned() -> None:
    """Grafana is told where dashboards lie, and has a Prometheus to ask."""
    (provider,) = load(DEPLOY / "grafana" / "provisioning" / "dashboards" / "dashboards.yml")["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
    (source,) = load(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
