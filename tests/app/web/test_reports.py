"""Storm reports on the dashboard: which file is shown, to whom, and with which policy; which storms go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.app.access.signing import SECRET, bearer, token
from tests.support.local import LocalServer, local_server
from tricklecast.app.tools.conformance.target import Target
from tricklecast.app.web import reports as module
from tricklecast.app.web.reports import PATH, TICKET_S, Reports, open_storms


def alert(name: str, status: str = "firing", **incident: Any) -> str:
    """A line of `storms watch --json`, without the fields that are not shown."""
    about = {
        "id": name,
        "storm": "ended_loop",
        "severity": "warn",
        "clients": ["player"],
        "channels": ["film"],
        "n": 12,
    }
    content = {"alert": "tricklecast storms watch", "status": status, "told_us": 5_000_000, "into": None}
    return json.dumps({**content, "incident": {**about, "n": 12, **incident}}) + "\n"


class Wall:
    """A time that a test sets, in microseconds."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


def write(path: Path, text: str, modified: float) -> None:
    path.write_text(text)
    os.utime(path, (modified, modified))


def test_the_newest_report_is_shown(tmp_path: Path) -> None:
    """By the time of its last change; hidden files, links, folders and other kinds of files do not count."""
    write(tmp_path / "old.html", "old", 100)
    write(tmp_path / "new one.html", "<p>new", 200)
    write(tmp_path / ".part.html", "", 300)
    write(tmp_path / "notes.txt", "", 300)
    (tmp_path / "link.html").symlink_to("/etc/passwd")
    (tmp_path / "folder.html").mkdir()
    os.mkfifo(tmp_path / "pipe.html")
    found = Reports(tmp_path, Wall()).look()["report"]
    assert (found["name"], found["modified"], found["size"]) == ("new one.html", 200, 6)
    assert found["url"].startswith(f"{PATH}/new%20one.html?ticket=")


@pytest.mark.parametrize(
    "name",
    ["../secret.html", "link.html", "folder.html", "pipe.html", ".hidden.html", "large.html", "notes.txt", "a\0.html"],
)
def test_nothing_but_plain_small_files_of_the_folder_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No path out of it, no link, no pipe, nothing that is too large."""
    monkeypatch.setattr(module, "MAX_REPORT", 10)
    folder = tmp_path / "reports"
    (folder / "folder.html").mkdir(parents=True)
    for secret in (tmp_path / "secret.html", folder / ".hidden.html", folder / "notes.txt", folder / "good.html"):
        secret.write_text("secret")
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    (folder / "large.html").write_text("x" * 11)
    os.mkfifo(folder / "pipe.html")
    reports = Reports(folder, Wall())
    assert reports.read("good.html") == b"secret"
    assert reports.read(name) is None


def test_a_ticket_is_for_one_report_and_a_minute(tmp_path: Path) -> None:
    """Another name, another server's ticket, a changed or late one are refused."""
    wall = Wall()
    reports = Reports(tmp_path, wall)
    ticket = reports.ticket("a.html")
    assert reports.admits("a.html", ticket)
    assert not reports.admits("b.html", ticket)
    assert not Reports(tmp_path, wall).admits("a.html", ticket)
    until, _, mac = ticket.partition(".")
    for wrong in ("", ".", f"{int(until) + 60}.{mac}", f"x.{mac}", f"{until}.", f"{until}.é", f"{'9' * 5000}.{mac}"):
        assert not reports.admits("a.html", wrong)
    wall.now += TICKET_S * 1_000_000
    assert reports.admits("a.html", ticket)
    wall.now += 1_000_000
    assert not reports.admits("a.html", ticket)


