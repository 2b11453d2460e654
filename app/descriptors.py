"""File descriptors: how many connections a process can have, whatever its settings allow."""

from __future__ import annotations

import contextlib
import logging
import resource
from dataclasses import replace
from typing import Final

from tricklecast.app.core.limits import Limits
from tricklecast.app.settings import Settings

_LOGGER = logging.getLogger(__name__)

SPARE: Final = 256
"""Descriptors that are for no ordinary connection: 64 connections beyond the limit, as many that are just being closed,
listeners, the access log, the event loop, questions to webhooks and key servers."""


def attainable_limits(settings: Settings) -> Limits:
    """The limits, with no more connections than the process can have; it is said if more were asked for."""
    limits = settings.limits()
    connections = open_to(limits.connections)
    if "max_connections" in settings.model_fields_set and limits.connections not in (None, connections):
        reason = "the process may not open more files"
        _LOGGER.warning("max_connections is %s instead of %s: %s", connections, limits.connections, reason)
    return replace(limits, connections=connections)


def open_to(connections: int | None) -> int | None:
    """Raise the process's limit of descriptors as far as it may, and is needed.

    Args:
        connections: that are wanted; ``None`` for as many as possible.

    Returns:
        How many there can be, at most ``connections``; ``None`` if there is no limit at all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if connections is None else connections + SPARE
    limit = fitting(wanted, hard)
    if soft != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > soft):
        # Where nothing limits a process, the kernel may have a limit that shows only here.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    limit = soft
    if limit == resource.RLIM_INFINITY:
        return connections
    return max(1, limit - SPARE) if connections is None else max(1, min(connections, limit - SPARE))


def fitting(wanted: int, hard: int) -> int:
    """As many descriptors as are wanted, and may be had."""
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
