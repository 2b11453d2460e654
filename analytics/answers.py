"""Kinds of answer, and how finely each is rolled up.

A storm is the same kind of answer, given to the same client, again and again. So the kind is the first thing that is
told about a line, and the only thing besides time that the roll-up knows about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column


class Answer(StrEnum):
    """What a line says about one exchange; the last two are no exchanges."""

    OVERLOAD = "overload"
    """429 or 503: come back later."""
    SERVER_ERROR = "server_error"
    """Any other 5xx."""
    NOT_FOUND = "not_found"
    """404: no such channel, or not any more."""
    SEQ_MISSING = "seq_missing"
    """470: the channel exists, this segment does not."""
    REJECTED = "rejected"
    """400, 401, 403, 405: no, whenever it is asked."""
    ENDED = "ended"
    """A GET answered 200 with no bytes and ``Lp-Trickle-Closed``: the channel is over (protocol, sections 4 and 5)."""
    ABANDONED = "abandoned"
    """A GET that its client gave up before it was answered, sooner than :data:`PATIENCE_US`."""
    ZERO_BYTE = "zero_byte"
    """A GET answered 200 with no bytes and without ``Lp-Trickle-Closed``: an empty segment."""
    POST = "post"
    """A segment published, or refused because it was published before."""
    SERVED = "served"
    """A GET answered with bytes."""
    OK = "ok"
    """Everything else: nothing that anybody would repeat in a loop."""
    EVENT = "event"
    """A lifecycle event."""
    UNPARSABLE = "unparsable"
    """A line that is no record."""


@dataclass(frozen=True, slots=True)
class Grain:
    """How finely a kind of answer is rolled up.

    Attributes:
        bucket_s: width of its time bucket, seconds.
        by_client: whether the client is part of the key. It is what makes a roll-up large: only where it is needed.
    """

    bucket_s: int
    by_client: bool


_SIGNAL: Final = Grain(bucket_s=1, by_client=True)

GRAINS: Final[dict[Answer, Grain]] = {
    Answer.OVERLOAD: _SIGNAL,
    Answer.SERVER_ERROR: _SIGNAL,
    Answer.NOT_FOUND: _SIGNAL,
    Answer.SEQ_MISSING: _SIGNAL,
    Answer.REJECTED: _SIGNAL,
    Answer.ENDED: _SIGNAL,
    Answer.ABANDONED: _SIGNAL,
    Answer.ZERO_BYTE: _SIGNAL,
    Answer.POST: Grain(bucket_s=10, by_client=True),
    Answer.SERVED: Grain(bucket_s=60, by_client=True),
    Answer.OK: Grain(bucket_s=60, by_client=False),
    Answer.EVENT: Grain(bucket_s=1, by_client=False),
    Answer.UNPARSABLE: Grain(bucket_s=60, by_client=False),
}

FAILURES: Final = (Answer.OVERLOAD, Answer.SERVER_ERROR, Answer.NOT_FOUND, Answer.SEQ_MISSING, Answer.REJECTED)
"""Answers that say no: every one of them counts, whatever seq it was about."""

REPEATABLE: Final = (Answer.POST, Answer.SERVED)
"""Answers with bytes that are right once per seq; their buckets are long enough to tell what exceeds that."""

ONCE_PER_SEQ: Final = (Answer.ZERO_BYTE, *REPEATABLE)
"""Answers that are right once per seq and reader."""

COUNTED: Final = (*FAILURES, Answer.ENDED, Answer.ABANDONED)
"""Answers of which every one counts."""

WATCHED: Final = (*COUNTED, *ONCE_PER_SEQ)
"""Kinds of answer that can be a storm."""

PATIENCE_US: Final = 2_000_000
"""Who waited for so long, microseconds, has waited: twice as long as the time limits that make a loop of giving up (up
to a second), and shorter than those of long polls (from three seconds). It is asked of each request, not of their mean:
any number of readers may share a client key, and their waits say nothing about the one among them that does not wait.
"""

CODES: Final[dict[Answer, int]] = {answer: place for place, answer in enumerate(Answer)}
"""Numbers for the time in which there are millions of rows: texts would be copied, hashed and compared in each."""


def among(answers: Iterable[Answer]) -> Column:
    """Whether the column ``answer`` is one of these."""
    from pyspark.sql import functions as F

    return F.expr(f"answer IN ({quoted(answers)})")


def quoted(names: Iterable[str]) -> str:
    """Names as a list of SQL texts. They are this package's own names, never those of a log."""
    return ", ".join(f"'{name}'" for name in names)


def codes(answers: Iterable[Answer]) -> str:
    """Their codes as a list of SQL numbers."""
    return ", ".join(str(CODES[answer]) for answer in answers)


def from_code(code: str) -> str:
    """SQL for the text of an answer whose code an expression gives."""
    return f"element_at(array({quoted(CODES)}), {code} + 1)"


def upto(answers: Iterable[Answer]) -> str:
    """SQL for whether ``code`` is that of one of these, which are the first ones of :class:`Answer`.

    One comparison: what is done to every line must be so little code that Java compiles all of it in one piece.
    """
    first = sorted(CODES[answer] for answer in answers)
    assert first == list(range(len(first))), "these are not the first answers"
    return f"code < {len(first)}"
