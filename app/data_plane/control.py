"""Connections at the control plane's own address: nothing there is a segment route."""

from __future__ import annotations

from tricklecast.app.data_plane.protocol import TrickleProtocol


class ControlProtocol(TrickleProtocol):
    """Hands every request to FastAPI; all that protects connections is that of the data plane."""

    __slots__ = ()

    has_routes = False
