"""Reading what the server's access log says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

Record = dict[str, Any]


def read_log(path: Path) -> list[Record]:
    """Every record of a log whose server has stopped; a torn line is an error."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def so_far(path: Path) -> list[Record]:
    """Every whole record of a log that is still being written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def matching(records: list[Record], **fields: Any) -> list[Record]:
    """The records that have these values; ``None`` means that the field is missing."""
    return [record for record in records if all(record.get(name) == value for name, value in fields.items())]


def logged(path: Path, count: int = 1, **fields: Any) -> list[Record]:
    """Wait until so many records with these values are in the log."""

    def found() -> list[Record]:
        records = matching(so_far(path), **fields)
        return records if len(records) >= count else []

    return eventually(found, what=f"{count} log records with {fields}")
