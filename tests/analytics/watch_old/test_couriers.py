"""Receivers get every alert once, over real HTTP, however they behave; what they do holds up nobody else."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.analytics.watch_old.hook import Hook, listening
from tests.analytics.watch_old.made import news
from tests.support.waiting import eventually
from tricklecast.analytics.watch_old.courier import Courier, pause_s
from tricklecast.analytics.watch_old.ledger import Ledger
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.open_storms import Kind
from tricklecast.analytics.watch_old.receivers import (
    Alertmanager,
    Lines,
    NotDelivered,
    Receiver,
    Webhook,
    as_alerts,
    for_people,
    for_programs,
)

NOW = datetime(2025, 10, 9, 9, 0, tzinfo=UTC)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A receiver."""
    with listening() as open_hook:
        yield open_hook


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(tmp_path, {"logs": []}, WatchLimits())


def courier(receiver: Receiver, ledger: Ledger, clock: Clock | None = None) -> Courier:
    """A courier that is called by hand."""
    return Courier(receiver, ledger, clock or Clock(), random.Random(1))


def test_a_webhook_gets_each_alert_once(hook: Hook, ledger: Ledger) -> None:
    """One request per alert, with its JSON and its key."""
    receiver = Webhook(f"{hook.url}/alerts?token=secret")
    ledger.commit(1, {}, [news("a"), news("b")], [receiver.name])
    messenger = courier(receiver, ledger)
    messenger.deliver()
    messenger.deliver()
    assert hook.keys == ["a-firing", "b-firing"]
    path, _, body = hook.requests[0]
    assert (path, body["episode"]["class"]) == ("/alerts?token=secret", "zero_byte_loop")
    assert ledger.undelivered() == 0
    assert "secret" not in receiver.name + receiver.label


def test_retry_after_is_honoured(hook: Hook, ledger: Ledger) -> None:
    """A receiver that is busy is asked again no sooner than it says, with the same key."""
    receiver, clock = Webhook(hook.url), Clock()
    answers: Iterator[tuple[int, dict[str, str]]] = iter([(503, {"Retry-After": "30"}), (200, {})])
    hook.answer = lambda: next(answers)
    ledger.commit(1, {}, [news("a")], [receiver.name])
    messenger = courier(receiver, ledger, clock)
    messenger.deliver()
    assert (messenger.failing, ledger.undelivered()) == ("HTTP 503", 1)
    clock.now = 29.9
    messenger.deliver()
    assert len(hook.requests) == 1
    clock.now = 32.0
    messenger.deliver()
    assert hook.keys == ["a-firing", "a-firing"]
    assert (messenger.failing, ledger.undelivered()) == (None, 0)


def test_what_is_refused_for_good_is_given_up(hook: Hook, ledger: Ledger) -> None:
    """An alert that the receiver will never take does not hold up the next; it is counted."""
    receiver = Webhook(hook.url)
    answers: Iterator[tuple[int, dict[str, str]]] = iter([(422, {}), (200, {})])
    hook.answer = lambda: next(answers)
    ledger.commit(1, {}, [news("a"), news("b")], [receiver.name])
    courier(receiver, ledger).deliver()
    assert hook.keys == ["a-firing", "b-firing"]
    assert (ledger.dropped, ledger.undelivered()) == ({receiver.name: 1}, 0)


def test_a_dead_receiver_keeps_its_alerts(ledger: Ledger) -> None:
    """Nobody listens: the alert stays, and the pauses grow."""
    receiver, clock = Webhook("http://127.0.0.1:9"), Clock()
    ledger.commit(1, {}, [news("a")], [receiver.name])
    messenger = courier(receiver, ledger, clock)
    messenger.deliver()
    assert messenger.failing
    assert ledger.undelivered() == 1


def test_pauses_grow_with_jitter() -> None:
    """Exponential, with full jitter, up to a minute; and never less than was asked for, up to ten."""
    rng = random.Random(7)
    for failures in range(1, 40):
        longest = min(60.0, 2.0 ** (failures - 1))
        assert all(0.0 <= pause_s(failures, None, rng) <= longest for _ in range(20))
    assert 30.0 <= pause_s(1, 30.0, rng) <= 31.0
    assert pause_s(1, 1e9, rng) <= 601.0
    assert len({pause_s(5, None, rng) for _ in range(20)}) == 20


