"""Connections whose peer does not read: looked at by the sweeper, and cut off when it has gone too far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.app.core.slow_readers import Cut, Stall, Timelines

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.plane import DataPlane


def cut_off_stalled(plane: DataPlane, timelines: Timelines, now: float) -> None:
    """Cut off those that stand still, or are too far behind in bytes or seconds."""
    segments = {reader.segment: None for reader in plane.catching_up}
    for connection in plane.stalled:
        if (reader := connection.reader()) is not None:
            segments[reader.segment] = None
    timelines.look(segments, now)
    for connection, stall in list(plane.stalled.items()):
        if (why := _judge(plane, connection, stall, timelines, now)) is not None:
            connection.cut_off(why)


def _judge(plane: DataPlane, connection: Connection, stall: Stall, timelines: Timelines, now: float) -> Cut | None:
    unsent = connection.transport.get_write_buffer_size()
    if stall.stands_still(unsent, now, plane.options.reader_lag_s):
        return Cut.STILL
    if (reader := connection.reader()) is None:
        return None
    if reader.lag() > plane.options.reader_lag_bytes:
        return Cut.BYTES
    return Cut.AGE if reader.is_overdue(timelines.overdue(reader.segment, now), unsent) else None
