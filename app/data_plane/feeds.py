"""The feed of a channel, for a client that holds a copy of it (docs/reference/protocol.md, section 9).

The request goes through the stages as every other one does, so limits, tokens and the webhook hold for it. Then its
connection carries the feed (:mod:`~tricklecast.app.replication.feed`), and has one line in the access log when it ends.
"""

from __future__ import annotations

import asyncio

from tricklecast.app.core.results import Cause
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import Reply, elsewhere_reply, refusal_reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.data_plane.stages import delay, kind_of, note_head, noted
from tricklecast.trickle.records import Figures


def send_feed(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Answer a request for the feed of a channel: switch its connection, or refuse it."""
    plane = connection.plane
    found = plane.registry.followed(route.channel)
    if isinstance(found, Channel):
        note_head(request, plane.registry, route)
        who = f"the client at {request.ip or 'a Unix socket'}"

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[str]:
            # Its place is taken in the step that has found it free: others may ask before the task begins. The task
            # may be cancelled before that, too, so the place is free again when it is done.
            plane.registry.feed_begun(found)
            task = asyncio.ensure_future(_send(plane, found, who, request.record, reader, writer))
            task.add_done_callback(lambda _: plane.registry.feed_over(found))
            return task

        return connection.switch(request, serve)
    reply = elsewhere_reply() if found.why is Cause.REPLICA else refusal_reply(found, route.op, plane.jitter)
    return delay(connection, request, route, kind_of(found), 0, send_feed) or noted(
        request, plane.registry, route, reply
    )


async def _send(
    plane: DataPlane,
    channel: Channel,
    who: str,
    record: Figures,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> str:
    def count(size: int) -> None:
        record.bytes_out = (record.bytes_out or 0) + size

    try:
        return await plane.feeds.send(channel, who, reader, writer, count)
    finally:
        channel.bytes_out += record.bytes_out or 0
