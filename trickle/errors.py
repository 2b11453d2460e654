"""The exceptions of tricklecast, and the position at which a failed subscription goes on.

::

    TrickleError
    ├── InvalidInput (also a ValueError)        an argument is wrong; nothing was sent
    │   ├── InvalidSeq
    │   ├── InvalidChannelName
    │   ├── InvalidURL
    │   └── NoHardware                          the machine has no such device for decoding
    ├── MissingExtra                            a package that a command needs is not installed
    ├── LocalProtocolError                      the program broke an object's rules; nothing has changed
    │   └── ClosedHere                          the program itself has closed the object
    │       └── SegmentDropped                  the publisher gave a segment up for newer ones
    ├── ChannelEnded                            the channel has ended normally
    └── BrokenByPeer                            the server, or the way to it, failed
        ├── ChannelNotFound                     404
        ├── SegmentMissing                      470
        ├── Superseded                          409
        ├── ChannelBusy                         409, before a publisher's first byte
        ├── SegmentTooLarge                     413
        ├── Refused                             401, 403, 429, 503 and all other refusals
        ├── RemoteProtocolError                 the response makes no sense
        ├── ConnectionLost                      no response at all
        ├── PublisherFull                       a publisher's segments wait for the server for too long
        └── SegmentsUnconfirmed                 a publisher was closed before its segments were confirmed

A program reacts differently to *I closed it*, *it ended normally* and *the other side broke it*. These are three
families, so that ``except`` can tell them apart. Both clients turn a response into an exception with :func:`error_for`:
each status has one meaning. The message of an exception is made in ``__str__`` from its attributes, so that a program
never has to parse it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Final, dataclass_transform

from tricklecast.trickle import wire

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def needs(package: str, extra: str) -> str:
    """The second half of a message: a package is missing. PyPI has no tricklecast, so the extra is in a clone."""
    return f"needs {package}: pip install '.[{extra}]' in a clone of tricklecast"


class TrickleError(Exception):
    """Base of every error that tricklecast raises on purpose.

    Attributes:
        resume: pass it as ``start`` to go on with a subscription that raised this, without loss; ``None`` if unknown.
    """

    resume: Position | None = None


class MissingExtra(TrickleError):
    """An optional package is not installed. A command takes this for wrong usage."""

    exit_code = 2


class Fields:
    """Base class of objects with the fields that their classes annotate, those of the first class first.

    Type checkers take the subclasses for dataclasses. But no code is generated for them: for all errors and events that
    would take several times as long as to load the rest of their modules.

    Raises:
        TypeError: a field without a default is missing, or a value belongs to no field.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = [name for name in cls.__annotations__ if name not in (*cls.__match_args__, "_")]
        cls.__match_args__ = (*cls.__match_args__, *own)  # type: ignore[misc]  # of each class its own

    def __init__(self, *values: object, **named: object) -> None:
        fields, own = self.__match_args__, vars(self)
        own.update(zip(fields, values, strict=False), **named)  # class attributes are the defaults
        is_whole = len(own) == len(fields) or all(hasattr(self, name) for name in fields)
        if len(own) != len(values) + len(named) or (named and not named.keys() <= {*fields}) or not is_whole:
            raise TypeError(f"{type(self).__name__} has the fields ({', '.join(fields)})")

    def __repr__(self) -> str:
        others = (name for name in vars(self) if not name.startswith("_"))  # set by an __init__, or later: resume
        shown = dict.fromkeys((*self.__match_args__, *others))
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


@dataclass_transform(eq_default=False)
class _Described(Fields, TrickleError):
    """An error whose fields are its arguments. Two errors are equal only if they are the same one."""


class InvalidInput(TrickleError, ValueError):
    """An argument is wrong; nothing was sent or changed."""


class InvalidSeq(_Described, InvalidInput):
    """A seq does not follow ``-?[0-9]{1,15}``, or has a sign where none is allowed."""

    text: str

    def __str__(self) -> str:
        return f"not a seq: {self.text[:40]!r}"


class InvalidChannelName(_Described, InvalidInput):
    """A path segment cannot name a channel."""

    raw: str
    why: str

    def __str__(self) -> str:
        return f"not a channel name: {self.raw[:40]!r} ({self.why})"


