"""All cases, in the order of the protocol: reading their names and rules from top to bottom is learning it."""

from __future__ import annotations

from typing import Final

from tricklecast.app.conformance.case import Case, Group
from tricklecast.app.conformance.cases import (
    clients,
    end,
    http,
    keep_alive,
    malformed,
    methods,
    names,
    order,
    publish,
    publish_refused,
    read,
    readers,
    rebirth,
    refusals,
    reserve,
    resolve,
    routes,
)

GROUPS: Final[tuple[Group, ...]] = (
    routes.HEAD,
    routes.ROUTES,
    names.NAMES,
    names.SEQS,
    methods.METHODS,
    methods.BROWSERS,
    methods.CHANGES,
    publish.PUBLISH,
    publish.AHEAD,
    publish_refused.REPEATED,
    publish_refused.TOO_LARGE,
    order.TAKEOVER,
    order.ORDER,
    order.LOST,
    order.RESETS,
    order.IDLE,
    resolve.MISSING,
    resolve.RESOLVE,
    read.READ,
    read.EMPTY,
    readers.READERS,
    end.END,
    end.DRAIN,
    rebirth.REBIRTH,
    rebirth.EXPIRY,
    refusals.REFUSALS,
    reserve.RESERVE,
    clients.CLIENTS,
    http.HTTP,
    keep_alive.KEEP_ALIVE,
    malformed.MALFORMED,
)

CASES: Final[tuple[Case, ...]] = tuple(case for group in GROUPS for case in group.cases)
