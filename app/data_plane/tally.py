"""What is noted of an exchange where no access log is written: what metrics count, and no more."""

from __future__ import annotations

from tricklecast.trickle.records import AccessRecord, Op


class Tally:
    """Takes the place of an access record, and what is noted in one, in half its memory and a third of its time.

    What nobody reads again has no value before the exchange sets one.
    """

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "client",
        "detail",
        "dur_us",
        "eos",
        "epoch",
        "guard_ms",
        "next_seq",
        "op",
        "reason",
        "retry_after_ms",
        "rseq",
        "status",
        "wait_us",
    )

    detail: str | None
    epoch: int | None
    eos: bool | None
    guard_ms: int | None
    next_seq: int | None
    retry_after_ms: int | None

    def __init__(self, op: Op | None) -> None:
        self.op: str | None = op
        self.status: int | None = None
        self.reason: str | None = None
        self.client: str | None = None
        self.rseq: int | None = None
        self.bytes_in: int | None = None
        self.bytes_out: int | None = None
        self.wait_us: int | None = None
        self.dur_us: int | None = None


Record = AccessRecord | Tally
"""What an exchange is noted in."""
