"""What one batch changed, as values: the rows of the live roll-up that could be part of a storm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from tricklecast.analytics.answers import FAILURES, Answer


@dataclass(frozen=True, slots=True)
class Signal:
    """A row of the roll-up, as far as it has been read: what one key did in one bucket of time.

    The same row comes again, with higher figures, whenever lines are added to it: it has the same :attr:`cell`.

    Attributes:
        answer, node, channel, release, client, net, event: see :data:`analytics.rollup.KEY`.
        bucket_us: when its bucket begins; window_us: when the stretch of reading begins that it was added up in.
        n: lines; closed: those that said that the channel has ended.
        seqs: distinct seqs that they were about, in their favour (:mod:`analytics.repeats`).
        first_us, last_us, seq_lo, seq_hi, seq_bits, head_lo, head_hi, conn_bits, slots, retry_after_ms, bytes_out,
            dur_us, guard_ms: see :func:`analytics.rollup.roll_up`.
        waited: lines that waited for their answer (:mod:`analytics.repeats`).
    """

    answer: Answer
    node: str | None
    channel: str | None
    release: str | None
    client: str | None
    net: str | None
    event: str | None
    bucket_us: int
    window_us: int
    n: int
    seqs: int
    first_us: int
    last_us: int
    closed: int = 0
    seq_lo: int | None = None
    seq_hi: int | None = None
    seq_bits: int | None = None
    head_lo: int | None = None
    head_hi: int | None = None
    conn_bits: int | None = None
    slots: int | None = None
    retry_after_ms: int | None = None
    bytes_out: int | None = None
    dur_us: int | None = None
    waited: int = 0
    guard_ms: int | None = None

    @property
    def who(self) -> str | None:
        """Who asked: the client, or its network if the log has no clients."""
        return self.client if self.client is not None else self.net

    @property
    def cell(self) -> Cell:
        """Which row it is among those of its island."""
        return self.bucket_us, self.window_us, self.answer.value, self.node or "", self.release or "", self.net or ""

    @property
    def key(self) -> IslandKey:
        """Whose island it belongs to, as in :data:`analytics.islands.KEY`."""
        failed = self.answer in FAILURES
        named = self.client is not None
        return self.who or "", named, self.channel, None if failed else self.node, FAILURE if failed else self.answer

    @classmethod
    def from_row(cls, row: Mapping[str, Any] | Sequence[Any]) -> Signal:
        """A collected row of :func:`analytics.watch_old.query.signals`, or what :meth:`as_list` gave."""
        values = [row[name] for name in COLUMNS] if isinstance(row, Mapping) else list(row)
        return cls(Answer(values[0]), *values[1:])

    def as_list(self) -> list[Any]:
        """Its values, in the order of :data:`COLUMNS`."""
        return list(_values(self))


Cell = tuple[int, int, str, str, str, str]
IslandKey = tuple[str, bool, str | None, str | None, str]

FAILURE: Final = "failure"
"""The family of all failures; the other answers are a family each."""

COLUMNS: Final = tuple(each.name for each in fields(Signal))
_values = attrgetter(*COLUMNS)
