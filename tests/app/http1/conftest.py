"""One server with default settings for each module."""

from __future__ import annotations

from tests.app.data_plane.conftest import server

__all__ = ["server"]
