"""Authorization over sockets: refusals, requests that wait for a decision, and exchanges that end with their token."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.service import Service, service
from tests.app.access.signing import SECRET, bearer, private_key, public_jwk, token
from tests.support.local import LocalServer, local_server
from tests.support.resets import reset_when_closed
from tests.support.waiting import eventually
from tricklecast.app.data_plane import exchange
from tricklecast.app.data_plane.authorization import Granted, Pending, Refused
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.tools.conformance.response import Failure, Response
from tricklecast.app.tools.conformance.target import Target

OPERATIONS = {
    "create": ("POST", ""),
    "publish": ("POST", "/0"),
    "read": ("GET", "/-1"),
    "head": ("HEAD", "/-1"),
    "next": ("GET", "/next"),
    "close": ("DELETE", "/0"),
    "delete": ("DELETE", ""),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that wants tokens, and takes them from the query, too."""
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(SECRET + b"\n")
    with local_server(jwt_secret_file=secret, jwt_leeway_s=0, token_in_query=True, storm_guard="off") as running:
        yield running


def ask(target: Target, operation: str, headers: dict[str, str], channel: str) -> Response:
    method, tail = OPERATIONS[operation]
    return target.ask(method, f"{target.base}/{channel}{tail}", headers, b"x" if operation == "publish" else None)


def rights(*names: str, **more: Any) -> dict[str, str]:
    """The header of a client that has these rights to channels that begin with cam-."""
    return bearer(token(trickle={name: ["cam-*"] for name in names}, **more))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_needs_a_token(target: Target, server: LocalServer, operation: str) -> None:
    """Without one the answer is 401, nothing happens, and the log says why."""
    response = ask(target, operation, {}, f"missing-{operation}")
    assert (response.status, response.get("WWW-Authenticate")) == (401, 'Bearer realm="tricklecast"')
    assert response.body == (b"" if operation == "head" else b"Token required")
    record = server.record(channel=f"missing-{operation}")
    assert (record.status, record.reason) == (401, "token:missing")
    assert f"missing-{operation}" not in server.plane.registry.channels


def test_a_channel_with_tokens(target: Target, server: LocalServer) -> None:
    """A publisher and a subscriber with the rights that they need; each may not do what the other does."""
    publish, subscribe = rights("publish", sub="p"), rights("subscribe", sub="s")
    assert ask(target, "create", publish, "cam-whole").status == 200
    assert ask(target, "next", publish, "cam-whole").body == b"0"
    assert ask(target, "publish", publish, "cam-whole").status == 200
    assert ask(target, "publish", subscribe, "cam-whole").status == 403
    path = f"{target.base}/cam-whole/0"
    assert target.ask("GET", path, subscribe).body == b"x"
    assert target.ask("GET", path, publish).status == 403
    assert ask(target, "delete", publish, "cam-whole").status == 200
    clients = {(record.client, record.status) for record in server.records if record.channel == "cam-whole"}
    assert clients == {("p", 200), ("p", 403), ("s", 200), ("s", 403)}


def test_the_subject_is_the_clients_name(target: Target, server: LocalServer) -> None:
    """The access log has the name that is signed, otherwise the one that the client gives itself."""
    named = {"Trickle-Client": "own name"}
    ask(target, "next", {**bearer(token(sub="signed name")), **named}, "names-1")
    ask(target, "next", {**bearer(token(sub=None)), **named}, "names-2")
    assert server.record(channel="names-1").client == "signed name"
    assert server.record(channel="names-2").client == "own name"


def test_the_log_has_no_query(target: Target, server: LocalServer) -> None:
    """A token in the query counts, and is not written down."""
    assert target.ask("GET", f"{target.base}/query/next?token={token()}").status == 404
    assert server.record(channel="query").path == f"{target.base}/query/next"


def test_a_malformed_request_needs_no_token(target: Target) -> None:
    """The answer says what is wrong with the path or the method. A preflight cannot carry a token."""
    assert target.ask("GET", f"{target.base}/c/x").status == 400
    assert target.ask("PUT", f"{target.base}/c").status == 405
    assert target.ask("OPTIONS", f"{target.base}/c/0", {"Origin": "https://page"}).status == 204


def test_the_body_of_a_refused_publisher_is_not_read(target: Target) -> None:
    """The answer comes before the body, and the connection closes."""
    response = target.channel("cam-unread").upload(0, headers=rights("subscribe")).answer()
    assert (response.status, response.get("Connection")) == (403, "close")


