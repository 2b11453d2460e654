"""The limits of a client address, outside the base path: who is refused there, and who never is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.limits import check_refused, limited
from tests.support.local import LocalServer
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.target import Address, Target

LIST = "/api/v1/channels"
NEVER_REFUSED = ("/healthz", "/readyz", "/metrics")


def nobody_is_held(server: LocalServer) -> bool:
    """Whether no request or connection is counted any more."""
    clients = server.plane.admission.clients
    assert clients is not None
    return not clients._here and all(client.exchanges == 0 for client in clients._gone.values())


def test_a_client_may_not_ask_too_often() -> None:
    """A burst is let in, one more is not, whatever it asks for; health and metrics are open all the same."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=3) as (server, target):
        assert [target.ask("GET", path).status for path in (LIST, "/docs", "/nothing")] == [200, 200, 404]
        for path in (LIST, f"{LIST}/c", "/openapi.json", "/nothing", "/healthz/"):
            refused = target.ask("GET", path)
            check_refused(server, refused, 429, "per_ip_requests_per_s")
            assert int(refused.get("Retry-After") or 0) >= 100
        assert [target.ask("GET", path).status for path in NEVER_REFUSED] == [200] * 3
        metrics = target.ask("GET", "/metrics").body.decode()
        assert 'tricklecast_refusals_total{limit="per_ip_requests_per_s"} 5.0' in metrics
        assert 'tricklecast_exchanges_total{op="api",reason="limit:per_ip_requests_per_s",status="429"} 5.0' in metrics


@pytest.mark.parametrize(("others", "status"), [(1, 200), (2, 429)])
def test_requests_of_both_planes_count_together(others: int, status: int) -> None:
    """Whoever has as many readers as it may have requests is refused at the API; with one less it is not."""
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
    """What a trusted proxy says counts, as on segment routes."""
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
    """The control plane's own, and what is left of it at the channels' address."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=2, control_port=0) as (server, target):
        control = Target(Address("127.0.0.1", server.control_port, server.settings.base_path))
        assert control.ask("GET", LIST).status == 200
        assert target.ask("GET", LIST).status == 404
        for refused in (control.ask("GET", LIST), target.ask("GET", LIST)):
            check_refused(server, refused, 429, "per_ip_requests_per_s")
        assert [control.ask("GET", path).status for path in NEVER_REFUSED] == [200] * 3
        control.cleanup()


def test_a_refused_request_keeps_its_connection() -> None:
    """And its body is read: the next request is understood, and pipelined ones are answered in order."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=1) as (_, target):
        connection = target.open()
        connection.request("GET", "/healthz")
        connection.request("POST", LIST, {"Content-Type": "application/json"}, b'{"name":"one"}')
        connection.request("POST", LIST, {"Content-Type": "application/json"}, b'{"name":"two"}')
        connection.request("GET", "/healthz")
        assert [connection.response().status for _ in range(4)] == [200, 201, 429, 200]
