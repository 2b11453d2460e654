"""More than one listener, and listeners that speak TLS: the control plane may have an address of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.tls_listener import TlsListener


async def nothing_else(scope: Scope, receive: Receive, send: Send) -> None:
    """What the data plane's address has outside the base path, where the control plane has its own."""
    await PlainTextResponse("Not found", 404)(scope, receive, send)


async def serve_on(
    server: uvicorn.Server,
    config: uvicorn.Config,
    listener: socket.socket,
    plane: DataPlane,
    tls: ssl.SSLContext | None,
) -> None:
    """Serve on one more socket, until the server shuts down.

    Args:
        server: has started; its connections and those of this socket end together.
        config: of what is served there, loaded.
        listener: bound.
        plane: what all connections share.
        tls: how TLS is spoken there; ``None`` for plain connections.
    """
    make = partial(
        cast(Any, config.http_protocol_class),
        config=config,
        server_state=server.server_state,
        app_state=server.lifespan.state,
    )
    if tls is None:
        opened = await asyncio.get_running_loop().create_server(make, sock=listener, backlog=config.backlog)
    else:
        opened = cast(Any, TlsListener(listener, tls, plane, make))
    server.servers.append(opened)
