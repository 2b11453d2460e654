"""The processes of relays are forks of one that has imported them; each would take half a second otherwise."""

from __future__ import annotations

import sys

import pytest

from tests.support.forked import python


@pytest.fixture(autouse=True)
def soon_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python())
