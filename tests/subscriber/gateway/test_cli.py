"""``tricklecast gateway webrtc``: what it says before it listens."""

from __future__ import annotations

import socket

import pytest

from tricklecast.subscriber.gateway.cli import _listener
from tricklecast.trickle.errors import InvalidInput


def test_a_port_in_use_is_said_in_few_words() -> None:
    """Python adds the address once more."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use$"):
            _listener("127.0.0.1", port)
