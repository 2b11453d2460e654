"""Whether the hot path is compiled here (docs/adr/0047)."""

from __future__ import annotations

import importlib.util

import pytest

SEGMENT = importlib.util.find_spec("tricklecast.app.core.segment")
COMPILED = SEGMENT is not None and SEGMENT.origin is not None and not SEGMENT.origin.endswith(".py")


def needs_interpreter() -> None:
    """Skip a test where the hot path is compiled: it puts something into a module that compiled code does not see."""
    if COMPILED:
        pytest.skip("the hot path is compiled")
