"""The reference page on the report has every field and every threshold: its tables come from those."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from tricklecast.analytics.params import StormParams

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def tables() -> ModuleType:
    """The module that the site is built with."""
    spec = importlib.util.spec_from_file_location("storm_tables", DOCS / "storm_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_field(tables: ModuleType) -> None:
    """Each with its type and meaning, nested ones too."""
    text = tables.report_tables()
    schema = json.loads(tables.SCHEMA.read_text())
    for definition in (schema, *schema["$defs"].values()):
        assert [name for name in definition["properties"] if f"`{name}` |" not in text] == []
    assert "| `quality.unparsable_share` | number |" in text
    assert "| `trigger_us` | integer or null | when that was |" in text
    assert "| array of [episode](#episode) |" in text


def test_every_parameter(tables: ModuleType) -> None:
    """Each with its default; none without a meaning."""
    rows = tables.parameter_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [field.name for field in fields(StormParams)]
    assert all(len(row.split(" | ")[2]) > 10 for row in rows)
