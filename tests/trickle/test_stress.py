"""The contract of the stress test's workers: orders, rows and lines."""

from __future__ import annotations

import pytest

from tricklecast.trickle import stress
from tricklecast.trickle.load import Load
from tricklecast.trickle.stress import Left, Orders, Received, Seat, Sent, from_line, from_row, to_line, to_row

LOAD = Load(seed=7, channels=4, segments=10, every_s=0.5, smallest=100, largest=3_000_000, chunk_bytes=65_536)


def test_orders_survive_the_conversation() -> None:
    """What is written is read again."""
    orders = Orders((Seat(0, "http://host/trickle/a"), Seat(1, "http://host/trickle/b", 3)), LOAD, "next", "ca.pem")
    line = to_line(orders=orders.dump())
    assert line.endswith(b"\n")
    assert Orders.read(from_line(line)["orders"]) == orders


@pytest.mark.parametrize(
    "record",
    [
        Sent(0, 1, 2, 3, "digest", 4, 5, 6, "refused"),
        Received(0, 1, 2, -1, 3, "digest", 4, 5, 6, "broken"),
        Left("publisher", 0, 0, 0, "", {"requests": 4}),
    ],
)
def test_records_survive_the_conversation(record: stress.Record) -> None:
    """What is written is read again, as the same kind."""
    assert from_row(from_line(to_line(rows=[to_row(record)]))["rows"][0]) == record


def test_other_lines_are_refused() -> None:
    """A line is a JSON object."""
    with pytest.raises(ValueError, match="JSON object"):
        from_line(b"[]\n")
