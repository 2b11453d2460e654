"""One request as parsed, and the access record that begins with it."""

from __future__ import annotations

from typing import Any

import pytest

from tricklecast.app.data_plane.identity import MAX_TEXT
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.routes import Route
from tricklecast.trickle.records import AccessRecord, Op


def make(
    headers: dict[bytes, bytes] | None = None,
    target: bytes = b"/trickle/c/-1?token=secret",
    route: Route | None = None,
) -> Request:
    return Request(b"GET", target, route or Route(Op.READ, "c", -1), headers or {}, http10=False, keep_alive=True)


def record(headers: dict[bytes, bytes] | None = None, ip: str | None = "192.0.2.1", **more: Any) -> AccessRecord:
    return make(headers, **more).record(ts_us=5, node="n", ip=ip, conn=7)


def test_a_request_begins_empty() -> None:
    """Nothing of a body, no exchange yet, not queued."""
    request = make()
    assert (request.chunks, request.complete, request.publish, request.queued) == ([], False, None, False)


def test_text_of_a_header() -> None:
    """A header's value without white space around it; a missing one is an empty text."""
    request = make({b"content-type": b" video/mp2t\t"})
    assert request.text(b"content-type") == "video/mp2t"
    assert request.text(b"missing") == ""


def test_the_record_of_a_request() -> None:
    """Route, method, path without its query, address and connection are in the record from the start."""
    begun = record({b"user-agent": b"player/2.1 (x)"})
    assert begun.as_dict() == {
        "v": 1, "ts_us": 5, "node": "n", "kind": "exchange", "op": "read", "method": "GET", "path": "/trickle/c/-1",
        "channel": "c", "seq": -1, "client": begun.client, "ip": "192.0.2.1", "conn": 7, "ua": "player/2.1 (x)",
        "release": "player/2.1", "attempt": 1,
    }  # fmt: skip


def test_a_record_without_a_route() -> None:
    """A request that is none has no operation and no channel."""
    begun = make(route=Route(None)).record(ts_us=5, node=None, ip=None, conn=7)
    assert (begun.op, begun.channel, begun.seq, begun.ip) == (None, None, None, None)


def test_a_client_that_names_itself() -> None:
    """`Trickle-Client` is the client's key, cut to a length."""
    assert record({b"trickle-client": b"me"}).client == "me"
    assert record({b"trickle-client": b"m" * 999}).client == "m" * MAX_TEXT


def test_the_key_of_a_client_that_does_not() -> None:
    """The same address and user agent make the same key; another of either makes another."""
    ua = {b"user-agent": b"a/1"}
    assert record(ua).client == record(ua).client
    keys = {record(ua).client, record(ua, ip="192.0.2.2").client, record({b"user-agent": b"a/2"}).client,
            record().client, record(ip=None).client}  # fmt: skip
    assert len(keys) == 5


def test_long_texts_are_cut() -> None:
    """A log line must not be as long as a client likes."""
    begun = record({b"user-agent": b"x" * 5000}, target=b"/" + b"y" * 5000)
    assert begun.ua is not None
    assert begun.release is not None
    assert begun.path is not None
    assert (len(begun.ua), len(begun.release), len(begun.path)) == (MAX_TEXT, 64, 2 * MAX_TEXT)


def test_no_user_agent() -> None:
    """Without a user agent there is no release either."""
    assert (record().ua, record({b"user-agent": b""}).release) == (None, None)


@pytest.mark.parametrize(
    ("value", "attempt"), [(b"3", 3), (b"0", 0), (b"x", 1), (b"", 1), (b"-1", 1), (b"9" * 7, 1), (None, 1)]
)
def test_attempts(value: bytes | None, attempt: int) -> None:
    """`Trickle-Attempt` counts; what is no small number counts as the first attempt."""
    assert record({} if value is None else {b"trickle-attempt": value}).attempt == attempt


@pytest.mark.parametrize(
    ("value", "trace"),
    [
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"),
        (b"00-short-00f067aa0ba902b7-01", None),
        (b"4bf92f3577b34da6a3ce929d0e0e4736", None),
        (b"", None),
        (None, None),
    ],
)
def test_trace_ids(value: bytes | None, trace: str | None) -> None:
    """The trace id of a `traceparent`, if it is one."""
    assert record({} if value is None else {b"traceparent": value}).trace == trace
