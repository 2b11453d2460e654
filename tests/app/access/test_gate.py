"""Tokens at a real server: who may do what, what the others are told, and what the log says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.signing import SECRET, bearer, token
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.http1 import Failure, Response
from tricklecast.app.tools.conformance.target import Target


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that wants tokens, also in the query."""
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(SECRET + b"\n")
    with local_server(jwt_secret_file=secret, jwt_leeway_s=0, token_in_query=True, storm_guard="off") as running:
        yield running


def may(*names: str, **rights: list[str]) -> dict[str, str]:
    """The header of somebody who has these rights, for these channels."""
    return bearer(token(trickle={name: ["cam-*"] for name in names} | rights))


OPERATIONS = {
    "create": ("POST", ""),
    "publish": ("POST", "/0"),
    "read": ("GET", "/-1"),
    "head": ("HEAD", "/-1"),
    "next": ("GET", "/next"),
    "close": ("DELETE", "/0"),
    "delete": ("DELETE", ""),
}


def ask(target: Target, operation: str, headers: dict[str, str], channel: str = "cam-1") -> Response:
    method, tail = OPERATIONS[operation]
    return target.ask(method, f"{target.base}/{channel}{tail}", headers, b"x" if method == "POST" else None)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_a_token(target: Target, server: LocalServer, operation: str) -> None:
    """401, how to get in, and nothing about whether there is such a channel."""
    response = ask(target, operation, {}, f"missing-{operation}")
    assert (response.status, response.get("WWW-Authenticate")) == (401, 'Bearer realm="tricklecast"')
    assert response.body == (b"" if operation == "head" else b"Token required")
    record = server.record(channel=f"missing-{operation}")
    assert (record.status, record.reason) == (401, "token:missing")
    assert f"missing-{operation}" not in server.plane.registry.channels


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lambda: "nonsense", "malformed"),
        (lambda: token(b"x" * 32), "signature"),
        (lambda: token(nbf=time.time() + 60), "early"),
        (lambda: token(aud="somebody else"), "audience"),
        (lambda: token(trickle="*"), "claim"),
        (lambda: "x" * 9000, "malformed"),
        (lambda: "é", "malformed"),
    ],
    ids=["malformed", "signature", "early", "audience", "claim", "long", "latin"],
)
def test_invalid_tokens_look_the_same(
    target: Target, server: LocalServer, request: pytest.FixtureRequest, text: Any, why: str
) -> None:
    """The client is told that its token is invalid; the log says why."""
    name = f"invalid-{request.node.callspec.id}"
    response = ask(target, "read", {"Authorization": f"Bearer {text()}"}, name)
    assert (response.status, response.body) == (401, b"Token invalid")
    assert response.get("WWW-Authenticate") == 'Bearer realm="tricklecast", error="invalid_token"'
    assert server.record(channel=name).reason == f"token:{why}"


def test_an_expired_token(target: Target, server: LocalServer) -> None:
    """Its holder may know that a new one is needed."""
    response = ask(target, "read", bearer(token(exp=time.time() - 1)), "expired")
    assert (response.status, response.body) == (401, b"Token expired")
    assert server.record(channel="expired").reason == "expired"


@pytest.mark.parametrize(
    ("right", "operations"),
    [
        ("publish", {"create", "publish", "next", "close", "delete"}),
        ("subscribe", {"read", "head", "next"}),
        ("manage", {"create", "delete"}),
    ],
)
def test_what_is_not_allowed(target: Target, right: str, operations: set[str]) -> None:
    """403 for all that a right is not good for, whether there is such a channel or not."""
    for operation in OPERATIONS:
        if operation not in operations:
            response = ask(target, operation, may(right))
            assert (response.status, response.get("WWW-Authenticate")) == (
                403, 'Bearer realm="tricklecast", error="insufficient_scope"'
            )  # fmt: skip
        response = ask(target, operation, may(right), "other")
        assert response.status == 403
        assert response.body == (b"" if operation == "head" else b"Not allowed")


