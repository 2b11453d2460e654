"""Reading simulated logs back, line by line, without any of the report's code."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson

Line = dict[str, Any]

_MISSING, _NOT_FOUND, _OK = 470, 404, 200
_REFUSED = (429, 503)


def files_of(folder: Path) -> list[Path]:
    """The logs of a folder, each server's in the order of writing: rotated ones first."""
    return sorted(folder.glob("access-*"), key=lambda path: (path.name.split(".")[0].count("-") < 4, path.name))


def lines_of(path: Path) -> list[Line]:
    """The lines of one file."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [orjson.loads(line) for line in data.splitlines()]


def all_lines(folder: Path) -> list[Line]:
    """The lines of all files."""
    return [line for path in files_of(folder) for line in lines_of(path)]


def is_of(storm: str, line: Line) -> bool:
    """Whether a line is of the kind that a class of storm consists of, by the classes' definitions."""
    status, op, nothing, over = line.get("status"), line.get("op"), not line.get("bytes_out"), bool(line.get("eos"))
    empty_read = op == "read" and status == _OK and nothing and line.get("reason") != "client_gone"
    match storm:
        case "not_found_loop" | "not_found_drip":
            return status == _NOT_FOUND and op != "api"
        case "seq_behind_loop" | "seq_ahead_sweep":
            return status == _MISSING
        case "overload_client" | "overload_amplification":
            return status in _REFUSED
        case "server_error_loop":
            return status is not None and status >= 500 and status not in _REFUSED
        case "rejected_loop":
            return status in (400, 401, 403, 405)
        case "abandoned_loop":
            return op == "read" and status is None and nothing and line.get("reason") == "client_gone"
        case "zero_byte_loop":
            return empty_read and not over
        case "ended_loop":
            return empty_read and over
        case "same_segment_loop":
            return op == "read" and status == _OK and not nothing
        case "repost_loop":
            return op == "publish"
        case "thundering_herd":
            return status in (*_REFUSED, _NOT_FOUND, _MISSING)
    raise AssertionError(storm)
