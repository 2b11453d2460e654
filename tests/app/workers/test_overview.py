"""The front's answers for all workers: those of one process, and honest about a worker that is not there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import orjson
import pytest
from fastapi import HTTPException

from tests.app.access.signing import SECRET, bearer, token
from tests.support.metrics import samples
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cluster.asking import ANSWER_S, SOON_S, NoAnswer
from tricklecast.app.control_plane.api import Page
from tricklecast.app.control_plane.middleware import everything
from tricklecast.app.data_plane.routing import Router
from tricklecast.app.workers.overview import JoinedOverview, joined_metrics
from tricklecast.app.workers.placement import Placement, owner_of

FRONTS, OTHERS = (
    [name for name in map("cam-{}".format, range(12)) if owner_of(name, 2) == worker] for worker in (0, 1)
)
ALL = sorted(FRONTS + OTHERS, key=lambda name: int(name[4:]))
DASHBOARD = "/api/v1/dashboard"

VARYING = re.compile(
    r'"(age|expires|instance|index|floor|time|url|memory|bytes_held)":("[^"]*"|[\d.]+)|\d{4}-\d\d-\d\dT[\d:.]+Z'
)
"""Times, indexes, and the memory of bytes that came in other pieces: they differ from one server to another."""

VARYING_HEADERS = frozenset({"content-length", "date", "etag", "lp-trickle-life", "retry-after"})


@contextmanager
def client(server: RunningServer, **options: Any) -> Iterator[httpx.Client]:
    """One connection that is kept, so that a request goes to whom it went before."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    with httpx.Client(base_url=server.url, timeout=WITHIN_S, limits=limits, **options) as found:
        yield found


def publish_all(server: RunningServer, headers: dict[str, str] | None = None) -> None:
    with client(server, headers=headers) as http:
        for name in ALL:
            assert http.post(f"/trickle/{name}/0", content=b"hello").status_code == 200


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    """One of one process and one of two, with the same channels."""
    reports = str(tmp_path_factory.mktemp("reports"))
    with serve("--reports", reports) as one, serve("--reports", reports, "--workers", "2") as two:
        for server in (one, two):
            with client(server) as http:
                for count, name in enumerate(ALL, 1):
                    assert http.post(f"/trickle/{name}/0", content=b"hello").status_code == 200
                    # The front hears of a channel of another worker a moment later, and perhaps of two at once.
                    eventually(lambda: http.get("/api/v1/channels/_changes").json()["next_seq"] == count)  # noqa: B023
        yield [one, two]


