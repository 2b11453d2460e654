"""Access records, limits and cross-origin requests of the control plane."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.limits import check_refused, limited
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.control_plane.middleware import RecordRequests
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.client_address import client_key
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.http1.asgi_bridge import CONNECTION
from tricklecast.app.tools.conformance.target import Address, Target
from tricklecast.trickle.records import AccessRecord

LIST = "/api/v1/channels"
NEVER_REFUSED = ("/healthz", "/readyz", "/metrics")


def nobody_is_held(server: LocalServer) -> bool:
    """Whether no request or connection is counted any more."""
    clients = server.plane.admission.clients
    assert clients is not None
    return not clients._here and all(client.exchanges == 0 for client in clients._gone.values())


def test_a_client_may_not_ask_too_often() -> None:
    """The server lets a burst in and refuses one request more, on every route but health checks and metrics."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=3) as (server, target):
        assert [target.ask("GET", path).status for path in (LIST, "/docs", "/api/v1/nothing")] == [200, 200, 404]
        for path in (LIST, f"{LIST}/c", "/openapi.json", "/api/v1/nothing", "/healthz/"):
            refused = target.ask("GET", path)
            check_refused(server, refused, 429, "per_ip_requests_per_s")
            assert int(refused.get("Retry-After") or 0) >= 100
        assert [target.ask("GET", path).status for path in NEVER_REFUSED] == [200] * 3
        metrics = target.ask("GET", "/metrics").body.decode()
        assert 'tricklecast_refusals_total{limit="per_ip_requests_per_s"} 5.0' in metrics
        assert 'tricklecast_exchanges_total{op="api",reason="limit:per_ip_requests_per_s",status="429"} 5.0' in metrics


@pytest.mark.parametrize(("others", "status"), [(1, 200), (2, 429)])
def test_requests_of_both_planes_count_together(others: int, status: int) -> None:
    """A client with as many readers as it may have requests is refused at the API; with one less it is not."""
    with limited(per_ip_limit=2) as (server, target):
        channel = target.channel()
        channel.create()
        waiting = [channel.read(0) for _ in range(others)]
        eventually(lambda: server.plane.registry.readers == others)
        answer = target.ask("GET", LIST)
        assert answer.status == status
        if status == 429:
            check_refused(server, answer, 429, "per_ip_limit")
        assert [target.ask("GET", path).status for path in NEVER_REFUSED] == [200] * 3
        waiting[0].abort()
        eventually(lambda: server.plane.registry.readers == others - 1)
        assert target.ask("GET", LIST).status == 200
    eventually(lambda: nobody_is_held(server))


def test_segment_routes_and_the_api_share_a_pace() -> None:
    """A token that one has taken is not there for the other."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=2) as (server, target):
        assert target.ask("GET", f"{target.base}/c/next").status == 404
        assert target.ask("GET", LIST).status == 200
        check_refused(server, target.ask("GET", f"{target.base}/c/next"), 429, "per_ip_requests_per_s")
        check_refused(server, target.ask("GET", LIST), 429, "per_ip_requests_per_s")


def test_each_client_of_a_proxy_has_its_own_pace() -> None:
    """The address that a trusted proxy names counts, as on segment routes."""
    with limited(trusted_proxies="127.0.0.1", per_ip_requests_per_s=0.01, per_ip_burst=1) as (server, target):
        for address in ("192.0.2.7", "192.0.2.8"):
            headers = {"X-Forwarded-For": address}
            assert target.ask("GET", LIST, headers).status == 200
            check_refused(server, target.ask("GET", LIST, headers), 429, "per_ip_requests_per_s")


def test_tokens_cannot_be_tried_faster(tmp_path: Path) -> None:
    """The limit comes before the token is looked at: the right one is refused, too."""
    (tmp_path / "token").write_text("a control token\n" * 2)
    token = {"Authorization": "Bearer wrong"}
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=2, control_token_file=tmp_path / "token") as (server, target):
        assert [target.ask("GET", LIST, token).status for _ in range(2)] == [401, 401]
        check_refused(server, target.ask("GET", LIST, token), 429, "per_ip_requests_per_s")


def test_both_addresses_are_limited() -> None:
    """The limits hold at the control port and at the channels' address."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=2, control_port=0) as (server, target):
        control = Target(Address("127.0.0.1", server.control_port, server.settings.base_path))
        assert control.ask("GET", LIST).status == 200
        assert target.ask("GET", LIST).status == 404
        for refused in (control.ask("GET", LIST), target.ask("GET", LIST)):
            check_refused(server, refused, 429, "per_ip_requests_per_s")
        assert [control.ask("GET", path).status for path in NEVER_REFUSED] == [200] * 3
        control.cleanup()


