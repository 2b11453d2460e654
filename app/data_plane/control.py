"""Connections at the control plane's own address: nothing there is a segment route."""

from __future__ import annotations

from app.data_plane.protocol import NO_HEAD, TrickleProtocol


class ControlProtocol(TrickleProtocol):
    """Hands every request to FastAPI; all that protects connections is that of the data plane."""

    __slots__ = ()

    def on_headers_complete(self) -> None:
        self._head_packets = NO_HEAD
        if not self.deaf:
            self._delegate()
