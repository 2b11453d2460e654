"""AccessRecord: one schema for the server that writes it and the jobs that read it."""

from __future__ import annotations

import json
import types
import typing

import pytest

from tricklecast.trickle import records
from tricklecast.trickle.records import FIELD_NAMES, SCHEMA, AccessRecord, Event, Kind, Op, Reason

_PYTHON_TYPES = {"string": str, "boolean": bool, "int": int, "long": int}


def test_a_bare_record_holds_only_time_kind_and_version() -> None:
    """Fields that do not apply are left out of the JSON."""
    assert AccessRecord(ts_us=5).as_dict() == {"v": records.VERSION, "ts_us": 5, "kind": "exchange"}


def test_falsy_values_are_kept() -> None:
    """Zero, false and the empty string are values, and stay in the JSON."""
    record = AccessRecord(ts_us=0, seq=0, bytes_out=0, eos=False, ua="")
    assert record.as_dict() == {
        "v": records.VERSION,
        "ts_us": 0,
        "kind": "exchange",
        "seq": 0,
        "bytes_out": 0,
        "eos": False,
        "ua": "",
    }


def test_the_json_has_the_order_of_the_schema() -> None:
    """Fields of a line always have the same order."""
    everything: dict[str, typing.Any] = {name: _PYTHON_TYPES[kind]() for name, kind in SCHEMA}
    assert list(AccessRecord(**everything).as_dict()) == list(FIELD_NAMES)


def test_the_schema_names_each_field_once() -> None:
    """Schema and record have the same fields, and a record takes no other."""
    record = AccessRecord(5)
    assert [name for name in FIELD_NAMES if not hasattr(record, name)] == []
    assert len(set(FIELD_NAMES)) == len(FIELD_NAMES)
    with pytest.raises(TypeError, match="no field 'sequel'"):
        AccessRecord(5, sequel=1)


@pytest.mark.interpreted
@pytest.mark.parametrize(("name", "kind"), SCHEMA)
def test_schema_types_agree_with_the_annotations(name: str, kind: str) -> None:
    """Spark's type of each field fits the record."""
    annotation = typing.get_type_hints(AccessRecord)[name]
    members = set(typing.get_args(annotation)) if isinstance(annotation, types.UnionType) else {annotation}
    assert members - {types.NoneType} == {_PYTHON_TYPES[kind]}


@pytest.mark.parametrize("name", [name for name, _ in SCHEMA if name.endswith("_us")])
def test_times_are_long(name: str) -> None:
    """Times in microseconds are longs: they do not fit 32 bits."""
    assert dict(SCHEMA)[name] == "long"


def test_the_reason_of_a_limit_names_it() -> None:
    """The reason is ``limit:`` and the limit's name."""
    assert Reason.limit("readers") == "limit:readers"


def test_the_reasons_of_access_control_say_more() -> None:
    """The reason tells why a token was refused, and whether the webhook failed."""
    assert (Reason.token("missing"), Reason.webhook("failed")) == ("token:missing", "webhook:failed")


@pytest.mark.parametrize("enum", [Kind, Op, Reason, Event])
def test_enumerated_values_are_plain_snake_case_strings(enum: type[Kind | Op | Reason | Event]) -> None:
    """Each value is its own name in lower case."""
    assert [member.value for member in enum] == [member.name.lower() for member in enum]
    assert json.loads(json.dumps(list(enum))) == [member.value for member in enum]


def test_a_record_of_enums_is_json() -> None:
    """A record with enum values needs no converter."""
    record = AccessRecord(ts_us=1, kind=Kind.EVENT, event=Event.CHANNEL_END, op=Op.DELETE, reason=Reason.TERMINATED)
    assert json.loads(json.dumps(record.as_dict())) == {
        "v": 1,
        "ts_us": 1,
        "kind": "event",
        "event": "channel_end",
        "op": "delete",
        "reason": "terminated",
    }
