"""Writes access logs of made-up traffic, through the server's own record, so that both sides stay in step."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tricklecast.trickle.records import AccessRecord, Event, Kind, Op, Reason

BASE_US = 1_760_000_000_000_000
"""2025-10-09 08:53:20 UTC, on a full second and a full ten seconds, so that buckets begin where scenarios do."""

RELEASE = "probe/1.0"


@dataclass(slots=True)
class LogWriter:
    """Collects the records of one node; times are seconds from the log's beginning.

    Attributes:
        node: the server that "wrote" the log.
        rng: the only source of randomness.
        records: what was written, in the order of writing.
    """

    node: str
    rng: random.Random
    records: list[AccessRecord] = field(default_factory=list)

    def event(self, at: float, event: Event, channel: str | None = None) -> None:
        """Something happened."""
        self.records.append(AccessRecord(ts_us=us(at), kind=Kind.EVENT, node=self.node, event=event, channel=channel))

    def exchange(self, at: float, client: str | None, channel: str, **fields: Any) -> None:
        """One request with its answer; a plain GET unless the fields say otherwise."""
        known: dict[str, Any] = {
            "op": Op.READ,
            "method": "GET",
            "bytes_in": 0,
            "bytes_out": 0,
            "wait_us": 500,
            "dur_us": 700,
            "eos": False,
            "ip": "192.0.2.7",
            "conn": 1 + sum(map(ord, client or "")) % 997,
            "release": RELEASE,
            "attempt": 1,
        }
        self.records.append(
            AccessRecord(ts_us=us(at), node=self.node, client=client, channel=channel, **known | fields)
        )

    def served(self, at: float, client: str, channel: str, seq: int, /, **fields: Any) -> None:
        """A segment, with bytes."""
        usual = {"status": 200, "seq": seq, "rseq": seq, "next_seq": seq + 1, "bytes_out": 8192}
        self.exchange(at, client, channel, **usual | {"reason": Reason.COMPLETE} | fields)

    def empty(self, at: float, client: str, channel: str, seq: int, /, **fields: Any) -> None:
        """A segment that was closed without a byte."""
        usual = {"status": 200, "seq": seq, "rseq": seq, "next_seq": seq + 1, "reason": Reason.EMPTY}
        self.exchange(at, client, channel, **usual | fields)

    def ended(self, at: float, client: str, channel: str, seq: int, /, **fields: Any) -> None:
        """200 without bytes, with Lp-Trickle-Closed: the channel is draining."""
        self.empty(at, client, channel, seq, **{"eos": True, "next_seq": seq, "reason": Reason.TERMINATED} | fields)

    def not_found(self, at: float, client: str, channel: str, seq: int = -1, /, **fields: Any) -> None:
        """404."""
        self.exchange(at, client, channel, **{"status": 404, "seq": seq, "reason": Reason.NOT_FOUND} | fields)

    def missing(self, at: float, client: str, channel: str, seq: int, /, head: int, **fields: Any) -> None:
        """470."""
        usual = {"status": 470, "seq": seq, "next_seq": head, "reason": Reason.AHEAD if seq >= head else Reason.GONE}
        self.exchange(at, client, channel, **usual | fields)

    def refused(self, at: float, client: str, channel: str, status: int = 503, **fields: Any) -> None:
        """429 or 503."""
        usual = {"status": status, "seq": -1, "reason": Reason.limit("readers"), "retry_after_ms": 1000}
        self.exchange(at, client, channel, **usual | fields)

    def abandoned(
        self, at: float, client: str, channel: str, seq: int | None, wait_s: float | None, /, **fields: Any
    ) -> None:
        """A GET that was given up after so many seconds; not known if ``None``."""
        usual = {"seq": -1 if seq is None else seq, "rseq": seq, "next_seq": seq, "reason": Reason.CLIENT_GONE}
        waited = {"wait_us": None, "dur_us": None if wait_s is None else round(wait_s * 1_000_000)}
        self.exchange(at, client, channel, **usual | waited | fields)

    def posted(self, at: float, client: str, channel: str, seq: int, status: int = 200, /, **fields: Any) -> None:
        """A segment published."""
        usual = {"op": Op.PUBLISH, "method": "POST", "status": status, "seq": seq, "rseq": seq, "bytes_in": 8192}
        self.exchange(at, client, channel, **usual | {"reason": Reason.COMPLETE} | fields)

    def lines(self) -> list[str]:
        """The log, in the order of arrival, as a server writes it."""
        ordered = sorted(self.records, key=lambda record: record.ts_us)
        return [json.dumps(record.as_dict(), separators=(",", ":")) for record in ordered]


def us(at: float) -> int:
    """Seconds from the log's beginning as microseconds since the epoch."""
    return BASE_US + round(at * 1_000_000)


def write_lines(path: Path, lines: Iterable[str | bytes]) -> Path:
    """Writes lines, texts or raw bytes, and returns the path."""
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path
