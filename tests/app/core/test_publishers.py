"""Which clients publish to a channel, and which of them another one is told of."""

from __future__ import annotations

from tricklecast.app.core.publishers import Identity, Publishers

A, B = Identity("a"), Identity("b")
GRACE_S = 5.0


def test_nobody_publishes_to_a_new_channel() -> None:
    """Any client is let in."""
    assert Publishers(GRACE_S).other_than(A, 0.0, 0.0) is None


def test_a_client_with_a_writer_publishes() -> None:
    """However long ago it wrote: others are told of it and since when; it is never told of itself."""
    publishers = Publishers(GRACE_S)
    publishers.join(A, 3.0, 0.0)
    assert publishers.other_than(B, 100.0, 0.0) == (A, 97.0, None)
    assert publishers.other_than(A, 100.0, 0.0) is None


def test_a_client_leaves_with_its_last_writer() -> None:
    """One that wrote nothing does not count after that."""
    publishers = Publishers(GRACE_S)
    first, second = publishers.join(A, 0.0, 0.0), publishers.join(A, 1.0, 0.0)
    assert first is second
    publishers.leave(first)
    assert [(one.client, one.writers) for one in publishers] == [(A, 1)]
    publishers.leave(second)
    assert list(publishers) == []
    assert publishers.other_than(B, 1.0, 0.0) is None


def test_the_client_that_published_last_counts_for_the_grace() -> None:
    """Others are told how much longer."""
    publishers = Publishers(GRACE_S)
    publishers.last = publishers.join(A, 0.0, 0.0)
    publishers.leave(publishers.last)
    assert publishers.other_than(B, 12.0, 10.0) == (A, 12.0, 3.0)
    assert publishers.other_than(A, 12.0, 10.0) is None
    assert publishers.other_than(B, 15.0, 10.0) is None


def test_a_short_break_is_none() -> None:
    """A client that comes back within the grace has published since it first came; after it, anew."""
    publishers = Publishers(GRACE_S)
    publishers.last = publishers.join(A, 0.0, 0.0)
    publishers.leave(publishers.last)
    assert publishers.join(A, 14.0, 10.0).since == 0.0
    publishers.leave(publishers.last)
    assert publishers.join(B, 14.0, 10.0).since == 14.0
    assert publishers.join(A, 15.0, 10.0).since == 15.0


def test_a_client_that_leaves_does_not_count() -> None:
    """Its place is free at once, also while the server has not seen its connections end; its next writer counts."""
    publishers = Publishers(GRACE_S)
    publishers.last = publishers.join(A, 0.0, 0.0)
    publishers.dismiss(B)
    assert publishers.other_than(B, 10.0, 10.0) == (A, 10.0, None)
    publishers.dismiss(A)
    assert publishers.other_than(B, 10.0, 10.0) is None
    publishers.join(A, 11.0, 10.0)
    assert publishers.other_than(B, 11.0, 10.0) == (A, 11.0, None)