def told(server: RunningServer, method: str, path: str, **options: Any) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of an answer, without what differs from one server to another."""
    with client(server) as http:
        answer = http.request(method, path, **options)
    headers = {name: value for name, value in answer.headers.items() if name not in VARYING_HEADERS}
    parts = [answer.text, json.dumps(headers)]
    text, kept = (VARYING.sub("~", part).replace(str(server.port), "PORT") for part in parts)
    return answer.status_code, json.loads(kept), text


SEEN = [
    "/", "/publish", "/docs", "/openapi.json", "/watch/cam-1", "/static/x/style.css", "/nothing", "/healthz", "/readyz",
    "/api/v1/reports", "/api/v1/changes?snapshot=1&wait=0", "/api/v1/changes?after=bad",
    "/api/v1/channels", "/api//v1/channels", "/api/v1/channels/_changes", "/api/v1/channels/nobody",
    "/api/v1/channels/a%2Fb", "/api/v1/channels/%00", "/trickle/nobody/0", "/trickle/",
    *(path.format(name) for name in (FRONTS[0], OTHERS[0]) for path in (
        "/api/v1/channels/{}", "/api/v1/channels/{}/segments?from=0", "/api/v1/channels/{}/segments?limit=0",
        "/api/v1/channels/{}/segments?since=bad", "/trickle/{}/0", "/trickle/{}/9", "/trickle/{}/media.m3u8")),
]  # fmt: skip


@pytest.mark.parametrize("path", SEEN)
def test_a_route_answers_as_that_of_one_process(servers: list[RunningServer], path: str) -> None:
    """Every route of the control plane and of the pages, whatever the worker that accepts; every method.

    The front answers without a worker that is late: it is asked again then.
    """
    for method in ("GET", "HEAD", "OPTIONS", "PUT"):
        eventually(
            lambda: len({repr(told(server, method, path)) for server in servers}) == 1,  # noqa: B023
            what=f"{method} {path} is answered alike",
        )


@pytest.mark.parametrize("name", ["new-1", "new-2", "cam-1", "_mine", "", "a/b", "x" * 300])
def test_a_channel_is_created_as_by_one_process(servers: list[RunningServer], name: str) -> None:
    """The owner makes it, and the front says so; what is wrong with it is said as ever."""
    for body in ({"name": name, "content_type": "video/mp4"}, {"name": name, "other": 1}):
        one, two = (told(server, "POST", "/api/v1/channels", json=body) for server in servers)
        assert one == two


def test_a_channel_is_changed_as_by_one_process(servers: list[RunningServer]) -> None:
    """Its segments are closed and it is ended at its owner; afterwards the list says so."""
    for name in (FRONTS[1], OTHERS[1]):
        path = f"/api/v1/channels/{name}"
        for part in (f"{path}/segments/0", f"{path}/segments/9", path, path):
            one, two = (told(server, "DELETE", part) for server in servers)
            assert one == two
    one, two = (told(server, "GET", "/api/v1/channels") for server in servers)
    assert one == two


def test_hosts_and_origins_are_checked_as_by_one_process(servers: list[RunningServer]) -> None:
    """At the worker that answers."""
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        for path in ("/api/v1/channels", f"/api/v1/channels/{OTHERS[0]}", f"/trickle/{OTHERS[0]}/0"):
            one, two = (told(server, "GET", path, headers=headers) for server in servers)
            assert one == two


def test_one_scrape_has_the_figures_of_all(servers: list[RunningServer]) -> None:
    """Each sample says its worker, each metric is described once, and limits can be added up."""
    with client(servers[1]) as http:
        # A page comes without the figures of a worker that is late.
        text = eventually(lambda: text if 'worker_up{worker="1"} 1' in (text := http.get("/metrics").text) else "")
        listed = http.get("/api/v1/channels").json()["channels"]
    described = re.findall(r"^# TYPE (\S+)", text, re.M)
    assert len(set(described)) == len(described)
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in samples(text).items():
        names = dict(labels)
        worker = names.pop("worker")
        found.setdefault(name + json.dumps(names), {})[worker] = value
    live = sum(one["state"] == "live" for one in listed)
    assert sum(found["tricklecast_channels{}"].values()) == live
    assert found["tricklecast_worker_up{}"] == {"0": 1, "1": 1}
    assert found["tricklecast_worker_restarts_total{}"] == {"0": 0, "1": 0}
    assert (
        found['tricklecast_limit{"limit": "total_bytes"}']["0"]
        == found['tricklecast_limit{"limit": "total_bytes"}']["1"]
    )
    assert set(found['tricklecast_limit{"limit": "dashboards"}']) == {"0"}
    with client(servers[0]) as http:
        alone = http.get("/metrics").text
    assert "worker" not in alone
    assert set(re.findall(r"^# TYPE (\S+)", alone, re.M)) < set(described)


class Dashboard:
    """The frames of a dashboard, as a page takes them."""

    def __init__(self, http: httpx.Client, headers: dict[str, str] | None = None) -> None:
        self._answer = http.send(http.build_request("GET", DASHBOARD, headers=headers), stream=True)
        self._lines = self._answer.iter_lines()
        self.names: dict[int, str] = {}
        self.rows: dict[int, list[int]] = {}
        self.events: list[tuple[str, str]] = []
        self.server: dict[str, Any] = {}

    def frame(self) -> Any:
        """Take the next one."""
        kind = ""
        for line in self._lines:
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                frame = json.loads(line[6:])
                if kind == "snapshot":
                    self.names, self.rows, self.events = {}, {}, []
                self.names |= {about[0]: about[1] for about in frame["about"]}
                self.rows |= {row[0]: row for row in frame["rows"]}
                for number in frame["gone"]:
                    self.names.pop(number, None)
                    self.rows.pop(number, None)
                self.events += [(one["kind"], one["channel"]) for one in frame["events"]]
                self.server |= frame["server"]
                return frame
        raise AssertionError("the stream has ended")

    def until(self, fact: Any) -> None:
        """Take frames until a condition holds."""
        while not fact():
            self.frame()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()


def test_a_dashboard_shows_all_workers() -> None:
    """Channels of each, their events once each, sums, and a row for each worker."""
    with serve("--workers", "2", "--channel-drain-s", "0") as server:
        publish_all(server)
        with client(server) as http, client(server) as other, Dashboard(other) as page:
            page.until(lambda: sorted(page.names.values()) == sorted(ALL))
            assert all(row[7:9] == [1, 5] for row in page.rows.values())
            assert http.get(f"/trickle/{OTHERS[0]}/0", headers={"Host": "evil.example"}).status_code == 421
            http.post(f"/trickle/{OTHERS[0]}/1", content=b"more")
            http.delete(f"/api/v1/channels/{OTHERS[1]}")
            page.until(lambda: {("refused", OTHERS[0]), ("ended", OTHERS[1])} <= set(page.events))
            page.until(lambda: OTHERS[1] not in page.names.values())
            assert [page.events.count(("created", name)) for name in ALL] == [1] * len(ALL)
            [number] = [number for number, name in page.names.items() if name == OTHERS[0]]
            page.until(lambda: page.rows[number][2] == 2)
            counts = [(0, True, len(FRONTS)), (1, True, len(OTHERS) - 1)]
            page.until(
                lambda: [(one["worker"], one["up"], one["channels"]) for one in page.server["workers"]] == counts
            )
            workers = page.server["workers"]
            for name in ("connections", "readers"):
                assert page.server[name] == sum(one[name] for one in workers)
            assert page.server["counters"]["segments_complete"] >= len(ALL) + 1
            uses = {name: (used, most) for name, used, most, _ in page.server["limits"]}
            assert uses["channels"][0] == len(ALL) - 1
            assert uses["dashboards"] == (1, 200)
            with client(server) as third, Dashboard(third) as late:
                shown = page.names, {number: row[2] for number, row in page.rows.items()}
                late.until(lambda: (late.names, {number: row[2] for number, row in late.rows.items()}) == shown)


def workers_of(server: RunningServer) -> list[int]:
    """The processes of its workers, in the order in which they were started."""
    return sorted(map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()))


def timed(http: httpx.Client, path: str) -> httpx.Response:
    """An answer that has to come within a second or so, and not after the worker's deadline; a machine that stands
    still meanwhile is asked again.
    """

    def found() -> httpx.Response | None:
        begun = time.monotonic()
        answer = http.get(path)
        return answer if time.monotonic() - begun < ANSWER_S - 1 else None

    answer = eventually(found, what=f"{path} does not wait for the worker")
    assert answer is not None
    return answer


@contextmanager
def at_the_front(server: RunningServer) -> Iterator[httpx.Client]:
    """A connection that the front has."""
    with client(server) as http:
        assert http.get("/healthz").status_code == 200
        yield http


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the workers in /proc")
def test_a_worker_that_hangs_or_dies_is_named_and_holds_up_nobody() -> None:
    """Health, metrics and the dashboard go on without it, and a list says that it is not whole; then all is well."""
    with serve("--workers", "2") as server:
        publish_all(server)
        hung = workers_of(server)[1]
        with (
            at_the_front(server) as http,
            at_the_front(server) as other,
            at_the_front(server) as third,
            Dashboard(other) as page,
        ):
            page.frame()
            os.kill(server.pid, signal.SIGSTOP)  # it would kill a worker that hangs, after 15 s
            try:
                os.kill(hung, signal.SIGSTOP)
                assert timed(http, "/healthz").json() == {"status": "ok"}
                assert timed(http, "/api/v1/changes?after=0&wait_s=0").json()["changes"]
                ready = timed(http, "/readyz")
                assert (ready.status_code, ready.json()) == (200, {"status": "degraded", "reasons": ["worker_1"]})
                found = samples(timed(http, "/metrics").text)
                assert [found["tricklecast_worker_up", (("worker", str(one)),)] for one in (0, 1)] == [1, 0]
                assert not [
                    name for name, labels in found if name == "tricklecast_channels" and ("worker", "1") in labels
                ]
                with Dashboard(third) as late:
                    late.until(lambda: sorted(late.names.values()) == sorted(FRONTS))
                page.until(lambda: page.server["workers"][1] == {"worker": 1, "up": False})
                assert sorted(page.names.values()) == sorted(FRONTS)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            os.kill(hung, signal.SIGKILL)
            made = http.post("/api/v1/channels", json={"name": OTHERS[0]})
            assert made.status_code in (201, 503)
            assert made.status_code == 201 or made.headers["retry-after"] == "1"
            page.until(lambda: ("ended", OTHERS[2]) in page.events and page.server["workers"][1]["up"])
            eventually(lambda: http.get("/api/v1/channels").status_code == 200)

            def restarts() -> list[float | None]:
                """Of both workers; a page is there without the numbers of one that does not answer soon."""
                found = samples(http.get("/metrics").text)
                return [found.get(("tricklecast_worker_restarts_total", (("worker", one),))) for one in "01"]

            eventually(lambda: restarts() == [0, 1])


def test_a_token_shows_and_changes_only_its_channels(tmp_path: Path) -> None:
    """Of each worker: the front checks for its lists and for what it passes on, the owner on its own routes."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    mine = [FRONTS[0], OTHERS[0]]
    few, all_ = bearer(token(trickle={"manage": mine})), bearer(token())
    with serve("--workers", "2", "--jwt-secret-file", str(secret)) as server:
        publish_all(server, all_)
        with client(server) as http:
            assert http.get("/api/v1/channels").status_code == 401
            shown = http.get("/api/v1/channels", headers=few).json()
            assert [one["name"] for one in shown["channels"]] == [name for name in ALL if name in mine]
            assert shown["bytes_held"] == 10
            assert len(http.get("/api/v1/channels", headers=all_).json()["channels"]) == len(ALL) + 1
            for name in (FRONTS[1], OTHERS[1]):
                assert http.get(f"/api/v1/channels/{name}", headers=few).status_code == 403
                assert http.delete(f"/api/v1/channels/{name}", headers=few).status_code == 403
                assert http.post("/api/v1/channels", headers=few, json={"name": name}).status_code == 403
            for name in mine:
                assert http.post("/api/v1/channels", headers=few, json={"name": name}).status_code == 200
            with client(server) as other, Dashboard(other, few) as page:
                page.until(lambda: sorted(page.names.values()) == sorted(mine))
                assert "workers" not in page.server
            assert http.delete(f"/api/v1/channels/{OTHERS[0]}", headers=few).json()["state"] == "draining"


