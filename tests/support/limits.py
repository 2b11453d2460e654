"""A server with limits, and what somebody is told who exceeds one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.response import Response
from tricklecast.app.tools.conformance.target import Target


@contextmanager
def limited(**settings: Any) -> Iterator[tuple[LocalServer, Target]]:
    """A server with limits and a client of it. No storm guard: who is refused again and again is answered at once."""
    with local_server(storm_guard="off", **settings) as server, server.client() as target:
        yield server, target


def check_refused(server: LocalServer, refused: Response, status: int, limit: str) -> None:
    """Status, one line that names the limit, a wait; and the same in the access log."""
    assert (refused.status, refused.body) == (status, f"Limit reached: {limit}".encode())
    wait_s = int(refused.get("Retry-After") or 0)
    assert wait_s >= 1
    logged = (f"limit:{limit}", status, wait_s * 1000)
    eventually(
        lambda: logged in [(record.reason, record.status, record.retry_after_ms) for record in list(server.records)],
        what=f"a record with {logged}",
    )
