"""Who is told: standard output, a webhook, Prometheus's Alertmanager."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from tricklecast.analytics.watch.news import FIRING, RESOLVED, WORSE, News

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
        at_once: how many news it takes at a time. refresh_s: how often it wants to hear of what goes on, seconds.
    """

    name: str
    label: str
    at_once: int
    refresh_s: float | None

    def tell(self, news: Sequence[News]) -> None:
        """Tells it.

        Raises:
            NotDelivered: it did not take it.
        """


class Lines:
    """A line for each news, for people or as JSON."""

    name = label = "output"
    at_once = 1_000
    refresh_s: float | None = None

    def __init__(self, out: IO[str], shown: Callable[[News], str]) -> None:
        """
        Args:
            out: where to; shown: news as text.
        """
        self._out = out
        self._shown = shown

    def tell(self, news: Sequence[News]) -> None:
        """See :class:`Receiver`. A pipe that nobody reads any more ends the command."""
        for each in news:
            self._out.write(self._shown(each) + "\n")
        self._out.flush()


class Webhook:
    """POSTs each news by itself, as JSON. ``Idempotency-Key`` is the same when it is sent again."""

    at_once = 1
    refresh_s: float | None = None

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
    """Prometheus's Alertmanager, API version 2. It forgets what it does not hear of, so storms are told again."""

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

    def tell(self, news: Sequence[News]) -> None:
        """See :class:`Receiver`."""
        _post(self._client, self._url, [alert for each in news for alert in as_alerts(each, self._now())], {})


def as_alerts(news: News, now: datetime) -> list[dict[str, Any]]:
    """News as Alertmanager knows them.

    The severity is a label, by which alerts are routed, and a label is part of what an alert is: one that got worse is
    another alert, and the former is over.
    """
    incident = news["incident"]
    ends = now if news["status"] == RESOLVED else now + timedelta(seconds=FIRING_S)
    severities = [(incident["severity"], ends)]
    if news["status"] != FIRING:
        severities += [(each, now) for each in ("minor", "warn", "critical") if each != incident["severity"]]
    begun = datetime.fromtimestamp(incident["since_us"] / 1e6, UTC)
    alerts = []
    for severity, until in severities:
        labels = {
            "alertname": "RetryStorm",
            "class": incident["class"],
            "severity": severity,
            "incident": incident["id"],
            "node": incident["nodes"][0] if len(incident["nodes"]) == 1 else None,
            "channel": incident["channels"][0] if incident["n_channels"] == 1 else None,
        }
        notes = {"summary": headline(news), "cause": incident["cause"], "advice": incident["fix"]}
        alerts.append(
            {
                "labels": {name: plain(value, MAX_LABEL) for name, value in labels.items() if value},
                "annotations": notes,
                "startsAt": min(begun, until).isoformat(timespec="milliseconds"),
                "endsAt": until.isoformat(timespec="milliseconds"),
            }
        )
    return alerts


# --- words ------------------------------------------------------------------------------------------------------------


def for_people(news: News) -> str:
    """Two lines more where a storm begins: what happened, its cause, and what helps."""
    if news["status"] != FIRING:
        return headline(news)
    return f"{headline(news)}\n    {plain(news['incident']['cause'])}\n    → {plain(news['incident']['fix'])}"


def for_programs(news: News) -> str:
    """One JSON object; ASCII, since a terminal that shows it must not obey the names in it."""
    return json.dumps(news, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def headline(news: News) -> str:
    """What happened, in one line that is safe to print: severity, class, who, where, how fast, after what."""
    incident = news["incident"]
    state = {FIRING: incident["severity"], WORSE: f"now {incident['severity']}"}.get(news["status"], "over")
    who = plain(incident["clients"][0]) if incident["n_clients"] == 1 else f"{incident['n_clients']:,} clients"
    where = plain(incident["channels"][0]) if incident["n_channels"] == 1 else f"{incident['n_channels']:,} channels"
    nodes = [plain(node) for node in incident["nodes"] if node]
    at = f" at {nodes[0]}" if len(nodes) == 1 else f" at {len(nodes):,} servers" if nodes else ""
    moment = datetime.fromtimestamp(incident["until_us"] / 1e6, UTC).strftime("%H:%M:%S")
    line = f"{moment} {state} {incident['class']}: {who} on {where}{at}"
    if news["into"]:
        return f"{line}: part of {news['into']}"
    n = "1 request" if incident["n"] == 1 else f"{incident['n']:,} requests"
    trigger = f", after {plain(incident['trigger'])}" if incident["trigger"] else ""
    return f"{line}, {n}, {incident['peak_rps']:,.0f}/s{trigger} [{incident['id']}]"


def plain(text: str, longest: int = 200) -> str:
    """A text that a terminal may show: names come from whoever sent the requests."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in cut)


# --- HTTP -------------------------------------------------------------------------------------------------------------


def _names(kind: str, url: str) -> tuple[str, str]:
    """What a URL is called in the outbox and before people: it may have a password in it."""
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
    # The form of Retry-After with a date is left to our own pauses.
    after = answer.headers.get("Retry-After", "")
    after_s = min(float(after), LONGEST_WISH_S) if after.isascii() and after.isdigit() else None
    raise NotDelivered(f"HTTP {answer.status_code}", after_s, for_good=for_good)
