"""The schema, in the words of whoever wants to read a log."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from pyspark.sql.types import StructType

from tricklecast.analytics.logs.schema import SchemaFormat, example_lines, meanings, schema_text
from tricklecast.trickle.records import FIELD_NAMES, SCHEMA


def test_every_field_has_a_meaning() -> None:
    """Nothing in the record is without a description, and none takes in that of another."""
    about = meanings()
    assert list(about) == list(FIELD_NAMES)
    assert [name for name, meaning in about.items() if not meaning] == []
    assert about["rseq"].startswith("as resolved")
    assert max(map(len, about.values())) < 120


def test_json_schema_takes_its_examples() -> None:
    """The JSON Schema is one, and the example lines follow it; nonsense does not."""
    schema = json.loads(schema_text(SchemaFormat.JSON))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for line in example_lines():
        validator.validate(json.loads(line))
    assert not validator.is_valid({"v": 2, "ts_us": 1, "kind": "exchange"})
    assert not validator.is_valid({"v": 1, "ts_us": "soon", "kind": "exchange"})


@pytest.mark.usefixtures("spark")
def test_ddl_is_understood_by_spark() -> None:
    """The DDL gives Spark's schema of a line."""
    parsed = StructType.fromDDL(schema_text(SchemaFormat.DDL))
    assert isinstance(parsed, StructType)
    assert [(field.name, field.dataType.simpleString()) for field in parsed] == [
        (name, {"long": "bigint"}.get(kind, kind)) for name, kind in SCHEMA
    ]


def test_avro_and_markdown_have_all_fields() -> None:
    """Each form has every field, once and in order; what may be missing may be null."""
    avro = json.loads(schema_text(SchemaFormat.AVRO))
    assert [field["name"] for field in avro["fields"]] == list(FIELD_NAMES)
    assert {field["name"] for field in avro["fields"] if not isinstance(field["type"], list)} == {"v", "ts_us", "kind"}
    rows = schema_text(SchemaFormat.MARKDOWN).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(FIELD_NAMES)
    assert {row.replace(r"\|", "").count("|") for row in rows} == {4}
