"""The example of a typed program runs; that its types are right, mypy says."""

from __future__ import annotations

from pathlib import Path

import anyio

from tests.support.local import local_server
from tests.typed_example import asynchronous, blocking, pictures


def test_the_example_runs(tmp_path: Path) -> None:
    """What is published is read, with and without `async`."""
    with local_server() as server:
        url = f"http://127.0.0.1:{server.port}/trickle/words"
        assert anyio.run(asynchronous.publish, url, ["a", "b"]) == [0, 1]
        assert anyio.run(asynchronous.read, url) == [b"a", b"b", b"end"]
        url += "-2"
        assert blocking.publish(url, ["a", "b"]) == [0, 1]
        assert blocking.read(url) == ["a", "b", "end"]
        url += "-3"
        anyio.run(asynchronous.publish_events, url, [1, 2**53 + 1])
        assert anyio.run(asynchronous.read_events, url) == [1, 2**53 + 1]
        assert anyio.run(asynchronous.keep, url, str(tmp_path / "kept")) == 2
        url = f"http://127.0.0.1:{server.port}/trickle/pictures"
        anyio.run(pictures.publish, url, 7)
        assert len(anyio.run(pictures.read, url)) == 7