# Without servers.

ONE = b"""# HELP a_total Things, "quoted" {and} more, \\n# HELP.
# TYPE a_total counter
a_total{worker="0"} 3.0
# HELP h Times.
# TYPE h histogram
h_bucket{le="1.0",op="x}\\" y\\n# HELP a",worker="0"} 1.0
h_count{worker="0"} 1.0 1700000000
# HELP b Nothing yet.
# TYPE b gauge
"""

TWO = b"""# HELP b Nothing yet.
# TYPE b gauge
b{worker="2"} +Inf
# HELP a_total Things, "quoted" {and} more, \\n# HELP.
# TYPE a_total counter
a_total{worker="2"} NaN
# HELP c Only here.
# TYPE c gauge
c{worker="2"} 1.0
"""

JOINED = b"""# HELP a_total Things, "quoted" {and} more, \\n# HELP.
# TYPE a_total counter
a_total{worker="0"} 3.0
a_total{worker="2"} NaN
# HELP h Times.
# TYPE h histogram
h_bucket{le="1.0",op="x}\\" y\\n# HELP a",worker="0"} 1.0
h_count{worker="0"} 1.0 1700000000
# HELP b Nothing yet.
# TYPE b gauge
b{worker="2"} +Inf
# HELP c Only here.
# TYPE c gauge
c{worker="2"} 1.0
# HELP tricklecast_worker_up Whether this worker answers.
# TYPE tricklecast_worker_up gauge
tricklecast_worker_up{worker="0"} 1
tricklecast_worker_up{worker="1"} 0
tricklecast_worker_up{worker="2"} 1
"""


