"""Faults of the server's own, which no client is blamed for."""

from __future__ import annotations

import pytest

from tests.app.hostile.support import exchange, healthy
from tests.support.local import local_server
from tricklecast.app.data_plane import connection as protocol


def test_a_fault_while_a_request_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks without an answer, the fault is reported and logged, and others are served."""

    def faulty(*_: object) -> None:
        raise ZeroDivisionError

    with local_server() as server:
        with monkeypatch.context() as patched:
            patched.setattr(protocol, "begin", faulty)
            answer = exchange(server, b"GET /trickle/c/next HTTP/1.1\r\nHost: x\r\n\r\n", half_close=False)
        assert answer == b""
        assert server.record(reason="error").status is None
        # What was raised is named, not only that the parser was interrupted by it.
        assert "ZeroDivisionError" in str(server.problems)
        server.problems.clear()
        assert healthy(server)
        assert exchange(server, b"GET /trickle/c/next HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 404 ")


def test_nonsense_is_not_a_fault() -> None:
    """What the parser does not accept is the client's: 400, and nothing is reported."""
    with local_server() as server:
        for url in (b"http://:x:y/healthz", b"http://x", b"x:1", b"//[::"):
            answer = exchange(server, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % url)
            assert answer[9:12] in (b"400", b"404"), url
        assert server.problems == []
