"""The webhook: what it is asked, what its answers do, and what happens without one."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.access.service import Service, service
from tests.app.access.signing import SECRET
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually, until
from tricklecast.app.access.secrets import Secret
from tricklecast.app.access.webhooks import MAX_CACHE_S, MAX_WAITING, Webhook, max_age_s, sign
from tricklecast.app.tools.conformance.target import Target

CONTROL = "the token of the control plane"


@pytest.fixture(scope="module")
def hook() -> Iterator[Service]:
    with service() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "hook").write_bytes(SECRET)
    (folder / "control").write_text(CONTROL)
    return folder


@pytest.fixture(scope="module")
def server(hook: Service, folder: Path) -> Iterator[LocalServer]:
    """A server that asks."""
    with local_server(
        webhook_url=f"{hook.url}/may",
        webhook_secret_file=folder / "hook",
        webhook_timeout_s=10,
        storm_guard="off",
        control_token_file=folder / "control",
    ) as running:
        yield running


@pytest.fixture
def target(server: LocalServer, hook: Service) -> Iterator[Target]:
    hook.says(200, {"Cache-Control": "no-store"})
    hook.asked.clear()
    with server.client() as client:
        yield client
        hook.gate.set()
        hook.says(200)


def test_a_question(target: Target, hook: Service) -> None:
    """Who wants what, signed; the query and other headers stay here."""
    headers = {"Authorization": "Bearer stream-key", "Cookie": "secret"}
    target.ask("POST", f"{target.base}/asked/0?x=1", headers, b"body")
    ((body, sent),) = hook.asked
    assert json.loads(body) == {
        "v": 1, "node": "here", "operation": "publish", "channel": "asked", "subject": None, "token": "stream-key",
        "ip": "127.0.0.1",
    }  # fmt: skip
    at, _, mac = sent["trickle-signature"].removeprefix("t=").partition(",v1=")
    assert hmac.new(SECRET, f"{at}.".encode() + body, sha256).hexdigest() == mac
    assert sent["content-type"] == "application/json"
    assert "cookie" not in sent


@pytest.mark.parametrize(
    ("method", "tail", "operation"),
    [
        ("POST", "", "create"),
        ("POST", "/0", "publish"),
        ("DELETE", "/0", "publish"),
        ("GET", "/0", "subscribe"),
        ("HEAD", "/0", "subscribe"),
        ("GET", "/next", "next"),
        ("DELETE", "", "delete"),
    ],
)
def test_operations(target: Target, hook: Service, method: str, tail: str, operation: str) -> None:
    """Each kind of request has its word."""
    target.ask(method, f"{target.base}/operations{tail}", {}, b"" if method == "POST" else None)
    assert json.loads(hook.asked[-1][0])["operation"] == operation


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (200, 200, "complete"),
        (204, 200, "complete"),
        (401, 401, "webhook:refused"),
        (403, 403, "webhook:refused"),
        (404, 404, "webhook:refused"),
        (400, 503, "webhook:failed"),
        (302, 503, "webhook:failed"),
        (500, 503, "webhook:failed"),
    ],
)
def test_answers(target: Target, server: LocalServer, hook: Service, status: int, answer: int, reason: str) -> None:
    """2xx allows, three statuses refuse and are passed on, everything else is no answer, and so a refusal."""
    hook.says(status, {"Cache-Control": "no-store", "Location": "/elsewhere"})
    response = target.ask("POST", f"{target.base}/answered-{status}/0", {}, b"body")
    assert response.status == answer
    assert (response.get("Retry-After") is not None) == (answer == 503)
    record = server.record(channel=f"answered-{status}", op="publish")
    assert (record.status, record.reason) == (answer, reason)
    assert (f"answered-{status}" in server.plane.registry.channels) == (answer == 200)


def test_a_body_that_comes_while_it_is_asked(target: Target, hook: Service) -> None:
    """The publisher waits, unread, and nothing of what it sends is lost, however much."""
    hook.gate.clear()
    size = 3 << 20
    whole = target.channel("held-body")
    upload = whole.upload(0, b"first")
    eventually(lambda: hook.asked)
    upload.chunk(b"second").end()
    hook.gate.set()
    assert upload.answer().get("Lp-Trickle-Size") == "11"
    assert whole.get(0).body == b"firstsecond"
    assert whole.post(1, b"x" * size).get("Lp-Trickle-Size") == str(size)


def test_a_body_that_nobody_wants_is_passed_over_meanwhile(target: Target, hook: Service) -> None:
    """It is read and dropped as it comes; what follows on the connection is found."""
    hook.gate.clear()
    connection = target.open()
    path = f"{target.base}/held-unwanted"
    connection.request("POST", path, {}, b"x" * (3 << 20))
    eventually(lambda: hook.asked)
    connection.request("GET", f"{path}/next")
    hook.gate.set()
    assert connection.response().status == 200
    assert connection.response().body == b"0"


def test_a_preconnect_that_had_to_wait(target: Target, hook: Service) -> None:
    """It is an ordinary one then."""
    hook.gate.clear()
    upload = target.channel("held-preconnect").upload(0)
    eventually(lambda: hook.asked)
    hook.gate.set()
    target.settle()
    upload.chunk(b"later").end()
    assert upload.answer().get("Lp-Trickle-Size") == "5"


def test_pipelined_requests_wait_their_turn(target: Target, hook: Service) -> None:
    """Answers come in the order of the requests."""
    hook.gate.clear()
    connection = target.open()
    connection.request("POST", f"{target.base}/held-pipeline", {}, b"")
    connection.request("GET", f"{target.base}/held-pipeline/next")
    eventually(lambda: hook.asked)
    hook.gate.set()
    assert [connection.response().status, connection.response().body] == [200, b"0"]


def test_a_client_that_leaves_meanwhile(target: Target, server: LocalServer, hook: Service) -> None:
    """It is forgotten at once, and what it wanted does not happen."""
    hook.gate.clear()
    connection = target.send("DELETE", f"{target.base}/held-leaving")
    eventually(lambda: hook.asked)
    connection.close()
    assert server.record(channel="held-leaving", op="delete").reason == "client_gone"
    hook.gate.set()
    assert target.ask("GET", f"{target.base}/held-leaving/next").status == 404
    eventually(lambda: server.access and server.access.webhook and not server.access.webhook.waiting)


def test_the_same_question_is_asked_once_at_a_time(target: Target, hook: Service) -> None:
    """However many want to know."""
    hook.gate.clear()
    readers = [target.send("GET", f"{target.base}/held-many/next") for _ in range(5)]
    eventually(lambda: hook.asked)
    target.open()
    hook.gate.set()
    assert {reader.response().status for reader in readers} == {404}
    assert len(hook.asked) <= 5
    assert len({body for body, _ in hook.asked}) == 1


def test_a_token_that_is_too_long_is_not_passed_on(target: Target, hook: Service) -> None:
    """At 8 KiB it is, beyond it nobody is asked."""
    for size, status in ((8 << 10, 404), ((8 << 10) + 1, 401)):
        hook.asked.clear()
        response = target.ask("GET", f"{target.base}/long/next", {"Authorization": f"Bearer {'x' * size}"})
        assert (response.status, len(hook.asked)) == (status, int(status == 404))


def test_an_answer_holds_for_a_while(target: Target, hook: Service) -> None:
    """As long as it says: a GET per segment is one question."""
    hook.says(200, {"Cache-Control": "private, max-age=60"})
    for _ in range(3):
        assert target.ask("GET", f"{target.base}/cached/next").status == 404
    assert len(hook.asked) == 1
    hook.says(403, {"Cache-Control": "max-age=60"})
    for _ in range(3):
        assert target.ask("DELETE", f"{target.base}/cached").status == 403
    assert len(hook.asked) == 2


def test_the_control_plane_is_no_way_around(target: Target, hook: Service) -> None:
    """It wants its own token, and asks nobody."""
    assert target.ask("GET", "/api/v1/channels").status == 401
    assert target.ask("GET", "/api/v1/channels", {"Authorization": f"Bearer {CONTROL}"}).status == 200
    assert target.ask("GET", "/api/v1/channels", {"Authorization": f"Bearer {CONTROL}x"}).status == 401
    assert target.ask("GET", "/api/v1/channels", {"Authorization": f"Basic {CONTROL}"}).status == 401
    assert target.ask("GET", "/metrics").status == 401
    assert target.ask("GET", "/readyz").status == 200
    assert hook.asked == []


def test_who_waits_when_the_server_goes(hook: Service, folder: Path) -> None:
    """503, within the drain."""
    hook.gate.clear()
    hook.asked.clear()
    with local_server(
        webhook_url=hook.url, control_token_file=folder / "control", shutdown_drain_s=0.05, metrics_open=True
    ) as running:
        target = running.target()
        assert target.ask("GET", "/metrics").status == 200
        upload = target.channel("going").upload(0, b"begun")
        eventually(lambda: hook.asked)
    response = upload.answer()
    assert (response.status, response.body) == (503, b"Server is shutting down")
    upload.connection.close()
    hook.gate.set()


@contextmanager
def unanswered(folder: Path, fail_open: bool) -> Iterator[tuple[LocalServer, Target]]:
    """A server whose webhook nobody answers, and a client of it."""
    settings = {"webhook_url": "http://127.0.0.1:1/", "control_token_file": folder / "control"}
    with local_server(**settings, webhook_fail_open=fail_open) as running, running.client() as target:
        yield running, target


@pytest.mark.parametrize(("fail_open", "status"), [(False, 503), (True, 200)])
def test_without_an_answer(folder: Path, fail_open: bool, status: int) -> None:
    """Nobody is let in, unless the operator wants everybody to be."""
    with unanswered(folder, fail_open) as (_, target):
        assert target.ask("POST", f"{target.base}/channel", {}, b"").status == status


@pytest.mark.parametrize(("fail_open", "status"), [(False, 503), (True, 200)])
def test_when_too_many_wait(folder: Path, monkeypatch: pytest.MonkeyPatch, fail_open: bool, status: int) -> None:
    """One more is not asked about, which is no answer either."""
    monkeypatch.setattr("tricklecast.app.access.webhooks.MAX_WAITING", 0)
    with unanswered(folder, fail_open) as (running, target):
        assert target.ask("POST", f"{target.base}/channel", {}, b"").status == status
        assert running.record(channel="channel").reason == ("complete" if fail_open else "limit:webhook")


# The webhook by itself, on a clock of the test's.


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ask_all(
    handler: Callable[[httpx.Request], Any], *bodies: bytes, clock: Callable[[], float] | None = None, **options: Any
) -> tuple[list[int], Webhook]:
    """Ask, wait for all answers; the decisions in the order of the questions."""

    async def main() -> tuple[list[int], Webhook]:
        settings = {"secret": None, "timeout_s": 20.0, "concurrency": 2, "cache_s": 5.0, **options}
        if clock is not None:
            settings["clock"] = clock
        hook = Webhook("http://hook/", transport=httpx.MockTransport(handler), **settings)
        running = asyncio.create_task(hook.run())
        decisions = {number: 0 for number in range(len(bodies))}
        for number, body in enumerate(bodies):
            known = hook.known(body)
            if known is not None:
                decisions[number] = known
                continue
            assert hook.ask(body, lambda status, number=number: decisions.__setitem__(number, status))  # type: ignore[misc]
        await until(lambda: all(decisions.values()))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return list(decisions.values()), hook

    return asyncio.run(main())


def test_only_so_many_at_a_time() -> None:
    """The others wait their turn."""
    running, most = 0, 0

    async def slow(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return httpx.Response(200)

    decisions, hook = ask_all(slow, *[b"%d" % number for number in range(20)])
    assert (decisions, most) == ([200] * 20, 2)
    assert hook.outcomes == {200: 20}


def test_too_many_that_wait() -> None:
    """At the limit a question is taken, beyond it it is not; a question that waits already is always taken."""

    async def main() -> None:
        hook = Webhook("http://hook/", secret=None, timeout_s=1, concurrency=1, cache_s=1)
        for number in range(MAX_WAITING):
            assert hook.ask(b"%d" % number, lambda status: None)
        assert not hook.ask(b"one more", lambda status: None)
        assert hook.ask(b"0", lambda status: None)
        assert hook.waiting == MAX_WAITING

    asyncio.run(main())


def test_the_time_in_the_queue_counts() -> None:
    """A question that waited too long is not even sent; the service is told nothing that nobody waits for."""
    clock, sent = Clock(), []

    async def slow(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        clock.now += 30
        return httpx.Response(200)

    decisions, _ = ask_all(slow, b"1", b"2", clock=clock, concurrency=1)
    assert (decisions, sent) == ([200, 503], [b"1"])


def test_an_answer_is_forgotten_when_it_is_too_old() -> None:
    """At its age it does not hold any more."""
    clock = Clock()
    _, hook = ask_all(lambda request: httpx.Response(403), b"x", clock=clock)
    clock.now += 4.9
    assert hook.known(b"x") == 403
    clock.now += 0.1
    assert hook.known(b"x") is None


def test_no_answer_is_not_remembered() -> None:
    """The next one asks again."""
    _, hook = ask_all(lambda request: httpx.Response(500), b"x")
    assert hook.known(b"x") is None


def test_the_body_of_an_answer_decides_nothing() -> None:
    """Nor does one that breaks, or never ends."""

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 5000
        raise AssertionError("more was read than need be")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise httpx.ReadError("gone")

    contents: dict[bytes, Any] = {b"1": b"no", b"2": body(), b"3": broken()}
    decisions, _ = ask_all(lambda request: httpx.Response(200, content=contents[request.content]), *contents)
    assert decisions == [200, 200, 200]


def test_complaints_come_once(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is one line, not one for every request."""

    def failing(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no way")

    ask_all(failing, b"1", b"2", b"3")
    assert [record.message for record in caplog.records] == ["http://hook/ does not decide: no way"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 5.0),
        ("private", 5.0),
        ("max-age=0", 0.0),
        ("max-age=7", 7.0),
        ("private, Max-Age=7", 7.0),
        ('max-age="7"', 7.0),
        ("s-maxage=9", 5.0),
        ("max-age=7,no-store", 0.0),
        ("no-cache", 0.0),
        ("max-age=999999999", MAX_CACHE_S),
        ("max-age=-1", 5.0),
        ("max-age=" + "9" * 400, 5.0),
    ],
)
def test_how_long_an_answer_holds(header: str, seconds: float) -> None:
    """As it says, but not for ever."""
    assert max_age_s(header, 5.0) == seconds


def test_the_signature_of_the_documentation() -> None:
    """What is signed is the time, a dot and the body."""
    assert sign(Secret(b"key"), 7, b"{}") == "t=7,v1=" + hmac.new(b"key", b"7.{}", sha256).hexdigest()
