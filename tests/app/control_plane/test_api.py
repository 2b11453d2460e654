"""The control plane's routes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tests.support.local import LocalServer, local_server
from tests.support.metrics import metrics_of
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.control_plane import api
from tricklecast.app.control_plane.api import CHEAP_S, REST, Page, RateLimitedPage, measured
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import FRAME_COST, SEGMENT_COST
from tricklecast.app.core.window import Eviction
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.tools.conformance.response import Response
from tricklecast.app.tools.conformance.target import Target
from tricklecast.trickle import __version__


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server where only the control plane creates channels, and where ends take a while."""
    with local_server(autocreate=False, channel_drain_s=60) as running:
        yield running


def create(target: Target, name: object, **more: object) -> Response:
    body = json.dumps({"name": name, **more}).encode()
    return target.ask("POST", "/api/v1/channels", {"Content-Type": "application/json"}, body)


def content(response: Response) -> Any:
    assert response.get("Content-Type") == "application/json"
    return json.loads(response.body)


def test_a_channel_from_beginning_to_end(target: Target) -> None:
    """A client creates a channel, sees in its description all that happens to it, ends it, and sees it drain."""
    begun = datetime.now(UTC)
    created = create(target, "life", content_type="video/mp2t")
    assert created.status == 201
    described = content(created)
    assert described == {
        "name": "life", "node": "here", "state": "live", "epoch": 1, "content_type": "video/mp2t", "next_seq": 0,
        "window": {"segments": 0, "bytes": 0, "memory": 0, "earliest": 0, "evicted": dict.fromkeys(Eviction, 0)},
        "readers": 0, "bytes_in": 0, "bytes_out": 0,
        "publisher": {"connected": False, "writing": [], "preconnected": [], "orphaned": []},
        "created_at": described["created_at"], "active_at": described["active_at"],
    }  # fmt: skip
    assert abs((datetime.fromisoformat(described["created_at"]) - begun).total_seconds()) < 60
    channel = target.channel("life")
    channel.publish(0, b"body")
    assert channel.get(0).body == b"body"
    writing = channel.upload(1, b"begun")
    idle = channel.preconnect(2)
    reader = channel.arrived(1, b"begun")

    def now() -> Any:
        return content(target.ask("GET", "/api/v1/channels/life"))

    eventually(lambda: now()["publisher"]["preconnected"] == [2])
    state = now()
    assert state["publisher"] == {"connected": True, "writing": [1], "preconnected": [2], "orphaned": []}
    assert (state["next_seq"], state["readers"], state["bytes_in"], state["bytes_out"]) == (2, 1, 9, 4)
    assert state["window"] == {
        "segments": 1,
        "bytes": 4,
        "memory": SEGMENT_COST + FRAME_COST + len(b"4\r\n....\r\n"),
        "earliest": 0,
        "evicted": dict.fromkeys(Eviction, 0),
    }
    writing.abort()
    eventually(lambda: now()["publisher"]["orphaned"] == [1])
    ended = target.ask("DELETE", "/api/v1/channels/life")
    assert (ended.status, content(ended)["state"]) == (200, "draining")
    assert idle.answer().get("Lp-Trickle-Closed") == "terminated"
    assert reader.rest() == b""
    assert now()["state"] == "draining"
    assert target.ask("DELETE", "/api/v1/channels/life").status == 404
    again = create(target, "life")
    assert (again.status, content(again)["epoch"]) == (201, 2)


def test_creating_is_idempotent(target: Target) -> None:
    """Creating a channel again is 200, and its content type stays."""
    assert create(target, "twice", content_type="a/b").status == 201
    second = create(target, "twice", content_type="c/d")
    assert (second.status, content(second)["content_type"]) == (200, "a/b")


def test_the_list_of_channels(target: Target) -> None:
    """The list has all channels, the server's own included, and the totals."""
    create(target, "listed")
    whole = target.ask("GET", "/api/v1/channels")
    assert whole.get("Age") == "0"
    listed = content(whole)
    assert {"_changes", "listed"} <= {channel["name"] for channel in listed["channels"]}
    assert listed["readers"] == 0
    assert listed["bytes_held"] >= 0


