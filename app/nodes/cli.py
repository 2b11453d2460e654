"""The commands ``tricklecast cluster status``, ``move`` and ``drain``: they ask any node of a cluster.

The module imports no client before a command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from tricklecast.trickle.amounts import count
from tricklecast.trickle.errors import ConnectionLost
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials, option, with_credentials
from tricklecast.trickle.wire import DEFAULT_PORT, printable, split_urls

WATCH_S: Final = 2.0
"""``--watch`` looks again after this time."""

CHANGE_S: Final = 60.0
"""How long the answer to a move or a drain may take; the cluster gives up before."""

_COLOURS: Final = {"serving": 32, "draining": 33, "restoring": 33}
"""Of states, on a terminal; all others are red."""

Url = Annotated[
    str,
    option(
        "URL",
        "Any URL on a node of the cluster; several with commas between: the first one that answers counts.",
        "--url",
    ),
]
AsJson = Annotated[bool, option(None, "Print the answer, as JSON.", "--json")]

_HERE: Final = f"http://127.0.0.1:{DEFAULT_PORT}"


@with_credentials
async def status(
    url: Url = _HERE,
    watch: Annotated[bool, option(None, f"Look again every {WATCH_S:g} s, until stopped.", "--watch")] = False,
    as_json: AsJson = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Show the nodes of a cluster: a table on a terminal, tab-separated columns in a pipe.

    The node that answers has a star. With --watch, a pipe gets the table again whenever it has changed, and with
    --json one line each time.

    Exit codes: 0 done; 1 an error; 2 wrong usage.

    Examples:

    \b
      tricklecast cluster status --url http://node-a:2939
      tricklecast cluster status --url http://node-a:2939,http://node-b:2939 --watch
      tricklecast cluster status --json | jq '.nodes[] | select(.reachable | not).name'
    """
    from tricklecast.trickle.client.control import show

    server = _Server(url, credentials)
    every_s = WATCH_S if watch else None
    await show(lambda: server.ask("GET", "/api/v1/nodes"), table, as_json=as_json, every_s=every_s)


@with_credentials
async def move(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="The name of the node that is to have it.")],
    url: Url = _HERE,
    as_json: AsJson = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Move a channel to another node, at the end of the segment that is being written.

    Its publishers and readers lose nothing.

    Exit codes: 0 it is there; 1 it has not moved, or an error; 2 wrong usage.

    Examples:

    \b
      tricklecast cluster move film b --url http://node-a:2939
    """
    server = _Server(url, credentials)
    answer = await server.ask("POST", f"/api/v1/channels/{quote(channel, safe='')}/move?to={quote(node, safe='')}")
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else f"{channel} is at {node}")


@with_credentials
async def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")],
    url: Url = _HERE,
    as_json: AsJson = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Move all channels of a node to other nodes. It takes no new ones until it is started again.

    A node that is stopped by SIGTERM does this by itself.

    Exit codes: 0 all have moved; 1 some have not, or an error; 2 wrong usage.

    Examples:

    \b
      tricklecast cluster drain a --url http://node-b:2939
    """
    server = _Server(url, credentials)
    answer = await server.ask("POST", f"/api/v1/nodes/{quote(node, safe='')}/drain")
    left: dict[str, str] = answer["left"]
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False))
    else:
        typer.echo(f"{count(answer['moved'], 'channel')} moved from {node}")
        for channel, why in left.items():
            typer.echo(f"{printable(channel)} has stayed: {printable(why)}", err=True)
    if left:
        raise typer.Exit(1)


class _Server:
    """The nodes that are asked.

    Args:
        url: one or more, with commas between. credentials: of the command.
    """

    def __init__(self, url: str, credentials: Credentials) -> None:
        from tricklecast.trickle.client.arguments import server_url

        self._roots = list(map(server_url, split_urls(url)))
        self._credentials = credentials

    async def ask(self, method: str, route: str) -> dict[str, Any]:
        """The answer of the first node that can be reached.

        Raises:
            ConnectionLost: none can be. TrickleError: the cluster says no. RemoteProtocolError: it is no cluster.
        """
        from tricklecast.trickle.client.control import TIMEOUT_S, answer_of

        within_s = TIMEOUT_S if method == "GET" else CHANGE_S
        own, absent = self._credentials, "is no node of a cluster"
        ask = partial(answer_of, tls=own.tls, auth=own.auth, absent=absent, method=method, within_s=within_s)
        for root in self._roots[:-1]:
            with suppress(ConnectionLost):
                return await ask(root, route)
        return await ask(self._roots[-1], route)


def table(answer: dict[str, Any]) -> str:
    """The nodes as a table on a terminal, as tab-separated columns in a pipe."""
    is_terminal = sys.stdout.isatty()
    is_coloured = is_terminal and "NO_COLOR" not in os.environ
    rows = [["NODE", "STATE", "CHANNELS", "LOAD", "VERSION", "URL"]]
    for node in answer["nodes"]:
        state = str(node["state"]) if node["reachable"] or node["state"] in ("left", "deposed") else "unreachable"
        name = f"{node['name']}{'*' if node['this'] else ''}"
        rows.append(
            [
                printable(str(cell))
                for cell in (name, state, node["channels"], node["load"], node["version"] or "-", node["url"])
            ]
        )
    if not is_terminal:
        lines = ["\t".join(row) for row in rows]
    else:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            padded = [
                cell.rjust(width) if at in (2, 3) else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            if is_coloured and row is not rows[0]:
                padded[1] = f"\x1b[{_COLOURS.get(row[1], 31)}m{padded[1]}\x1b[0m"
            lines.append("  ".join(padded).rstrip())
    if answer["degraded"]:
        lines.append(f"The node that answers can decide nothing now: {printable(answer['degraded'])}")
    return "\n".join(lines)
