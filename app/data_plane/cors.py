"""Which pages of other origins may read, and which may write (temporary)."""

from __future__ import annotations

from collections.abc import Mapping

from tricklecast.app.data_plane.responses import Reply


class Cors:
    def headers(self, headers: Mapping[bytes, bytes]) -> bytes:
        return b"access-control-allow-origin: *\r\n"

    def refusal(self, method: bytes, headers: Mapping[bytes, bytes]) -> Reply | None:
        return None

    def preflight(self, headers: Mapping[bytes, bytes]) -> Reply:
        return Reply(204, "complete")
