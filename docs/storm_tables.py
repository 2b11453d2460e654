"""Tables of the page on the storm report, from the JSON Schema and the thresholds themselves."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from tricklecast.analytics.params import StormParams

SCHEMA: Final = Path(__file__).parents[1] / "analytics" / "report_old" / "report.schema.json"


def report_tables() -> str:
    """A table for the document, and one for each kind of object in it."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    parts = [_table(schema)]
    parts += [f"### {name}\n\n{each['description']}\n\n{_table(each)}" for name, each in schema["$defs"].items()]
    return "\n\n".join(parts)


def parameter_table() -> str:
    """Every threshold, with its default and what its docstring says."""
    defaults = StormParams()
    meanings = _meanings(inspect.getdoc(StormParams) or "")
    rows = [f"| `{f.name}` | {getattr(defaults, f.name):g} | {meanings[f.name]} |" for f in fields(StormParams)]
    return "\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows])


def _table(schema: dict[str, Any]) -> str:
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *_rows(schema, "")])


def _rows(schema: dict[str, Any], prefix: str) -> list[str]:
    rows: list[str] = []
    for name, field in schema["properties"].items():
        rows.append(f"| `{prefix}{name}` | {_type(field)} | {field['description']} |")
        if field.get("type") == "object" and "properties" in field:
            rows += _rows(field, f"{prefix}{name}.")
    return rows


def _type(field: dict[str, Any]) -> str:
    match field:
        case {"$ref": str(reference)}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name})"
        case {"anyOf": [inner, {"type": "null"}]}:
            return f"{_type(inner)} or null"
        case {"const": value}:
            return f"`{json.dumps(value)}`"
        case {"type": "array", "items": items}:
            return f"array of {_type(items)}"
        case {"type": list() as types}:
            return " or ".join(types)
    return str(field["type"])


def _meanings(docstring: str) -> dict[str, str]:
    """The entries of the docstring's ``Attributes``, each under all of its names."""
    text = docstring.partition("Attributes:")[2]
    found: dict[str, str] = {}
    for entry in re.findall(r"^    (\w.*(?:\n     .*)*)", text, re.MULTILINE):
        # "name: meaning; other: its meaning"
        names, *rest = re.split(r"(?:^|; )(\w+(?:, \w+)*): ", " ".join(entry.split()))[1:]
        for group, meaning in zip([names, *rest[1::2]], rest[::2], strict=True):
            found |= {name: meaning.replace("``", "`").replace("|", "\\|") for name in group.split(", ")}
    return found
