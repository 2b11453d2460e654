"""``tricklecast logs schema``: what a line of the access log has, in the words of whoever wants to read it."""

from __future__ import annotations

import inspect
import json
import re
from enum import StrEnum
from typing import Any, Final

from tricklecast.trickle.records import FIELD_NAMES, SCHEMA, VERSION, AccessRecord, Event, Kind, Op, Reason


class SchemaFormat(StrEnum):
    """In which language the schema is printed."""

    JSON = "json"
    DDL = "ddl"
    MARKDOWN = "markdown"
    AVRO = "avro"


_JSON_TYPES: Final = {"int": "integer", "long": "integer", "string": "string", "boolean": "boolean"}
_DDL_TYPES: Final = {"int": "INT", "long": "BIGINT", "string": "STRING", "boolean": "BOOLEAN"}
_REQUIRED: Final = ("v", "ts_us", "kind")
_VALUES: Final[dict[str, type[StrEnum]]] = {"kind": Kind, "op": Op, "event": Event}


def schema_text(form: SchemaFormat) -> str:
    """The schema of a line."""
    match form:
        case SchemaFormat.JSON:
            return json.dumps(_json_schema(), indent=2)
        case SchemaFormat.DDL:
            return ",\n".join(f"{name} {_DDL_TYPES[kind]}" for name, kind in SCHEMA)
        case SchemaFormat.MARKDOWN:
            about = meanings()
            rows = [f"| `{name}` | {kind} | {about[name].replace('|', chr(92) + '|')} |" for name, kind in SCHEMA]
            return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
        case SchemaFormat.AVRO:
            return json.dumps(_avro(), indent=2)


def example_lines() -> list[str]:
    """An exchange and an event, as a server writes them."""
    exchange = AccessRecord(
        ts_us=1_760_000_000_250_000,
        node="edge-1",
        op=Op.READ,
        method="GET",
        path="/trickle/film/12",
        status=200,
        channel="film",
        epoch=1,
        seq=-1,
        rseq=12,
        next_seq=12,
        reason=Reason.COMPLETE,
        bytes_in=0,
        bytes_out=65_536,
        wait_us=180_000,
        dur_us=1_190_000,
        eos=False,
        client="5d41402abc4b2a76",
        ip="192.0.2.7",
        conn=17,
        ua="player/2.1 (Linux)",
        release="player/2.1",
        attempt=1,
    )
    event = AccessRecord(
        ts_us=1_760_000_002_000_000,
        kind=Kind.EVENT,
        node="edge-1",
        event=Event.CHANNEL_END,
        channel="film",
        epoch=1,
        detail="deleted",
    )
    return [json.dumps(record.as_dict(), separators=(",", ":")) for record in (exchange, event)]


def meanings() -> dict[str, str]:
    """What each field means: from the one place where that is written, the record's own description."""
    text = inspect.cleandoc(AccessRecord.__doc__ or "").partition("Attributes:")[2]
    names = "|".join(sorted(FIELD_NAMES, key=len, reverse=True))
    # "seq: as **requested**; rseq: as **resolved**", and of several at once: "method, path: as on the wire".
    heads = re.compile(rf"(?:^|(?<=; )|(?<=\n))\s*((?:{names})(?:, (?:{names}))*): ")
    found: dict[str, str] = {}
    parts = heads.split(text)[1:]
    for group, said in zip(parts[::2], parts[1::2], strict=True):
        meaning = " ".join(said.replace("**", "").replace("``", "`").split()).strip(" ;.")
        found |= dict.fromkeys(group.split(", "), re.sub(r":class:`(\w+)`", r"\1", meaning))
    return {name: found.get(name, "") for name in FIELD_NAMES}


def _json_schema() -> dict[str, Any]:
    about = meanings()
    properties: dict[str, Any] = {}
    for name, kind in SCHEMA:
        field: dict[str, Any] = {"type": _JSON_TYPES[kind], "description": about[name]}
        if name in _VALUES:
            field["enum"] = [value.value for value in _VALUES[name]]
        properties[name] = field
    properties["v"]["const"] = VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of tricklecast's access log",
        "type": "object",
        "properties": properties,
        "required": list(_REQUIRED),
    }


def _avro() -> dict[str, Any]:
    about = meanings()
    fields = [
        {"name": name, "type": ["null", kind], "default": None, "doc": about[name]}
        if name not in _REQUIRED
        else {"name": name, "type": kind, "doc": about[name]}
        for name, kind in SCHEMA
    ]
    return {"type": "record", "name": "AccessRecord", "namespace": "tricklecast", "fields": fields}
