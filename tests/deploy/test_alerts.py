"""The alert rules: Prometheus takes them, they fire when they should and only then, and each is explained."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.deploy.support import DEPLOY, ROOT, load, promtool, storms, unknown
from tests.support.metrics import families

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
RULES: list[dict[str, Any]] = [rule for group in load(ALERTS)["groups"] for rule in group["rules"]]
NAMES = [rule["alert"] for rule in RULES]
PAGE = ROOT / "docs" / "how-to" / "alerts.md"


def test_prometheus_takes_the_rules_and_the_configuration() -> None:
    """As they are, from the folder that is mounted."""
    promtool("check", "rules", ALERTS)
    promtool("check", "config", ALERTS.with_name("prometheus.yml"))


def test_the_rules_fire_when_they_should_and_only_then() -> None:
    """Prometheus' own unit tests: first a server on which nothing is wrong, then each alert alone."""
    promtool("test", "rules", ALERTS.with_name("alerts_test.yml"))


def test_every_rule_has_a_unit_test() -> None:
    """Each fires somewhere in it."""
    tests = ALERTS.with_name("alerts_test.yml").read_text(encoding="utf-8")
    fired = set(re.findall(r"alertname=\"(\w+)\"", tests)) | set(re.findall(r"alertname: (\w+)", tests))
    assert fired == set(NAMES)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    """Names and labels of metrics: one that is misspelt would never fire."""
    assert unknown(rule["expr"]) == []


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_says_what_is_wrong_and_where_to_read_on(rule: dict[str, Any]) -> None:
    """A summary, a description, and a heading of the page of alerts."""
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert len(annotations["description"]) > 40
    assert annotations["runbook_url"] == f"docs/how-to/alerts.md#{rule['alert'].lower()}"
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})


def test_the_page_explains_each_alert_in_the_same_order() -> None:
    """No more and no fewer."""
    assert re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.M) == NAMES
    assert len(set(NAMES)) == len(NAMES)


def test_what_does_not_exist_is_found() -> None:
    """The check above can fail: a metric, a label, the base name of a histogram."""
    assert unknown("rate(tricklecast_nothing_total[5m]) > 0") == ["tricklecast_nothing_total"]
    assert unknown('tricklecast_limit{limt="readers"}') == ["tricklecast_limit['limt']"]
    assert unknown("tricklecast_wait_seconds") == ["tricklecast_wait_seconds"]
    assert unknown('sum by (le) (rate(tricklecast_wait_seconds_bucket{op="read",le="1.0"}[5m]))') == []


def test_servers_and_reports_share_no_name() -> None:
    """What a storm report writes is about a log, and must not be taken for a server's own."""
    assert len(storms()) == 15
    assert all(name.startswith("tricklecast_storms_") for name in storms())
    assert not storms().keys() & {name for family in families() for name in (family.name, *family.series)}