# The end of a token


def soon() -> dict[str, str]:
    """The header of a token that expires within the time that :func:`later` lets pass; others do not."""
    return bearer(token(exp=time.time() + 1800))


@contextmanager
def later(server: LocalServer) -> Iterator[None]:
    """Set the server's clock 40 minutes on."""
    plane: Any = server.plane
    tokens: Any = server.access.tokens if server.access is not None else None
    wall_us, wall = plane.wall_us, tokens._wall
    plane.wall_us, tokens._wall = lambda: wall_us() + 2_400_000_000, lambda: wall() + 2400
    try:
        yield
    finally:
        plane.wall_us, tokens._wall = wall_us, wall


def test_the_token_of_a_reader_in_the_middle_of_a_segment(target: Target, server: LocalServer) -> None:
    """The reader is cut off without a final chunk, so that it does not take the part for the whole."""
    upload = target.channel("late-reader").upload(0, b"begun", headers=bearer(token()))
    target.settle()
    reader = target.channel("late-reader").read(0, soon())
    assert reader.head().status == 200
    assert reader.body(5) == b"begun"
    with later(server), pytest.raises(Failure):
        reader.rest()
    record = server.record(channel="late-reader", op="read")
    assert (record.status, record.reason, record.bytes_out) == (200, "expired", 5)
    upload.chunk(b" and ended").end()
    assert upload.answer().status == 200


def test_the_token_of_a_waiting_reader(target: Target, server: LocalServer) -> None:
    """401, as nothing of an answer is out."""
    assert target.ask("POST", f"{target.base}/late-waiting", bearer(token()), b"").status == 200
    reader = target.channel("late-waiting").read(0, soon())
    target.settle()
    with later(server):
        response = reader.response()
    assert (response.status, response.body) == (401, b"Token expired")
    assert server.record(channel="late-waiting", op="read").reason == "expired"


def test_the_token_of_a_publisher_in_the_middle_of_a_segment(target: Target, server: LocalServer) -> None:
    """401. The segment closes as truncated, and its readers learn it."""
    upload = target.channel("late-publisher").upload(0, b"begun", headers=soon())
    target.settle()
    reader = target.channel("late-publisher").read(0, bearer(token()))
    with later(server):
        response = upload.answer()
    assert (response.status, response.body) == (401, b"Token expired")
    whole = reader.response()
    assert (whole.body, whole.marked("Lp-Trickle-Truncated")) == (b"begun", "truncated")
    record = server.record(channel="late-publisher", op="publish")
    assert (record.status, record.reason, record.bytes_in) == (401, "expired", 5)


def test_the_token_of_a_preconnect(target: Target, server: LocalServer) -> None:
    """401. The next publisher can write the segment."""
    upload = target.channel("late-preconnect").upload(0, headers=soon())
    target.settle()
    with later(server):
        assert upload.answer().status == 401
    assert ask(target, "publish", bearer(token()), "late-preconnect").status == 200


def test_another_token_on_the_same_connection(target: Target, server: LocalServer) -> None:
    """Only the token of the running request counts."""
    connection = target.open()
    path = f"{target.base}/late-other"
    for headers in (soon(), bearer(token())):
        connection.request("POST", path, headers, b"")
        assert connection.response().status == 200
    connection.request("GET", f"{path}/0", bearer(token()))
    ended = target.channel("late-other").read(0, soon())
    eventually(lambda: server.plane.registry.readers == 2)
    with later(server):
        assert ended.response().status == 401
    assert ask(target, "publish", bearer(token()), "late-other").status == 200
    assert connection.response().body == b"x"


def test_keys_are_revoked_to_none() -> None:
    """When the key server's set is empty, the server rejects a token that it has granted before."""
    headers = bearer(token(private_key("ES256"), "ES256", kid="k"))
    with service() as keys:
        keys.says(200, {}, json.dumps({"keys": [public_jwk("ES256", kid="k")]}).encode())
        often = {"jwks_max_age_s": 1, "jwks_refetch_s": 1}
        with local_server(jwks_url=keys.url, **often, storm_guard="off") as server, server.client() as target:
            path = f"{target.base}/c/next"
            assert target.ask("GET", path, headers).status == 404
            keys.says(500)
            fetches = len(keys.asked)
            eventually(lambda: len(keys.asked) > fetches)
            assert target.ask("GET", path, headers).status == 404
            keys.says(200, {}, b'{"keys": []}')
            eventually(lambda: target.ask("GET", path, headers).status == 401)
            assert target.ask("GET", "/api/v1/channels", headers).status == 401