class InvalidURL(InvalidInput):
    """A URL cannot belong to a tricklecast server or channel.

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


class NoHardware(_Described, InvalidInput):
    """The device that the program asked for does not decode this video on this machine.

    Attributes:
        hwaccel: its name.
        why: the reason, and which other devices are there.
    """

    hwaccel: str
    why: str

    def __str__(self) -> str:
        return f"no hwaccel {self.hwaccel!r}: {self.why}"


_POSITION = re.compile(r"([0-9]{1,15})(?:@([0-9]{1,15})(?::([0-9A-Za-z.-]{1,64}))?)?(?:\+([0-9]{1,15}))?", re.ASCII)
SPACES: Final = " \t\r\n\v\f"


@dataclass(frozen=True, slots=True)
class Position:
    """The segment that a subscription reads next.

    A program stores its text (``128@3:9f86d081884c7d65``; ``128@3`` or ``128`` if the server says less) and passes it
    to a later subscription as ``start``. Between two lines of a segment, ``+512`` stands behind it.

    Attributes:
        seq: the segment's seq, 0 or more.
        epoch: the channel's epoch to which the seq belongs; ``None`` if no server has reported it.
        life: the name of the numbering to which the seq belongs (``Lp-Trickle-Life``). From it a later subscription
            learns that a restarted server numbers anew. ``None`` if no server has reported it. The text has it only
            behind an epoch.
        offset: for readers of lines: this many bytes of the segment were read, and a line begins behind them. All other
            readers refuse it, unless it is 0. ``None``: nobody knows whether a line begins with the segment.

    Raises:
        InvalidInput: a value has another type.
        InvalidSeq: a number is negative or has more than 15 digits, or the name has other characters.
    """

    seq: int
    epoch: int | None = None
    life: str | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("seq", self.seq), ("epoch", self.epoch), ("offset", self.offset)):
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not is_whole and (value is not None or name == "seq"):
                hint = "; Position.parse() reads a text" if name == "seq" else ""
                kinds = "a whole number" if name == "seq" else "a whole number or None"
                raise InvalidInput(f"the {name} of a position is {kinds}, not {value!r}{hint}")
        if not isinstance(self.life, str | None):
            raise InvalidInput(f"the life of a position is a text or None, not {self.life!r}")
        if not _POSITION.fullmatch(str(self)):
            raise InvalidSeq(str(self))

    def __str__(self) -> str:
        text = f"{self.seq}"
        if self.epoch is not None:
            text += f"@{self.epoch}" + ("" if self.life is None else f":{self.life}")
        return text if self.offset is None else f"{text}+{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text of a position. White space around it, as at the end of a file's line, does not count.

        Raises:
            InvalidSeq: the text is not a position.
            InvalidInput: it is no text.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"a position is read from a text such as 128@3:9f86d081884c7d65, not {text!r}")
        match = _POSITION.fullmatch(text.strip(SPACES))
        if match is None:
            raise InvalidSeq(text)
        seq, epoch, life, offset = match.groups()
        return cls(int(seq), None if epoch is None else int(epoch), life, None if offset is None else int(offset))


class LocalProtocolError(TrickleError):
    """A call that is not allowed in the object's present state. The state has not changed."""


class ClosedHere(LocalProtocolError):
    """The program has closed the publisher or subscriber, and then used it."""


class SegmentDropped(_Described, ClosedHere):
    """A publisher gave a segment up, since its buffer was full. The server has a part of it, or nothing.

    Attributes:
        seq: the segment's seq; ``None`` if nothing of it was sent.
    """

    seq: int | None = None

    def __str__(self) -> str:
        about = "a segment" if self.seq is None else f"segment {self.seq}"
        return f"{about} was dropped: the buffer is full of segments that the server has not confirmed"


class ChannelEnded(_Described):
    """The channel has ended normally.

    Attributes:
        seq: the seq of the request that met the end, if it had one.
    """

    seq: int | None = None

    def __str__(self) -> str:
        return "the channel has ended"


