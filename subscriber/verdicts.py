"""What a cursor reads and says: answers of the server in, verdicts for the client out.

Everything here is plain data. ``trickle.errors`` knows what a status means; this module only makes sure that what
reaches it is clean, since a server (or whatever stands at that URL) may send anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from tricklecast.trickle import wire
from tricklecast.trickle.errors import ConnectionLost, TrickleError, error_for, header_int, retry_after_s

DETAIL_CHARS: Final = 200
"""How much of an error's body is kept for people: a line, not a page of HTML."""

_INTEGERS: Final = (wire.SEQ, wire.LATEST, wire.EARLIEST, wire.NEXT, wire.SIZE, wire.EPOCH, wire.RETRY_AFTER)
_TEXTS: Final = (wire.CLOSED, wire.TRUNCATED, wire.LIFE)
_INTEGER = re.compile(r"-?[0-9]{1,15}", re.ASCII)


class OnLag(StrEnum):
    """Where to go on when the wanted segment has left the server's window."""

    LIVE = "live"
    """At the live edge: the newest started segment."""

    EARLIEST = "earliest"
    """At the oldest segment that is still kept: loses least, but may soon be too late again."""

    FAIL = "fail"
    """Nowhere: give up with ``SegmentMissing``."""


class Gone(ConnectionLost):
    """No connection could be made: a server that was there is gone, with all that it held."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of one response, reduced to what the protocol defines.

    Attributes:
        status: the HTTP status.
        headers: the protocol's headers, under the names of ``trickle.wire``; an integer header that does not hold
            one of at most 15 digits is left out, as if the server had not sent it.
        content_type: the segment's media type, as the server gave it.
        empty: the response says that it has no body (``Content-Length: 0``).
        detail: first line of an error's body, for people.
    """

    status: int
    headers: Mapping[str, str]
    content_type: str = ""
    empty: bool = False
    detail: str = ""

    @classmethod
    def read(cls, status: int, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Take a response's head in.

        Args:
            status: the HTTP status.
            headers: all headers; a mapping that finds names in any case, as httpx's does.
            body: the beginning of an error's body.
        """
        integers = {name: value for name in _INTEGERS if _INTEGER.fullmatch(value := headers.get(name, "").strip())}
        texts = {name: value for name in _TEXTS if (value := headers.get(name, "").strip())}
        return cls(
            status,
            integers | texts,
            headers.get("Content-Type", ""),
            headers.get("Content-Length", "").strip() == "0",
            first_line(body),
        )

    def natural(self, name: str) -> int | None:
        """A header's value, ``None`` where it is missing or negative, which is no seq to go to."""
        value = header_int(self.headers, name)
        return None if value is None or value < 0 else value

    @property
    def closed(self) -> bool:
        """The channel has ended (docs/reference/protocol.md, section 5)."""
        return wire.CLOSED in self.headers

    @property
    def life(self) -> wire.Life | None:
        """The numbering of the channel's segments; ``None`` where the server does not say."""
        return wire.parse_life(self.headers.get(wire.LIFE, ""))

    def is_renumbered(self, epoch: int | None, life: str | None, seq: int) -> bool:
        """Whether this is not the numbering in which ``seq`` was next.

        A numbering of another name is another one if it has had a segment below ``seq``. Otherwise its publisher goes
        on with the numbers of before, on a server that was restarted (docs/reference/protocol.md, section 5).

        Args:
            epoch, life: of the numbering that was read, as far as they are known.
            seq: one more than what was read of it.
        """
        told = self.life
        if told is not None and life is not None:
            if told.name == life:
                return False
            if told.first is not None and told.first < seq:
                return True
        other = self.natural(wire.EPOCH)
        return None not in (other, epoch) and other != epoch

    def is_of_another_life(self, epoch: int | None, life: str | None, seq: int) -> bool:
        """Whether a channel that has ended is not the one in which ``seq`` was next.

        A server that does not tell epochs may let its head go back for a moment, so that this is no sign with it.

        Args:
            epoch, life: of the channel that was read, as far as they are known.
            seq: one more than what was read of it.
        """
        if self.natural(wire.EPOCH) is None:
            return False
        told, latest = self.life, self.natural(wire.LATEST)
        is_same = told is not None and told.name == life
        is_behind = latest is not None and latest < seq
        return self.is_renumbered(epoch, life, seq) or (is_behind and not is_same)

    @property
    def retry_after_s(self) -> float | None:
        """How long the server wants not to be asked, in seconds."""
        return retry_after_s(self.headers)

    def error(self, seq: int | None) -> TrickleError:
        """The exception that this answer stands for."""
        return error_for(self.status, self.headers, seq=seq, detail=self.detail)


def first_line(body: bytes) -> str:
    """The first line of an error's body, printable and short."""
    line = body.decode("utf-8", "replace").strip().partition("\n")[0]
    return "".join(char for char in line if char.isprintable())[:DETAIL_CHARS]


@dataclass(frozen=True, slots=True)
class Ask:
    """The GET to make.

    Attributes:
        seq: the segment to ask for, or ``None`` for the ``next`` route, which answers the head at once.
        attempt: 1 for an original request, 2 for its first retry, ...
    """

    seq: int | None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Advance:
    """A segment has begun: hand it to the user, and make the next GET after ``delay_s``.

    Attributes:
        seq: the segment's seq, always concrete.
        epoch: which life of the channel's name; ``None`` where the server does not say.
        life: the name of its numbering; ``None`` where the server does not say.
        gap: segments of this life that were missed immediately before this one.
        restarted: the life of the channel is another one than that of the segment before: the epoch differs, or
            the numbering began again.
        content_type: the channel's media type.
        size_at_start: bytes that were there when the answer began, ``None`` where the server does not say.
        truncated: why the segment is not whole, if that is known already.
        empty: the segment is closed and holds nothing.
        lag: newer segments that had begun when the server got the GET.
        delay_s: how long to hold the next GET back; above 0 only after segments that broke.
    """

    seq: int
    epoch: int | None = None
    life: str | None = None
    gap: int = 0
    restarted: bool = False
    content_type: str = ""
    size_at_start: int | None = None
    truncated: str | None = None
    empty: bool = False
    lag: int = 0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Resolved:
    """``next`` turned out to be this seq: ask for it."""

    seq: int
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Make the same GET again after ``delay_s``, which is never 0."""

    delay_s: float
    error: TrickleError


@dataclass(frozen=True, slots=True)
class Resync:
    """The wanted segment cannot be had: go on at ``seq`` after ``delay_s``."""

    seq: int
    delay_s: float
    error: TrickleError


@dataclass(frozen=True, slots=True)
class End:
    """The channel has ended, as channels do.

    Attributes:
        gap: segments that were missed between the last one read and the end.
    """

    gap: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """Give up with this error."""

    error: TrickleError


Verdict: TypeAlias = Advance | Resolved | RetryAfter | Resync | End | Stop
