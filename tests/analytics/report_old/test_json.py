"""``report.json``: complete, in a stable order, ASCII, and as its schema says."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.analytics.support.sample_report import (
    HOSTILE,
    empty_report,
    hostile_report,
    quiet_report,
    sample_report,
)
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.report_old import json_report
from tricklecast.analytics.report_old.figures import Comparison, RateRatio
from tricklecast.analytics.report_old.json_report import REPORT_VERSION, as_dict, as_json
from tricklecast.analytics.report_old.model import Episode, Report

SCHEMA: dict[str, Any] = json.loads(Path(json_report.__file__).with_name("report.schema.json").read_text())

REPORTS = {
    "sample": sample_report(),
    "quiet": quiet_report(),
    "empty": empty_report(),
    "hostile": hostile_report(),
}


def closed(schema: Any) -> Any:
    """The same schema, in which an object has no other fields than those that are described."""
    match schema:
        case {"properties": _}:
            return {"additionalProperties": False} | {name: closed(inner) for name, inner in schema.items()}
        case dict():
            return {name: closed(inner) for name, inner in schema.items()}
        case list():
            return [closed(inner) for inner in schema]
    return schema


@pytest.mark.parametrize("name", REPORTS)
def test_reports_are_as_the_schema_says(name: str) -> None:
    """Every field is there, of the type that is documented, and no field is undocumented."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(closed(SCHEMA)).validate(json.loads(as_json(REPORTS[name])))


def test_the_schema_is_not_vacuous() -> None:
    """What is missing, of a wrong type or undocumented is refused."""
    validator = jsonschema.Draft202012Validator(closed(SCHEMA))
    document = as_dict(sample_report())
    for change in (
        {"version": 1},
        {"episodes": [document["episodes"][0] | {"class": "storm_in_a_teacup"}]},
        {"n_episodes": "8"},
        {"undocumented": 1},
        {"success": {"first_try": 1.0}},
    ):
        assert not validator.is_valid(document | change)
    assert not validator.is_valid({name: value for name, value in document.items() if name != "quality"})


def test_the_schema_knows_every_class_and_says_what_everything_means() -> None:
    """A new class of storm has to be added to it; each field has a description."""
    assert SCHEMA["$defs"]["episode"]["properties"]["class"]["enum"] == [storm.value for storm in StormClass]
    assert SCHEMA["properties"]["version"]["const"] == REPORT_VERSION
    for definition in (SCHEMA, *SCHEMA["$defs"].values()):
        for name, field in definition["properties"].items():
            assert field.get("description"), name


def test_no_value_of_the_report_is_left_out() -> None:
    """Each attribute of a report and of an episode is in the document, some under a plainer name."""
    document = as_dict(sample_report())
    assert {field.name for field in fields(Report)} <= set(document)
    renamed = {"storm": "class", "why": "cause"}
    assert {renamed.get(field.name, field.name) for field in fields(Episode)} <= set(document["episodes"][0])


def test_figures() -> None:
    """Values are those of the report, derived ones included; floats have six decimals."""
    report = sample_report()
    document = as_dict(replace(report, totals=replace(report.totals, handler_s=1 / 3)))
    assert document["totals"]["handler_s"] == 0.333333
    assert document["totals"]["wanted"] == 111_640 - 21_650
    assert document["worst_minute"]["amplification"] == round(8412 / (8412 - 6321), 6)
    assert document["episodes"][0]["blast"]["ratio"] == round(912.0 / 31.5, 6)
    assert document["budget_breaks"][0]["ratio"] == round(6321 / 8412, 6)
    assert document["quality"]["gaps"][0]["node"] == "relay-2"
    assert document["comparison"]["ratios"][2] == {
        "name": "zero_byte_loop",
        "before": 0,
        "before_of": 60_100,
        "after": 299,
        "after_of": 48_000,
        "ratio": None,
        "lo": 84.1,
        "hi": None,
    }


def test_what_is_no_number_is_not_known() -> None:
    """Infinity and NaN are no JSON."""
    odd = Comparison("date", "a", "b", (RateRatio("x", 0, 1, 1, 1, float("inf"), float("nan"), None),))
    ratio = as_dict(sample_report(comparison=odd))["comparison"]["ratios"][0]
    assert (ratio["ratio"], ratio["lo"]) == (None, None)


def test_hostile_names_are_ascii_and_survive() -> None:
    """No byte of the document can be obeyed by a terminal; the names are in it all the same."""
    text = as_json(hostile_report())
    assert text.isascii()
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert json.loads(text)["inputs"] == list(HOSTILE)
