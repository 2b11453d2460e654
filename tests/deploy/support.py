"""What the files for Prometheus and Grafana ask for, and what there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from tests.support.metrics import families
from tests.support.waiting import WITHIN_S
from tricklecast.app.cli import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

SCRAPED = frozenset({"instance", "job"})
"""Labels that every series gets when it is scraped."""

SERVER = SCRAPED | {"worker"}
"""Labels that a server's series have, if it has several workers."""


@cache
def storms() -> dict[str, frozenset[str]]:
    """The labels of each gauge that a storm report writes, by name: that of a log with a minute of 1,200 requests."""
    lines = (
        f'{{"v":1,"ts_us":{1_760_000_040_000_000 + n * 50_000},"node":"n1","kind":"exchange","op":"read","status":200,'
        f'"channel":"film","seq":{n},"rseq":{n},"bytes_out":9,"client":"viewer"}}\n'
        for n in range(1200)
    )
    done = CliRunner().invoke(cli, ["storms", "-", "-q", "--prom", "-"], input="".join(lines), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    known: dict[str, frozenset[str]] = {}
    for metric in text_string_to_metric_families(done.stdout):
        for sample in metric.samples:
            known[sample.name] = known.get(sample.name, SCRAPED) | set(sample.labels)
    return known


@cache
def series() -> dict[str, frozenset[str]]:
    """The labels of each series that a server or a storm report exposes, by name."""
    known = {"up": SCRAPED, "ALERTS": SCRAPED | {"alertname", "alertstate", "severity", "limit"}}
    for family in families():
        labels = SERVER | set(family.labels)
        known |= {name: labels | {"le"} if name.endswith("_bucket") else labels for name in family.series}
    return known | storms()


def asked_for(expression: str) -> list[tuple[str, set[str]]]:
    """The series that a PromQL expression selects, each with the labels that it is selected by."""
    named = re.findall(r"\b((?:tricklecast|process)_\w+|up|ALERTS)\b(?:\{([^}]*)\})?", expression)
    return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))) for name, selector in named]


def unknown(expression: str) -> list[str]:
    """What an expression asks for that does not exist."""
    wrong = []
    for name, labels in asked_for(expression):
        if name not in series():
            wrong.append(name)
        elif strange := labels - series()[name]:
            wrong.append(f"{name}{sorted(strange)}")
    return wrong


def load(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def promtool(*arguments: str | Path) -> None:
    """Run it; what it does not accept fails the test."""
    program = os.environ.get("PROMTOOL") or shutil.which("promtool") or str(ROOT / ".venv" / "bin" / "promtool")
    if shutil.which(program) is None:
        pytest.skip("there is no promtool here; scripts/test gets one where it can, PROMTOOL names one")
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