def test_metrics_of_all_workers_stand_below_one_description() -> None:
    """Help and labels with every character; a worker that is silent has no sample."""
    assert joined_metrics([Page(ONE), Page(b"", problem="gone"), Page(TWO)]).decode() == JOINED.decode()


class Asked:
    """Questions with ready answers."""

    def __init__(self, *answers: bytes | NoAnswer) -> None:
        self.answers, self.asked = list(answers), 0

    async def ask_all(self, question: str, within_s: float) -> list[bytes | NoAnswer]:
        assert (question, within_s) in [("channels", ANSWER_S), ("metrics", SOON_S), ("troubles", SOON_S)]
        self.asked += 1
        return self.answers


def overview(asked: Asked) -> JoinedOverview:
    return JoinedOverview(asked, Placement(2, 0, Router("/trickle")))  # type: ignore[arg-type]


def part(age_s: float, *channels: tuple[str, str], cost_s: float = 0.0) -> bytes:
    """A worker's list."""
    shown = [{"name": name, "created_at": at, "readers": 1, "window": {"bytes": 5}} for name, at in channels]
    text = orjson.dumps({"channels": shown, "readers": len(shown), "bytes_held": 100})
    return b"%f %f\n%b" % (cost_s, age_s, text)


def test_a_list_is_in_the_order_of_creation_and_as_old_as_its_oldest_part() -> None:
    """Whoever sees some of the channels gets no sum over all."""
    first = part(0.0, ("b", "2026-11-27T15:00:01Z"))
    asked = Asked(first, part(3.5, ("a", "2026-11-27T15:00:00.5Z"), ("c", "2026-11-28")))
    listed = asyncio.run(overview(asked).channels(everything))
    whole = json.loads(listed.text)
    assert [one["name"] for one in whole["channels"]] == ["a", "b", "c"]
    assert (whole["readers"], whole["bytes_held"]) == (3, 200)
    assert listed.age_s == pytest.approx(3.5, abs=1.0)
    some = json.loads(asyncio.run(overview(asked).channels(lambda name: name != "b")).text)
    assert ([one["name"] for one in some["channels"]], some["readers"], some["bytes_held"]) == (["a", "c"], 2, 10)


