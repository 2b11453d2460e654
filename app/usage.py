"""The use of each limit, the readers that lag, and the parts of the server that do not work at present."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tricklecast.app.access_log import STALLED_S, AccessLog
from tricklecast.app.bus import Bus
from tricklecast.app.core.limits import UNLIMITED, Capacity
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.scheduling import SlowReader

if TYPE_CHECKING:
    from tricklecast.app.cluster.member import Member
    from tricklecast.app.mirror.routes import MirrorModel

MAX_READERS_EXAMINED: Final = 5_000
"""Lagging readers that are examined, which takes about 1 ms. Those that have stalled longest come first, and lag
most."""


class Use(NamedTuple):
    """A limit that all clients share.

    Attributes:
        limit: its name. most: the limit, a number of objects or bytes; ``None``: none. used: the present number.
        joinable: whether new clients are let in; ``None`` for a limit without a reserve for present clients.
    """

    limit: str
    most: int | None
    used: int
    joinable: bool | None = None


def limits_in_use(plane: DataPlane, log: AccessLog | None, bus: Bus, dashboards: Capacity | None = None) -> list[Use]:
    """Every limit that all clients share, and its use.

    Args:
        plane: the data plane. log: the access log, if there is one. bus: subscriptions and changes.
        dashboards: those that are open, where there are web pages.
    """
    registry = plane.registry
    capacities: dict[str, Capacity] = registry.capacities._asdict()
    if dashboards is not None:
        capacities["dashboards"] = dashboards
    capacities |= {"followers": bus.changes.followers, "subscriptions": bus.used}
    uses = [
        Use(name, None if one.limit == UNLIMITED else one.limit, one.used, one.joinable)
        for name, one in capacities.items()
    ]
    uses.append(Use("total_bytes", registry.limits.total_bytes, registry.budget.used))
    if log is not None:
        uses.append(Use("access_log_queue", log.limit, log.queued))
    return uses


def ailments(plane: DataPlane, log: AccessLog | None, member: Member | None = None) -> dict[str, str]:
    """The parts that do not work at present, and the resources that have run out, while the server goes on.

    Returns:
        Their names, each with why, in words that stay the same while the cause does.
    """
    storage = plane.registry.storage
    found: dict[str, str] = {}
    if storage is not None and storage.failed is not None:
        found["storage"] = storage.failed
    elif _lacks_room(member):
        found["storage"] = "NATS does not take what publishers send"
    if log is not None and log.stalled:
        found["access_log"] = f"no record could be written for {STALLED_S:.0f} s"
    if plane.short_of_memory:
        found["memory"] = "requests that need more are refused"
    if member is not None and member.degraded:
        found["cluster"] = member.degraded
    if _is_short_of_descriptors():
        found["descriptors"] = "each new connection is closed at once"
    return found


def troubles(
    plane: DataPlane,
    log: AccessLog | None,
    member: Member | None = None,
    mirror: Callable[[], MirrorModel] | None = None,
) -> list[str]:
    """The names of :func:`ailments`, and of a mirror that does not work.

    Args:
        mirror: tells how the mirror of this server stands, if it can have one.
    """
    found = list(ailments(plane, log, member))
    if mirror is not None and mirror().ailing:
        found.append("mirror")
    return found


def _lacks_room(member: Member | None) -> bool:
    """Whether NATS does not take what publishers of a node send."""
    return member is not None and member.quorum is not None and member.quorum.streams.failing


def _is_short_of_descriptors() -> bool:
    """Whether the process has no free descriptor, so that the event loop closes each new connection at once."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def lagging(plane: DataPlane) -> list[SlowReader]:
    """The readers that lag: those whose connection is full, and those that catch up."""
    stalled = (peer.reader() for peer in plane.slow_peers.stalled)
    return [reader for reader in islice(chain(stalled, plane.turns), MAX_READERS_EXAMINED) if reader is not None]