class BrokenByPeer(_Described):
    """The server, or the way to it, failed this request.

    Attributes:
        status: the HTTP status; ``None`` if there was no response.
        seq: the request's seq, if it had one.
        detail: the first line of the response's body, for people.
        latest: the head, one past the newest started segment, if the response named it.
        retry_after: seconds to wait before asking again, if the response named them.
    """

    status: int | None = None
    _: KW_ONLY
    seq: int | None = None
    detail: str = ""
    latest: int | None = None
    retry_after: float | None = None

    summary = "the server failed the request"  # the message begins with it; each subclass has its own

    def __str__(self) -> str:
        summary = self._summary
        if self.detail.lower().startswith(summary):  # the server begins with the same words
            return f"{summary}{self.detail[len(summary) :]}{self.where}"
        return f"{summary}: {self.detail}{self.where}" if self.detail else f"{summary}{self.where}"

    @property
    def _summary(self) -> str:
        return self.summary

    @property
    def where(self) -> str:
        """The status and the segment, as far as they are known: `` (HTTP 409, segment 19)``."""
        parts = [] if self.status is None else [f"HTTP {self.status}"]
        if self.seq is not None and self.seq >= 0:  # -1 and -2 name no segment
            parts.append(f"segment {self.seq}")
        return f" ({', '.join(parts)})" if parts else ""


NOT_FOUND_WORDS: Final = frozenset({"Stream not found", "Invalid stream"})
"""Bodies of a 404 that say no more than the status does: the message leaves them out."""


class ChannelNotFound(BrokenByPeer):
    """404: the channel does not exist, and this request may not create it.

    Attributes:
        hint: advice to the program.
    """

    _: KW_ONLY
    hint: str = ""

    summary = "channel not found"

    def __str__(self) -> str:
        text = f"{self.summary}{self.where}" if self.detail in NOT_FOUND_WORDS else super().__str__()
        return f"{text}; {self.hint}" if self.hint else text


class SegmentMissing(BrokenByPeer):
    """470: the channel exists, this segment does not.

    Attributes:
        earliest: the oldest segment that the server has, if it named it.
    """

    status: int | None = wire.Status.SEQ_MISSING
    _: KW_ONLY
    earliest: int | None = None

    summary = "segment not available"


class Superseded(BrokenByPeer):
    """409: the segment is closed already, another publisher has taken it over, or has begun the channel anew.

    Attributes:
        epoch: the channel's present epoch, if that is not the publisher's; ``None`` otherwise.
        numbering: the name of the channel's numbering then; ``""`` if the server named none.
    """

    status: int | None = wire.Status.CONFLICT
    _: KW_ONLY
    epoch: int | None = None
    numbering: str = ""

    summary = "another publisher has taken over, or the segment is closed"

    def __str__(self) -> str:
        return f"{self.detail[:1].lower()}{self.detail[1:] or self.summary}{self.where}"


class ChannelBusy(BrokenByPeer):
    """409: another client publishes to this channel. Pass ``takeover=True`` to publish there in its place.

    Attributes:
        publishing_s: seconds for which the other client has published.
        publisher: the other client's name (``Trickle-Client``); ``None`` if it gave none.
        retry_after: seconds until the channel is free; ``None`` while the other client has a connection.
    """

    status: int | None = wire.Status.CONFLICT
    _: KW_ONLY
    publishing_s: int = 0
    publisher: str | None = None

    summary = "another client publishes to this channel"

    def __str__(self) -> str:
        name = "another client" if self.publisher is None else self.publisher
        return (
            f"{name} has published to this channel for {self.publishing_s} s; "
            "pass takeover=True to publish in its place"
        )


