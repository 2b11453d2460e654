"""The control plane at an address of its own: a second listener of the same server."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from app.data_plane.control import ControlProtocol
from app.data_plane.plane import DataPlane


async def nothing_else(scope: Scope, receive: Receive, send: Send) -> None:
    """What the data plane's address has outside the base path, where the control plane has its own."""
    await PlainTextResponse("Not found", 404)(scope, receive, send)


async def listen_for_control(
    server: uvicorn.Server, config: uvicorn.Config, plane: DataPlane, listener: socket.socket
) -> None:
    """Serve the control plane on one more socket, until the server shuts down.

    Args:
        server: has started; its connections and those of the control plane end together.
        config: of the control plane, loaded.
        plane: what all connections share.
        listener: bound.
    """
    protocol = partial(ControlProtocol, plane, config, server.server_state, server.lifespan.state)
    loop = asyncio.get_running_loop()
    server.servers.append(
        await loop.create_server(protocol, sock=listener, ssl=config.ssl, backlog=config.backlog),
    )
