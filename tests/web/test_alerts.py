"""The alerts and the sources of the dashboard: what is wrong now, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.app.storage.test_archive import full
from tests.support.browser import Watched, barriers
from tests.support.local import LocalServer, local_server

TIMES: Final = "\N{MULTIPLICATION SIGN}"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server of its own, whose ended channels are gone at once."""
    with local_server(channel_drain_s=0) as running:
        yield running


def url(server: LocalServer) -> str:
    """Of the dashboard."""
    return f"http://127.0.0.1:{server.port}/"


def test_it_says_what_is_wrong_now(server: LocalServer, tab: Watched) -> None:
    """A calm line without alerts; a refusal and a publisher that has left are alerts, and later not."""
    page = tab.open(url(server))
    panel = page.get_by_role("region", name="Alerts")
    expect(panel).to_contain_text("Nothing is wrong now.")
    with server.client() as client:
        assert client.ask("GET", "/trickle/..x/0").status == 400
        lines = panel.get_by_role("listitem")
        expect(lines).to_have_text([f"1 request refused in the last minute: bad request {TIMES} 1"])
        expect(lines).to_have_class("warn")
        upload = client.channel("cam").upload(0, b"x" * 3000)
        expect(page.locator(".row:not([hidden]) .name")).to_have_text("cam")
        upload.connection.close()
        expect(lines.first).to_have_text("A publisher has left in the middle of a segment: cam")
        expect(lines.first).to_have_class("bad")
        expect(panel.get_by_role("status")).to_have_text("2")
        assert barriers(page) == []
        panel.get_by_role("link", name="cam").click()
        expect(page.locator("#detail-title")).to_have_text("cam")
        clock = server.plane.wall_us
        server.plane.wall_us = lambda: clock() + 61_000_000
        server.inside(lambda: server.plane.registry.end("cam", server.plane.clock()))
        expect(panel).to_contain_text("Nothing is wrong now.")


