"""Packages whose public names are loaded when they are first used."""

from __future__ import annotations

import pytest

from tricklecast.trickle import wire
from tricklecast.trickle.lazy import lazy


def test_a_name_is_loaded_from_its_module() -> None:
    """All names are listed, loaded or not; others are no attributes."""
    names, load, listed = lazy("tricklecast.trickle", {".wire": "LATEST CLOSED", ".errors": "TrickleError"})
    assert names == ["CLOSED", "LATEST", "TrickleError"]
    assert load("LATEST") is wire.LATEST
    assert {*names, "__version__"} <= set(listed())
    with pytest.raises(AttributeError, match=r"module 'tricklecast\.trickle' has no attribute 'Nothing'"):
        load("Nothing")
