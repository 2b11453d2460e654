"""The memory that this process may use: the least of the machine's, its control group's, and its own limit."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path, PurePosixPath
from typing import Final

from tricklecast.app.core.limits import Limits

CGROUP: Final = Path("/sys/fs/cgroup")
OWN_GROUP: Final = Path("/proc/self/cgroup")

SHARE: Final = 2
"""Segments get half of it. The other half is for the interpreter, connections, queues, and freed memory that malloc
does not give back at once."""


def default_budget() -> int:
    """The default of ``max_total_bytes``: the usual budget, or less on a small machine."""
    allowed = memory_limit()
    usual = Limits().total_bytes
    return usual if allowed is None else min(usual, allowed // SHARE)


def memory_limit(cgroup: Path = CGROUP, own_group: Path = OWN_GROUP) -> int | None:
    """Bytes that this process may use: the least of all limits; ``None`` if none is known.

    Args:
        cgroup: where the control groups are mounted.
        own_group: says in which groups this process is (cgroups(7)).
    """
    limits = _of_groups(cgroup, own_group)
    with contextlib.suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limits, default=None)


def _of_groups(cgroup: Path, own_group: Path) -> list[int]:
    """The limits of the control groups in which the process is, and of those around them.

    A line of ``/proc/self/cgroup`` is ``0::/path`` (version 2) or ``4:memory:/path`` (version 1). In a container the
    path is ``/``, or names a group that is not mounted there: then the top of the mount is the container's own group.
    """
    limits = []
    try:
        lines = own_group.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            root, name = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for place in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # "max", or not there
                limits.append(int((root / place / name).read_text(encoding="ascii")))
    return limits
