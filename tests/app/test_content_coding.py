"""Content codings: who gets a compressed response."""

from __future__ import annotations

import pytest

from tricklecast.app.content_coding import takes_gzip


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        ("gzip", True),
        ("br, gzip , zstd", True),
        ("gzip;q=0.5, identity", True),
        ("deflate, gzip; q=1.0", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip ; q=0.000, br", False),
        ("x-gzip", False),
    ],
)
def test_compressed_only_for_those_who_take_it(accepted: str, taken: bool) -> None:
    """A weight of 0 means that a client does not (RFC 9110, section 12.5.3)."""
    assert takes_gzip(accepted) == taken