class PublisherFull(BrokenByPeer):
    """A publisher with ``when_full="wait"`` found no room for another segment in time. Nothing of it was sent.

    The server does not confirm segments, or the program publishes faster than the server takes them. If a request
    failed meanwhile, its error is the ``__cause__`` of this one.

    Attributes:
        waiting: number of segments that the server has not confirmed.
        waited_s: seconds for which the publisher has waited.
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
    """The server has not confirmed these segments, and the program has not awaited their receipts.

    They were lost, dropped, or on their way when the publisher closed.

    Attributes:
        seqs: their seqs; of more than 1,000 segments, those of the newest.
        more: number of the other segments, and of those that were given up before they were sent: they have no number.
    """

    def __init__(self, seqs: tuple[int, ...], more: int = 0) -> None:
        super().__init__()
        self.args = (seqs, more)
        self.seqs = seqs
        self.more = more

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.seqs[:10])) + (", …" if len(self.seqs) > 10 else "")
        named = f"{'segment' if len(self.seqs) == 1 else 'segments'} {shown}" if shown else ""
        others = (
            f"{self.more} {'others' if shown else 'segment' if self.more == 1 else 'segments'}" if self.more else ""
        )
        return f"not confirmed by the server: {', and '.join(filter(None, (named, others)))}"


class SegmentTooLarge(BrokenByPeer):
    """413: the segment is larger than the server allows. The server keeps the part that fits, marked as truncated."""

    summary = "segment too large"


class Refused(BrokenByPeer):
    """The server said no: it wants a valid token (401), does not allow the request (403), cannot serve it now (429,
    503), or has another reason.

    Attributes:
        elsewhere: another server takes the publishers of this channel: this one is a mirror, or was replaced.
    """

    _: KW_ONLY
    elsewhere: bool = False

    summary = "refused by the server"

    @property
    def _summary(self) -> str:
        refusals = {401: "the server wants a valid token", 403: "the server does not allow this"}
        return refusals.get(self.status or 0, self.summary)

    @property
    def temporary(self) -> bool:
        """Whether asking again later can help: 429 and 5xx, but not 501 and 505, since that server cannot do it."""
        return self.status == wire.Status.TOO_MANY_REQUESTS or (
            (self.status or 0) >= 500 and self.status not in (501, 505)
        )


class RemoteProtocolError(BrokenByPeer):
    """The response does not follow the protocol. Most likely another program serves that URL."""

    summary = "the answer is not from a trickle server"


class ConnectionLost(BrokenByPeer):
    """No connection could be made, or it broke before the response.

    Attributes:
        server: scheme and authority of a server that cannot be reached; ``None`` if a connection was made.
    """

    _: KW_ONLY
    server: str | None = None

    summary = "connection lost"

    @property
    def _summary(self) -> str:
        return self.summary if self.server is None else f"cannot connect to {self.server}"


def as_bytes(data: object) -> bytes:
    """Return data that a program publishes as ``bytes``.

    Raises:
        TypeError: the data are not bytes. (``bytes(5)`` would make five zeros of them.)
    """
    if isinstance(data, bytes):
        return data
    try:
        return memoryview(data).tobytes()  # type: ignore[arg-type]
    except TypeError:
        hint = ": encode it, or use publish_json" if isinstance(data, str) else ""
        raise TypeError(f"bytes are expected, not {type(data).__name__}{hint}") from None


def header_int(headers: Mapping[str, str], name: str) -> int | None:
    """Return a header's value as an integer; ``None`` if it is missing or no integer.

    Args:
        headers: a mapping that finds names in any case, as httpx's does.
    """
    value = headers.get(name, "").strip()
    return int(value) if _INTEGER.fullmatch(value) else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return ``Retry-After`` in seconds; ``None`` if it is missing, or a date (which needs a clock)."""
    seconds = header_int(headers, wire.RETRY_AFTER)
    return None if seconds is None else float(max(0, seconds))


def error_for(status: int, headers: Mapping[str, str], *, seq: int | None = None, detail: str = "") -> TrickleError:
    """Return the exception for a response.

    Args:
        status: the HTTP status. Below 400 only the header ``Lp-Trickle-Closed`` stands for an expected error.
        headers: the response's headers, found in any case.
        seq: the request's seq.
        detail: the first line of the body.
    """
    if headers.get(wire.CLOSED):
        return ChannelEnded(seq)
    facts: dict[str, Any] = {
        "seq": seq,
        "detail": detail,
        "latest": header_int(headers, wire.LATEST),
        "retry_after": retry_after_s(headers),
    }
    match status:
        case wire.Status.NOT_FOUND:
            return ChannelNotFound(status, **facts)
        case wire.Status.SEQ_MISSING:
            return SegmentMissing(status, earliest=header_int(headers, wire.EARLIEST), **facts)
        case wire.Status.CONFLICT if (publishing_s := header_int(headers, wire.PUBLISHING_FOR)) is not None:
            publisher = headers.get(wire.PUBLISHER) or None
            return ChannelBusy(status, publishing_s=publishing_s, publisher=publisher, **facts)
        case wire.Status.CONFLICT:
            epoch, life = header_int(headers, wire.EPOCH), wire.parse_life(headers.get(wire.LIFE, ""))
            if epoch is not None:
                facts["detail"] = f"another client has begun the channel anew: it is in epoch {epoch}"
            return Superseded(status, epoch=epoch, numbering="" if life is None else life.name, **facts)
        case wire.Status.TOO_LARGE:
            return SegmentTooLarge(status, **facts)
    if status < 400:
        return RemoteProtocolError(status, **facts)
    return Refused(status, elsewhere=bool(headers.get(wire.ELSEWHERE)), **facts)