# Requests that wait for a decision


@pytest.fixture(scope="module")
def hook() -> Iterator[Service]:
    with service() as running:
        yield running


@pytest.fixture(scope="module")
def control_token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("control") / "token"
    file.write_text("the token of the control plane")
    return file


@pytest.fixture(scope="module")
def asking(hook: Service, control_token: Path) -> Iterator[LocalServer]:
    """A server that asks a webhook."""
    with local_server(
        webhook_url=f"{hook.url}/may", webhook_timeout_s=10, storm_guard="off", control_token_file=control_token
    ) as running:
        yield running


@pytest.fixture
def held(asking: LocalServer, hook: Service) -> Iterator[Target]:
    """A client of that server; the webhook does not answer until the test sets ``hook.may_answer``."""
    hook.says(200, {"Cache-Control": "no-store"})
    hook.asked.clear()
    hook.may_answer.clear()
    with asking.client() as client:
        yield client
        hook.may_answer.set()


def test_the_question(held: Target, hook: Service) -> None:
    """It holds the client's address and its bearer token, and nothing of the query or of other headers."""
    hook.may_answer.set()
    headers = {"Authorization": "Bearer stream-key", "Cookie": "secret"}
    held.ask("POST", f"{held.base}/asked/0?x=1", headers, b"body")
    ((body, sent),) = hook.asked
    assert json.loads(body) == {
        "v": 1, "node": "here", "operation": "publish", "channel": "asked", "subject": None, "token": "stream-key",
        "ip": "127.0.0.1",
    }  # fmt: skip
    assert "cookie" not in sent


@pytest.mark.parametrize(("status", "answer"), [(403, 403), (500, 503)])
def test_a_request_that_is_refused_after_a_wait(
    held: Target, hook: Service, asking: LocalServer, status: int, answer: int
) -> None:
    """It has no effect."""
    hook.says(status)
    connection = held.send("POST", f"{held.base}/refused-{status}", {}, b"")
    eventually(lambda: hook.asked)
    hook.may_answer.set()
    response = connection.response()
    assert (response.status, response.get("Retry-After") is not None) == (answer, answer == 503)
    assert asking.record(channel=f"refused-{status}").status == answer
    assert f"refused-{status}" not in asking.plane.registry.channels


def test_a_body_that_comes_meanwhile(held: Target, hook: Service) -> None:
    """The server does not read the body of a publisher that waits, and loses nothing of it."""
    size = 3 << 20
    whole = held.channel("held-body")
    upload = whole.upload(0, b"first")
    eventually(lambda: hook.asked)
    upload.chunk(b"second").end()
    hook.may_answer.set()
    assert upload.answer().get("Lp-Trickle-Size") == "11"
    assert whole.get(0).body == b"firstsecond"
    assert whole.post(1, b"x" * size).get("Lp-Trickle-Size") == str(size)


def test_a_body_that_is_not_needed(held: Target, hook: Service) -> None:
    """The server drops it as it comes, and finds the next request on the connection."""
    connection = held.open()
    path = f"{held.base}/_changes/next"
    connection.request("GET", path, {"Content-Length": "61440"}, b"x" * (60 << 10))
    eventually(lambda: hook.asked)
    connection.request("GET", path)
    hook.may_answer.set()
    assert connection.response().status == 200
    assert connection.response().status == 200


def test_a_preconnect_that_waits(held: Target, hook: Service) -> None:
    """Once it is granted, it is an ordinary one."""
    upload = held.channel("held-preconnect").upload(0)
    eventually(lambda: hook.asked)
    hook.may_answer.set()
    held.settle()
    upload.chunk(b"later").end()
    assert upload.answer().get("Lp-Trickle-Size") == "5"


def test_pipelined_requests_wait_their_turn(held: Target, hook: Service) -> None:
    """Answers come in the order of the requests."""
    connection = held.open()
    connection.request("POST", f"{held.base}/held-pipeline", {}, b"")
    connection.request("GET", f"{held.base}/held-pipeline/next")
    eventually(lambda: hook.asked)
    hook.may_answer.set()
    assert [connection.response().status, connection.response().body] == [200, b"0"]


