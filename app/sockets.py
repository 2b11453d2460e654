"""Options of the listening socket, which every connection that it accepts inherits."""

from __future__ import annotations

import socket
from typing import Final

UNSENT_BYTES: Final = 128 << 10
"""What the kernel takes of a connection beyond what is on its way to the peer. Without it a peer that does not read
has up to 4 MiB of kernel memory to itself (``tcp_wmem``), and its lag is known only when they are full."""

KEEP_ALIVE_PROBES: Final = 3
"""So many probes without an answer, the last third of the time, and the peer is gone."""


def tune(listener: socket.socket, *, peer_timeout_s: int) -> None:
    """Bound what a connection holds in the kernel, and how long it outlives a peer that vanished without a word.

    What a system does not know is left out.

    Args:
        listener: a TCP socket.
        peer_timeout_s: how long a peer may acknowledge nothing, in seconds.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause_s = max(1, peer_timeout_s // (2 * KEEP_ALIVE_PROBES))
    options = {
        "TCP_NOTSENT_LOWAT": UNSENT_BYTES,
        "TCP_KEEPIDLE": max(1, peer_timeout_s - KEEP_ALIVE_PROBES * pause_s),
        "TCP_KEEPINTVL": pause_s,
        "TCP_KEEPCNT": KEEP_ALIVE_PROBES,
        "TCP_USER_TIMEOUT": peer_timeout_s * 1000,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