def test_a_full_disk_is_an_alert_until_it_has_room(
    tab: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is red, with the words of the system, and goes when what is kept in memory has been written."""
    with local_server(data_dir=tmp_path) as server, server.client() as client:
        page = tab.open(url(server))
        panel = page.get_by_role("region", name="Alerts")
        expect(panel).to_contain_text("Nothing is wrong now.")
        assert server.archive is not None
        monkeypatch.setattr(server.archive.database, "commit", full)
        client.channel("cam").publish(0, b"x")
        expect(panel.locator("li.bad")).to_contain_text(
            "The data directory cannot be written: [Errno 28] No space left"
        )
        monkeypatch.undo()
        expect(panel).to_contain_text("Nothing is wrong now.")
        page.close()  # before its server ends


ALERTS = """async ([servers, rows, events]) => {
    const scripts = document.querySelector("script[src$='dashboard.js']").src;
    const { Model } = await import(scripts.replace(".js", "/model.js"));
    const { Alerts } = await import(scripts.replace(".js", "/alerts.js"));
    const model = new Model();
    const alerts = new Alerts(model, () => []);
    const about = rows.map(([number]) => [number, `cam-${number}`, 1, "", "", 1]);
    servers.forEach((server, at) => {
        const news = {frame: at + 1, server: {time: 100 + at, ms: 1, ...server}, rows, gone: []};
        model.take({...news, about: at ? [] : about, events: at ? [] : events}, at === 0);
        alerts.update();
    });
    return [...alerts.list.children].map(line => `${line.className}: ${line.textContent}`);
}"""
"""What the page makes of a series of frames."""

MIRROR: dict[str, Any] = {"state": "following", "problem": "", "channels": {}, "segments": {}}
SOURCE: dict[str, Any] = {"name": "door", "state": "failed", "since": 1, "restarts": 2, "error": "no route"}
REFUSED: dict[str, Any] = {"number": 1, "kind": "refused", "channel": "", "client": "", "seq": None}


CASES: list[tuple[list[Any], list[Any], list[Any], list[str]]] = [
    ([{"troubles": [["storage", "disk full"]]}], [], [], ["bad: The data directory cannot be written: disk full"]),
    ([{"troubles": [["reload", "see"]]}], [], [], ["warn: The last reload has failed: see"]),
    ([{"troubles": [["a_new_part", "why"]]}], [], [], ["bad: a new part: why"]),
    ([{"draining": True}], [], [], ["warn: The server is shutting down: it takes no new clients"]),
    (
        [{"workers": [{"worker": 1, "up": False}]}], [], [],
        ["bad: Worker 1 does not answer: its channels cannot be reached"],
    ),
    (
        [{"counters": {"faults": 1}}, {"counters": {"faults": 3}}], [], [],
        ["bad: 2 faults of the server in the last minute: its log has them"],
    ),
    (
        [{"mirror": {**MIRROR, "state": "unreachable", "problem": "timeout"}}], [], [],
        ["bad: The mirror's source cannot be read: timeout"],
    ),
    (
        [{"mirror": {**MIRROR, "state": "stopped", "problem": "a fault"}}], [], [],
        ["bad: The mirror has stopped: a fault"],
    ),
    ([{"mirror": {**MIRROR, "state": "stopped"}}], [], [], ["warn: The mirror is stopped: nothing more is copied"]),
    (
        [{"mirror": {**MIRROR, "segments": {"failed": 1}}}], [], [],
        ["warn: The mirror has failed to make 1 copy: its panel has the newest errors"],
    ),
    ([{"mirror": MIRROR}], [], [], []),
    (
        [{"limits": [["readers", 70, 100, False], ["connections", 85, 100, True], ["total_bytes", 9, 10, True]]}],
        [], [],
        [
            "bad: Limit readers is reached: new clients are refused: 70 of 100",
            "warn: Limit connections is nearly reached: 85 of 100",
        ],
    ),
    ([{"cpu": 0.97}] * 3, [], [], ["warn: The server has more to do than it can: 97 % of a core"]),
    ([{"cpu": 0.97}] * 2, [], [], []),
    (
        [{"loop_lag_ms": 250}] * 3, [], [],
        ["warn: The server has more to do than it can: timers are late by 250 ms"],
    ),
    (
        [{"counters": {"refused": 7, "held": 0}}], [],
        [
            {**REFUSED, "time": 90, "why": "limit:readers", "count": 4},
            {**REFUSED, "time": 99, "why": "forbidden", "count": 3},
        ],
        [f"bad: 7 requests refused in the last minute: limit readers {TIMES} 4, forbidden {TIMES} 3"],
    ),
    (
        [{}], [],
        [
            {**REFUSED, "time": 30, "why": "forbidden", "count": 3},
            {**REFUSED, "kind": "cut_off", "time": 99, "why": "deleted", "count": 1},
            {**REFUSED, "kind": "cut_off", "time": 99, "why": "lag_s", "count": 2},
            {**REFUSED, "kind": "evicted", "time": 99, "why": "total_bytes", "count": 5},
        ],
        [
            f"warn: 2 readers cut off in the last minute: too late {TIMES} 2",
            "warn: 5 segments evicted early in the last minute: memory is short",
        ],
    ),
    (
        [{}] * 3, [[n, 0, 5, n - 1, 0, 0, 0, 1, 1, 0] for n in (1, 2, 3)], [],
        ["warn: 2 channels have readers and no publisher: cam-2, cam-3"],
    ),
    (
        [{}] * 3, [[n, 2, 5, 1, 300_000, 100_000, 0, 1, 1, 1] for n in range(1, 7)], [],
        [
            "warn: 6 connected publishers send nothing: cam-1, cam-2, cam-3 and 3 more",
            "warn: 6 channels have late readers: the slowest one lacks 293 KiB · cam-1, cam-2, cam-3 and 3 more",
        ],
    ),
    ([{}] * 2, [[1, 1, 5, 1, 300_000, 100_000, 0, 1, 1, 1]], [], []),
    (
        [{"sources": [SOURCE, {**SOURCE, "name": "yard", "state": "starting", "error": ""}]}], [], [],
        [
            "bad: A source has failed, and is started again: no route · door",
            "warn: A source has published nothing yet: yard",
        ],
    ),
]  # fmt: skip
"""The server's figures in a series of frames, rows of channels, events of the first frame; and the lines."""


def test_each_kind_of_alert(server: LocalServer, tab: Watched) -> None:
    """Red is what does not work now, and yellow what may soon not, or what a client has done."""
    page = tab.open(url(server))
    for servers, rows, events, told in CASES:
        assert page.evaluate(ALERTS, [servers, rows, events]) == told


def test_the_sources_have_a_panel(tab: Watched) -> None:
    """Each with its state and its last error, and without the password of its input."""
    sources = {
        "door": {"url": "rtsp://user:secret@127.0.0.1:9/live?key=hidden"},
        "yard": {"url": "testsrc", "when": "demand"},
    }
    with local_server(source=sources) as server:
        page = tab.open(url(server))
        panel = page.get_by_role("region", name="Sources")
        expect(panel.get_by_role("rowheader")).to_have_text(["door", "yard"])
        expect(panel.get_by_role("row").nth(1)).to_contain_text("Connection refused")
        expect(panel.get_by_role("row").nth(1)).to_contain_text("failed, starts again in ")
        expect(panel.get_by_role("row").nth(1)).to_contain_text("rtsp://***@127.0.0.1:9/live?key=***")
        expect(panel.get_by_role("row").nth(2)).to_contain_text("on demand, nobody reads")
        expect(page.locator(".alert-list .bad")).to_contain_text("A source has failed, and is started again")
        assert not re.search("secret|hidden", page.locator("body").inner_text())
        assert barriers(page) == []
        page.close()  # before its server ends
