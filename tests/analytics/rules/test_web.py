"""Logs of any web server: storms that were missed are told, and what only looks like one stays silent, in each format.

The scenes stand half an hour from one to the next, in a log of each format, and one report reads all of these. What a
richer format adds must not hide a storm.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.support.long import mostly_long
from tricklecast.analytics.lines import find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.report.words import describe
from tricklecast.analytics.rules.classes import Side, StormClass
from tricklecast.analytics.rules.incidents import Confidence, Incident, incidents
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.formats import FormatName

Line = dict[str, Any]
Scene = list[Line]
BEGIN: Final = 1_760_000_400_000_000
STEP_US: Final = 1_800_000_000


@cache
def fields_of(client: str) -> Line:
    """The fields that all requests of a client share."""
    name = sha256(client.encode()).hexdigest()
    number = int(name[:6], 16)
    return {
        "v": 1,
        "kind": "exchange",
        "node": "edge-1",
        "method": "GET",
        "client": name[:16],
        "ip": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
        "ua": "app/1",
        "release": "app/1",
        "conn": number,
        "attempt": 1,
        "bytes_in": 0,
        "bytes_out": 0,
        "dur_us": 2000,
        "wait_us": None,
    }


def get(at: float, status: int | None, client: str, path: str = "/api/feed", **fields: Any) -> Line:
    """One request, as our own log has it; the client is known by address, user agent and connection."""
    known = {**fields_of(client), "path": path}
    if path.startswith("/trickle/"):
        _, _, channel, seq = path.split("/")
        known |= {"op": "read", "channel": channel, "seq": int(seq)}
    gone = {"reason": "client_gone"} if status is None else {"status": status}
    return known | gone | {"ts_us": BEGIN + round(at * 1e6)} | fields


def fleet(clients: int, tries: int, pause: float, status: int = 503, spread: float = 0.9, **fields: Any) -> Scene:
    """Clients that begin within some time, and try again after the same pause each time."""
    return [
        get(10 + number * spread / clients + turn * pause, status, f"pod{number}", **fields)
        for number in range(clients)
        for turn in range(tries)
    ]


def loop(count: int, pause: float, status: int | None, path: str = "/api/feed", **fields: Any) -> Scene:
    """One client."""
    return [get(10 + turn * pause, status, "app", path, **fields) for turn in range(count)]


def in_turn(paths: str, count: int, pause: float, status: int) -> Scene:
    """One client, on paths of a letter each."""
    return [get(10 + turn * pause, status, "app", f"/{paths[turn % len(paths)]}") for turn in range(count)]


def backing_off(clients: int, base: float = 1.0, factor: float = 2.0, status: int = 503, tries: int = 6) -> Scene:
    """Clients whose pauses grow, with jitter."""
    rng, lines = random.Random(1), []
    for number in range(clients):
        at = 10 + number / clients
        for turn in range(tries):
            lines.append(get(at, status, f"polite{number}"))
            at += rng.uniform(0.5, 1.0) * base * factor**turn
    return lines


def calls(code: int, **fields: Any) -> Scene:
    """gRPC: each call has 200."""
    return loop(100, 0.2, 200, "/pkg.Service/Get", method="POST", grpc=code, bytes_out=20, **fields)


HEADERS: Final = frozenset({"combined", "json"})
"""Forms without ``Retry-After`` and connections."""
WITHOUT_CODES: Final = frozenset({"own", "combined", "nginx"})

STORMS: Final[dict[str, tuple[Scene, set[str], int, frozenset[str]]]] = {
    "400 clients, ten tries, 1/s": (fleet(400, 10, 1.0), {"thundering_herd"}, 4000, frozenset()),
    "100 clients, five tries, 2/s": (fleet(100, 5, 0.5, 429), {"thundering_herd"}, 500, frozenset()),
    "500 pods, three tries": (fleet(500, 3, 1.0), {"thundering_herd"}, 1500, frozenset()),
    "pods beside others": (
        fleet(300, 3, 1.0) + [get(10 + n / 50, 503, f"u{n}", "/other") for n in range(150)],
        {"thundering_herd", "overload_amplification"},
        1050,
        frozenset(),
    ),
    "60 clients, 504 for ten minutes": (
        fleet(60, 40, 15.0, 504, spread=4),
        {"server_error_loop"},
        2400,
        frozenset(),
    ),
    "40 clients, 504 after ten seconds": (
        fleet(40, 20, 10.5, 504, dur_us=10_000_000),
        {"server_error_loop"},
        800,
        frozenset(),
    ),
    "60 players, 404 at 1/s": (fleet(60, 31, 1.0, 404), {"web_loop"}, 1860, frozenset()),
    "404 loop, twice a second": (loop(38, 0.53, 404), {"web_loop"}, 38, frozenset()),
    "499 loop": (loop(100, 0.3, None), {"web_loop"}, 100, frozenset()),
    "slow 499 loop": (loop(60, 1.2, None), {"web_loop"}, 60, frozenset()),
    "redirect loop": (loop(80, 0.05, 302), {"web_loop"}, 80, frozenset()),
    "redirect there and back": (in_turn("ab", 100, 0.04, 302), {"web_loop"}, 100, frozenset()),
    "slow redirect there and back": (in_turn("abc", 240, 0.25, 301), {"web_loop"}, 240, frozenset()),
    "204 loop": (loop(600, 1 / 15, 204), {"web_loop"}, 600, frozenset()),
    "204 loop, half as fast": (loop(600, 1 / 7.5, 204), {"web_loop"}, 600, frozenset()),
    "empty 200 loop": (loop(600, 1 / 15, 200), {"web_loop"}, 600, frozenset()),
    "200 loop with content": (loop(600, 1 / 15, 200, bytes_out=900), {"web_loop"}, 600, frozenset()),
    "101 loop": (loop(300, 0.1, 101), {"web_loop"}, 300, frozenset()),
    "60 x 502 in half a second": (loop(60, 1 / 120, 502), {"server_error_loop"}, 60, frozenset()),
    "401 loop": (loop(300, 0.5, 401), {"web_loop"}, 300, frozenset()),
    "Retry-After ignored": (loop(200, 0.2, 503, retry_after_ms=5000), {"overload_client"}, 200, frozenset()),
    "many, Retry-After ignored": (
        fleet(50, 10, 1.0, 429, retry_after_ms=30_000),
        {"thundering_herd", "overload_amplification"},
        500,
        frozenset(),
    ),
    "slowly": (loop(60, 1.1, 429, retry_after_ms=30_000), {"overload_client"}, 60, HEADERS),
    "gRPC unavailable": (calls(14), {"overload_client"}, 100, WITHOUT_CODES),
    "gRPC internal": (calls(13), {"server_error_loop"}, 100, WITHOUT_CODES),
    "gRPC unauthenticated": (calls(16), {"web_loop"}, 100, WITHOUT_CODES),
}
"""Scene, classes, requests, and the forms that do not have what tells it."""


def turns(path: str, *statuses: int, pause: float = 0.1, **fields: Any) -> Scene:
    """A hundred times the same answers."""
    return [
        get(10 + turn * pause + reply / 100, status, "app", path, **fields)
        for turn in range(100)
        for reply, status in enumerate(statuses)
    ]


def probes(count: int, pause: float, each: int, status: int, ok: range, **fields: Any) -> Scene:
    """Monitors that ask at their pace, with good answers outside of some turns."""
    return [
        get(10 + n * pause + p / 50, status if n in ok else 200, f"probe{p}", "/ready", **fields)
        for n in range(count)
        for p in range(each)
    ]


SILENT: Final[dict[str, Scene]] = {
    "crawler": [get(10 + n * 0.2, 404, "bot", f"/old/page-{n}.html") for n in range(300)],
    "scanner": [get(10 + n * 0.02, 404, "scan", f"/x{n % 200}.php") for n in range(400)],
    "prefetch": [get(10 + n * 0.02, 504, "cdn", f"/seg/{n}.ts") for n in range(300)],
    "git": turns("/repo.git", 401, 200),
    "git, quickly": turns("/repo.git", 401, 200, pause=0.03),
    "ntlm": turns("/share", 401, 401, 200),
    "oauth": [
        get(10 + turn * 0.3 + place / 50, status, "svc", path, method=method)
        for turn in range(100)
        for place, (status, path, method) in enumerate(
            ((401, "/api/me", "GET"), (200, "/oauth/token", "POST"), (200, "/api/me", "GET"))
        )
    ],
    "preflights": [
        get(10 + turn / 10 + place / 100, status, "web", "/api/x", method=method, bytes_out=place * 80)
        for turn in range(200)
        for place, (status, method) in enumerate(((204, "OPTIONS"), (200, "POST")))
    ],
    "80 people behind one address": [get(10 + n / 60, 404, "nat", "/favicon.ico", conn=n) for n in range(80)],
    "probe in an outage": probes(500, 1.0, 1, 503, range(120, 400)),
    "probe, outage all day": probes(500, 1.0, 1, 503, range(500)),
    "slow probe, outage all day": probes(100, 5.0, 1, 500, range(500)),
    "many probes in an outage": probes(90, 2.0, 20, 503, range(30, 60)),
    "many probes, outage all day": probes(60, 5.0, 20, 502, range(100), ua="kube-probe/1.29"),
    "scrape of a dead target": probes(100, 15.0, 1, 502, range(100), ua="Prometheus/2.5"),
    "polite herd": backing_off(200),
    "polite herd, from a tenth of a second": backing_off(30, 0.1, tries=10),
    "polite herd, slowly": backing_off(100, 1.0, 1.5, 429, 10),
    "polite herd, on several paths": [
        line | {"path": f"/api/{int(line['client'], 16) % 9}"} for line in backing_off(60, 0.5, 2.0, 502, 6)
    ],
    "told to wait, and waits": fleet(100, 10, 2.0, 503, retry_after_ms=2000),
    "told to wait, and waits alone": loop(100, 1.05, 503, retry_after_ms=1000),
    "deploy": [get(10 + n / 20 + t * 0.8, 502 if t < 2 else 200, f"u{n}") for n in range(60) for t in range(3)],
    "deploy, three tries": [get(10 + n / 60 + t, 502 if t < 3 else 200, f"u{n}") for n in range(120) for t in range(5)],
    "cron at :00": [get(60 * minute + n / 100, 200, f"job{n}", "/report") for minute in range(10) for n in range(80)],
    "HLS": [
        get(10 + turn * 2 + n / 40, 200, f"tv{n}", path, bytes_out=400)
        for n in range(20)
        for turn in range(30)
        for path in ("/live/a.m3u8", f"/live/{turn}.ts")
    ],
    "HLS, and its end": [
        get(10 + turn * 2 + n / 40, 200 if turn < 20 else 404, f"tv{n}", "/live/a.m3u8", bytes_out=400)
        for n in range(30)
        for turn in range(23)
    ],
    "LL-HLS": [
        get(10 + turn / 3 + n / 100, 200, f"tv{n}", "/live/a.m3u8", bytes_out=400, dur_us=300_000)
        for n in range(10)
        for turn in range(100)
    ],
    "long polls that are given up": fleet(20, 40, 20.0, None, dur_us=19_900_000),  # type: ignore[arg-type]
    "long polls": fleet(20, 30, 30.0, 204, dur_us=29_900_000),
    "web sockets again": backing_off(30, 1.0, 2.0, 101, 8),
    "events every 3 s": fleet(20, 60, 3.0, 200, path="/events", bytes_out=20, dur_us=2_900_000),
    "ranges of a film": loop(600, 0.05, 206, "/film.mp4", bytes_out=65_536),
    "parts of an upload": loop(400, 0.05, 200, "/upload/a", method="PUT"),
    "a poll each second": loop(400, 1.0, 204),
    "is it ready?": [get(10 + t, 404 if t < 60 else 200, "app", "/jobs/7", bytes_out=9) for t in range(90)],
    "searches": [get(10 + n / 20, 200, "app", f"/search?q={n}", seq=n * 7_919, bytes_out=50) for n in range(600)],
    "browsing": [get(10 + n / 20, 200, "app", f"/p/{n % 40}", bytes_out=50) for n in range(600)],
    "redirects of a crowd": [
        get(10 + n / 20, 302 if n % 2 else 200, "nat", "/" if n % 2 else "/login", bytes_out=9) for n in range(600)
    ],
}


def one_json(line: Line) -> bytes:
    """JSON with keys that somebody has chosen."""
    end = datetime.fromtimestamp((line["ts_us"] + line["dur_us"]) // 1000 / 1e3, UTC)
    known = {"time": end.isoformat(timespec="milliseconds"), "remote_addr": line["ip"], "user_agent": line["ua"]}
    known |= {"request_method": line["method"], "request_uri": line["path"], "status": line.get("status", 499)}
    known |= {"body_bytes_sent": line["bytes_out"], "request_time": line["dur_us"] / 1e6}
    return orjson.dumps(known | {"grpc_status": line.get("grpc")}) + b"\n"


def envoy(lines: Scene) -> bytes:
    """Envoy's JSON, with gRPC's status."""
    rendered = zip(lines, FormatName.ENVOY.render(lines).splitlines(), strict=True)
    return b"".join(
        orjson.dumps(orjson.loads(one) | {"grpc_status": line.get("grpc")}) + b"\n" for line, one in rendered
    )


def without_times(log: bytes) -> bytes:
    """nginx's own "combined"."""
    return b"".join(line.rpartition(b'" ')[0] + b'"\n' for line in log.splitlines())


