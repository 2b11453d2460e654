"""Receivers get what their documentation says, over HTTP; nobody is woken in maintenance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import pytest

from tests.analytics.report.sample import sample_incident
from tests.analytics.watch.made import NOW_US, Clock, append, loop, rules
from tricklecast.analytics.maintenance import parse_maintenance
from tricklecast.analytics.report.build import summary
from tricklecast.analytics.report.formats import date_and_time
from tricklecast.analytics.report.json import as_dict
from tricklecast.analytics.report.model import VERSION, Alert
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody, Status, Tracker
from tricklecast.analytics.watch.deliver import NotDelivered, receiver
from tricklecast.analytics.watch.outbox import Held, Sender
from tricklecast.analytics.watch.run import Watch, WatchRequest

TEXT: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 3000}
PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "plain_text"}, "text": TEXT, "emoji": {"type": "boolean"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
BLOCKS = {
    "maxItems": 50,
    "items": {
        "required": ["type"],
        "additionalProperties": False,
        "properties": {
            "type": {"const": "section"},
            "text": PLAIN,
            "fields": {
                "maxItems": 10,
                "items": PLAIN | {"properties": PLAIN["properties"] | {"text": TEXT | {"maxLength": 2000}}},
            },
        },
    },
}
SLACK = {
    "type": "object",
    "required": ["text", "blocks"],
    "additionalProperties": False,
    "properties": {
        "text": TEXT | {"not": {"pattern": "[<>]"}},
        "blocks": BLOCKS,
        "attachments": {
            "maxItems": 1,
            "items": {
                "required": ["color", "blocks"],
                "additionalProperties": False,
                "properties": {"color": {"pattern": "^#[0-9a-f]{6}$"}, "blocks": BLOCKS},
            },
        },
    },
}
"""https://docs.slack.dev/reference/block-kit/blocks/section-block and incoming webhooks."""