NAMES = ["a b", "100%", "50%25", "é", "next", "a.b", "x" * 255, "?", "#", "'\"<>&"]


@pytest.mark.parametrize("name", NAMES)
def test_unusual_names_mean_the_same_on_both_planes(target: Target, name: str) -> None:
    """A name created here is the name served there, and can be described and ended by its URL."""
    assert create(target, name).status == 201
    channel = target.channel(name)
    channel.publish(0, b"body")
    path = "/api/v1/channels/" + channel.path.rpartition("/")[2]
    described = content(target.ask("GET", path))
    assert (described["name"], described["next_seq"]) == (name, 1)
    assert target.ask("DELETE", path).status == 200


@pytest.mark.parametrize("name", ["", "a/b", "..", "a..b", ".", "a\x00b", "a\nb", "x" * 256, "é" * 128, "a\\b"])
def test_bad_names_are_refused(target: Target, name: str) -> None:
    """A bad name gets 400 with a reason, and creates nothing."""
    refused = create(target, name)
    assert refused.status == 400
    assert "not a channel name" in content(refused)["detail"]


@pytest.mark.parametrize("path", ["a..b", "%2e%2e", "a%00b", "x" * 256])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_bad_names_in_the_path(target: Target, method: str, path: str) -> None:
    """A bad name in the URL gets 400, too."""
    assert target.ask(method, f"/api/v1/channels/{path}").status == 400


@pytest.mark.parametrize("name", ["_changes", "_mine"])
def test_reserved_names_are_forbidden(target: Target, name: str) -> None:
    """Names that begin with _ belong to the server: 403 for creating and ending."""
    assert create(target, name).status == 403
    assert target.ask("DELETE", f"/api/v1/channels/{name}").status == 403
    assert target.ask("GET", "/api/v1/channels/_changes").status == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_missing_channels(target: Target, method: str) -> None:
    """A missing channel gets 404 with a reason."""
    missing = target.ask(method, "/api/v1/channels/missing")
    assert (missing.status, content(missing)) == (404, {"detail": "no such channel"})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"name": 1}', b'{"name": "x", "colour": "red"}',
     b'{"name": "x", "content_type": "\\n"}',
     b'{"name": "x", "content_type": "' + b"t" * 257 + b'"}',
     b'{"name": "\\ud800"}'],
)  # fmt: skip
def test_malformed_requests_create_nothing(target: Target, server: LocalServer, body: bytes) -> None:
    """A body that does not follow the model gets 422."""
    refused = target.ask("POST", "/api/v1/channels", {"Content-Type": "application/json"}, body)
    assert refused.status in (400, 422)
    assert "x" not in server.plane.registry.channels


NO_JSON = [b"NaN", b"1e999", b'{"name": -Infinity}', b'{"name": "x", "more": [NaN]}', b"\xff", b'{"\\ud800": 1}',
           b'"\\ud800"', b'{"name": "x", "content_type": "\\ud800"}', b"[" * 5000]  # fmt: skip


@pytest.mark.parametrize("body", NO_JSON)
@pytest.mark.parametrize("headers", [{"Content-Type": "application/json"}, {}])
def test_input_that_json_cannot_say_is_refused(target: Target, body: bytes, headers: dict[str, str]) -> None:
    """Numbers beyond JSON, lone surrogates and bytes that are no text: refused in JSON, never a fault of the server."""
    refused = target.ask("POST", "/api/v1/channels", headers, body)
    assert refused.status in (400, 422)
    assert content(refused)["detail"]


TEXTS = st.one_of(
    st.sampled_from(["NaN", "1e999", "-inf", "%ff", "%ed%a0%80", "%00", "9" * 400, "-1", "", "0001-01-01", "1e400s"]),
    st.text(st.characters(codec="latin-1"), max_size=8).map(lambda text: quote(text, encoding="latin-1")),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=6,
)
BODIES = st.one_of(
    st.binary(max_size=12),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"name": VALUES}, optional={"content_type": VALUES}).map(
        lambda body: json.dumps(body).encode()
    ),
)


@settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_input_is_a_fault(target: Target, data: st.DataObject) -> None:
    """Any request to a route of the API's description is answered, and not with 500."""
    paths = content(target.ask("GET", "/openapi.json"))["paths"]
    del paths["/api/v1/dashboard"], paths["/api/v1/changes"]["get"]  # these answer without end
    path, method = data.draw(st.sampled_from([(path, method) for path in paths for method in paths[path]]))
    operation = paths[path][method]
    query = []
    for parameter in operation.get("parameters", ()):
        value = data.draw(TEXTS)
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", value.replace("/", "%2f") or "-")
        else:
            query.append(f"{parameter['name']}={value}")
    body = data.draw(BODIES) if "requestBody" in operation else None
    headers = {"Content-Type": data.draw(st.sampled_from(["application/json", "text/plain"]))}
    answer = target.ask(method.upper(), f"{path}?{'&'.join(query)}", headers, body)
    assert answer.status < 500


def test_closing_a_segment_may_evict_it() -> None:
    """A segment older than all that the window has room for is gone when it is closed; the answer describes it."""
    with local_server(window_segments=2) as server, server.client() as target:
        channel = target.channel("small")
        upload, _ = channel.started(0, b"old")
        channel.publish(1, b"one", b"two")
        closed = content(target.ask("DELETE", "/api/v1/channels/small/segments/0"))
        assert (closed["seq"], closed["state"], closed["size"]) == (0, "truncated", 3)
        assert upload.answer().status == 200
        assert channel.get(0).status == 470


