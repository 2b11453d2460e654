"""Access records of the control plane, for what only an application can do wrong."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tricklecast.app.control_plane.records import RecordRequests
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.asgi_bridge import CONNECTION
from tricklecast.app.data_plane.client_address import client_key
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.trickle.records import AccessRecord

SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/x" * 500, "client": None, "headers": []}


def plane(records: list[AccessRecord]) -> DataPlane:
    registry = Registry(Limits(), autocreate=True)
    return DataPlane(registry, Options(), sink=records.append, node="n")


def call(application: Any, scope: dict[str, Any], records: list[AccessRecord]) -> None:
    async def nothing(*_: Any) -> None: ...

    asyncio.run(RecordRequests(application, plane(records))(scope, nothing, nothing))  # type: ignore[arg-type]


def test_an_exception_is_a_500_with_reason_error() -> None:
    """It is recorded and goes on to the server."""
    records: list[AccessRecord] = []

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("fault")

    with pytest.raises(RuntimeError, match="fault"):
        call(failing, SCOPE, records)
    (record,) = records
    assert (record.status, record.reason, record.ip, record.bytes_out) == (500, "error", None, 0)
    assert record.path is not None
    assert len(record.path) == 512


def test_a_body_in_parts_is_counted() -> None:
    """All its bytes."""
    records: list[AccessRecord] = []

    async def parts(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body"})

    call(parts, SCOPE, records)
    assert (records[0].status, records[0].bytes_out) == (200, 3)


def test_a_client_that_leaves_before_it_is_answered() -> None:
    """It is recorded as that, without a status: nothing was said to it."""
    records: list[AccessRecord] = []
    connection = SimpleNamespace(gone=None)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        connection.gone = "client_gone"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc"})

    call(slow, SCOPE | {CONNECTION: connection}, records)
    (record,) = records
    assert (record.status, record.reason, record.bytes_out) == (None, "client_gone", 0)


def test_what_is_not_http_is_not_recorded() -> None:
    """Lifespan messages pass through."""
    records: list[AccessRecord] = []
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    call(application, {"type": "lifespan"}, records)
    assert (seen, records) == (["lifespan"], [])


def test_a_client_is_the_same_as_on_segment_routes() -> None:
    """Address, user agent and the key made of both: a storm on the API has a name, too."""
    records: list[AccessRecord] = []

    async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

    headers = [(b"user-agent", b"curl/8.0 (x)")]
    call(nothing, SCOPE | {"client": ("127.0.0.1", 5), "headers": headers}, records)
    (record,) = records
    assert (record.ip, record.ua, record.release) == ("127.0.0.1", "curl/8.0 (x)", "curl/8.0")
    assert record.client == client_key("127.0.0.1", "curl/8.0 (x)")
