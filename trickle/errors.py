"""The exceptions of tricklecast, and the position from which a subscription that failed goes on.

::

    TrickleError
    ├── InvalidInput (also a ValueError)        what the caller passed is wrong; nothing was sent
    │   ├── InvalidSeq
    │   ├── InvalidChannelName
    │   └── InvalidURL
    ├── LocalProtocolError                      the caller broke an object's rules; nothing has changed
    │   └── ClosedHere                          the object was closed by its own user
    │       └── SegmentDropped                  a segment was given up for newer ones
    ├── ChannelEnded                            a normal end: the channel is over
    └── BrokenByPeer                            the other side, or the way there, failed
        ├── ChannelNotFound                     404
        ├── SegmentMissing                      470
        ├── Superseded                          409
        ├── ChannelBusy                         409, before a publisher's first byte
        ├── SegmentTooLarge                     413
        ├── Refused                             401, 403, 429, 503 and any other status that says no
        ├── RemoteProtocolError                 the answer makes no sense
        ├── ConnectionLost                      no answer at all
        ├── PublisherFull                       a publisher's segments wait for the server for too long
        └── SegmentsUnconfirmed                 a publisher was closed before segments were confirmed

*Closed by me*, *ended normally* and *broken by the peer* are three families, so that ``except`` can tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tricklecast.trickle import wire

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class TrickleError(Exception):
    """Base of every error that tricklecast raises on purpose.

    Attributes:
        resume: the ``start`` with which a subscription that raised this goes on without loss; ``None`` if unknown.
    """

    resume: Position | None = None


class InvalidInput(TrickleError, ValueError):
    """An argument is wrong; nothing was sent or changed."""


class InvalidSeq(InvalidInput):
    """A seq does not follow ``-?[0-9]{1,15}``, or has a sign where none is allowed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"not a seq: {self.text[:40]!r}"


class InvalidChannelName(InvalidInput):
    """A path segment cannot name a channel."""

    def __init__(self, raw: str, why: str) -> None:
        super().__init__(raw, why)
        self.raw = raw
        self.why = why

    def __str__(self) -> str:
        return f"not a channel name: {self.raw[:40]!r} ({self.why})"


class InvalidURL(InvalidInput):
    """A URL cannot be that of a tricklecast server or channel.

    Attributes:
        url: the URL without its secrets, as :func:`~tricklecast.trickle.wire.redacted` shows it.
        why: the reason.
    """

    def __init__(self, url: str, why: str) -> None:
        shown = wire.redacted(url)
        super().__init__(shown, why)
        self.url = shown
        self.why = why

    def __str__(self) -> str:
        return f"not a usable URL: {self.url!r}: {self.why}"