def test_the_list_of_segments_has_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that storage knows; of segments in memory on request, until an answer has read enough of them."""
    monkeypatch.setattr(api, "CHECKED_BYTES", 4)

    def listed(target: Target, query: str = "") -> tuple[list[str | None], bool]:
        answer = content(target.ask("GET", f"/api/v1/channels/film/segments?{query}"))
        assert answer["epoch"] == 1
        return [segment["crc32"] for segment in answer["segments"]], answer["more"]

    crcs: list[str | None] = [f"{crc32(body):08x}" for body in (b"one", b"two", b"four")]
    with local_server() as server, server.client() as target:
        target.channel("film").publish(0, b"one", b"two", b"four").upload(3, b"open")
        target.channel("film").arrived(3, b"open")
        assert listed(target) == ([None] * 4, False)
        assert listed(target, "checksum=1") == (crcs[:2], True)
        assert listed(target, "checksum=1&from=2") == ([crcs[2], None], False)
        assert listed(target, "checksum=1&limit=1") == (crcs[:1], True)
    with local_server(data_dir=tmp_path, window_segments=2) as server, server.client() as target:
        target.channel("film").publish(0, b"one", b"two", b"four")
        eventually(lambda: listed(target) == (crcs, False), what="all are stored")


def test_limits_and_shutdown_are_503() -> None:
    """503 with `Retry-After` when there are too many channels, and when the server is going away."""
    with local_server(max_channels=1) as server, server.client() as target:
        assert create(target, "one").status == 201
        full = create(target, "two")
        assert (full.status, content(full)) == (503, {"detail": "limit reached: channels"})
        wait_s = int(full.get("Retry-After") or 0)
        record = server.record(op="api", status=503)
        assert (record.reason, record.retry_after_ms) == ("limit:channels", wait_s * 1000)
        assert target.ask("GET", "/readyz").status == 200
        server.plane.registry.shutting_down = True
        assert target.ask("DELETE", "/api/v1/channels/one").status == 200
        going = create(target, "one")
        assert (going.status, content(going)) == (503, {"detail": "the server is shutting down"})
        ready = target.ask("GET", "/readyz")
        assert (ready.status, content(ready)) == (503, {"status": "draining"})
        assert target.ask("GET", "/healthz").status == 200


def test_health(target: Target) -> None:
    """A server that runs is alive and ready."""
    assert content(target.ask("GET", "/healthz")) == {"status": "ok"}
    assert content(target.ask("GET", "/readyz")) == {"status": "ready"}


def test_a_segment_is_closed(target: Target) -> None:
    """One that is being written closes as truncated, and its publisher is told; closing it again changes nothing."""
    create(target, "cut")
    channel = target.channel("cut")
    reader = channel.waiting(0)
    upload = channel.upload(0, b"half")
    assert (reader.head().status, reader.chunk()) == (200, b"half")
    for _ in range(2):
        closed = content(target.ask("DELETE", f"/api/v1/channels/{channel.name}/segments/0"))
        assert (closed["seq"], closed["state"], closed["size"]) == (0, "truncated", 4)
    assert upload.answer().get("Lp-Trickle-Size") == "4"
    assert target.ask("DELETE", f"/api/v1/channels/{channel.name}/segments/7").status == 404
    assert target.ask("DELETE", "/api/v1/channels/none/segments/0").status == 404
    assert target.ask("DELETE", "/api/v1/channels/_changes/segments/0").status == 403


def test_openapi(target: Target) -> None:
    """The description is served, and names every route."""
    schema = content(target.ask("GET", "/openapi.json"))
    assert (schema["info"]["title"], schema["info"]["version"]) == ("tricklecast", __version__)
    assert set(schema["paths"]) == {
        *("/api/v1/channels", "/api/v1/channels/{name}", "/api/v1/channels/{name}/segments", "/api/v1/changes"),
        *("/api/v1/channels/{name}/segments/{seq}", "/api/v1/dashboard", "/api/v1/sources"),
        *("/healthz", "/readyz", "/metrics"),
        *("/api/v1/channels/{name}/readers", "/api/v1/channels/{name}/readers/{connection}"),
        *(
            f"/api/v1/mirror{route}"
            for route in ("", "/origins", "/promote", "/handover", "/resync", "/reverify", "/deposed")
        ),
    }


def test_unknown_paths_and_methods(target: Target) -> None:
    """An unknown path gets 404 and a wrong method 405, as JSON."""
    assert target.ask("GET", "/no/such/path").status == 404
    assert target.ask("POST", "/trickle", body=b"").status == 404
    assert target.ask("PUT", "/api/v1/channels", body=b"").status == 405


def test_every_request_is_recorded(target: Target, server: LocalServer) -> None:
    """The access log has each request as operation `api`, with status, sizes and times."""
    target.ask("GET", "/api/not/there?secret=1")
    record = server.record(path="/api/not/there")
    assert (record.op, record.method, record.status, record.reason) == ("api", "GET", 404, "not_found")
    assert (record.ip, record.bytes_out) == ("127.0.0.1", len(b'{"detail":"Not Found"}'))
    assert record.dur_us is not None
    assert record.wait_us is not None
    assert record.dur_us >= record.wait_us


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("GET", "/api/v1/channels/none", None, 404, "not_found"),
        ("GET", "/api/v1/channels/%00", None, 400, "bad_request"),
        ("POST", "/api/v1/channels", b'{"name": "_mine"}', 403, "forbidden"),
        ("POST", "/api/v1/channels", b"{", 422, "bad_request"),
        ("PATCH", "/api/v1/channels", b"", 405, "bad_request"),
    ],
)
def test_a_refusal_is_recorded_as_one(
    method: str, path: str, body: bytes | None, status: int, reason: str, target: Target, server: LocalServer
) -> None:
    """Nothing that was refused is called complete."""
    agent = f"{method} {status}"
    headers = {"User-Agent": agent, "Content-Type": "application/json"}
    assert target.ask(method, path, headers, body).status == status
    assert server.record(ua=agent).reason == reason


def test_the_root_as_base_path() -> None:
    """With base path `/` the control plane keeps its own paths, and the rest are channels."""
    with local_server(base_path="/") as server, server.client() as target:
        target.channel("c").publish(0, b"body")
        assert target.ask("GET", "/c/0").body == b"body"
        assert target.ask("GET", "/healthz").status == 200
        assert content(target.ask("GET", "/api/v1/channels/c"))["next_seq"] == 1
        assert target.ask("POST", "/docs/0", body=b"x").status == 404
        assert "docs" not in server.plane.registry.channels


class Costly(Collector):
    """A collector that uses CPU time with each collection, and counts them."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.worked = 0.0
        self.times = 0

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        self.worked += self.cost_s
        yield GaugeMetricFamily("times", "Collections.", value=self.times)


