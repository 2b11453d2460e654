"""Control planes of tests' servers are made for their first request, and share what reads their parameters.

FastAPI takes 40 ms of processor time for a control plane, which is most of a server's start, and most tests ask for
channels alone. A third of it is what pydantic takes to make forty validators, each time the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from fastapi._compat import v2
from starlette.types import Receive, Scope, Send

from tricklecast.app import node


class Later:
    """An ASGI application that is made for its first request."""

    def __init__(self, make: Callable[[], FastAPI]) -> None:
        self._make: Callable[[], FastAPI] = cache(make)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._make()(scope, receive, send)


def make_control_planes_later() -> None:
    """From now on, in this process and its forks."""
    make = node._control_plane
    if not isinstance(make, partial):
        setattr(node, "_control_plane", partial(_later, make))  # noqa: B010 - it has another type
        setattr(v2, "TypeAdapter", partial(_adapter, vars(v2)["TypeAdapter"], {}))  # noqa: B010 - the same


def _adapter(make: Callable[..., object], made: dict[object, object], annotated: Any, config: Any) -> object:
    key = annotated.__origin__, repr(annotated.__metadata__), repr(config)
    if key not in made:
        made[key] = make(annotated, config=config)
    return made[key]


def _later(make: Callable[..., FastAPI], *parts: object) -> Later:
    return Later(partial(make, *parts))
