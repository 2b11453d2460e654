"""Memory and cores that this process may use. The limits of its control groups, as of a container, count.

A process is in one group of each hierarchy, and every group around it limits it, too (cgroups(7)).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from math import ceil
from pathlib import Path, PurePosixPath
from typing import Final

from tricklecast.app.core.limits import Limits

CGROUP: Final = Path("/sys/fs/cgroup")
OWN_GROUP: Final = Path("/proc/self/cgroup")

SHARE: Final = 2
"""Segments get half of the memory. The other half is for the interpreter, connections, queues, and freed memory that
malloc does not give back at once."""


def default_budget() -> int:
    """The default of ``max_total_bytes``: the usual budget, or less on a small machine."""
    allowed = memory_limit()
    usual = Limits().total_bytes
    return usual if allowed is None else min(usual, allowed // SHARE)


def memory_limit(cgroup: Path = CGROUP, own_group: Path = OWN_GROUP) -> int | None:
    """Bytes that this process may use: the least of the machine's, its groups' and its own limit; ``None``: unknown.

    Args:
        cgroup: where the control groups are mounted.
        own_group: says in which groups this process is.
    """
    limits = []
    for folder in _groups("memory", cgroup, own_group):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max", or not there
                limits.append(int((folder / name).read_text(encoding="ascii")))
    with contextlib.suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limits, default=None)


def usable_cores(cgroup: Path = CGROUP, own_group: Path = OWN_GROUP) -> int:
    """Cores that this process may use: those that it may run on, or fewer if one of its groups has a quota.

    A quota of 1.5 cores counts as two, since one process could not use it up.

    Args:
        cgroup, own_group: as for :func:`memory_limit`.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [float(own)]
    for folder in _groups("cpu", cgroup, own_group):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # "max 100000", or not there
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            limits.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
            )
            if int(quota) > 0:  # -1: no limit
                limits.append(int(quota) / int(period))
    return max(1, ceil(min(limits)))


def _groups(controller: str, cgroup: Path, own_group: Path) -> Iterator[Path]:
    """The folders of the groups in which this process is, and of those around them.

    A line of ``/proc/self/cgroup`` is ``0::/path`` (version 2) or ``4:memory:/path`` (version 1). In a container the
    path is ``/``, or names a group that is not mounted there: then the top of the mount is the container's own group.
    """
    try:
        lines = own_group.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and controller not in controllers.split(","):
            continue
        root = cgroup if number == "0" else cgroup / controller
        group = PurePosixPath(path.lstrip("/"))
        for place in (group, *group.parents):
            yield root / place