FORMS: Final[dict[str, Callable[[Scene], bytes]]] = {
    "combined": lambda lines: without_times(FormatName.NGINX.render(lines)),
    "json": lambda lines: b"".join(map(one_json, lines)),
    "nginx": FormatName.NGINX_JSON.render,
    "envoy": envoy,
    "own": FormatName.JSONL.render,
}


USUAL: Final = ("combined", "envoy", "own")
"""The poorest form, one with the codes of gRPC, and the richest; the others differ in their reading alone."""

BY_DEFAULT: Final = [form if form in USUAL else pytest.param(form, marks=pytest.mark.long) for form in FORMS]

Found = dict[str, dict[str, list[Incident]]]
"""The incidents of each scene, by form."""


def judged(folder: Path, scenes: dict[str, dict[str, Scene]]) -> Found:
    """The incidents of scenes, by form and name."""
    names = [(form, name) for form, each in scenes.items() for name in each]
    places = {one: BEGIN + place * STEP_US for place, one in enumerate(names)}
    for form, each in scenes.items():
        lines = [line | {"ts_us": line["ts_us"] - BEGIN + places[form, name]} for name in each for line in each[name]]
        lines.sort(key=lambda line: (line["ts_us"] + line["dur_us"], line["client"]))
        (folder / f"{form}.log").write_bytes(FORMS[form](lines))
    found: Found = {form: defaultdict(list) for form in scenes}
    with embedded.connect() as connection:
        read_lines(connection, find_logs([str(folder / f"{form}.log") for form in scenes]))
        for one in incidents(connection):
            form, name = names[(one.since_us - BEGIN) // STEP_US]
            found[form][name].append(one)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Found:
    """Those of all scenes; to read and to judge them once takes a third of the time of once for each test."""
    scenes: dict[str, dict[str, Scene]] = {}
    every = any(item.get_closest_marker("long") for item in request.session.items if item.path == request.path)
    for form in FORMS if every else USUAL:
        unknown = {"told to wait, and waits"} if form in HEADERS else set()
        scenes[form] = {name: scene for name, (scene, *_) in STORMS.items()}
        scenes[form] |= {name: scene for name, scene in SILENT.items() if name not in unknown}
        scenes[form] |= {} if form == "envoy" else AT_RANDOM
    scenes["own"] |= OF_OUR_OWN
    for nodes in BALANCED if every else BY_DEFAULT_BALANCED:
        crowds = {name: scene for name, (scene, *_) in (STORMS | CROWDS).items()} | (SILENT if nodes == 20 else {})
        scenes["own"] |= {f"{name} on {nodes}": over(nodes, scene) for name, scene in crowds.items()}
    return judged(tmp_path_factory.mktemp("web"), scenes)


@pytest.mark.parametrize("form", BY_DEFAULT)
def test_storms_of_web_servers(found: Found, form: str) -> None:
    """Each is one incident with all of its requests, whatever the form; none has a word of ours about it."""
    told = {name: [(str(one.storm), one.n) for one in found[form][name]] for name in STORMS}
    wrong = {
        name: told[name]
        for name, (_, storms, n, without) in STORMS.items()
        if form not in without
        and ([n] != [count for _, count in told[name]] or not {storm for storm, _ in told[name]} <= storms)
    }
    assert not wrong
    words = [str(describe(one)) for name in STORMS for one in found[form][name]]
    assert not [each for each in words if any(word in each for word in ("channel", "segment", "Lp-", " head"))]
    if form not in HEADERS:
        (told_to_wait,) = found[form]["many, Retry-After ignored"]
        assert "Retry-After is ignored" in told_to_wait.cause
    for one in found[form]["gRPC unavailable"]:
        assert "UNAVAILABLE" in one.cause
        assert "gRPC retry policy" in one.fix


def test_players_that_wait_for_a_channel(tmp_path: Path) -> None:
    """Those of one that never begins, or has ended, are told; those of one that begins then have waited."""
    scenes = {}
    for form in FORMS:
        soon = f"/trickle/soon-{form}/7"
        served = {"bytes_out": 9, "rseq": 7, "next_seq": 8}
        begins = [get(41.5 + n / 50, 200, f"pod{n}", soon, conn=n, **served) for n in range(20)]
        never = fleet(20, 31, 1.0, 404, path=f"/trickle/never-{form}/7")
        scenes[form] = {"begins": fleet(20, 31, 1.0, 404, path=soon) + begins, "never": never}
    for form, found in judged(tmp_path, scenes).items():
        assert {name: [(one.storm, one.n) for one in each] for name, each in found.items()} == {
            "never": [(StormClass.NOT_FOUND_LOOP, 620)]
        }, form


@pytest.mark.parametrize("form", BY_DEFAULT)
def test_what_only_looks_like_a_storm_of_a_web_server(found: Found, form: str) -> None:
    """None of them is told."""
    assert not {name: [(str(one.storm), one.n) for one in found[form][name]] for name in SILENT if found[form][name]}


def people() -> dict[str, Scene]:
    """Many behind one key come by chance, each over a connection of their own; a program comes evenly, or keeps its
    connection."""
    rng = random.Random(4)
    return {
        "people": [get(10 + rng.random() * 12, 401, "nat", "/portal", conn=number) for number in range(110)],
        "several programs": [
            get(10 + turn / 8, 401, "nat", "/portal", release=f"app/{turn % 3}", conn=5) for turn in range(110)
        ],
        "one program": [get(10 + turn / 8, 401, "app", "/portal", conn=turn) for turn in range(110)],
    }


def skewed(scene: Scene, skew_s: int) -> Scene:
    """A scene on two servers in turn, the clock of one of which is ahead."""
    return [
        line | {"node": f"edge-{place % 2}", "ts_us": line["ts_us"] + (100 + skew_s * (place % 2)) * 1_000_000}
        for place, line in enumerate(scene)
    ]


OF_OUR_OWN: Final[dict[str, Scene]] = {
    **people(),
    "scan": in_turn("abcdefghijkl", 1200, 0.02, 404),
    **{f"one client, {skew_s} s": skewed(loop(300, 0.2, 401), skew_s) for skew_s in (90, -90)},
    **{f"many clients, {skew_s} s": skewed(fleet(100, 20, 1.0), skew_s) for skew_s in (90, -90)},
    "twice": [line | {"ts_us": line["ts_us"] + later} for later in (0, 90_000_000) for line in loop(100, 0.1, 401)],
    "on two servers, and beside it": [
        *(line | {"node": f"edge-{place % 2}"} for place, line in enumerate(fleet(100, 21, 0.97))),
        *(line | {"node": "edge-9", "client": f"x{line['client']}"} for line in fleet(100, 20, 1.0, path="/b")),
    ],
}
"""Scenes that other formats cannot tell as well."""


def test_many_behind_one_key_lower_the_confidence(found: Found) -> None:
    """Of :func:`people`, one program is told with certainty."""
    told = {name: one.confidence for name in people() for one in found["own"][name]}
    assert told == {"people": Confidence.MEDIUM, "several programs": Confidence.MEDIUM, "one program": Confidence.HIGH}


def test_a_scanner_is_not_told_to_back_off(found: Found) -> None:
    """It is blocked."""
    (one,) = found["own"]["scan"]
    assert (one.storm, one.side) == (StormClass.WEB_LOOP, Side.CLIENT)
    assert "scanner" in one.cause
    assert "back off" not in one.fix


@pytest.mark.parametrize("skew_s", [90, -90])
def test_a_server_whose_clock_is_ahead_does_not_split_a_storm(found: Found, skew_s: int) -> None:
    """One client, or 100, on two servers in turn; the same on one server is two storms."""
    names = (f"one client, {skew_s} s", f"many clients, {skew_s} s", "twice")
    assert [[(one.n, one.nodes) for one in found["own"][name]] for name in names] == [
        [(300, ("edge-0", "edge-1"))],
        [(2000, ("edge-0", "edge-1"))],
        [(100, ("edge-1",)), (100, ("edge-1",))],
    ]


def test_a_fleet_behind_a_balancer_is_one(found: Found) -> None:
    """On however many servers; another fleet on another path at that time is another one."""
    both = found["own"]["on two servers, and beside it"]
    assert sorted((one.n, one.nodes) for one in both) == [(2000, ("edge-9",)), (2100, ("edge-0", "edge-1"))]


def over(nodes: int, scene: Scene) -> Scene:
    """A scene whose requests a balancer spreads over some servers."""
    rng = random.Random(nodes)
    return [line | {"node": f"edge-{rng.randrange(nodes)}"} for line in scene]


def paths(number: int) -> Scene:
    """Forty clients on each of some paths."""
    return [
        line | {"path": f"/p{path}", "client": f"{path}-{line['client']}"}
        for path in range(number)
        for line in fleet(40, 12, 1.0)
    ]


BALANCED: Final = {
    20: {name for name in STORMS if name.startswith(("204", "101", "200", "empty 200")) or "there and back" in name},
    6: {"204 loop, half as fast", "slow redirect there and back"},
}
"""The number of servers, and the loops over them that are not found: no server gives three good answers in a second."""
BY_DEFAULT_BALANCED: Final = (20,)
"""More servers hide more of a storm."""
CROWDS: Final = {name: case for name, case in STORMS.items() if len({line["client"] for line in case[0]}) > 1}
CROWDS["800 clients, ten tries"] = (fleet(800, 10, 1.0), {"thundering_herd"}, 8000, frozenset())
for number in (1, 2, 3, 5):
    CROWDS[f"{number} paths"] = (paths(number), {"thundering_herd"}, 480 * number, frozenset())


@pytest.mark.parametrize("nodes", mostly_long(BALANCED, 2))
def test_a_balancer_hides_no_storm(found: Found, nodes: int) -> None:
    """On many servers, crowds are found as on one, with all of their requests; what was silent stays so."""
    told = {
        name: [(str(one.storm), one.n, len(one.clients)) for one in found["own"][f"{name} on {nodes}"]]
        for name in CROWDS
    }
    for name, (scene, classes, n, _) in CROWDS.items():
        ((storm, counted, clients),) = told[name]
        assert storm in classes, name
        # The path's own, without those of others beside it.
        lines = scene if counted == n else [line for line in scene if line["path"] == "/api/feed"]
        assert (counted, clients) == (len(lines), len({line["client"] for line in lines})), name
    missed = {
        name
        for name, (*_, without) in STORMS.items()
        if "own" not in without and not found["own"][f"{name} on {nodes}"]
    }
    assert missed == BALANCED[nodes]
    assert not [name for name in SILENT if found["own"].get(f"{name} on {nodes}")]


def at_random(rng: random.Random) -> Scene:
    """One to sixty clients that repeat a request, near the thresholds."""
    clients = rng.choice([1, 1, 1, 2, 20, 60])
    tries = rng.choice([8, 12, 20, 31, 38, 60] if clients < 3 else [2, 3, 4, 8, 12])
    pause = rng.choice([0.03, 0.06, 0.1, 0.13, 0.2, 0.4, 0.49, 0.5, 0.55, 0.9, 0.97, 1.0, 1.2, 2.0])
    status = rng.choice([503, 429, 500, 502, 404, 404, 401, 403, None, 200, 302, 204])
    took_us, spread = rng.choice([1000, 50_000, 300_000]), rng.choice([0, 0, 0.3])
    lines = []
    for number in range(clients):
        at = 10 + rng.random()
        for turn in range(tries):
            conn = number * 1000 + rng.choice([0, turn])
            lines.append(get(at, status, f"c{number}", dur_us=took_us, conn=conn))
            at += pause * rng.uniform(1 - spread, 1 + spread)
    return lines


RNG: Final = random.Random(7)
AT_RANDOM: Final = {f"at random, {number}": at_random(RNG) for number in range(50)}


def test_a_richer_form_finds_no_less(found: Found) -> None:
    """What is told of a log with whole seconds is told, as certainly, of one with more in it."""
    sure = tuple(Confidence)[::-1]
    for poor, rich in pairwise(form for form in ("combined", "json", "nginx", "own") if form in found):
        for name in AT_RANDOM:
            best = min((sure.index(one.confidence) for one in found[poor][name]), default=-1)
            assert best <= max((sure.index(one.confidence) for one in found[rich][name]), default=-1), (name, poor)
    told = {form: sum(bool(each[name]) for name in AT_RANDOM) for form, each in found.items()}
    assert 5 < told["combined"] <= told["own"] < 50
