"""Connections overtake each other: clients that do not wait for answers send each segment on whichever is free.

Seen with pytrickle (a new connection per segment) and livepeer-python-gateway (kept ones mixed with new ones): the
segments of a burst arrive in any order, a few places from where they belong.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.local import local_server
from tricklecast.app.tools.conformance.target import Target


@pytest.fixture(scope="module")
def patient() -> Iterator[Target]:
    """A client of a server whose grace does not end by accident, however slow the machine."""
    with local_server(overtaking_grace_s=15, skip_grace_s=60) as server, server.client() as target:
        yield target


@pytest.mark.parametrize("order", [[2, 1], [3, 2, 1], [2, 3, 1, 5, 4], [6, 5, 4, 3, 2, 1]], ids=str)
def test_a_burst_arrives_in_any_order(patient: Target, order: list[int]) -> None:
    """Every segment is taken under its number, and the reader that waits for the first of them gets each in turn."""
    channel = patient.channel()
    channel.publish(0)
    reader = channel.waiting(1)
    uploads = [channel.upload(seq, b"message %d" % seq).end() for seq in order]
    for upload in uploads:
        upload.answer().expect(200)
    reader.response().segment(1, b"message 1")
    for seq in range(2, max(order) + 1):
        channel.get(seq).segment(seq, b"message %d" % seq)
    assert channel.next_seq() == max(order) + 1


def test_a_segment_that_was_overtaken_can_be_asked_for(patient: Target) -> None:
    """A reader that comes between the later segment and the earlier one waits for it, instead of being sent on."""
    channel = patient.channel()
    channel.publish(0)
    channel.post(2, b"overtook").expect(200)
    reader = channel.waiting(1)
    reader.silent()
    channel.post(1, b"overtaken").expect(200)
    reader.response().segment(1, b"overtaken")
    channel.get(2).segment(2, b"overtook")


def test_a_segment_that_never_comes_is_not_waited_for_long() -> None:
    """After the grace its reader gets the empty answer, and goes on with the next."""
    with local_server(overtaking_grace_s=0.05) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0)
        reader = channel.waiting(1)
        channel.post(2, b"next").expect(200)
        reader.response().segment(1, b"")
        channel.get(2).segment(2, b"next")
