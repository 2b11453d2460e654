"""``tricklecast simulate --live``: plays the acts, tells of each, and writes down what was done."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import typer

from tricklecast.analytics.simulate.live.acts import ACTS
from tricklecast.analytics.simulate.live.run import RATE, REQUESTS, Performance, perform
from tricklecast.analytics.simulate.live.stage import ServerUnreachable, first_of
from tricklecast.analytics.simulate.live.truth import truth_of
from tricklecast.analytics.simulate.output import complete_folder
from tricklecast.analytics.simulate.truth import FILE
from tricklecast.trickle.wire import redacted


def play(
    url: str, out: Path, names: Sequence[str], requests: int | None, rate: float | None, *, force: bool = False
) -> bool:
    """Misbehave at a server, and write ``truth.json`` into ``out``.

    Args:
        url: below which the server's channels are. names: of the acts; none are all of them.
        requests, rate: of each client, at most, and per second.

    Returns:
        whether anything could be played.

    Raises:
        typer.BadParameter: no such act, or a URL that is none.
        ServerUnreachable: nobody answers there. CannotWrite: ``out`` cannot be used.
    """
    import anyio

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise typer.BadParameter(f"{redacted(url)!r} is no http:// or https:// URL", param_hint="--live")
    if unknown := [name for name in names if name not in ACTS]:
        raise typer.BadParameter(f"no such act: {unknown[0]}; there are {', '.join(ACTS)}", param_hint="--act")
    chosen = list(dict.fromkeys(names)) or list(ACTS)
    prefix = f"sim-{secrets.token_hex(3)}"
    with complete_folder(out, force=force) as folder:
        try:
            performances = anyio.run(
                lambda: perform(
                    url.rstrip("/"), chosen, prefix, requests=requests or REQUESTS, rate=rate or RATE, tell=_tell
                )
            )
        except* ServerUnreachable as group:
            raise first_of(group) from None
        truth = truth_of(performances)
        (folder / FILE).write_bytes(truth.as_json())
    typer.echo(f"{len(truth.storms)} storms by clients {prefix}-*, written down in {out / FILE}")
    return bool(truth.storms)


def _tell(performance: Performance) -> None:
    if performance.impossible is not None:
        print(f"{performance.name}: not played: {performance.impossible}", file=sys.stderr, flush=True)
        return
    requests = sum(len(loop.statuses) for loop in performance.loops)
    clients = len(performance.loops)
    who = f"{clients} clients {performance.act.about}" if clients > 1 else f"a client {performance.act.about}"
    print(f"{performance.name}: {who}: {requests:,} requests", file=sys.stderr, flush=True)
