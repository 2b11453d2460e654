"""What middleware leaves in an ASGI scope for the routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Depends, Request

MAY_MANAGE: Final = "tricklecast.may_manage"
"""Tells of a channel's name whether the caller may know of it and manage it; missing where everybody may."""

HEALTH: Final = frozenset({"/healthz", "/readyz"})
"""A load balancer asks these, and they say nothing but that."""

METRICS: Final = "/metrics"

RECORD: Final = "tricklecast.record"
"""The access record of the request."""

MayManage = Callable[[str], bool]


def everything(name: str) -> bool:
    """Nothing is kept from the caller."""
    del name
    return True


def _may_manage(request: Request) -> MayManage:
    found: MayManage = request.scope.get(MAY_MANAGE, everything)
    return found


Visible = Annotated[MayManage, Depends(_may_manage)]
