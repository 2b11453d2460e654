"""The processes of sources are forks of one that has imported their command; each would take a second otherwise."""

from __future__ import annotations

import pytest

from tests.support.forked import python
from tricklecast.app.sources import source

COMMAND = source.COMMAND
"""That of the product, which one test starts."""


@pytest.fixture(autouse=True)
def soon_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "COMMAND", (python(), *COMMAND[1:]))
