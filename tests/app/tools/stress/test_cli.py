"""The options of `tricklecast stress`, and wrong usage."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.local import local_server
from tricklecast.app.tools.stress.cli import base_url, parse_sizes, segments_in, stress
from tricklecast.app.tools.stress.runner import StressFailed
from tricklecast.trickle.errors import ConnectionLost, InvalidInput


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
    """The command refuses a wrong option before it starts a process."""
    with pytest.raises(typer.BadParameter):
        asyncio.run(stress(**{"url": "http://127.0.0.1:1", **wrong}))


def test_a_bad_certificate_file(tmp_path: Path) -> None:
    """The command reads the certificates before the run, and not only in each process."""
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(typer.BadParameter, match="cannot read certificates"):
        asyncio.run(stress("https://127.0.0.1:1", ca_file=path))


def test_a_server_that_is_not_there() -> None:
    """A server that cannot be reached is one line, and no table of faults."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match="cannot be reached"):
            asyncio.run(stress(url))


def test_a_server_that_is_no_trickle_server() -> None:
    """A server that creates no channel, for example below a wrong base path, is one line."""
    with local_server() as server, pytest.raises(StressFailed, match=r"/nonsense creates no channels: HTTP 404\. Is"):
        asyncio.run(stress(f"http://127.0.0.1:{server.port}/nonsense"))


def test_sizes() -> None:
    """A size may have a unit, and may be a range."""
    assert parse_sizes("1kB") == (1000, 1000)
    assert parse_sizes("1KiB-1MiB") == (1024, 1048576)


@pytest.mark.parametrize("text", ["10kB-1kB", "10", "-"])
def test_wrong_sizes(text: str) -> None:
    """An empty range, a segment smaller than its marker, and a text without a number are refused."""
    with pytest.raises(InvalidInput):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:2939", "http://host:2939/trickle"),
        ("http://host:2939/", "http://host:2939"),
        ("https://host/live//trickle/", "https://host/live/trickle"),
    ],
)
def test_the_base_path_of_a_url(url: str, base: str) -> None:
    """A URL without a path has the usual base path."""
    assert base_url(url) == base


@pytest.mark.parametrize(("for_s", "every_s", "segments"), [(30, 0.5, 60), (0.3, 0.1, 3), (1, 0.3, 4), (0.1, 5, 1)])
def test_segments_fill_the_time(for_s: float, every_s: float, segments: int) -> None:
    """A channel gets the segments that begin within the time, however floats round, and at least one."""
    assert segments_in(for_s, every_s) == segments