def test_a_refused_request_keeps_its_connection() -> None:
    """The server reads its body, understands the next request, and answers pipelined ones in order."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=1) as (_, target):
        connection = target.open()
        connection.request("GET", "/healthz")
        connection.request("POST", LIST, {"Content-Type": "application/json"}, b'{"name":"one"}')
        connection.request("POST", LIST, {"Content-Type": "application/json"}, b'{"name":"two"}')
        connection.request("GET", "/healthz")
        assert [connection.response().status for _ in range(4)] == [200, 201, 429, 200]


SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/x" * 500, "client": None, "headers": []}


def plane(records: list[AccessRecord]) -> DataPlane:
    registry = Registry(Limits(), autocreate=True)
    return DataPlane(registry, Options(), sink=records.append, node="n")


def call(application: Any, scope: dict[str, Any], records: list[AccessRecord]) -> None:
    async def nothing(*_: Any) -> None: ...

    asyncio.run(RecordRequests(application, plane(records))(scope, nothing, nothing))  # type: ignore[arg-type]


def test_an_exception_is_a_500_with_reason_error() -> None:
    """The access log has an exception as 500, and the server gets it."""
    records: list[AccessRecord] = []

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("fault")

    with pytest.raises(RuntimeError, match="fault"):
        call(failing, SCOPE, records)
    (record,) = records
    assert (record.status, record.reason, record.ip, record.bytes_out) == (500, "error", "unix", 0)
    assert record.path is not None
    assert len(record.path) == 512


def test_a_body_in_parts_is_counted() -> None:
    """The record counts the bytes of all parts."""
    records: list[AccessRecord] = []

    async def parts(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body"})

    call(parts, SCOPE, records)
    assert (records[0].status, records[0].bytes_out) == (200, 3)


def test_a_client_that_leaves_before_it_is_answered() -> None:
    """The access log has the client as gone, without a status."""
    records: list[AccessRecord] = []
    connection = SimpleNamespace(gone=None, connection=SimpleNamespace(peer="192.0.2.1", certified=None))

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        connection.gone = "client_gone"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc"})

    call(slow, SCOPE | {CONNECTION: connection}, records)
    (record,) = records
    assert (record.status, record.reason, record.bytes_out) == (None, "client_gone", 0)


def test_what_is_not_http_is_not_recorded() -> None:
    """Lifespan messages pass through, and no record is made."""
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


PAGE, OTHER = "https://page.example", "https://other.example"


def test_other_pages_neither_change_nor_see_the_control_plane() -> None:
    """A foreign page's change and its preflight are 403; its read is answered without permission to see it."""
    with local_server() as server, server.client() as target:
        target.channel("c").publish(0)
        body = b'{"name": "new"}'
        for method, path in (("POST", LIST), ("DELETE", f"{LIST}/c")):
            assert target.ask(method, path, {"Origin": OTHER, "Content-Type": "text/plain"}, body).status == 403
            asked = {"Origin": OTHER, "Access-Control-Request-Method": method}
            assert target.ask("OPTIONS", path, asked).status == 403
        assert list(server.plane.registry.channels) == ["_changes", "c"]
        read = target.ask("GET", LIST, {"Origin": OTHER})
        assert (read.status, read.get("Access-Control-Allow-Origin")) == (200, None)
        assert server.record(method="DELETE").reason == "forbidden"


def test_a_configured_page_uses_the_control_plane() -> None:
    """It gets permission for reads, changes and preflights; a preflight needs no token."""
    with local_server(cors_write_origins=(PAGE,)) as server, server.client() as target:
        target.channel("c").publish(0)
        preflight = target.ask("OPTIONS", LIST, {"Origin": PAGE, "Access-Control-Request-Method": "DELETE"})
        assert preflight.status == 204
        assert preflight.tokens("Access-Control-Allow-Methods") == {"post", "delete"}
        for method, path in (("GET", LIST), ("DELETE", f"{LIST}/c")):
            answer = target.ask(method, path, {"Origin": PAGE})
            assert (answer.status, answer.get("Access-Control-Allow-Origin")) == (200, PAGE)
