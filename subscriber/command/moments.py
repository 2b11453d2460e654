"""Moments in a channel's past or future, and the segments that were on their way then: for ``--since`` and ``--until``.

A server lists closed segments by the time at which they closed, by its own clock, those in its data directory, too, and
those that are being written behind them. So the first segment of the list from a moment on is the one that was on its
way at that moment.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from datetime import time as clock
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from tricklecast.trickle.amounts import parse_duration
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.client.control import TIMEOUT_S, ask, json_of
from tricklecast.trickle.client.listing import ROUTE, error_of
from tricklecast.trickle.errors import ChannelNotFound, ConnectionLost, InvalidInput, RemoteProtocolError, TrickleError
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    import httpx

NEAR_S: Final = 1.5
"""A moment is as exact as this, in seconds: the server's clock comes in whole ones."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as a person names it.

    Attributes:
        ago_s: how long ago it was, in seconds; 0.0 is now.
        at: the moment itself, in seconds of Unix time; ``None``: ``ago_s`` counts.
    """

    ago_s: float = 0.0
    at: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a time before now (``10m``), or a date and time (``2026-11-23T18:00:00``, here or with a zone).

        A date alone is its beginning. A time alone could be of today, yesterday or tomorrow, so it is refused.

        Raises:
            ValueError: it is neither.
        """
        with suppress(InvalidInput):
            return cls(parse_duration(text, zero=True))
        with suppress(ValueError):
            return cls(at=datetime.fromisoformat(text).timestamp())
        try:
            today = datetime.combine(datetime.now().astimezone(), clock.fromisoformat(text))
        except ValueError:
            raise ValueError(
                f"use a time before now (10m), or one with its date (2026-11-23T18:00:00), not {text!r}"
            ) from None
        raise ValueError(f"{text!r} is a time of every day: give its date, too (today: {today.isoformat()})")

    @property
    def query(self) -> str:
        """For the server's list of segments."""
        if self.at is None:
            return f"{max(1, round(self.ago_s * 1000))}ms"  # a server takes no 0
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"

    def on(self, now_at: float) -> float:
        """In seconds of Unix time."""
        return now_at - self.ago_s if self.at is None else self.at


NOW: Final = Moment()


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment as the server lists it; times are in seconds of Unix time, by the server's clock.

    Attributes:
        closed_at: ``None``: it is being written.
    """

    seq: int
    opened_at: float
    closed_at: float | None

    @classmethod
    def of(cls, segment: dict[str, Any]) -> Self:
        closed = segment["closed_at"]
        return cls(
            int(segment["seq"]),
            datetime.fromisoformat(segment["opened_at"]).timestamp(),
            None if closed is None else datetime.fromisoformat(closed).timestamp(),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's list of a channel's segments.

    Attributes:
        epoch, next_seq: of the channel.
        segments: the first ones that were asked for, ascending.
        now_at: when it said so, in seconds of Unix time, by its clock.
    """

    epoch: int
    next_seq: int
    segments: tuple[Listed, ...]
    now_at: float


@dataclass(frozen=True, slots=True)
class Timetable:
    """When the segments of a channel were published, as its server tells it.

    Attributes:
        url: of the channel; several with commas between for a cluster.

    Each method raises ``ChannelNotFound`` if there is no such channel, and another :exc:`~.errors.TrickleError` if the
    server does not tell, or does not answer.
    """

    url: str
    credentials: Credentials = NO_CREDENTIALS

    async def since(self, moment: Moment, first: int = 0) -> Answer:
        """The segment that was on its way at a moment, or the next one behind it; none if there is none any more.

        Args:
            first: only this seq, and higher ones.
        """
        return await self.ask(f"since={moment.query}&from={first}&limit=1")

    async def last(self, until: Moment, first: int = 0) -> tuple[Listed | None, Answer]:
        """The last segment that began before a moment has passed, and the server's answer.

        Args:
            until: the moment. It has passed, or it is now.
            first: only this seq, and higher ones.

        Returns:
            ``None`` if the first one began later.
        """
        answer = await self.since(until, first)
        if not answer.segments:
            answer = await self.ask(f"from={max(first, answer.next_seq - 1)}&limit=1")
        until_at = until.on(answer.now_at)
        found = answer.segments
        if found and found[0].opened_at > until_at + NEAR_S:  # nothing was on its way: the one before it is the last
            found = (await self.ask(f"from={max(first, found[0].seq - 1)}&limit=1")).segments
        is_there = bool(found) and found[0].opened_at <= until_at + NEAR_S
        return found[0] if is_there else None, answer

    async def newest_began(self) -> float | None:
        """When the newest segment began, on the monotonic clock; ``None`` if there is none, or the server is silent."""
        try:
            newest, answer = await self.last(NOW)
        except TrickleError:
            return None
        return None if newest is None else time.monotonic() - max(0.0, answer.now_at - newest.opened_at)

    async def ask(self, query: str) -> Answer:
        """Ask for segments: the first node that can be reached."""
        nodes = channel_urls(self.url)
        route = f"{ROUTE}/{quote(nodes[0].channel, safe='')}/segments?"
        for node in nodes:
            try:
                response = await self.fetch(node.root, route + (f"{node.query}&" if node.query else "") + query)
                break
            except ConnectionLost:
                if node is nodes[-1]:
                    raise
        status = response.status_code
        match status, json_of(response):
            case 200, {"epoch": int(epoch), "next_seq": int(next_seq), "segments": [*segments]}:
                with suppress(KeyError, TypeError, ValueError):  # a list of something else
                    return Answer(epoch, next_seq, tuple(map(Listed.of, segments)), time_of(response))
            case 404, {"detail": "no such channel"}:
                raise ChannelNotFound(404)
        if status == 404 or status < 400:
            detail = f"{redacted(nodes[0].root)} does not tell when segments were published"
            raise RemoteProtocolError(status, detail=detail)
        raise error_of(response)

    async def fetch(self, root: str, route: str, within_s: float = TIMEOUT_S) -> httpx.Response:
        """Ask one node."""
        return await ask(root, route, self.credentials.tls, self.credentials.auth, within_s=within_s)


def time_of(response: httpx.Response) -> float:
    """The server's time, in the middle of the second that it names; ours if it names none."""
    try:
        return parsedate_to_datetime(response.headers["Date"]).timestamp() + 0.5
    except (KeyError, ValueError):
        return time.time()
