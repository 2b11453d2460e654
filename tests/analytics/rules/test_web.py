"""Logs of any web server: storms that were missed are told, and what only looks like one stays silent.

Each scene is a server of its own in one log, with clients of its own.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import orjson

from tricklecast.analytics.rules.incidents import Incident, incidents
from tricklecast.analytics.scan import embedded

Line = dict[str, Any]
Scene = list[Line]
BEGIN: Final = 1_760_000_400_000_000


def get(at: float, status: int | None, client: str, path: str = "/api/feed", **fields: Any) -> Line:
    """One GET that matches no route."""
    known = {"kind": "exchange", "method": "GET", "status": status, "client": client, "path": path, "bytes_out": 0}
    gone = {"reason": "client_gone"} if status is None else {}
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


def backing_off(clients: int, **fields: Any) -> Scene:
    """Clients that wait twice as long each time, with jitter."""
    rng, lines = random.Random(1), []
    for number in range(clients):
        at = 10 + number / clients
        for turn in range(6):
            lines.append(get(at, 503, f"polite{number}", **fields))
            at += rng.uniform(0.5, 1.0) * 2**turn
    return lines


STORMS: Final[dict[str, tuple[Scene, set[str], int]]] = {
    "800 clients, ten tries, 1/s": (fleet(800, 10, 1.0), {"thundering_herd"}, 8000),
    "400 clients, ten tries, 1/s": (fleet(400, 10, 1.0), {"thundering_herd"}, 4000),
    "500 pods, three tries": (fleet(500, 3, 1.0), {"thundering_herd"}, 1500),
    "150 clients, 504 for ten minutes": (fleet(150, 150, 4.0, 504, spread=4), {"server_error_loop"}, 22_500),
    "200 players, 404 at 1/s": (fleet(200, 60, 1.0, 404), {"web_loop"}, 12_000),
    "499 loop": (loop(100, 0.3, None), {"web_loop"}, 100),
    "redirect loop": (loop(40, 0.05, 302), {"web_loop"}, 40),
    "redirect there and back": (
        [get(10 + turn * 0.04, 302, "app", f"/{'ab'[turn % 2]}") for turn in range(100)],
        {"web_loop"},
        100,
    ),
    "204 loop": (loop(600, 1 / 15, 204), {"web_loop"}, 600),
    "204 loop, half as fast": (loop(600, 1 / 7.5, 204), {"web_loop"}, 600),
    "empty 200 loop": (loop(600, 1 / 15, 200), {"web_loop"}, 600),
    "200 loop with content": (loop(600, 1 / 15, 200, bytes_out=900), {"web_loop"}, 600),
    "101 loop": (loop(300, 0.1, 101), {"web_loop"}, 300),
    "60 x 502 in half a second": (loop(60, 1 / 120, 502), {"server_error_loop"}, 60),
    "401 loop": (loop(300, 0.5, 401), {"web_loop"}, 300),
    "Retry-After ignored": (loop(200, 0.2, 503, retry_after_ms=5000), {"overload_client"}, 200),
}

CHALLENGE: Final = [
    get(10 + turn * 0.1 + reply / 100, status, "git", "/repo.git")
    for turn in range(100)
    for reply, status in enumerate((401, 200))
]

SILENT: Final[dict[str, Scene]] = {
    "crawler": [get(10 + n * 0.2, 404, "bot", f"/old/page-{n}.html") for n in range(300)],
    "prefetch": [get(10 + n * 0.02, 504, "cdn", f"/seg/{n}.ts") for n in range(300)],
    "git": CHALLENGE,
    "ntlm": [
        get(10 + turn * 0.1 + reply / 100, status, "ntlm", "/share")
        for turn in range(100)
        for reply, status in enumerate((401, 401, 200))
    ],
    "80 people behind one address": [get(10 + n / 60, 404, f"192.0.2.7+#{n:08x}", "/favicon.ico") for n in range(80)],
    "probe in an outage": [get(10 + n, 200 if n < 120 or n > 400 else 503, "probe", "/ready") for n in range(500)],
    "probe, outage all day": [get(10 + n, 503, "probe", "/ready") for n in range(500)],
    "slow probe, outage all day": [get(10 + n * 5, 500, "probe", "/ready") for n in range(100)],
    "many probes in an outage": [
        get(10 + n * 2 + p / 50, 200 if n < 60 or n > 100 else 503, f"kubelet{p}", "/ready")
        for n in range(160)
        for p in range(40)
    ],
    "polite herd": backing_off(300),
    "told to wait, and waits": fleet(300, 10, 2.0, 503, retry_after_ms=2000),
    "deploy": [get(10 + n / 20 + t * 0.8, 502 if t < 2 else 200, f"u{n}") for n in range(60) for t in range(3)],
    "cron at :00": [get(60 * minute + n / 100, 200, f"job{n}", "/report") for minute in range(10) for n in range(80)],
    "HLS": [
        get(10 + turn * 2 + n / 40, 200, f"tv{n}", path, bytes_out=400)
        for n in range(60)
        for turn in range(100)
        for path in ("/live/a.m3u8", f"/live/{turn}.ts")
    ],
    "a poll each second": loop(400, 1.0, 204),
    "searches": [get(10 + n / 20, 200, "app", "/search", seq=n * 7_919_000_000, bytes_out=50) for n in range(600)],
    "browsing": [get(10 + n / 20, 200, "app", f"/p/{n % 40}", bytes_out=50) for n in range(600)],
    "redirects of a crowd": [
        get(10 + n / 20, 302 if n % 2 else 200, "nat", "/" if n % 2 else "/login", bytes_out=9) for n in range(600)
    ],
}


def judged(path: Path, scenes: dict[str, Scene]) -> dict[str, list[Incident]]:
    """The incidents of each scene."""
    lines = [
        line | {"node": name, "client": f"{line['client']}@{name}"} for name, scene in scenes.items() for line in scene
    ]
    path.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in lines))
    found: defaultdict[str, list[Incident]] = defaultdict(list)
    with embedded.connect(0) as connection:
        embedded.read_jsonl(connection, [path])
        for one in incidents(connection):
            found[one.nodes[0]].append(one)
    return found


def test_storms_of_web_servers(tmp_path: Path) -> None:
    """Each is one incident with all of its requests."""
    found = judged(tmp_path / "log", {name: scene for name, (scene, _, _) in STORMS.items()})
    told = {name: [(str(one.storm), one.n) for one in found[name]] for name in STORMS}
    wrong = {
        name: told[name]
        for name, (_, storms, n) in STORMS.items()
        if [n] != [count for _, count in told[name]] or not {storm for storm, _ in told[name]} <= storms
    }
    assert not wrong


def test_what_only_looks_like_a_storm_of_a_web_server(tmp_path: Path) -> None:
    """None of them is told."""
    found = judged(tmp_path / "log", SILENT)
    assert not {name: [(str(one.storm), one.n) for one in each] for name, each in found.items()}
