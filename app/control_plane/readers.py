"""The readers of one channel, for an operator who looks for the one that lags, and the end of one of them.

**The problem.** A channel may have ten thousand readers, and the dashboard's feed tells of each channel two numbers.

**The idea.** The list is made when somebody asks for it, of what the requests hold anyway. It is bounded: readers that
lag come first, since an operator looks for those, then others until :data:`MAX_READERS` requests were looked at. A
subscriber has two requests, one for a segment and one for the next: requests of one client for two segments in a row
are one reader, as in :attr:`~tricklecast.app.core.state.Channel.audience`.

Addresses are masked as in the access log (``--log-ips``). Without an access log, requests keep neither the name nor the
program of their client: then the list has its address alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, Field

from tricklecast.app.control_plane.api import ChannelName, checked
from tricklecast.app.control_plane.middleware import Visible
from tricklecast.app.control_plane.models import ProblemModel
from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.reader import Reader
from tricklecast.trickle.records import AccessRecord

MAX_READERS: Final = 500
"""Requests of readers that one answer looks at; that takes a few milliseconds."""


class ReaderModel(BaseModel):
    """One reader."""

    client: str | None = Field(description="The name that it gives itself, or a key; null without an access log.")
    address: str | None = Field(description="Masked as in the access log.")
    program: str | None = Field(description="Its user agent; null without an access log.")
    seq: int = Field(description="The segment that it reads; of two the earlier one.")
    waits: bool = Field(description="Whether it only waits: it was sent nothing of this segment yet.")
    lag: int = Field(description="Body bytes published while it was there and not sent to it.")
    late_s: float = Field(description="For how many seconds it has lacked the oldest byte that it lacks; 0 if none.")
    since: datetime = Field(description="When its present request came.")
    connections: list[int] = Field(description="Numbers of its connections on this server.")


class ReadersModel(BaseModel):
    """Readers of a channel: those that lag first."""

    channel: str
    readers: list[ReaderModel]
    others: int = Field(
        description="Readers that are not listed: beyond 500 requests, players of HLS, and those at other workers."
    )


class EndedModel(BaseModel):
    """A reader that was ended."""

    channel: str
    connection: int


def readers_router(
    plane: DataPlane, lagging: Callable[[], Iterable[object]], mask: Callable[[dict[str, Any]], None] | None
) -> APIRouter:
    """The routes below ``/api/v1/channels/NAME/readers``.

    Args:
        plane: of this process, which owns every channel for whose route a request comes.
        lagging: returns the readers of all channels that lag.
        mask: masks the fields ``ip`` and ``client``; ``None``: they are shown as they are.
    """
    router = APIRouter(prefix="/api/v1/channels", tags=["channels"])

    def found(name: str, visible: Visible) -> Channel:
        channel = plane.registry.channels.get(checked(name, visible))
        if channel is None:
            raise HTTPException(404, "no such channel")
        return channel

    @router.get("/{name}/readers", summary="List the readers", responses={404: {"model": ProblemModel}})
    async def list_readers(name: ChannelName, visible: Visible) -> ReadersModel:
        """Those that lag come first. A client that reads a segment and waits for the next one is one reader."""
        channel = found(name, visible)
        now, wall_s = plane.clock(), plane.wall_us() / 1e6
        late_s = plane.slow_peers.lag_s
        rows = [_described(each, mask, wall_s - now, late_s) for each in paired(requests_of(channel, lagging()))]
        rows.sort(key=lambda row: (-row.lag, row.since))
        return ReadersModel(channel=channel.name, readers=rows, others=max(0, channel.readers - len(rows)))

    @router.delete("/{name}/readers/{connection}", summary="End a reader", responses={404: {"model": ProblemModel}})
    async def end_reader(
        name: ChannelName,
        connection: Annotated[int, Path(ge=0, description="A number of the list's `connections`.")],
        visible: Visible,
    ) -> EndedModel:
        """Its connection breaks, in the middle of a segment if it reads one. A client that retries comes back."""
        channel = found(name, visible)
        for request in _all_of(channel):
            if request.connection.number == connection:
                request.connection.cut_off(Cut.DELETED)
                return EndedModel(channel=channel.name, connection=connection)
        raise HTTPException(404, "no such reader: it has gone, or reads with another request by now")

    return router


def requests_of(channel: Channel, lagging: Iterable[object]) -> list[Reader]:
    """Requests that read a channel, those that lag first, at most :data:`MAX_READERS`."""
    slow = (one for one in lagging if isinstance(one, Reader) and one.channel is channel)
    return list(islice(dict.fromkeys(chain(slow, _all_of(channel))), MAX_READERS))


def _all_of(channel: Channel) -> Iterator[Reader]:
    """All requests that read a channel, by their segments."""
    for segment in (*channel.segments.values(), *channel.unclosed):
        for cursor in tuple(segment.cursors):
            if isinstance(cursor, Reader):
                yield cursor


def paired(requests: list[Reader]) -> list[list[Reader]]:
    """The readers: each with its requests, the earlier segment first."""
    rows: list[list[Reader]] = []
    free: dict[tuple[Any, ...], list[list[Reader]]] = {}  # readers with one request, by client and the next segment
    for request in sorted(requests, key=lambda one: one.segment.seq):
        client, seq = _client(request), request.segment.seq
        before = free.get((*client, seq))
        if before:
            before.pop().append(request)
            continue
        row = [request]
        rows.append(row)
        free.setdefault((*client, seq + 1), []).append(row)
    return rows


def _client(request: Reader) -> tuple[str | None, str | None, str | None]:
    """The name or key of a request's client, its address, and its program."""
    record = request.record
    if isinstance(record, AccessRecord):
        return record.client, record.ip, record.ua
    connection = request.connection
    via = request.via
    return None, (via.ip if via is not None else None if connection.proxied else connection.peer), None


def _described(
    requests: list[Reader],
    mask: Callable[[dict[str, Any]], None] | None,
    to_wall: float,
    late_s: Callable[[Reader], float],
) -> ReaderModel:
    first = requests[0]
    client, address, program = _client(first)
    shown: dict[str, Any] = {"client": client, "ip": address}
    if mask is not None:
        mask(shown)
    return ReaderModel(
        client=shown["client"],
        address=shown["ip"],
        program=program,
        seq=first.segment.seq,
        waits=first.idle,
        lag=max(request.lag() for request in requests),
        late_s=round(max(map(late_s, requests)), 3),
        since=datetime.fromtimestamp(first.arrived + to_wall, UTC),
        connections=sorted({request.connection.number for request in requests}),
    )
