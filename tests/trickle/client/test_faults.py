"""Why a request got no response."""

from __future__ import annotations

from tricklecast.trickle.client import faults


def test_a_client_can_catch_all_of_them() -> None:
    """Each is a ``TransportError``."""
    kinds = [kind for kind in vars(faults).values() if isinstance(kind, type)]
    assert len(kinds) > 10
    assert all(issubclass(kind, faults.TransportError) for kind in kinds)
