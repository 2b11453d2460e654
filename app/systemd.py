"""systemd: sockets that it has opened for this service, readiness, and the watchdog.

systemd passes each fact in an environment variable. Without the variable, as without systemd, these calls do nothing.
Sources: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Final

FIRST_DESCRIPTOR: Final = 3
"""The descriptor of the first socket that systemd passes to a service."""

_LOGGER = logging.getLogger(__name__)


def sockets() -> list[socket.socket]:
    """The sockets that systemd has opened for this process.

    They are taken once: processes that this one starts do not inherit them.
    """
    pid, count, _ = (os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    descriptors = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def notify(state: str) -> None:
    """Tell systemd of a change, such as ``READY=1`` (``Type=notify``); never blocks."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
            telling.setblocking(False)
            telling.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError as error:  # systemd does not listen, or this process may open no further file
        _LOGGER.warning("cannot tell systemd %s: %s", state, error.strerror or error)


class Watchdog:
    """Tells systemd that the event loop turns (``WatchdogSec=``); systemd restarts a service that falls silent."""

    def __init__(self) -> None:
        mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        period_us = os.environ.get("WATCHDOG_USEC", "") if mine else ""
        # Half of the period, as sd_watchdog_enabled(3) recommends; None without a watchdog.
        self._every_s = int(period_us) / 2e6 if period_us.isdecimal() else None
        self._due_at = 0.0  # the next message, by the monotonic clock

    def beat(self) -> None:
        """Note that the event loop turns. The caller calls this several times in each period."""
        if self._every_s is not None and (now := time.monotonic()) >= self._due_at:
            self._due_at = now + self._every_s
            notify("WATCHDOG=1")
