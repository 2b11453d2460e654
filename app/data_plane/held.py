"""Channels of another server that are held here: which requests are answered here, and how their readers are sent away.

**A holder answers a request only if its owner would give the same answer**: reads of segments that it has, of the next
one, and of HLS media and playlists on which both agree. All other requests go to the owner: POST, DELETE, the head, a
seq that the holder does not have. So a holder that is a moment behind refuses nobody, and the owner's storm guard sees
every loop of requests that bring nothing new. Where the owner stores segments, it also answers streams that begin at a
closed one, since only the owner can go on from storage when the window has passed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.exchange import Parked
from tricklecast.app.data_plane.handler import resolve
from tricklecast.app.data_plane.players import only_owner_answers
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.data_plane.stages import proceed
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

READS: Final = frozenset({Op.READ, Op.STREAM, Op.CHANGES, Op.PLAYLIST, Op.HLS})
"""Requests that a holder of a channel may answer as its owner does. The head (``next``) is not among them, since
publishers ask for it, and go on there."""

ASK_AGAIN: Final = Reply(
    Status.UNAVAILABLE, Reason.REPLICA, body=b"This channel moves: ask again", close=True, retry_after_s=1
)
"""The answer to a reader of a replica that ends."""


def has_answer(channel: Channel, route: Route, *, stored: bool) -> bool:
    """Whether a holder answers a read as the owner does, as far as this copy of the channel tells. HLS is left out.

    Args:
        stored: whether the owner may have segments in storage.
    """
    if route.seq is None:
        return False  # the path is wrong
    seq = route.seq if route.seq >= 0 else channel.next_seq + route.seq + 1
    segment = channel.segments.get(seq)
    if segment is None:
        return seq == channel.next_seq
    return not stored or not segment.closed or route.op is not Op.STREAM


def holder_answers(plane: DataPlane, channel: Channel | None, route: Route, *, stored: bool) -> bool:
    """Whether this holder of a channel answers a read of it; ``None``: nothing has come of the channel yet."""
    if channel is None or channel.ended or channel.reading.full:
        return False
    if route.op in (Op.PLAYLIST, Op.HLS):
        return not only_owner_answers(plane, route)
    return has_answer(channel, route, stored=stored)


def send_away(plane: DataPlane, channel: Channel, *, cut: bool = True) -> None:
    """Tell the readers of a channel to ask again.

    Args:
        cut: one in the middle of a segment loses its connection; without, it reads to the end.
    """
    send_all_away(plane, [channel], cut=cut)


def send_all_away(plane: DataPlane, channels: Sequence[Channel], *, cut: bool = True) -> None:
    """Do so for many channels: each request that waits is looked at once."""
    for channel in channels:
        segments = [*channel.segments.values(), *channel.window.lingering]
        for cursor in [cursor for segment in segments for cursor in segment.cursors]:
            if isinstance(cursor, Reader) and cursor.ending is None and not cursor.done:
                if cursor.answerable:
                    cursor.send_away(ASK_AGAIN)
                elif cut:
                    cursor.connection.abort(Reason.REPLICA)
    names = {channel.name for channel in channels}
    for why in (ParkedFor.PLAYLIST, ParkedFor.GUARD):
        for parked in list(plane.parked[why]):
            if isinstance(parked, Parked) and _waits_for(parked, names):
                parked.send_away(ASK_AGAIN)


def keep_readers(plane: DataPlane, before: Channel, channel: Channel) -> None:
    """Let the readers of a channel go on, of which this server has become the owner, or is no longer the owner.

    Args:
        before: which it was; all that it had is the other object's now.
    """
    keep_all_readers(plane, {before: channel})


def keep_all_readers(plane: DataPlane, heirs: Mapping[Channel, Channel]) -> None:
    """Do so for many channels: each connection is looked at once.

    Args:
        heirs: by the channel that was, the one to which all goes that it had.
    """
    cursors: list[object] = []
    for before, channel in heirs.items():
        if (flow := plane.turns.flows.get(before)) is not None:
            plane.turns.flows[channel] = flow  # readers that wait for their turn count in it
        for segment in (*channel.segments.values(), *channel.window.lingering):
            cursors += segment.cursors
    if any(before.retained is not None for before in heirs):
        # Segments that are read again from storage are no part of the channel.
        cursors += [connection.exchange for connection in plane.connections]
    for cursor in cursors:
        if isinstance(cursor, Reader) and (heir := heirs.get(cursor.channel)) is not None:
            cursor.channel = heir
    names = {channel.name for channel in heirs.values()}
    for parked in list(plane.parked[ParkedFor.PLAYLIST]):
        if isinstance(parked, Parked) and _waits_for(parked, names):
            restart(parked)


def restart(parked: Parked) -> None:
    """Ask anew how a request is to be answered that waits for something else."""
    request = parked.request
    assert request.route is not None, "it waits for a channel"
    parked.withdraw()
    proceed(parked.connection, request, request.route, resolve)


def _waits_for(parked: Parked, names: Container[str]) -> bool:
    """Whether a parked request reads a channel of these names."""
    route = parked.request.route
    return route is not None and route.op in READS and route.channel in names
