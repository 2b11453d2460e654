"""`tricklecast stress` as people use it wrongly."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.local import local_server
from tricklecast.app.cli import cli
from tricklecast.app.stress.cli import stress
from tricklecast.app.stress.runner import StressFailed
from tricklecast.trickle.errors import ConnectionLost


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://host"},
        {"for_": "soon"},
        {"segment_every": "0"},
        {"segment_bytes": "3"},
        {"chunk_bytes": "many"},
        {"start": "yesterday"},
    ],
)
def test_wrong_usage_is_refused_at_once(wrong: dict[str, Any]) -> None:
    """Before anything is started; the command's exit code is 2 then."""
    with pytest.raises(typer.BadParameter):
        asyncio.run(stress(**{"url": "http://127.0.0.1:1", **wrong}))


def test_a_bad_certificate_file(tmp_path: Path) -> None:
    """It is read before the run, not in each process."""
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(typer.BadParameter, match="cannot read certificates"):
        asyncio.run(stress("https://127.0.0.1:1", ca_file=path))


def test_a_server_that_is_not_there() -> None:
    """One line says so, instead of a table of faults."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match="cannot be reached"):
            asyncio.run(stress(url))


def test_a_server_that_is_no_trickle_server() -> None:
    """One line says so; so it does where the base path is another."""
    with local_server() as server, pytest.raises(StressFailed, match=r"/nonsense creates no channels: HTTP 404\. Is"):
        asyncio.run(stress(f"http://127.0.0.1:{server.port}/nonsense"))


def test_it_is_a_command() -> None:
    """It is listed among the commands."""
    assert "stress" in typer.main.get_command(cli).list_commands(None)  # type: ignore[attr-defined]