def test_storms_that_go_on_are_those_that_are_not_resolved() -> None:
    """By the last alert of each; the worst first. Lines that are no alerts are passed over."""
    lines = [
        'ut": "cut off"}\n',
        alert("a"),
        alert("b"),
        alert("a", "worse", severity="critical", n=500),
        alert("b", "resolved"),
        alert("c", severity="minor"),
        '{"other": "line"}\n', "[1]\n", "null\n",
        alert("d", clients=None),
        alert("e").replace("5000000", "1e300"), alert("f").replace("5000000", "-1"),
    ]  # fmt: skip
    storms = open_storms("".join(lines).encode())
    assert [(storm["id"], storm["status"], storm["severity"], storm["requests"]) for storm in storms] == [
        ("a", "worse", "critical", 500), ("c", "firing", "minor", 12)
    ]  # fmt: skip
    assert storms[0]["told"] == 5.0


def test_of_a_large_file_of_alerts_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may grow for months."""
    monkeypatch.setattr(module, "MAX_ALERTS", 1000)
    (tmp_path / "alerts.jsonl").write_text(alert("old") * 50 + alert("new"))
    found = Reports(tmp_path, Wall()).look()
    assert ([storm["id"] for storm in found["open"]], found["watched"]) == (["old", "new"], True)


def test_alerts_are_read_again_when_they_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many dashboards ask every few seconds."""
    read: list[bytes] = []

    def reading(lines: bytes) -> list[dict[str, Any]]:
        read.append(lines)
        return open_storms(lines)

    monkeypatch.setattr(module, "open_storms", reading)
    file, reports = tmp_path / "alerts.jsonl", Reports(tmp_path, Wall())
    for content in ("a", "a", "ab"):
        file.write_text("".join(map(alert, content)))
        os.utime(file, (1, 1))
        assert [storm["id"] for storm in reports.look()["open"]] == list(content)
    assert len(read) == 2


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is not there (yet), and a report that is too large."""
    missing = Reports(tmp_path / "none", Wall()).look()
    assert missing["problems"] == ["the folder of reports cannot be read: No such file or directory"]
    monkeypatch.setattr(module, "MAX_REPORT", 3)
    (tmp_path / "report.html").write_text("four")
    found = Reports(tmp_path, Wall()).look()
    assert (found["report"], found["watched"]) == (None, False)
    assert "report.html is larger" in found["problems"][0]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with tokens and a report."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "a b.html").write_text("<script>1</script>")
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(SECRET)
    with local_server(jwt_secret_file=secret, reports=folder) as running:
        yield running


def test_a_report_is_served_with_a_ticket_only(guarded: LocalServer) -> None:
    """The ticket needs the right to manage everything; the report can run and load nothing."""
    with guarded.client() as target:
        assert target.ask("GET", PATH).status == 401
        assert target.ask("GET", PATH, bearer(token(trickle={"manage": ["a*"]}))).status == 403
        listed = json.loads(target.ask("GET", PATH, bearer(token())).body)
        _check(target, listed["report"]["url"])
        name = quote("a b.html")
        assert target.ask("GET", f"{PATH}/{name}").status == 403
        assert target.ask("GET", f"{PATH}/{name}", bearer(token())).status == 403
        ticket = listed["report"]["url"].partition("?")[2]
        assert target.ask("GET", f"{PATH}/other.html?{ticket}").status == 403
    # The log has no ticket.
    assert not any("ticket" in (record.path or "") for record in guarded.records)


def _check(target: Target, url: str) -> None:
    report = target.ask("GET", url)
    policy = report.get("Content-Security-Policy") or ""
    assert (report.status, report.body, report.get("X-Content-Type-Options")) == (200, b"<script>1</script>", "nosniff")
    assert policy.startswith("sandbox; default-src 'none';")
    assert "allow" not in policy
    assert "script" not in policy


def test_a_report_that_has_gone_is_not_found(tmp_path: Path) -> None:
    """Between the list and the frame it may have been replaced."""
    (tmp_path / "a.html").write_text("x")
    with local_server(reports=tmp_path) as running, running.client() as target:
        url = json.loads(target.ask("GET", PATH).body)["report"]["url"]
        (tmp_path / "a.html").unlink()
        assert target.ask("GET", url).status == 404
