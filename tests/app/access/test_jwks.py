"""Keys behind a URL: fetched, kept through an outage, fetched again for a key that is new, but not too often."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.app.access.service import service
from tests.app.access.signing import bearer, private_key, public_jwk, token
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.access.jwks import MAX_WAITING, KeyServer


def key_set(*numbers: int) -> bytes:
    return json.dumps({"keys": [public_jwk("ES256", number, kid=f"k{number}") for number in numbers]}).encode()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def running(
    handler: Callable[[httpx.Request], httpx.Response], test: Callable[[KeyServer, Clock, list[int]], Awaitable[None]]
) -> KeyServer:
    """Run a test beside a key server that fetches from ``handler``."""

    async def main() -> KeyServer:
        clock, changes = Clock(), [0]

        def changed() -> None:
            changes[0] += 1

        keys = KeyServer(
            "https://keys/", refetch_s=30, max_age_s=3600, changed=changed, clock=clock,
            transport=httpx.MockTransport(handler),
        )  # fmt: skip
        task = asyncio.create_task(keys.run())
        async with asyncio.timeout(WITHIN_S):
            await test(keys, clock, changes)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return keys

    return asyncio.run(main())


def test_keys_come_and_change() -> None:
    """At the start; and again when somebody asks, after the time between two fetches."""
    current = [key_set(0)]

    async def test(keys: KeyServer, clock: Clock, changes: list[int]) -> None:
        assert not keys.loaded
        await until(lambda: keys.loaded)
        assert [key.kid for key in keys.keys] == ["k0"]
        current[0] = key_set(0, 1)
        clock.now += 29.9
        assert not keys.ask(lambda: None)
        clock.now += 0.1
        came: list[int] = []
        assert keys.ask(lambda: came.append(1))
        assert keys.ask(lambda: came.append(2))
        await until(lambda: len(came) == 2)
        assert [key.kid for key in keys.keys] == ["k0", "k1"]
        assert (keys.fetches, changes) == (2, [2])
        assert not keys.ask(lambda: None)

    running(lambda request: httpx.Response(200, content=current[0]), test)


def test_the_same_keys_are_no_change() -> None:
    """Tokens that were checked stay so."""

    async def test(keys: KeyServer, clock: Clock, changes: list[int]) -> None:
        await until(lambda: keys.loaded)
        clock.now += 30
        assert keys.ask(lambda: None)
        await until(lambda: keys.fetches == 2)
        assert changes == [1]

    running(lambda request: httpx.Response(200, content=key_set(0)), test)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(500),
        lambda: httpx.Response(302, headers={"Location": "https://elsewhere/"}),
        lambda: httpx.Response(200, content=b"nonsense"),
        lambda: httpx.Response(200, content=b"x" * (65 << 10)),
        lambda: httpx.ConnectError("no way"),
    ],
    ids=["status", "redirect", "nonsense", "large", "unreachable"],
)
def test_an_outage_locks_nobody_out(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The keys that were there stay, those who wait are told, and the operator as well."""
    is_well = [True]

    def handler(request: httpx.Request) -> httpx.Response:
        outcome = httpx.Response(200, content=key_set(0)) if is_well[0] else answer()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def test(keys: KeyServer, clock: Clock, changes: list[int]) -> None:
        await until(lambda: keys.loaded)
        is_well[0] = False
        clock.now += 30
        came: list[int] = []
        assert keys.ask(lambda: came.append(1))
        await until(lambda: came)
        assert ([key.kid for key in keys.keys], keys.failures, changes) == (["k0"], 1, [1])

    running(handler, test)
    assert [record.message.startswith("no keys from https://keys/: ") for record in caplog.records] == [True]


def test_keys_are_fetched_again_when_they_are_old() -> None:
    """Without being asked, also after a fetch that failed."""

    async def main() -> int:
        answers = iter([httpx.Response(200, content=key_set(0)), httpx.Response(500)])
        transport = httpx.MockTransport(lambda request: next(answers, httpx.Response(200, content=key_set(1))))
        keys = KeyServer(
            "https://keys/", refetch_s=0.001, max_age_s=0.001, changed=lambda: None, transport=transport
        )  # fmt: skip
        task = asyncio.create_task(keys.run())
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: [key.kid for key in keys.keys] == ["k1"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return keys.failures

    assert asyncio.run(main()) == 1


def test_only_so_many_wait() -> None:
    """At the limit one may, beyond it not."""

    async def main() -> None:
        keys = KeyServer("https://keys/", refetch_s=1, max_age_s=1, changed=lambda: None)
        assert all(keys.ask(lambda: None) for _ in range(MAX_WAITING))
        assert not keys.ask(lambda: None)

    asyncio.run(main())


def test_a_server_whose_keys_rotate() -> None:
    """A request with a token of a new key waits for it and is served; one of a withdrawn key is refused."""
    old, new = (bearer(token(private_key("ES256", n), "ES256", kid=f"k{n}")) for n in (0, 1))
    with service() as keys:
        keys.says(200, {}, key_set(0))
        with local_server(jwks_url=keys.url) as server, server.client() as target:
            path = f"{target.base}/channel/next"
            assert target.ask("GET", path, old).status == 404
            keys.says(200, {}, key_set(1))
            assert target.ask("GET", path, new).status == 401  # it has been asked a moment ago
            assert server.record(status=401).reason == "token:key"
            assert server.access is not None
            assert server.access.judge is not None
            assert server.access.judge.key_server is not None
            server.access.judge.key_server._next_at = 0.0
            assert target.ask("POST", f"{target.base}/channel/0", new, b"body").status == 200
            assert target.ask("GET", path, old).status == 401
            assert target.ask("GET", path, new).body == b"1"
            assert target.ask("GET", "/api/v1/channels", old).status == 401
            assert len(keys.asked) == 2


def test_no_keys_yet() -> None:
    """Nothing can be said about a token: 503, not 401, and later it works."""
    good = bearer(token(private_key("ES256"), "ES256", kid="k0"))
    with service() as keys:
        keys.says(500)
        with local_server(jwks_url=keys.url) as server, server.client() as target:
            for path in (f"{target.base}/channel/next", "/api/v1/channels"):
                response = target.ask("GET", path, good)
                assert (response.status, response.body) == (503, b"Access cannot be checked")
                assert response.get("Retry-After") is not None
            assert server.record(op="next").reason == "token:no_keys"
            keys.says(200, {}, key_set(0))
            assert server.access is not None
            assert server.access.judge is not None
            assert server.access.judge.key_server is not None
            server.access.judge.key_server._next_at = 0.0
            assert target.ask("GET", "/api/v1/channels", good).status == 200