def test_a_channel_with_tokens(target: Target, server: LocalServer) -> None:
    """A publisher and a subscriber, each with what it may."""
    publish, subscribe = may("publish"), may("subscribe")
    assert ask(target, "create", publish, "cam-whole").status == 200
    assert ask(target, "next", publish, "cam-whole").body == b"0"
    assert ask(target, "publish", publish, "cam-whole").status == 200
    path = f"{target.base}/cam-whole/0"
    assert target.ask("GET", path, subscribe).body == b"x"
    assert target.ask("GET", path, {"Authorization": subscribe["Authorization"].replace("B", "b", 1)}).body == b"x"
    assert ask(target, "delete", publish, "cam-whole").status == 200
    assert {record.client for record in server.records if record.channel == "cam-whole"} == {"somebody"}


def test_the_subject_comes_before_what_a_client_calls_itself(target: Target, server: LocalServer) -> None:
    """What is signed counts more; without a subject the client's own name does."""
    named = {"Trickle-Client": "own name"}
    ask(target, "next", {**bearer(token(sub="signed name")), **named}, "names-1")
    ask(target, "next", {**bearer(token(sub=None)), **named}, "names-2")
    assert server.record(channel="names-1").client == "signed name"
    assert server.record(channel="names-2").client == "own name"


def test_a_token_in_the_query(target: Target, server: LocalServer) -> None:
    """It counts where a header is missing, and the log does not have it."""
    good = token()
    assert target.ask("GET", f"{target.base}/query/next?x=1&token={good}").status == 404
    assert target.ask("GET", f"{target.base}/query/next?token=bad&token={good}").status == 401
    assert target.ask("GET", f"{target.base}/query/next?token=").status == 401
    assert target.ask("GET", f"{target.base}/query/next?token={good}", bearer("bad")).status == 401
    assert {record.path for record in server.records if record.channel == "query"} == {f"{target.base}/query/next"}


def test_a_wrong_request_is_told_so_without_a_token(target: Target) -> None:
    """What is wrong with it depends on nothing that is secret; preflights carry no token."""
    assert target.ask("GET", f"{target.base}/c/x").status == 400
    assert target.ask("PUT", f"{target.base}/c").status == 405
    assert target.ask("OPTIONS", f"{target.base}/c/0", {"Origin": "https://page"}).status == 204


def test_the_changefeed_is_for_those_who_may_read_everything(target: Target) -> None:
    """It names all channels."""
    path = f"{target.base}/_changes"
    for seq in ("0", "-1", "next"):
        assert target.ask("GET", f"{path}/{seq}", may(subscribe=["_changes", "c*"], publish=["*"])).status in (403, 200)
    assert target.ask("GET", f"{path}/0", may(subscribe=["_changes", "c*"])).status == 403
    assert target.ask("GET", f"{path}/next", may(subscribe=["*"])).status == 200


def test_a_refused_publisher_is_not_read(target: Target) -> None:
    """It hears at once that it may not, while its body is still to come, and the connection closes."""
    upload = target.channel("cam-unread").upload(0, headers=may("subscribe"))
    response = upload.answer()
    assert (response.status, response.get("Connection")) == (403, "close")


def soon() -> dict[str, str]:
    """The header of a token that expires before the others, when the test says so."""
    return bearer(token(exp=time.time() + 1800))


@contextmanager
def later(server: LocalServer) -> Iterator[None]:
    """Let the server believe that it is 40 minutes later."""
    assert server.access is not None
    gate, judge = server.access.gate, server.access.judge
    assert gate is not None
    assert judge is not None
    gate._wall = judge._wall = lambda: time.time() + 2400
    try:
        yield
    finally:
        gate._wall = judge._wall = time.time


def test_a_running_reader_is_cut_off_when_its_token_expires(target: Target, server: LocalServer) -> None:
    """Without a final chunk: the part is not taken for the whole. The publisher goes on."""
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


def test_a_waiting_reader_is_told_that_its_token_has_expired(target: Target, server: LocalServer) -> None:
    """401 while nothing of an answer is out."""
    assert target.ask("POST", f"{target.base}/late-waiting", bearer(token()), b"").status == 200
    reader = target.channel("late-waiting").read(0, soon())
    target.settle()
    with later(server):
        response = reader.response()
    assert (response.status, response.body) == (401, b"Token expired")
    assert server.record(channel="late-waiting", op="read").reason == "expired"


