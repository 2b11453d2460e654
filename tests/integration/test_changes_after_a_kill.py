"""Followers of a server that is killed and started again, with and without a data directory."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S


def ask(server: RunningServer, path: str, status: int = 200) -> Any:
    with server.client() as target:
        response = target.ask("GET", f"/api/v1/changes{path}")
        assert response.status == status, response.body
        return json.loads(response.body)


def publish(server: RunningServer, channel: str, *segments: bytes) -> None:
    with server.client() as target:
        for body in segments:
            assert target.ask("POST", f"/trickle/{channel}/-1", body=body).status == 200


def test_the_index_goes_on_with_a_data_directory(tmp_path: Path) -> None:
    """What was told before is told again, and what was published meanwhile follows; no index has two meanings."""
    options = ("--data-dir", str(tmp_path / "data"), "--ack", "journal")
    with serve(*options) as server:
        publish(server, "a", b"one", b"two")
        before = ask(server, "?after=0&q=kind%3D'closed'")
        assert [change["bytes"] for change in before["changes"]] == [3, 3]
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait(WITHIN_S)
    with serve(*options) as server:
        where = f"after={before['index']}&instance={before['instance']}"
        assert ask(server, "?after=0&q=kind%3D'closed'")["changes"] == before["changes"]
        publish(server, "a", b"three")
        (change,) = ask(server, f"?{where}&q=kind%3D'closed'")["changes"]
        assert (change["seq"], change["bytes"]) == (2, 5)
        assert change["index"] > before["index"]
        assert [channel["channel"] for channel in ask(server, "?snapshot=1")["channels"]] == ["a"]


def test_without_one_an_index_of_before_is_refused() -> None:
    """Though it may be a number that the new start has told, too."""
    with serve() as server:
        publish(server, "a", b"one")
        before = ask(server, "?after=0")
    with serve() as server:
        publish(server, "a", *[b"one"] * 9)
        where = f"?after={before['index']}"
        assert ask(server, where)["changes"]
        assert "another start" in ask(server, f"{where}&instance={before['instance']}", 410)["detail"]
