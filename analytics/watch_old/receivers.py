"""Who is told: the terminal, a program that reads JSON lines, a webhook, Prometheus's Alertmanager."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from tricklecast.analytics.report.formats import moment
from tricklecast.analytics.watch_old.news import News, headline

if TYPE_CHECKING:
    import httpx

TIMEOUT_S: Final = 10.0
MAX_LABEL: Final = 128
"""Characters of a label's value: the names in it come from whoever sent the requests."""

FIRING_S: Final = 300.0
"""Alertmanager takes a storm for over if nobody has said otherwise for so long. Seconds."""

REFRESH_S: Final = 60.0
"""So often it is said otherwise. Seconds."""

_AGAIN: Final = frozenset({408, 425, 429})
"""Refusals by which the same request may succeed later; as may those from 500 on."""

AT_ONCE: Final = 50
"""Alerts in one request to Alertmanager."""


class NotDelivered(Exception):
    """A receiver did not take something now.

    Attributes:
        after_s: how long it wants to be left alone; ``None`` if it did not say.
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
        name: what it is called in the ledger; label: what it is called where people read it.
        refresh_s: how often it wants to hear of what has not changed; ``None`` if never.
        at_once: how many it takes at a time.
    """

    name: str
    label: str
    refresh_s: float | None
    at_once: int

    def tell(self, news: Sequence[News]) -> None:
        """Tells it.

        Raises:
            NotDelivered: it did not take it.
        """


class Lines:
    """A line per alert, for people or as JSON."""

    refresh_s: float | None = None
    at_once = 1_000

    def __init__(self, name: str, out: IO[str], shown: Callable[[News], str]) -> None:
        """
        Args:
            name: what it is called; out: where to; shown: an alert as text.
        """
        self.name = self.label = name
        self._out = out
        self._shown = shown

    def tell(self, news: Sequence[News]) -> None:
        """See :class:`Receiver`. A pipe that nobody reads any more ends the command."""
        for each in news:
            self._out.write(self._shown(each) + "\n")
        self._out.flush()


def for_people(news: News) -> str:
    """Two lines: what happened, and what helps."""
    if news["status"] != "firing":
        return headline(news)
    episode = news["episode"]
    return f"{headline(news)}\n    {episode['cause']}\n    → {episode['advice']}"


def for_programs(news: News) -> str:
    """One JSON object; ASCII, since a terminal that shows it must not obey the names in it."""
    return json.dumps(news, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class Webhook:
    """POSTs each alert by itself, as JSON. ``Idempotency-Key`` is the same when it is sent again."""

    refresh_s: float | None = None
    at_once = 1

    def __init__(self, url: str, client: Callable[[], httpx.Client] | None = None) -> None:
        """
        Args:
            url: where to; client: makes the HTTP client.
        """
        self.name, self.label = _names("webhook", url)
        self._url = url
        self._client = (client or _client)()

    def tell(self, news: Sequence[News]) -> None:
        """See :class:`Receiver`."""
        for each in news:
            _post(self._client, self._url, dict(each), {"Idempotency-Key": str(each["key"])})


class Alertmanager:
    """Prometheus's Alertmanager, API version 2. It forgets what it does not hear of, so that storms are told again."""

    refresh_s: float | None = REFRESH_S
    at_once = AT_ONCE

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

    def tell(self, news: Sequence[News]) -> None:
        """See :class:`Receiver`."""
        _post(self._client, self._url, [alert for each in news for alert in as_alerts(each, self._now())], {})


def as_alerts(news: News, now: datetime) -> list[dict[str, Any]]:
    """An alert as Alertmanager knows it.

    The severity is a label, by which alerts are routed, and a label is part of what an alert is: one that got worse is
    another alert, and the former is over.
    """
    episode = news["episode"]
    ends = now if news["status"] == "resolved" else now + timedelta(seconds=FIRING_S)
    severities = [(episode["severity"], ends)]
    if news["status"] == "worse" or (news["status"] == "resolved" and episode["severity"] == "critical"):
        severities.append(("warn", now))
    return [_alert(news, severity, until) for severity, until in severities]


def _alert(news: News, severity: str, ends: datetime) -> dict[str, Any]:
    episode = news["episode"]
    labels = {
        "alertname": "RetryStorm",
        "class": episode["class"],
        "severity": severity,
        "episode": episode["id"],
        "node": episode["node"],
        "channel": episode["channels"][0] if len(episode["channels"]) == 1 else None,
    }
    notes = {"summary": headline(news), "cause": episode["cause"], "advice": episode["advice"]}
    begun = min(moment(episode["start_us"]) or ends, ends)
    return {
        "labels": {name: _label(value) for name, value in labels.items() if value},
        "annotations": notes,
        "startsAt": begun.isoformat(timespec="milliseconds"),
        "endsAt": ends.isoformat(timespec="milliseconds"),
    }


def _label(value: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in value[:MAX_LABEL])


def _names(kind: str, url: str) -> tuple[str, str]:
    """What a URL is called in the ledger and before people: it may have a password in it."""
    parts = urlsplit(url)
    return f"{kind}-{hashlib.sha256(url.encode()).hexdigest()[:12]}", f"{kind} {parts.netloc.rpartition('@')[2] or '?'}"


def _client() -> httpx.Client:
    import httpx

    return httpx.Client(timeout=TIMEOUT_S, headers={"User-Agent": "tricklecast"})


def _post(client: httpx.Client, url: str, document: Any, headers: dict[str, str]) -> None:
    import httpx

    try:
        answer = client.post(url, content=json.dumps(document), headers=headers | {"Content-Type": "application/json"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotDelivered(str(error) or type(error).__name__) from error
    if answer.is_success:
        return
    for_good = 300 <= answer.status_code < 500 and answer.status_code not in _AGAIN
    raise NotDelivered(f"HTTP {answer.status_code}", _after_s(answer.headers.get("Retry-After")), for_good=for_good)


def _after_s(value: str | None) -> float | None:
    """``Retry-After`` in seconds; the form with a date is left to the courier's own patience."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