PAGERDUTY = {
    "type": "object",
    "required": ["routing_key", "event_action", "dedup_key"],
    "additionalProperties": False,
    "properties": {
        "routing_key": {"type": "string", "minLength": 1},
        "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
        "dedup_key": {"type": "string", "maxLength": 255},
        "client": {"type": "string"},
        "payload": {
            "required": ["summary", "source", "severity"],
            "additionalProperties": False,
            "properties": {
                "summary": {"type": "string", "minLength": 1, "maxLength": 1024},
                "source": {"type": "string", "minLength": 1},
                "severity": {"enum": ["critical", "error", "warning", "info"]},
                "timestamp": {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$"},
                "class": {"type": "string"},
                "custom_details": {"type": "object"},
            },
        },
    },
    "if": {"properties": {"event_action": {"const": "trigger"}}},
    "then": {"required": ["payload"]},
}
"""https://developer.pagerduty.com/docs/send-alert-event"""

LABELS = {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}
ALERTMANAGER = {
    "type": "array",
    "minItems": 1,
    "items": {
        "required": ["labels"],
        "additionalProperties": False,
        "properties": {
            "labels": LABELS | {"required": ["alertname", "severity"]},
            "annotations": LABELS,
            "startsAt": {"type": "string"},
            "endsAt": {"type": "string"},
            "generatorURL": {"type": "string"},
        },
    },
}
"""postableAlerts of Alertmanager's openapi.yaml, version 2."""


class Hook:
    """A server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(202)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def hook() -> Iterator[Hook]:
    """On a port of its own."""
    made = Hook()
    thread = Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def alerts(**changes: Any) -> list[AlertBody]:
    """An incident that begins, gets worse and ends."""
    one = summary(replace(sample_incident(StormClass.ENDED_LOOP), **changes))
    statuses: tuple[Status, ...] = ("firing", "worse", "resolved")
    return [
        as_dict(Alert("tricklecast storms watch", VERSION, f"{one.id}-{n}-{status}", status, NOW_US, None, one))
        for n, status in enumerate(statuses, 1)
    ]


NAMES = ("player-1", "<!channel> *b* :tada: & <http://evil|x>", "x" * 5000, "\x1b[31m\u202e")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kind", "path", "shape"),
    [
        ("slack", "/services/T0/B0/secret", SLACK),
        ("pagerduty", "/v2/enqueue?routing_key=secret", PAGERDUTY),
        ("alertmanager", "", ALERTMANAGER),
        ("webhook", "/hook", {"type": "object", "required": ["key", "status", "incident"]}),
    ],
)
def test_each_gets_the_form_that_it_documents(hook: Hook, kind: str, path: str, shape: Any, name: str) -> None:
    """Whatever names there are in the log; and its label, which people see, has no secret."""
    one = receiver(f"{kind}:{hook.url}{path}")
    one.tell(alerts(clients=(name,), channels=(name,), nodes=(name,), release=name, ua=name))
    assert len(hook.got) == 3 if kind != "alertmanager" else 1
    for _, document in hook.got:
        jsonschema.Draft202012Validator(shape).validate(document)
    assert "secret" not in one.name + one.label
    if kind == "pagerduty":
        assert {each["dedup_key"] for _, each in hook.got} == {"tricklecast-0123456789ab"}
        assert [each["event_action"] for _, each in hook.got] == ["trigger", "trigger", "resolve"]
        assert {path for path, _ in hook.got} == {"/v2/enqueue"}


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("https://hooks.slack.com/services/T0/B0/secret", "slack hooks.slack.com"),
        ("slack:https://chat.example/hooks/secret", "slack chat.example"),
        ("pagerduty:R0secret0R0secret0R0secret0R0sec", "pagerduty events.pagerduty.com"),
        (
            "pagerduty:https://events.eu.pagerduty.com/v2/enqueue?routing_key=secret",
            "pagerduty events.eu.pagerduty.com",
        ),
        ("alertmanager:http://am:9093", "alertmanager am:9093"),
        ("https://user:secret@hook.example/x", "webhook hook.example"),
    ],
)
def test_a_receiver_is_told_by_its_kind_or_its_host(tmp_path: Path, text: str, label: str) -> None:
    """And a URL or key may stand in a file."""
    assert receiver(text).label == label
    kind, _, url = text.partition(":")
    if kind != "https":
        (tmp_path / "url").write_text(f"{url}\n")
        assert receiver(f"{kind}:@{tmp_path}/url").name == receiver(text).name


@pytest.mark.parametrize(
    "text", ["slack:secret", "teams:https://x/secret", "pagerduty:https://x/?key=secret", "slack:ftp://x/secret", "x"]
)
def test_what_is_no_receiver_is_refused_without_its_secret(text: str) -> None:
    """The message goes to a log."""
    with pytest.raises(ValueError, match=r"URL|receiver|key") as refused:
        receiver(text)
    assert "secret" not in str(refused.value)
    with pytest.raises(ValueError, match="needs a key of 8 to 64"):
        receiver("pagerduty:")


def test_a_refusal_does_not_quote_the_url() -> None:
    """What the HTTP library says may."""
    one = receiver("slack:http://127.0.0.1:1/services/secret")
    with pytest.raises(NotDelivered) as refused:
        one.tell(alerts()[:1])
    assert "secret" not in str(refused.value)


# --- maintenance


def watch_of(folder: Path, store: Store, clock: Clock, end_s: float) -> Watch:
    """A watch whose maintenance ends so many seconds after the clock's beginning."""
    window = f"{date_and_time(NOW_US - 3_600_000_000)}/{date_and_time(NOW_US + round(end_s * 1e6))}"
    (folder / "access.jsonl").touch()
    request = WatchRequest(
        (str(folder / "access.jsonl"),),
        earliest=True,
        state=folder / "state",
        maintenance=parse_maintenance([window.replace(" ", "T")]),
    )
    watch = Watch(request, store, ["told"], clock, clock.wall_us)
    watch.judge.window.planned = rules()
    return watch


def test_alerts_wait_for_the_end_of_maintenance(tmp_path: Path) -> None:
    """What is over by then is told to nobody, what goes on is told then, also by a watch that was restarted."""
    clock = Clock()
    with Store(tmp_path / "state") as store:
        watch = watch_of(tmp_path, store, clock, 60.0)
        append(tmp_path / "access.jsonl", loop(40))
        clock.now_s += 2
        assert watch.step()[1] == []
        clock.now_s += 20  # the first is over
        assert watch.step()[1] == []
        assert watch.judge.held.count == 2
        append(tmp_path / "access.jsonl", loop(900, begin_s=22, client="player-2"))
        clock.now_s = 1_000.0 + 58
        assert watch.step()[1] == []
        assert store.undelivered() == 0
        again = watch_of(tmp_path, store, clock, 60.0)
        append(tmp_path / "access.jsonl", loop(40, begin_s=58, client="player-2"))
        clock.now_s += 4
        (told,) = again.step()[1]
        assert (told["status"], told["incident"]["clients"]) == ("firing", ("player-2",))
        clock.now_s += 60
        (over,) = again.step()[1]
        assert (over["status"], over["incident"]["id"]) == ("resolved", told["incident"]["id"])
        assert [body["status"] for _, _, body in store.waiting("told", 9)] == ["firing", "resolved"]


def test_alertmanager_is_not_reminded_of_what_is_held_back(tmp_path: Path, hook: Hook) -> None:
    """It is told again of what goes on, every minute; but not of this."""
    clock = Clock()
    with Store(tmp_path / "state") as store:
        watch = watch_of(tmp_path, store, clock, 60.0)
        append(tmp_path / "access.jsonl", loop(40))
        clock.now_s += 2
        watch.step()
        assert watch.judge.tracker.open()
        sender = Sender(receiver(f"alertmanager:{hook.url}"), store)
        sender._refresh()
        assert hook.got == []
        store.set_fact("held", {})
        sender._refresh()
        assert len(hook.got) == 1


def test_without_maintenance_nothing_is_held_back(tmp_path: Path) -> None:
    """The outbox has the alert at once."""
    with Store(tmp_path / "state") as store:
        watch = watch_of(tmp_path, store, Clock(), -60.0)
        append(tmp_path / "access.jsonl", loop(40))
        assert [each["status"] for each in watch.step(last=True)[1]] == ["firing"]
        assert store.undelivered() == 1


@pytest.mark.parametrize(
    ("within", "after", "expected"),
    [
        (["firing"], [], []),  # it is told when it is among those that go on; here it is not
        (["firing", "worse"], ["worse"], ["firing"]),
        (["firing", "resolved"], [], []),
        (["firing"], ["resolved"], []),
        (["worse"], ["resolved"], ["resolved"]),
        (["worse", "resolved"], [], ["resolved"]),
        ([], ["firing", "resolved"], ["firing", "resolved"]),
        (["alone"], [], []),
        (["alone", "firing"], ["resolved"], []),
        ([], ["alone"], ["resolved"]),
    ],
)
def test_what_is_told_after_maintenance(
    tmp_path: Path, within: list[str], after: list[str], expected: list[str]
) -> None:
    """Nobody hears of the end of what nobody has heard of, or that something is worse that was never told.

    What is over before its lines are read has one alert, ``alone``: it was read after a pause of the watch.
    """

    def alert(status: str) -> Any:
        told = "resolved" if status == "alone" else status
        return {"incident": {"id": "a", "fingerprint": "f"}, "status": told, "key": f"a-0-1-{status}"}

    with Store(tmp_path / "state") as store:
        held = Held(store, parse_maintenance(["1970-01-01T00:00/1970-01-01T00:01"]))
        tracker = Tracker(Params(), {})
        told = [
            each["status"]
            for statuses, now_us in ((within, 0), (after, 60_000_000))
            for status in statuses
            for each in held.sift([alert(status)], now_us, tracker)
        ]
    assert told == expected
