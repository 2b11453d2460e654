"""Asks a server's control plane for its channels and their segments."""

from __future__ import annotations

import json
import ssl
import sys
import time
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import httpx

from tricklecast.trickle.amounts import size
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client.arguments import channel_urls, server_url
from tricklecast.trickle.client.control import ask, json_of
from tricklecast.trickle.client.listing import ROUTE
from tricklecast.trickle.errors import ConnectionLost, TrickleError
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import printable, split_urls

NEWEST_S: Final = 60.0
"""How far back the newest segment is looked for, in seconds."""

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
"""Where the server's answer has what a column shows."""

SIZES: Final = ("BYTES", "IN", "OUT")
NUMBERS: Final = ("NEXT", "SEGMENTS", "READERS", *SIZES)


async def newest_began(url: str, tls: ssl.SSLContext | None = None, auth: Bearer | None = None) -> float | None:
    """Ask a server when the newest segment of a channel began.

    Returns:
        The time, on the monotonic clock; ``None`` if the server does not say, or there is none of the last minute.
    """
    try:
        response = await segments_of(url, f"since={NEWEST_S:.0f}s", tls, auth)
    except TrickleError:
        return None
    match response.status_code, json_of(response):
        case 200, {"more": False, "segments": [*_, {"opened_at": str(opened_at)}]}:
            return time.monotonic() - max(0.0, time.time() - datetime.fromisoformat(opened_at).timestamp())
    return None


async def segments_of(url: str, query: str, tls: ssl.SSLContext | None, auth: Bearer | None) -> httpx.Response:
    """Ask the first node that can be reached for segments of a channel.

    Args:
        query: of the route that lists them.

    Raises:
        TrickleError: no node can be reached.
    """
    urls = split_urls(url)
    route = f"{ROUTE}/{quote(channel_urls(url)[0].channel, safe='')}/segments?{query}"
    for one in urls[:-1]:
        with suppress(ConnectionLost):
            return await ask(server_url(one), route, tls, auth)
    return await ask(server_url(urls[-1]), route, tls, auth)


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