def test_pages_that_cost_much_are_sent_again_for_a_while() -> None:
    """The cost is that of all workers: nobody can keep them busy by asking, with whatever token."""

    async def main() -> None:
        asked = Asked(part(0.0, cost_s=100.0), part(0.0, cost_s=200.0))
        asking = overview(asked)
        for visible in (everything, everything, lambda name: True):
            assert 300.0 < (await asking.channels(visible)).cost_s < 301.0
        assert asked.asked == 1
        asked.answers = [b"100 0\n" + ONE, b"200 0\n" + TWO]
        for _ in range(2):
            assert 300.0 < (await asking.metrics()).cost_s < 301.0
        assert asked.asked == 2

    asyncio.run(main())


def test_a_list_is_refused_while_a_worker_is_away() -> None:
    """With a time to come back: a part would be taken for the whole. Health names the worker."""
    asking = overview(Asked(part(0.0), NoAnswer("worker 1", "gone")))
    with pytest.raises(HTTPException) as refused:
        asyncio.run(asking.channels(everything))
    assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "1"})
    asking = overview(Asked(part(0.0, cost_s=100.0), NoAnswer("worker 1", "gone")))
    for _ in range(2):
        with pytest.raises(HTTPException):
            asyncio.run(asking.channels(everything))
    asked = cast(Asked, asking._questions)
    assert asked.asked == 2, "it is not repeated when the worker is back"
    healthy = overview(Asked(orjson.dumps([["storage"], False]), NoAnswer("worker 1", "gone")))
    assert asyncio.run(healthy.troubles()) == (["storage", "worker_1"], False)
