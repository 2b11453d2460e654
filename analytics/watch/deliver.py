"""The receivers of alerts: standard output, a webhook, Prometheus's Alertmanager, Slack, PagerDuty."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from tricklecast.analytics.report.formats import clock, date_and_time
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.watch.alerts import AlertBody, is_first
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    import httpx

TIMEOUT_S: Final = 10.0
LONGEST_WISH_S: Final = 600.0
"""A longer ``Retry-After`` is cut to this: an alert after ten minutes is late enough. Seconds."""

FIRING_S: Final = 300.0
"""Alertmanager takes a storm for over if nobody has said otherwise for so long. Seconds."""

REFRESH_S: Final = 60.0
"""So often it is said otherwise. Seconds."""

MAX_LABEL: Final = 128
"""Characters of a label's value: the names in it come from whoever sent the requests."""

PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"

MAX_SUMMARY: Final = 1024
"""Characters of PagerDuty's ``summary``; Slack takes 3,000 of a text and 2,000 of a field."""

LONG_AGO_US: Final = 12 * 3_600_000_000
"""An alert about what is older has the date as well. Microseconds."""

_AGAIN: Final = frozenset({408, 425, 429})
"""Refusals by which the same request may succeed later; as may those from 500 on."""


class NotDelivered(Exception):
    """A receiver did not take something now.

    Attributes:
        after_s: how long it wants to be left alone, seconds; ``None`` if it did not say.
        for_good: it will not take it later either.
    """

    def __init__(self, reason: str, after_s: float | None = None, *, for_good: bool = False) -> None:
        """
        Args:
            reason: in words; after_s, for_good: see the class.
        """
        super().__init__(reason)
        self.after_s = after_s
        self.for_good = for_good


class Receiver(Protocol):
    """Somebody who is told.

    Attributes:
        name: what it is called in the outbox; label: what it is called where people read it.
        at_once: how many alerts it takes at a time. refresh_s: how often it wants to hear of what goes on, seconds.
    """

    name: str
    label: str
    at_once: int
    refresh_s: float | None

    def tell(self, alerts: Sequence[AlertBody]) -> None:
        """Tells it.

        Raises:
            NotDelivered: it did not take it.
        """


class Lines:
    """A line for each alert, for people or as JSON."""

    name = label = "output"
    at_once = 1_000
    refresh_s: float | None = None

    def __init__(self, out: IO[str], shown: Callable[[AlertBody], str]) -> None:
        """
        Args:
            out: where to; shown: an alert as text.
        """
        self._out = out
        self._shown = shown

    def tell(self, alerts: Sequence[AlertBody]) -> None:
        """See :class:`Receiver`. A pipe that nobody reads any more ends the command."""
        for each in alerts:
            self._out.write(self._shown(each) + "\n")
        self._out.flush()


class Webhook:
    """POSTs each alert by itself, as JSON; ``Idempotency-Key`` is the same when it is sent again."""

    at_once = 1
    refresh_s: float | None = None

    def __init__(
        self,
        url: str,
        client: Callable[[], httpx.Client] | None = None,
        *,
        kind: str = "webhook",
        secret: str = "",
        made: Callable[[AlertBody], dict[str, Any]] = dict,
    ) -> None:
        """
        Args:
            url: where to; client: makes the HTTP client.
            kind: what people call it; secret: what tells it from others of its kind, the URL if not given.
            made: an alert in the form that it takes.
        """
        self.name, self.label = _names(kind, url, secret)
        self._url, self._made = url, made
        self._client = (client or _client)()

    def tell(self, alerts: Sequence[AlertBody]) -> None:
        """See :class:`Receiver`."""
        for each in alerts:
            _post(self._client, self._url, self._made(each), {"Idempotency-Key": str(each["key"])})


