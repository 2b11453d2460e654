"""What is wrong is said once, in words; how it goes is shown on a terminal only."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.analytics.watch_old.made import news
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.courier import Courier
from tricklecast.analytics.watch_old.judge import Found, Judge
from tricklecast.analytics.watch_old.ledger import Ledger
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.reading import Health, read_health, write_health
from tricklecast.analytics.watch_old.receivers import Lines, Webhook, for_people
from tricklecast.analytics.watch_old.status import Status


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(tmp_path, {"logs": []}, WatchLimits())


def judge(ledger: Ledger, *couriers: Courier) -> Judge:
    """A judge that is ready."""
    made = Judge(ledger, StormParams(), WatchLimits(), Lines("terminal", io.StringIO(), for_people), couriers)
    made.ready.set()
    return made


def test_problems_are_said_once(ledger: Ledger) -> None:
    """Not with every look; and again when they come back."""
    err, watched = io.StringIO(), judge(ledger)
    status = Status(err, quiet=False, clock=lambda: 0.0)
    broken = Health(problems={"/logs/\x1b[2Jaccess.jsonl": "Permission denied"})
    for health in (broken, broken, Health(), broken):
        status.show(health, watched)
    said = [line for line in err.getvalue().splitlines() if "cannot read" in line]
    assert said == ["storms watch: cannot read /logs/\\x1b[2Jaccess.jsonl: Permission denied"] * 2


def test_lost_lines_are_said(ledger: Ledger) -> None:
    """How much of the logs was gone before it could be read."""
    err = io.StringIO()
    Status(err, quiet=True).show(Health(lost_bytes=2048), judge(ledger))
    assert err.getvalue() == "storms watch: 2.0 KiB of the logs were gone before they could be read\n"


def test_what_limits_leave_out_is_said(ledger: Ledger) -> None:
    """How much it is so far: at first, and whenever it has more than doubled."""
    err, watched = io.StringIO(), judge(ledger)
    status = Status(err, quiet=True)
    for untold in (0, 1, 2, 3):
        watched.detector.storms.untold = untold
        status.show(Health(), watched)
    assert err.getvalue().splitlines() == [
        "storms watch: 1 storms are not told: too many are open",
        "storms watch: 3 storms are not told: too many are open",
    ]


def test_a_receiver_that_fails_is_said(ledger: Ledger) -> None:
    """Once when it begins to fail, and when it takes alerts again."""
    courier = Courier(Webhook("http://127.0.0.1:9/"), ledger)
    err, watched = io.StringIO(), judge(ledger, courier)
    status = Status(err, quiet=True)
    for failing in ("HTTP 503", "HTTP 502", None):
        courier.failing = failing
        status.show(None, watched)
    assert err.getvalue().splitlines() == [
        "storms watch: webhook 127.0.0.1:9 does not take alerts: HTTP 503; still trying",
        "storms watch: webhook 127.0.0.1:9 takes alerts again",
    ]


def test_two_receivers_on_one_host(ledger: Ledger) -> None:
    """One that does not answer is told once, whatever the other does."""
    good, bad = (Courier(Webhook(f"https://user:secret@hooks.example/{path}"), ledger) for path in ("good", "bad"))
    bad.failing = "HTTP 503"
    err, watched = io.StringIO(), judge(ledger, good, bad)
    status = Status(err, quiet=True)
    for _ in range(3):
        status.show(None, watched)
    assert err.getvalue() == "storms watch: webhook hooks.example does not take alerts: HTTP 503; still trying\n"


def test_how_it_goes(ledger: Ledger) -> None:
    """Lines per second, how far behind, storms open: renewed in place, on a terminal; nothing of it elsewhere."""
    shown = {}
    for err in (Terminal(), io.StringIO()):
        now = iter((0.0, 2.0))
        status = Status(err, quiet=False, clock=lambda now=now: next(now))  # type: ignore[misc]
        status.show(Health(files=1, lines=5_000, lag_bytes=3 << 20), judge(ledger))
        shown[err.isatty()] = err.getvalue()
    assert shown[True].endswith("2,500 lines/s, 3.0 MiB behind, 0 open storms")
    assert shown[False] == "storms watch: watching; Ctrl-C ends it\n"


def test_what_it_came_to(ledger: Ledger) -> None:
    """Lines, storms, and alerts that nobody got."""
    ledger.commit(1, {}, [news("a")], ["webhook"])
    err = io.StringIO()
    Status(err, quiet=False).end(Found({"a": "critical"}), ledger)
    assert err.getvalue() == "storms watch: 0 lines read, 1 storm, 1 alert not delivered\n"


def test_health_goes_through_a_file(tmp_path: Path) -> None:
    """What the source says is what the command hears; nothing if there is nothing, or half of it."""
    path = tmp_path / "source.json"
    assert read_health(path) is None
    said = Health(files=2, lines=3, problems={"a": "gone"})
    write_health(path, said)
    assert read_health(path) == said
    path.write_bytes(path.read_bytes()[:10])
    assert read_health(path) is None
