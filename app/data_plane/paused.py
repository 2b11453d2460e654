"""Peers that go away while their connection is not read from, which only their sockets' state shows."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection

_HALF_CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""Where the system does not tell that (only Linux does), a reset is still seen: it is always reported."""


def gone(connections: Iterable[Connection]) -> list[Connection]:
    """Those of the connections whose peer has closed or reset them; asks the kernel once for all."""
    poll = select.poll()
    by_fd: dict[int, Connection] = {}
    for connection in connections:
        fd = connection.transport.get_extra_info("socket").fileno()
        if fd >= 0:
            by_fd[fd] = connection
            poll.register(fd, _HALF_CLOSED)
    return [by_fd[fd] for fd, _ in poll.poll(0)] if by_fd else []