_POSITION = re.compile(r"([0-9]{1,15})(?:@([0-9]{1,15})(?::([0-9A-Za-z.-]{1,64}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """The segment that a subscription reads next.

    A program stores its text (``128@3:9f86d081884c7d65``; ``128@3`` or ``128`` where the server says less) and passes
    it to a later subscription as ``start``.

    Attributes:
        seq: the segment's seq, 0 or more.
        epoch: the epoch of the channel in which the seq was taken; ``None`` if no server has reported it.
        life: the name of the numbering in which it was taken (``Lp-Trickle-Life``), by which a later subscription
            notices that a server was restarted and numbers anew; ``None`` if no server has reported it. Without an
            epoch it is not stored.

    Raises:
        InvalidSeq: a number is negative or has more than 15 digits, or the name has other characters.
    """

    seq: int
    epoch: int | None = None
    life: str | None = None

    def __post_init__(self) -> None:
        if not _POSITION.fullmatch(str(self)):
            raise InvalidSeq(str(self))

    def __str__(self) -> str:
        if self.epoch is None:
            return f"{self.seq}"
        return f"{self.seq}@{self.epoch}" + ("" if self.life is None else f":{self.life}")

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text of a position.

        Raises:
            InvalidSeq: the text is not a position.
        """
        match = _POSITION.fullmatch(text)
        if match is None:
            raise InvalidSeq(text)
        seq, epoch, life = match.groups()
        return cls(int(seq), None if epoch is None else int(epoch), life)


class LocalProtocolError(TrickleError):
    """An event that is not allowed in the present state; the state is what it was before."""


class ClosedHere(LocalProtocolError):
    """The publisher or subscriber was already closed by its own user."""


class SegmentDropped(ClosedHere):
    """A publisher gave a segment up, since its buffer was full; what the server has of it is a part.

    Attributes:
        seq: its number; ``None`` if nothing of it had been written yet.
    """

    def __init__(self, seq: int | None = None) -> None:
        super().__init__(seq)
        self.seq = seq

    def __str__(self) -> str:
        about = "a segment" if self.seq is None else f"segment {self.seq}"
        return f"{about} was dropped: the buffer is full of segments that the server has not confirmed"


class ChannelEnded(TrickleError):
    """The channel ended, as channels do.

    Attributes:
        seq: the seq that was asked for when the end was seen, if any.
    """

    def __init__(self, seq: int | None = None) -> None:
        super().__init__(seq)
        self.seq = seq

    def __str__(self) -> str:
        return "the channel has ended"


class BrokenByPeer(TrickleError):
    """The server, or the way to it, failed this request.

    Attributes:
        status: the HTTP status, ``None`` where there was no answer.
        seq: the seq that the request was about, if any.
        detail: the first line of the answer's body, for people.
    """

    def __init__(self, status: int | None = None, *, seq: int | None = None, detail: str = "") -> None:
        super().__init__(status, seq, detail)
        self.status = status
        self.seq = seq
        self.detail = detail

    what = "the server failed the request"

    def __str__(self) -> str:
        if self.detail.lower().startswith(self.what):  # the server begins with the same words
            return f"{self.what}{self.detail[len(self.what) :]}{self.where}"
        return f"{self.what}: {self.detail}{self.where}" if self.detail else f"{self.what}{self.where}"

    @property
    def where(self) -> str:
        """The status and the segment, as far as they are known: " (HTTP 409, segment 19)"."""
        parts = [] if self.status is None else [f"HTTP {self.status}"]
        if self.seq is not None and self.seq >= 0:  # "the newest segment" is a negative number on the wire
            parts.append(f"segment {self.seq}")
        return f" ({', '.join(parts)})" if parts else ""


NOT_FOUND_WORDS: Final = frozenset({"Stream not found", "Invalid stream"})
"""What servers say of a channel that does not exist: nothing more than the status does."""


class ChannelNotFound(BrokenByPeer):
    """404: there is no such channel, and this request may not create it."""

    what = "channel not found"

    def __str__(self) -> str:
        if self.detail in NOT_FOUND_WORDS:
            return f"{self.what}{self.where}"
        return super().__str__()


class SegmentMissing(BrokenByPeer):
    """470: the channel exists, this segment does not.

    Attributes:
        latest: the head, one past the newest started segment.
        earliest: the oldest segment that is still kept, if the server said so.
        retry_after: seconds to wait before asking again, if the server said so.
    """

    what = "segment not available"

    def __init__(
        self,
        status: int | None = wire.Status.SEQ_MISSING,
        *,
        seq: int | None = None,
        detail: str = "",
        latest: int | None = None,
        earliest: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(status, seq=seq, detail=detail)
        self.latest = latest
        self.earliest = earliest
        self.retry_after = retry_after


class Superseded(BrokenByPeer):
    """409: the segment is closed already, another publisher has taken it over, or has begun the channel anew.

    Attributes:
        latest: the head, if the server said so.
        epoch: the channel's present life, where that is not the publisher's; ``None`` otherwise.
    """

    what = "another publisher has taken over, or the segment is closed"

    def __init__(
        self,
        status: int | None = wire.Status.CONFLICT,
        *,
        seq: int | None = None,
        detail: str = "",
        latest: int | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(status, seq=seq, detail=detail)
        self.latest = latest
        self.epoch = epoch

    def __str__(self) -> str:
        return f"{self.detail[:1].lower()}{self.detail[1:] or self.what}{self.where}"


class ChannelBusy(BrokenByPeer):
    """409: another client publishes to this channel. Pass ``takeover=True`` to publish there in its place.

    Attributes:
        publishing_s: for how many seconds the other client has published.
        publisher: the name that it gave (``Trickle-Client``); ``None`` if it gave none.
        latest: the head, if the server said so.
        retry_after: the other client has no connection at the moment; its place is free after so many seconds.
    """

    what = "another client publishes to this channel"

    def __init__(
        self,
        status: int | None = wire.Status.CONFLICT,
        *,
        seq: int | None = None,
        detail: str = "",
        publishing_s: int = 0,
        publisher: str | None = None,
        latest: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(status, seq=seq, detail=detail)
        self.publishing_s = publishing_s
        self.publisher = publisher
        self.latest = latest
        self.retry_after = retry_after

    def __str__(self) -> str:
        who = "another client" if self.publisher is None else self.publisher
        return (
            f"{who} has published to this channel for {self.publishing_s} s; pass takeover=True to publish in its place"
        )


class PublisherFull(BrokenByPeer):
    """A publisher that waits (``when_full="wait"``) found no room for another segment in time; nothing was sent of it.

    The server does not confirm what it gets, or more is published than it takes. Its last failure is the cause of this
    error, if there was one.

    Attributes:
        waiting: number of segments that the server has not confirmed.
        waited_s: how long the publisher waited.
    """

    def __init__(self, waiting: int, waited_s: float) -> None:
        super().__init__()
        self.args = (waiting, waited_s)
        self.waiting = waiting
        self.waited_s = waited_s

    def __str__(self) -> str:
        return (
            f"no room for another segment within {self.waited_s:g} s: {self.waiting} wait to be confirmed by the "
            "server; publish less, or give the publisher a larger buffer_bytes or buffer_s"
        )


class SegmentsUnconfirmed(BrokenByPeer):
    """The server has not confirmed these segments: they were lost, dropped, or on their way when the publisher closed.

    The program did not ask for their result.

    Attributes:
        seqs: their numbers; of more than 1,000, the newest.
        more: how many there are besides.
    """

    def __init__(self, seqs: tuple[int, ...], more: int = 0) -> None:
        super().__init__()
        self.args = (seqs, more)
        self.seqs = seqs
        self.more = more

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.seqs[:10])) + (", …" if len(self.seqs) > 10 else "")
        older = f", and {self.more} older ones" if self.more else ""
        return f"not confirmed by the server: {'segment' if len(self.seqs) == 1 else 'segments'} {shown}{older}"


class SegmentTooLarge(BrokenByPeer):
    """413: the segment is larger than the server allows; what fitted was kept and marked as truncated."""

    what = "segment too large"


class Refused(BrokenByPeer):
    """The server said no: a valid token is wanted (401), it is not allowed (403), not now (429, 503), or any other.

    Attributes:
        retry_after: seconds to wait before asking again; ``None`` where the server gave none.
    """

    def __init__(
        self,
        status: int | None = None,
        *,
        seq: int | None = None,
        detail: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(status, seq=seq, detail=detail)
        self.retry_after = retry_after
        refusals = {401: "the server wants a valid token", 403: "the server does not allow this"}
        self.what = refusals.get(status or 0, "refused by the server")

    @property
    def temporary(self) -> bool:
        """Whether asking again later can help (429 or 5xx)."""
        return self.status == wire.Status.TOO_MANY_REQUESTS or (self.status or 0) >= 500


class RemoteProtocolError(BrokenByPeer):
    """The answer does not follow the protocol: most likely there is no trickle server at that URL."""

    what = "the answer is not from a trickle server"


class ConnectionLost(BrokenByPeer):
    """No answer: the connection could not be made, or broke.

    Attributes:
        server: scheme and authority of the server to which no connection could be made; ``None`` if there was one.
    """

    what = "connection lost"

    def __init__(
        self, status: int | None = None, *, seq: int | None = None, detail: str = "", server: str | None = None
    ) -> None:
        super().__init__(status, seq=seq, detail=detail)
        self.server = server
        if server is not None:
            self.what = f"cannot connect to {server}"


def as_bytes(data: object) -> bytes:
    """The bytes that a program wants to publish.

    Raises:
        TypeError: they are not bytes. ``bytes()`` itself takes 5 for five zeros.
    """
    if isinstance(data, bytes):
        return data
    try:
        return memoryview(data).tobytes()  # type: ignore[arg-type]
    except TypeError:
        hint = ": encode it, or use publish_json" if isinstance(data, str) else ""
        raise TypeError(f"bytes are expected, not {type(data).__name__}{hint}") from None


def header_int(headers: Mapping[str, str], name: str) -> int | None:
    """A header's value as an integer; ``None`` where it is missing or not one.

    Args:
        headers: a mapping that finds names in any case, as httpx's does.
    """
    value = headers.get(name, "").strip()
    return int(value) if _INTEGER.fullmatch(value) else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """``Retry-After`` in seconds; ``None`` where it is missing or a date (which needs a clock)."""
    seconds = header_int(headers, wire.RETRY_AFTER)
    return None if seconds is None else float(max(0, seconds))


def error_for(status: int, headers: Mapping[str, str], *, seq: int | None = None, detail: str = "") -> TrickleError:
    """The exception that an answer stands for. The one table of statuses, for both clients.

    Args:
        status: an HTTP status of 400 or above; below that only a ``Closed`` header makes an error.
        headers: the response's headers, found in any case.
        seq: the seq that was asked for.
        detail: the first line of the body.
    """
    if headers.get(wire.CLOSED):
        return ChannelEnded(seq)
    if make := _BY_STATUS.get(status):
        return make(status, headers, seq, detail)
    if status < 400:
        return RemoteProtocolError(status, seq=seq, detail=detail)
    return Refused(status, seq=seq, detail=detail, retry_after=retry_after_s(headers))


def _conflict(status: int, headers: Mapping[str, str], seq: int | None, detail: str) -> BrokenByPeer:
    latest = header_int(headers, wire.LATEST)
    publishing_s = header_int(headers, wire.PUBLISHING_FOR)
    if publishing_s is None:
        epoch = header_int(headers, wire.EPOCH)
        why = detail if epoch is None else f"another client has begun the channel anew: it is in epoch {epoch}"
        return Superseded(status, seq=seq, detail=why, latest=latest, epoch=epoch)
    return ChannelBusy(
        status,
        seq=seq,
        detail=detail,
        publishing_s=publishing_s,
        publisher=headers.get(wire.PUBLISHER) or None,
        latest=latest,
        retry_after=retry_after_s(headers),
    )


_Make = Callable[[int, Mapping[str, str], int | None, str], BrokenByPeer]

_BY_STATUS: dict[int, _Make] = {
    wire.Status.NOT_FOUND: lambda status, _, seq, detail: ChannelNotFound(status, seq=seq, detail=detail),
    wire.Status.SEQ_MISSING: lambda status, headers, seq, detail: SegmentMissing(
        status,
        seq=seq,
        detail=detail,
        latest=header_int(headers, wire.LATEST),
        earliest=header_int(headers, wire.EARLIEST),
        retry_after=retry_after_s(headers),
    ),
    wire.Status.CONFLICT: lambda status, headers, seq, detail: _conflict(status, headers, seq, detail),
    wire.Status.TOO_LARGE: lambda status, _, seq, detail: SegmentTooLarge(status, seq=seq, detail=detail),
}
