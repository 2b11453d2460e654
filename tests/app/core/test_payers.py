"""Publishers as those who pay."""

from __future__ import annotations

from tricklecast.app.core.payers import Payers


def test_publishers_are_known_while_somebody_holds_them() -> None:
    """One for each name; of those that have nothing unfinished only the newest, and without a quota none."""
    payers = Payers(10)
    first = payers.of("a")
    assert first is not None
    assert (payers.of("a") is first, payers.of("b") is first, first.quota, len(payers)) == (True, False, 10, 2)
    assert payers.of("a") is first
    assert len(payers) == 1
    payers.of("c")
    del first
    assert len(payers) == 1
    assert Payers(None).of("a") is None


def test_a_quota_does_not_grow() -> None:
    """A publisher of one process has what it has."""
    payer = Payers(10).of("a")
    assert payer is not None
    assert not payer.extends(1)
    assert payer.quota == 10
