"""``tricklecast logs schema``: the JSON Schema of a line of the access log, from the record's own definition."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from tricklecast.trickle.records import FIELD_NAMES, SCHEMA, VERSION, AccessRecord, Event, Kind, Op

_TYPES: Final = {"int": "integer", "long": "integer", "string": "string", "boolean": "boolean"}
_VALUES: Final = {"kind": Kind, "op": Op, "event": Event}


def json_schema() -> dict[str, Any]:
    """The schema, with what each field means."""
    about = _meanings()
    properties: dict[str, Any] = {
        name: {"type": _TYPES[kind], "description": about.get(name, "")} for name, kind in SCHEMA
    }
    for name, values in _VALUES.items():
        properties[name]["enum"] = [value.value for value in values]
    properties["v"]["const"] = VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of tricklecast's access log",
        "type": "object",
        "properties": properties,
        "required": ["v", "ts_us", "kind"],
    }


def _meanings() -> dict[str, str]:
    """The meaning of each field, from the record's docstring: ``seq: as **requested**; rseq: as **resolved**``."""
    told = inspect.cleandoc(AccessRecord.__doc__ or "").partition("Attributes:")[2]
    names = "|".join(sorted(FIELD_NAMES, key=len, reverse=True))
    parts = re.split(rf"(?:^|(?<=; )|(?<=\n))\s*((?:{names})(?:, (?:{names}))*): ", told)[1:]
    found: dict[str, str] = {}
    for group, meaning in zip(parts[::2], parts[1::2], strict=True):
        plain = " ".join(re.sub(r":class:`(\w+)`", r"\1", meaning).replace("**", "").replace("``", "`").split())
        found |= dict.fromkeys(group.split(", "), plain.strip(" ;."))
    return found