def made(cost_s: float, *asked_at: float) -> int:
    """How often a page of this cost is made, when it is asked for at these times."""
    costly, now = Costly(cost_s), [0.0]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(costly)
    make = measured(partial(generate_latest, registry), lambda: costly.worked)

    async def ask() -> None:
        page = RateLimitedPage(make, lambda: now[0])
        for now[0] in asked_at:
            text = (await page.get()).text.decode()
            assert f"times {costly.times}.0" in text, "the last one that was made is shown"

    asyncio.run(ask())
    return costly.times


def test_a_cheap_page_is_always_new() -> None:
    """A page that costs at most 5 ms is made anew for every request."""
    assert made(CHEAP_S, 0, 1e-6, 2e-6) == 3


def test_a_costly_page_is_shown_again_for_a_while() -> None:
    """A page that costs 30 ms is sent again for 300 ms, and then made anew."""
    assert made(0.03, 0, 0.1, REST * 0.03 - 0.001) == 1
    assert made(0.03, 0, REST * 0.03) == 2


def test_a_page_tells_its_age() -> None:
    """The age counts from when the page was made, not from when it was sent last."""
    now, worked = [100.0], [0.0]

    def make() -> bytes:
        worked[0] += 1.0
        return b"%d" % worked[0]

    async def ask() -> list[Page]:
        page = RateLimitedPage(measured(make, lambda: worked[0]), lambda: now[0])
        found = []
        for wait_s in (0.0, REST - 1.0, 1.0):
            now[0] += wait_s
            found.append(await page.get())
        return found

    assert asyncio.run(ask()) == [Page(b"1", 1.0, 0.0), Page(b"1", 1.0, REST - 1.0), Page(b"2", 1.0, 0.0)]


def test_requests_that_come_while_a_page_is_made_share_the_next_one() -> None:
    """However many they are; and none gets one that was begun before it asked."""
    begun: list[float] = []
    now = itertools.count()
    going = asyncio.Event()

    async def make() -> Page:
        begun.append(next(now))
        text = str(len(begun)).encode()
        await going.wait()
        return Page(text)

    async def ask() -> list[bytes]:
        page = RateLimitedPage(make, lambda: next(now))
        asked = [asyncio.create_task(page.get()) for _ in range(100)]
        await until(lambda: begun)
        asked[1].cancel()
        going.set()
        return [(await one).text for one in asked[:1] + asked[2:]]

    assert asyncio.run(asyncio.wait_for(ask(), WITHIN_S)) == [b"1"] + [b"2"] * 98


def test_the_page_does_not_grow_with_channels() -> None:
    """Labels are bounded: three hundred channels have no more series than thirty."""

    def series(channels: int) -> int:
        now = [0.0]
        plane = DataPlane(Registry(Limits(), autocreate=True), Options())
        plane.clock = lambda: now[0]
        registry = CollectorRegistry()
        registry.register(metrics_of(plane))
        for n in range(channels):
            assert plane.registry.publish_own(f"c{n}", "", b"x" * n, 0.0) is not None
        now[0] = 60.0
        return generate_latest(registry).count(b"\n")

    assert series(300) == series(30)


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_a_head_is_a_get_without_its_body(target: Target, path: str) -> None:
    """A HEAD of a page for monitors has the status of a GET, and no body."""
    whole, head = target.ask("GET", path), target.ask("HEAD", path)
    assert (whole.status, head.status, head.body) == (200, 200, b"")
    assert head.get("Content-Type") == whole.get("Content-Type")


def test_the_root_says_where_to_go(target: Target) -> None:
    """One plain line, with the base path and the control plane's description."""
    answer = target.ask("GET", "/")
    assert answer.body == (
        b"tricklecast: a segment is at /trickle/CHANNEL/SEQ; the control plane is described at /docs\n"
    )


@pytest.mark.parametrize(
    ("path", "allow"),
    [("/api/v1/channels", "GET, POST"), ("/api/v1/channels/x", "DELETE, GET"), ("/healthz", "GET, HEAD")],
)
def test_a_wrong_method_is_told_the_right_ones(target: Target, path: str, allow: str) -> None:
    """A 405 names all methods of the path."""
    answer = target.ask("PUT", path, body=b"")
    assert (answer.status, answer.get("Allow")) == (405, allow)
    assert content(answer) == {"detail": "Method Not Allowed"}
