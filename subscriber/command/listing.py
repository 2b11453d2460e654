"""Prints the channels of a server."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from tricklecast.trickle.amounts import size
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import printable

COLUMNS: Final = {
    "CHANNEL": "name",
    "STATE": "state",
    "NEXT": "next_seq",
    "SEGMENTS": "window.segments",
    "BYTES": "window.bytes",
    "READERS": "readers",
    "PUBLISHER": "publisher.connected",
    "IN": "bytes_in",
    "OUT": "bytes_out",
    "TYPE": "content_type",
}
"""The field of the server's answer that each column shows."""

SIZES: Final = ("BYTES", "IN", "OUT")
NUMBERS: Final = ("NEXT", "SEGMENTS", "READERS", *SIZES)


def print_channels(answer: dict[str, Any], *, as_json: bool = False) -> None:
    """Print channels to standard output: JSON, a table on a terminal, tab-separated columns in a pipe.

    Only JSON has those of the server itself, such as ``_changes``. Standard error names the nodes of a cluster whose
    channels are not known.
    """
    if as_json:
        json.dump(answer, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return
    channels = [channel for channel in answer["channels"] if not is_reserved(str(channel.get("name", "")))]
    rows = [list(COLUMNS), *([_cell(channel, name) for name in COLUMNS] for channel in channels)]
    if not sys.stdout.isatty():
        lines = ["\t".join(row) for row in rows]
    elif len(rows) == 1:
        lines = ["no channels"]
    else:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if name in NUMBERS else cell.ljust(width)
                for name, cell, width in zip(COLUMNS, row, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    for node in answer.get("unreachable") or ():  # of a cluster
        sys.stderr.write(f"node {printable(str(node))} does not answer: channels that it has are missing here\n")


def _cell(channel: dict[str, Any], name: str) -> str:
    """Return a column's text for a channel; ``-`` for a field that an older or newer server leaves out."""
    value: Any = channel
    for key in COLUMNS[name].split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if name == "PUBLISHER":
        return "connected" if value else "-"
    if name in SIZES:
        return size(value) if isinstance(value, int | float) else "-"
    text = "-" if value is None or value == "" else str(value)
    return printable(text)
