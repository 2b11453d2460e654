"""Access to the control plane: its own token, tokens with the right ``manage``, and what is open to everybody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jwt import PyJWK
from jwt.utils import base64url_encode
from pydantic import SecretBytes
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.app.access.signing import SECRET, bearer, private_key, public_key, token
from tests.app.access.test_authorizer import FakeKeys
from tests.support.local import LocalServer, local_server
from tests.support.waiting import until
from tricklecast.app.access.control_plane import AuthorizeControlPlane
from tricklecast.app.access.tokens import TokenVerifier
from tricklecast.app.control_plane.middleware import MAY_MANAGE, RECORD
from tricklecast.trickle.records import AccessRecord

HS256 = PyJWK({"kty": "oct", "k": base64url_encode(SECRET).decode()}, "HS256")
CONTROL = "the control plane's token"
API = "/api/v1/channels"
CHANGES = "/api/v1/changes"


def ask(
    path: str,
    headers: dict[str, str],
    *,
    keys: FakeKeys | None = None,
    tokens: bool = True,
    control_token: bool = True,
    metrics_open: bool = False,
) -> tuple[int, str, AccessRecord]:
    """Ask for a path.

    Returns:
        Status, body and access record. The body of a 200 names those of three channels that the caller may manage.
    """
    record = AccessRecord(0, client="address")

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        may_manage = scope.get(MAY_MANAGE, lambda name: True)
        names = [name for name in ("cam-1", "other", "_changes") if may_manage(name)]
        await PlainTextResponse(" ".join(names))(scope, receive, send)

    remote: Any = keys
    app = AuthorizeControlPlane(
        inside,
        control_token=lambda: SecretBytes(CONTROL.encode()) if control_token else None,
        tokens=TokenVerifier((HS256,), remote) if tokens else None,
        metrics_open=metrics_open,
        is_open=lambda path: path == "/page",
    )

    async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, RECORD: record}, receive, send)

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(recorded)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            request = asyncio.ensure_future(client.get(path, headers=headers))
            if keys is not None:
                await until(lambda: keys.waiting or request.done())
                keys.arrive(public_key("ES256", kid="new"))
            return await request

    response = asyncio.run(main())
    return response.status_code, response.text, record


def manage(*patterns: str, **more: Any) -> dict[str, str]:
    return bearer(token(trickle={"manage": list(patterns)}, **more))


def test_the_control_token_allows_everything() -> None:
    """The control token opens every route, whether the server verifies other tokens or not."""
    for path in (API, f"{API}/c", "/metrics", "/docs"):
        for tokens in (True, False):
            status, text, record = ask(path, bearer(CONTROL), tokens=tokens)
            assert (status, text, record.client) == (200, "cam-1 other _changes", "address")


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "token:missing"),
        ({"Authorization": f"Basic {CONTROL}"}, "token:missing"),
        (bearer(f"{CONTROL}x"), "token:malformed"),
        (bearer(token(key=b"x" * 32)), "token:signature"),
        (bearer(token(exp=1)), "expired"),
    ],
)
def test_invalid_tokens(headers: dict[str, str], reason: str) -> None:
    """An invalid token gets 401, with the reason in the access log; a token in the query never counts."""
    status, _, record = ask(f"{API}?token={token()}", headers)
    assert (status, record.reason) == (401, reason)


def test_a_server_with_a_control_token_only() -> None:
    """No other token is valid; a server with other tokens only has no control token."""
    assert ask(API, bearer(token()), tokens=False)[0] == 401
    assert ask(API, bearer(CONTROL), control_token=False)[0] == 401


@pytest.mark.parametrize(
    ("headers", "path", "status", "shown"),
    [
        (manage("cam-*"), API, 200, "cam-1"),
        (manage("cam-*"), f"{API}/other", 200, "cam-1"),
        (manage("cam-*"), "/metrics", 403, "The token gives no right to manage the whole server (manage: *)"),
        (manage("cam-*"), f"{API}x", 403, "The token gives no right to manage the whole server (manage: *)"),
        (manage("*"), API, 200, "cam-1 other _changes"),
        (manage("*"), "/metrics", 200, "cam-1 other _changes"),
        (
            bearer(token(trickle={"publish": ["*"], "subscribe": ["*"]})),
            API,
            403,
            "The token gives no right to manage any channel (manage)",
        ),
    ],
)
def test_the_right_manage(headers: dict[str, str], path: str, status: int, shown: str) -> None:
    """The right opens the API for the channels that match; all other routes need it for ``*`` itself."""
    found = ask(path, headers)
    assert (*found[:2], found[2].client) == (status, shown, "somebody")


def test_what_is_open_to_everybody() -> None:
    """Health checks need no token, nor do the metrics with ``metrics_open``."""
    for path in ("/healthz", "/readyz", "/page"):
        assert ask(path, {})[0] == 200
    assert [ask("/metrics", {}, metrics_open=is_open)[0] for is_open in (False, True)] == [401, 200]


def test_a_token_of_a_new_key() -> None:
    """The request waits for the fetch of the keys. Before the first key set the server cannot decide."""
    text = token(private_key("ES256"), "ES256", kid="new")
    assert ask(API, bearer(text), keys=FakeKeys())[0] == 200
    assert ask(API, bearer(text.replace("n", "m")), keys=FakeKeys())[0] == 401
    status, body, record = ask(API, bearer(text), keys=FakeKeys(loaded=False, recent=True))
    assert (status, body, record.reason) == (503, "Access cannot be checked", "token:no_keys")
    assert record.retry_after_ms


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    secret: Path = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(SECRET)
    with local_server(jwt_secret_file=secret) as running:
        yield running


def test_the_api_shows_only_the_channels_that_a_token_may_manage(server: LocalServer) -> None:
    """The API answers 403 for all other names, whether the channel exists or not."""
    with server.client() as target:
        for name in ("cam-listed", "hidden"):
            assert target.ask("POST", f"{target.base}/{name}", bearer(token()), b"").status == 200
        manager = manage("cam-*")
        answer = target.ask("GET", API, manager)
        assert answer.get("Age") is None, "the server made the list for this client"
        assert [channel["name"] for channel in json.loads(answer.body)["channels"]] == ["cam-listed"]
        assert target.ask("GET", f"{API}/cam-listed", manager).status == 200
        for method, path in (("GET", f"{API}/hidden"), ("DELETE", f"{API}/hidden"), ("GET", f"{API}/missing")):
            assert target.ask(method, path, manager).status == 403
        body, kind = b'{"name": "hidden-too"}', {"Content-Type": "application/json"}
        assert target.ask("POST", API, {**manager, **kind}, body).status == 403
        assert b"hidden" in target.ask("GET", API, bearer(token())).body


def test_followers_see_only_the_channels_that_their_token_may_manage(server: LocalServer) -> None:
    """The server leaves out facts, snapshots and events about all other channels."""
    with server.client() as target:
        for name in ("cam-followed", "secret"):
            assert target.ask("POST", f"{target.base}/{name}", bearer(token()), b"").status == 200
        manager = manage("cam-*")
        facts = json.loads(target.ask("GET", f"{CHANGES}?after=0&wait_s=0", manager).body)["changes"]
        assert {fact["channel"][:4] for fact in facts} == {"cam-"}
        live = json.loads(target.ask("GET", f"{CHANGES}?snapshot=1", manager).body)["channels"]
        assert {channel["channel"][:4] for channel in live} == {"cam-"}
        stream = target.send("GET", f"{CHANGES}?snapshot=1", {**manager, "Accept": "text/event-stream"})
        assert stream.head().status == 200
        while (text := stream.chunk()) is not None and b"cam-followed" not in text:
            assert b"secret" not in text
        assert text is not None
        assert b"secret" not in text
        assert target.ask("GET", CHANGES).status == 401


def test_a_stream_ends_when_its_token_expires(server: LocalServer) -> None:
    """The last event of a stream says that its token has expired."""
    with server.client() as target:
        headers = {**manage("cam-*", exp=int(time.time()) + 3600), "Accept": "text/event-stream"}
        stream = target.send("GET", f"{CHANGES}?snapshot=1", headers)
        assert stream.head().status == 200
        clock = server.plane.wall_us
        try:
            server.plane.wall_us = lambda: clock() + 10_000 * 1_000_000
            assert b'"reason":"expired"' in stream.rest()
        finally:
            server.plane.wall_us = clock
