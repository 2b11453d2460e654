"""What failed on one node in one second."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from tricklecast.analytics.answers import Answer
from tricklecast.analytics.durations import SECOND_US
from tricklecast.analytics.own_time import own_us
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.signals import Cell, Signal

TOLD_MS = 1000
"""When a refused client is expected back, if it was not told."""

Asking = tuple[str, str | None, str]
"""A client, a channel and a kind of answer."""


@dataclass(slots=True)
class Second:
    """What failed in one second: rows with the end of the same client's row before.

    Attributes:
        written: the rows, for the ledger, until one of them changes.
    """

    rows: dict[tuple[Asking, Cell], tuple[Signal, int | None]] = field(default_factory=dict)
    n: int = 0
    clients: set[str | None] = field(default_factory=set)
    first_us: int = 0
    last_us: int = 0
    refused: int = 0
    early_clients: int = 0
    early: int = 0
    written: orjson.Fragment | None = None

    def as_json(self) -> orjson.Fragment:
        """For the ledger."""
        if self.written is None:
            self.written = orjson.Fragment(orjson.dumps([row.as_list() for row, _ in self.rows.values()]))
        return self.written

    def count(self, params: StormParams) -> None:
        """Brings the figures up to date."""
        self.written = None
        known = self.rows.values()
        refused = [(row, early_requests(row, before, params)) for row, before in known if row.answer is Answer.OVERLOAD]
        self.n = sum(row.n for row, _ in known)
        self.clients = {row.client for row, _ in known}
        self.first_us = min(row.first_us for row, _ in known)
        self.last_us = max(row.last_us for row, _ in known)
        self.refused = sum(row.n for row, _ in refused)
        # Clients that wait as they are told have no part in it, however many they are.
        self.early_clients = len({row.client for row, early in refused if early})
        self.early = sum(early for _, early in refused)

    def in_first_half(self, bucket_us: int) -> set[str | None]:
        """Clients in the half that follows its beginning."""
        return {row.client for row, _ in self.rows.values() if row.first_us < bucket_us + SECOND_US // 2}

    def in_last_half(self, end_us: int) -> set[str | None]:
        """Clients in the half that precedes its end."""
        return {row.client for row, _ in self.rows.values() if row.last_us >= end_us - SECOND_US // 2}

    def is_hot(self, params: StormParams) -> bool:
        """Many are refused, and come again so early that it is the retries that keep the server busy."""
        wanted = self.refused - self.early
        return self.early_clients >= params.many_clients and self.refused >= params.amplification * wanted


def early_requests(row: Signal, before_us: int | None, params: StormParams) -> int:
    """How many of a row's refusals came long before the client was told to come again."""
    told_us = (TOLD_MS if row.retry_after_ms is None else row.retry_after_ms) * 1000 * params.early
    inside = own_us(row.last_us - row.first_us, row.guard_ms or 0, row.n) / max(1, row.n - 1)
    others = row.n - 1 if inside < told_us else 0
    return others + int(before_us is not None and row.first_us - before_us < told_us)
