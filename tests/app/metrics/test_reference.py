"""The page of metrics has what the server exposes, and the names keep to Prometheus' conventions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.app.metrics.exposed import Family, families

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
FAMILIES = families()


def row(family: Family) -> str:
    """The table row of a metric."""
    labels = " ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.text} |"


def test_the_page_has_a_row_for_each_metric_and_no_other() -> None:
    """Names, kinds, labels and texts are those of /metrics; what is missing stands in the message, to be pasted."""
    written = re.findall(r"^\| `.*\|$", PAGE.read_text(encoding="utf-8").partition("## Values of labels")[0], re.M)
    exposed = [row(family) for family in FAMILIES]
    assert sorted(set(exposed) - set(written)) == []
    assert sorted(set(written) - set(exposed)) == []
    assert len(written) == len(exposed)


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_names_keep_to_the_conventions(family: Family) -> None:
    """Counters end in `_total`, nothing else does; histograms have a unit; each has a text that is a sentence."""
    assert re.fullmatch(r"(tricklecast|process)_[a-z0-9_]+", family.name)
    assert not family.name.startswith("tricklecast_storms_"), "these names belong to the storm report"
    assert family.name.endswith("_total") == (family.kind == "counter")
    if family.kind == "histogram":
        assert family.name.endswith("_seconds")
    assert family.text.endswith(".")


def test_no_name_is_there_twice() -> None:
    """Nor does a series of a histogram have the name of another metric."""
    series = [name for family in FAMILIES for name in family.series]
    assert len(set(series)) == len(series)
