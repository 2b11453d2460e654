"""The JSON Schema of a line, from the record's definition."""

from __future__ import annotations

from jsonschema import Draft202012Validator

from tests.analytics.lines.traffic import EVENT, TRAFFIC
from tricklecast.analytics.logs.schema import json_schema
from tricklecast.trickle.records import FIELD_NAMES


def test_every_field_has_a_meaning() -> None:
    """Nothing in the record is without a description, and none takes in that of another."""
    about = {name: field["description"] for name, field in json_schema()["properties"].items()}
    assert list(about) == list(FIELD_NAMES)
    assert all(0 < len(meaning) < 120 for meaning in about.values())
    assert about["rseq"].startswith("as resolved")


def test_a_servers_lines_follow_it() -> None:
    """Exchanges and events do; another version and a time in words do not."""
    Draft202012Validator.check_schema(json_schema())
    validator = Draft202012Validator(json_schema())
    for line in [*TRAFFIC, EVENT]:
        validator.validate(line)
    assert not validator.is_valid({"v": 2, "ts_us": 1, "kind": "exchange"})
    assert not validator.is_valid({"v": 1, "ts_us": "soon", "kind": "exchange"})