def test_a_courier_works_by_itself(hook: Hook, ledger: Ledger) -> None:
    """Its thread delivers what was left from before, and what comes; and ends when it is told to."""
    receiver = Webhook(hook.url)
    ledger.commit(1, {}, [news("a")], [receiver.name])
    messenger = Courier(receiver, ledger)
    messenger.start()
    eventually(lambda: hook.keys == ["a-firing"])
    ledger.commit(2, {}, [news("b")], [receiver.name])
    messenger.wake()
    eventually(lambda: hook.keys == ["a-firing", "b-firing"])
    ledger.commit(3, {}, [news("c")], [receiver.name])
    messenger.close(10.0)
    assert hook.keys == ["a-firing", "b-firing", "c-firing"]


def test_alertmanager_is_told_again(hook: Hook, ledger: Ledger) -> None:
    """What is firing is sent again every minute: Alertmanager takes silence for the end."""
    receiver, clock = Alertmanager(hook.url, now=lambda: NOW), Clock()
    ledger.commit(1, {}, [news("a"), news("b")], [receiver.name])
    messenger = courier(receiver, ledger, clock)
    messenger.deliver()
    clock.now = 59.0
    messenger.deliver()
    assert [(path, len(body)) for path, _, body in hook.requests] == [("/api/v2/alerts", 2)]
    clock.now = 61.0
    messenger.deliver()
    assert [alert["labels"]["episode"] for alert in hook.requests[1][2]] == ["a", "b"]


def test_an_alert_for_alertmanager() -> None:
    """Labels tell alerts apart and are bounded; a storm that is over ends now, another in five minutes."""
    [firing] = as_alerts(news("a", channels=("x" * 500,), node=None), NOW)
    assert firing["labels"] == {
        "alertname": "RetryStorm",
        "class": "zero_byte_loop",
        "severity": "critical",
        "episode": "a",
        "channel": "x" * 128,
    }
    assert (firing["startsAt"], firing["endsAt"]) == ("2025-10-09T08:53:20.000+00:00", "2025-10-09T09:05:00.000+00:00")
    over = as_alerts(news("a", Kind.OVER), NOW)
    assert {(alert["labels"]["severity"], alert["endsAt"]) for alert in over} == {
        ("critical", "2025-10-09T09:00:00.000+00:00"),
        ("warn", "2025-10-09T09:00:00.000+00:00"),
    }
    worse = {alert["labels"]["severity"]: alert["endsAt"] for alert in as_alerts(news("a", Kind.WORSE), NOW)}
    assert worse["warn"] == "2025-10-09T09:00:00.000+00:00" < worse["critical"]


def test_lines_for_people_obey_nobody() -> None:
    """Who, where, how fast, why and what helps, in words; names from the log are spelled out."""
    out = io.StringIO()
    hostile = "evil\x1b[2J\u202e"
    Lines("terminal", out, for_people).tell([news("a", clients=(hostile,)), news("a", Kind.OVER)])
    first, cause, advice, last = out.getvalue().splitlines()
    assert first == (
        "08:53:23 critical zero_byte_loop: evil\\x1b[2J\\u202e on film at edge-1, 300 requests, 100/s,"
        " after channel_end [a]"
    )
    assert (cause.strip(), advice.strip()) == (news()["episode"]["cause"], f"→ {news()['episode']['advice']}")
    assert last.startswith("08:53:23 over zero_byte_loop: player-7 on film")


def test_lines_for_programs_are_json() -> None:
    """One ASCII object per line, whatever the names are."""
    line = for_programs(news("a", clients=("\x1b[2J\ud800é",)))
    assert line.isascii()
    assert json.loads(line)["episode"]["clients"] == ["\x1b[2J\ud800é"]


def test_what_is_not_delivered_says_why() -> None:
    """The reason and the wish of a receiver are on the exception."""
    refusal = NotDelivered("busy", 3.0)
    assert (str(refusal), refusal.after_s, refusal.for_good) == ("busy", 3.0, False)