class Alertmanager:
    """Prometheus's Alertmanager, API version 2. It forgets what it does not hear of, so incidents are told again."""

    at_once = 50
    refresh_s: float | None = REFRESH_S

    def __init__(
        self,
        url: str,
        client: Callable[[], httpx.Client] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """
        Args:
            url: of the Alertmanager; client: makes the HTTP client; now: the time.
        """
        self.name, self.label = _names("alertmanager", url)
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._client = (client or _client)()
        self._now = now

    def tell(self, alerts: Sequence[AlertBody]) -> None:
        """See :class:`Receiver`."""
        _post(self._client, self._url, [made for each in alerts for made in as_alerts(each, self._now())], {})


def _pagerduty(url: str, client: Callable[[], httpx.Client] | None = None) -> Receiver:
    """PagerDuty, Events API version 2.

    Args:
        url: the integration's routing key, which is a secret, or a URL with ``?routing_key=``.
    """
    where, _, query = url.partition("?") if "/" in url else (PAGERDUTY, "", f"routing_key={url}")
    key = parse_qs(query).get("routing_key", [""])[0]
    if not key:
        raise ValueError("pagerduty: takes a routing key, or a URL with ?routing_key=KEY")
    return Webhook(where, client, kind="pagerduty", secret=url, made=partial(as_event, routing_key=key))


def _slack(url: str, client: Callable[[], httpx.Client] | None = None) -> Receiver:
    """An incoming webhook of Slack, or of a server that takes its form (Mattermost). The URL is a secret."""
    return Webhook(url, client, kind="slack", made=as_message)


KINDS: Final[dict[str, Callable[[str], Receiver]]] = {
    "webhook": Webhook,
    "alertmanager": Alertmanager,
    "slack": _slack,
    "pagerduty": _pagerduty,
}

_HOSTS: Final = {
    "hooks.slack.com": "slack",
    "events.pagerduty.com": "pagerduty",
    "events.eu.pagerduty.com": "pagerduty",
}


def receiver(text: str) -> Receiver:
    """The receiver that ``--alert`` names: ``slack:https://...``; a URL alone is a webhook, or what its host tells.

    Args:
        text: kind and URL; the URL may stand in a file, ``slack:@FILE``, so that no list of processes shows it.

    Raises:
        ValueError: it is none, or the file cannot be read. The message has no secret.
    """
    kind, colon, url = text.partition(":")
    if not colon or kind in ("http", "https"):
        url, kind = text, ""
    elif kind not in KINDS:
        raise ValueError(f"no such receiver: {plain(kind)!r}; there are {', '.join(KINDS)}")
    given = ""
    if url.startswith("@"):
        given = f"; {url[1:]!r} has none"
        try:
            url = Path(url[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {url[1:]!r}: {getattr(error, 'strerror', None) or error}") from None
    if kind == "pagerduty" and re.fullmatch(r"\w{8,64}", url, re.ASCII):
        return _pagerduty(url)
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        good = parts.scheme in ("http", "https") and bool(host) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        shown = plain(kind or redacted(url), 80)  # what follows a kind may be a secret
        key = "a key of 8 to 64 letters and digits, or " if kind == "pagerduty" else ""
        raise ValueError(f"{shown!r} needs {key}a URL that begins with http:// or https://{given}")
    return KINDS[kind or _HOSTS.get(host, "webhook")](url)


def as_alerts(alert: AlertBody, now: datetime) -> list[dict[str, Any]]:
    """An alert as Alertmanager knows it.

    The severity is a label, by which alerts are routed, and a label is part of what an alert is: one that got worse is
    another alert, and the former is over.
    """
    incident = alert["incident"]
    ends = now if alert["status"] == "resolved" else now + timedelta(seconds=FIRING_S)
    severities = [(incident["severity"], ends)]
    if alert["status"] != "firing":
        severities += [(each, now) for each in ("minor", "warn", "critical") if each != incident["severity"]]
    begun = datetime.fromtimestamp(incident["since_us"] / 1e6, UTC)
    place = incident["channels"][0] if incident["n_channels"] == 1 else ""
    made = []
    for severity, until in severities:
        labels = {
            "alertname": "RetryStorm",
            "class": incident["storm"],
            "severity": severity,
            "incident": incident["id"],
            "fingerprint": incident["fingerprint"],
            "node": incident["nodes"][0] if len(incident["nodes"]) == 1 else None,
            "path" if " /" in place else "channel": place,
        }
        notes = {"summary": headline(alert), "cause": incident["words"]["cause"], "advice": incident["words"]["fix"]}
        made.append(
            {
                "labels": {name: plain(value, MAX_LABEL) for name, value in labels.items() if value},
                "annotations": notes,
                "startsAt": min(begun, until).isoformat(timespec="milliseconds"),
                "endsAt": until.isoformat(timespec="milliseconds"),
            }
        )
    return made


_COLOURS: Final = {"critical": "#c4162a", "warn": "#d9a400", "minor": "#59636e"}


def as_message(alert: AlertBody) -> dict[str, Any]:
    """An alert as Slack knows it. Its blocks are plain text: no name in them is a link, a mention or an emoji."""
    incident, words = alert["incident"], alert["incident"]["words"]

    def text(value: str, most: int) -> dict[str, Any]:
        return {"type": "plain_text", "text": value[:most], "emoji": False}

    # Slack reads the text, which it shows in notifications, as markup.
    escaped = headline(alert).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    message = {"text": escaped, "blocks": [{"type": "section", "text": text(headline(alert), 3000)}]}
    if alert["status"] == "resolved":
        return message
    told = (("Cause", words["cause"]), ("Fix", words["fix"]), ("Impact", words["impact"]), ("When", words["when"]))
    fields = {"type": "section", "fields": [text(f"{name}: {value}", 2000) for name, value in told]}
    return message | {"attachments": [{"color": _COLOURS[incident["severity"]], "blocks": [fields]}]}


def as_event(alert: AlertBody, routing_key: str) -> dict[str, Any]:
    """An alert as PagerDuty knows it. All of one incident have its id as ``dedup_key``."""
    incident, words = alert["incident"], alert["incident"]["words"]
    event = {"routing_key": routing_key, "dedup_key": f"tricklecast-{incident['id']}"}
    if alert["status"] == "resolved":
        return event | {"event_action": "resolve"}
    severities = {"critical": "critical", "warn": "warning", "minor": "info"}
    payload = {
        "summary": headline(alert)[:MAX_SUMMARY],
        "source": plain(", ".join(incident["nodes"]) or "tricklecast", MAX_LABEL),
        "severity": severities[incident["severity"]],
        "timestamp": datetime.fromtimestamp(incident["since_us"] / 1e6, UTC).isoformat(timespec="milliseconds"),
        "class": incident["storm"],
        "custom_details": {name: words[name] for name in ("when", "impact", "cause", "fix", "confidence")}
        | {"fingerprint": incident["fingerprint"], "requests": incident["n"]},
    }
    return event | {"event_action": "trigger", "payload": payload, "client": "tricklecast storms watch"}


# --- words ------------------------------------------------------------------------------------------------------------


def for_people(alert: AlertBody) -> str:
    """Two lines more where an incident is told first: its cause, and what helps."""
    if not is_first(alert):
        return headline(alert)
    words = alert["incident"]["words"]
    return f"{headline(alert)}\n    {words['cause']}\n    → {words['fix']}"


def for_programs(alert: AlertBody) -> str:
    """One JSON object; ASCII, since a terminal that shows it must not obey the names in it."""
    return json.dumps(alert, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def headline(alert: AlertBody) -> str:
    """An alert in one line that is safe to print: the time, the severity, the report's words, the id."""
    incident, status = alert["incident"], alert["status"]
    over = f"{incident['severity']} and over" if is_first(alert) else "over"
    state = {"firing": incident["severity"], "worse": f"now {incident['severity']}"}.get(status, over)
    moment = date_and_time if alert["told_us"] - incident["until_us"] > LONG_AGO_US else clock
    told = f"part of {alert['into']}" if alert["into"] else incident["words"]["happened"]
    return f"{moment(incident['until_us'])} {state} {incident['storm']}: {told} [{incident['id']}]"


# --- HTTP -------------------------------------------------------------------------------------------------------------


def _names(kind: str, url: str, secret: str = "") -> tuple[str, str]:
    """The name of a URL in the outbox and before people: the URL may contain a password, or be one."""
    digest = hashlib.sha256((secret or url).encode()).hexdigest()[:12]
    return f"{kind}-{digest}", f"{kind} {urlsplit(url).netloc.rpartition('@')[2] or '?'}"


def _client() -> httpx.Client:
    import httpx

    return httpx.Client(timeout=TIMEOUT_S, headers={"User-Agent": "tricklecast"})


def _post(client: httpx.Client, url: str, document: Any, headers: dict[str, str]) -> None:
    import httpx

    try:
        answer = client.post(url, content=json.dumps(document), headers=headers | {"Content-Type": "application/json"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Some of these quote the URL.
        raise NotDelivered((str(error) or type(error).__name__).replace(url, "the URL")) from error
    if answer.is_success:
        return
    for_good = 300 <= answer.status_code < 500 and answer.status_code not in _AGAIN
    # The form of Retry-After with a date is left to our own pauses.
    after = answer.headers.get("Retry-After", "")
    after_s = min(float(after), LONGEST_WISH_S) if after.isascii() and after.isdigit() else None
    raise NotDelivered(f"HTTP {answer.status_code}", after_s, for_good=for_good)