def test_a_client_that_leaves_meanwhile(held: Target, asking: LocalServer, hook: Service) -> None:
    """A connection that breaks is noticed at once, and the request has no effect."""
    connection = held.send("POST", f"{held.base}/held-leaving", {}, b"")
    eventually(lambda: hook.asked)
    reset_when_closed(connection._sock)
    connection.close()
    assert asking.record(channel="held-leaving", op="create").reason == "client_gone"
    hook.may_answer.set()
    eventually(lambda: asking.access and asking.access.webhook and not asking.access.webhook.waiting)
    assert held.ask("GET", f"{held.base}/held-leaving/next").status == 404


def test_a_server_that_goes_meanwhile(hook: Service, control_token: Path) -> None:
    """The request gets 503 within the drain."""
    hook.may_answer.clear()
    hook.asked.clear()
    with local_server(webhook_url=hook.url, control_token_file=control_token, shutdown_drain_s=0.05) as running:
        upload = running.target().channel("going").upload(0, b"begun")
        eventually(lambda: hook.asked)
    response = upload.answer()
    assert (response.status, response.body) == (503, b"Server is shutting down")
    upload.connection.close()
    hook.may_answer.set()


# The storm guard


def test_repeated_refusals_are_delayed(tmp_path: Path) -> None:
    """As every answer that a client gets again and again; the log says by how much."""
    (tmp_path / "secret").write_bytes(SECRET)
    with local_server(jwt_secret_file=tmp_path / "secret") as server, server.client() as target:
        for method in ("GET", "POST"):
            body = b"body" if method == "POST" else None
            while not [record for record in list(server.records) if record.method == method and record.guard_ms]:
                assert target.ask(method, f"{target.base}/{method}/0", {}, body).status == 401
        held = [record for record in server.records if record.guard_ms]
        assert {(record.status, record.reason) for record in held} == {(401, "token:missing")}


@pytest.mark.parametrize("in_query", [False, True])
def test_a_delayed_request_keeps_its_token(tmp_path: Path, in_query: bool) -> None:
    """After the delay the server decides by the same token."""
    (tmp_path / "secret").write_bytes(SECRET)
    with (
        local_server(jwt_secret_file=tmp_path / "secret", token_in_query=True) as server,
        server.client() as target,
    ):
        headers = bearer(token(trickle={"subscribe": ["cam-*"]}))
        query = f"?token={headers.pop('Authorization').removeprefix('Bearer ')}" if in_query else ""
        for channel, status in (("cam-1", 404), ("other", 403)):
            while not [record for record in list(server.records) if record.channel == channel and record.guard_ms]:
                assert target.ask("GET", f"{target.base}/{channel}/0{query}", headers).status == status


@pytest.mark.interpreted
def test_bodies_of_posts_that_wait_for_a_decision_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The POST that exceeds it is refused with 503; those before it wait for their decision."""
    monkeypatch.setattr(exchange, "PARKED_BYTES", 1000)
    asked: list[Pending] = []

    class Slow:
        generation = 0

        def holds(self, _: Granted) -> bool:
            return True

        def authorize(self, _: Request) -> Pending:
            asked.append(Pending())
            return asked[-1]

    with local_server() as server, server.client() as target:
        server.plane.authorizer = Slow()
        channel = target.channel()
        waits = target.send("POST", channel.at(0), body=bytes(1000))
        eventually(lambda: server.plane.parked_bytes == 1000)
        refused = target.send("POST", channel.at(1), body=b"x").response()
        assert (refused.status, refused.body) == (503, b"Limit reached: total_bytes")
        assert asked[1].cancelled
        server.inside(lambda: asked[0].decide(Granted(None, math.inf)))
        assert waits.response().status == 200
        assert server.plane.parked_bytes == 0


# The values


def test_a_pending_decision() -> None:
    """It calls back once; never after it was cancelled."""
    came: list[Granted | Refused] = []
    told: Callable[[Granted | Refused], None] = came.append
    pending, cancelled = Pending(), Pending()
    for each in (pending, cancelled):
        each.then(told)
    cancelled.cancel()
    for decision in (Refused(Reply(403, "forbidden")), Granted(None, 0.0)):
        pending.decide(decision)
        cancelled.decide(decision)
    assert came == [Refused(Reply(403, "forbidden"))]
    assert (pending.cancelled, cancelled.cancelled) == (False, True)