def test_a_running_publisher_ends_when_its_token_expires(target: Target, server: LocalServer) -> None:
    """401, its segment closes as truncated, and its readers are told."""
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


def test_a_preconnect_ends_when_its_token_expires(target: Target, server: LocalServer) -> None:
    """401; the segment is there for the next publisher."""
    upload = target.channel("late-preconnect").upload(0, headers=soon())
    target.settle()
    with later(server):
        assert upload.answer().status == 401
    assert ask(target, "publish", bearer(token()), "late-preconnect").status == 200


def test_another_token_on_the_same_connection(target: Target, server: LocalServer) -> None:
    """What counts is the token of the request that runs."""
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


def test_a_token_is_checked_once(target: Target, server: LocalServer) -> None:
    """The signature is checked for the first request only."""
    assert server.access is not None
    judge = server.access.judge
    assert judge is not None
    checked, text = judge.outcomes["checked"], bearer(token(sub="once"))
    for _ in range(5):
        ask(target, "next", text)
    assert judge.outcomes["checked"] == checked + 1


def test_the_control_plane_takes_tokens_with_manage(target: Target) -> None:
    """A list has only what the token may manage; other names are refused, whether they exist or not."""
    for name in ("cam-listed", "hidden"):
        assert target.ask("POST", f"{target.base}/{name}", bearer(token()), b"").status == 200
    api, manager = "/api/v1/channels", may("manage")
    assert target.ask("GET", api).status == 401
    assert target.ask("GET", api, may("publish", "subscribe")).status == 403
    answer = target.ask("GET", api, manager)
    assert answer.get("Age") is None, "made for this caller"
    listed = answer.body
    assert b'"cam-listed"' in listed
    assert b"hidden" not in listed
    assert target.ask("GET", f"{api}/cam-listed", manager).status == 200
    for method, path in (("GET", f"{api}/hidden"), ("DELETE", f"{api}/hidden"), ("GET", f"{api}/missing")):
        assert target.ask(method, path, manager).status == 403
    body, kind = b'{"name": "hidden-too"}', {"Content-Type": "application/json"}
    assert target.ask("POST", api, {**manager, **kind}, body).status == 403
    assert b"hidden" in target.ask("GET", api, bearer(token())).body
    assert target.ask("GET", "/metrics", manager).status == 403
    assert target.ask("GET", "/metrics", bearer(token())).status == 200
    assert target.ask("GET", "/healthz").status == 200


def test_who_is_refused_again_and_again_is_answered_later(tmp_path: Path) -> None:
    """By the storm guard, as for every refusal; the log says by how much."""
    (tmp_path / "secret").write_bytes(SECRET)
    with local_server(jwt_secret_file=tmp_path / "secret") as server, server.client() as target:
        for method in ("GET", "POST"):
            body = b"body" if method == "POST" else None
            while not [record for record in list(server.records) if record.method == method and record.guard_ms]:
                assert target.ask(method, f"{target.base}/{method}/0", {}, body).status == 401
        held = [record for record in server.records if record.guard_ms]
        assert {(record.status, record.reason) for record in held} == {(401, "token:missing")}


@pytest.mark.parametrize("in_query", [False, True])
def test_a_token_outlives_a_hold(tmp_path: Path, in_query: bool) -> None:
    """Who was held is judged by the token that it showed, not as one that has none."""
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


def test_a_secret_file_that_will_not_do(tmp_path: Path) -> None:
    """One byte too few."""
    from tricklecast.app.access.access import Access
    from tricklecast.app.access.secrets import InvalidSecret
    from tricklecast.app.settings import load

    file = tmp_path / "secret"
    file.write_bytes(b"x" * 31)
    with pytest.raises(InvalidSecret, match="holds 31 bytes, and a secret has at least 32"):
        Access(load({"jwt_secret_file": file}).settings, "here")
    file.write_bytes(b" " + b"x" * 32 + b"\n")
    assert Access(load({"jwt_secret_file": file}).settings, "here").gate is not None
