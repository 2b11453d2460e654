"""One server with default settings for each module, and a client of it for each test."""

from __future__ import annotations

import pytest

from tests.app.conftest import target
from tests.app.data_plane.conftest import server
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

__all__ = ["channel", "server", "target"]


@pytest.fixture
def channel(target: Target) -> RemoteChannel:
    """A channel as an orchestrator hands it out: created, nobody has used it yet."""
    channel = target.channel()
    channel.create("video/mp2t")
    return channel
