"""Where a server can be reached."""

from __future__ import annotations

import socket

import pytest

from tricklecast.app.listening import listen

REACHED_S = 30.0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "reachable"), [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("0.0.0.0", ["127.0.0.1"])]
)
def test_every_address_is_every_one(host: str, reachable: list[str]) -> None:
    """``::`` takes in who comes over IPv4, too; any other address is what it says."""
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            if address in reachable:
                socket.create_connection((address, port), timeout=REACHED_S).close()
            else:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((address, port), timeout=REACHED_S)
