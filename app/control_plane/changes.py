"""The route ``/api/v1/changes``: facts as they happen, by long-poll or as Server-Sent Events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field

from tricklecast.app import query as queries
from tricklecast.app.changes import FIELDS, Change, Changes, IndexGone
from tricklecast.app.control_plane.event_stream import (
    EVENT_STREAM,
    RETRY_MS,
    STOPS,
    EventStream,
    come_back_later,
    come_back_s,
    why_over,
)
from tricklecast.app.control_plane.middleware import RECORD, MayManage, Visible
from tricklecast.app.control_plane.models import ProblemModel
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.encoding import encode
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord, Reason

WAIT_S: Final = 20.0
MAX_WAIT_S: Final = 60.0
"""The default and the longest time of a long-poll without facts. Proxies give up after 60 s."""

LIMIT: Final = 1_000
"""Facts in one answer, and facts that are judged at a time: about a millisecond."""

REST_S: Final = 0.002
"""Between two such parts the event loop serves other requests for this time."""

LOOK_S: Final = 0.5
"""A waiting request checks this often whether the server stops, its client has left, or its token has expired."""

WORKERS_S: Final = 5.0
"""A snapshot waits for this time until the server, which has just started, has heard from all of its workers."""

NO_SNAPSHOT: Final = "there is no snapshot now: the data directory cannot be written, or a worker does not answer"

KEEP_ALIVE_S: Final = 15.0
"""A stream without facts sends a comment this often, since proxies cut off a silent connection (HTML standard)."""


class ChangeModel(BaseModel):
    """A fact. Fields that do not apply to its kind are left out."""

    index: int = Field(description="Position in the journal, ascending; not every index is a fact for followers.")
    time: float = Field(description="When, in seconds since 1970.")
    kind: str = Field(description="A channel was `added` or `removed`; a segment `closed`.")
    channel: str
    epoch: int = Field(description="The epoch of the name.")
    seq: int | None = Field(None, description="The seq of the segment; of a removed channel, its head.")
    state: str | None = Field(None, description="How the segment closed.")
    bytes: int | None = Field(None, description="Bytes of the closed segment.")
    content_type: str | None = Field(None, description="Of an added channel, if it was known.")
    reason: str | None = Field(None, description="Why the channel was removed.")


class LiveChannelModel(BaseModel):
    """A live channel."""

    channel: str
    epoch: int
    time: float = Field(description="When the channel was added, in seconds since 1970.")
    content_type: str


class ChangesModel(BaseModel):
    """Facts, and the index from which to go on."""

    instance: str = Field(description="Identifies this start of the server. Send it with `after`.")
    index: int = Field(description="Send this as `after` in the next request.")
    floor: int = Field(description="The lowest valid `after`.")
    changes: list[ChangeModel]
    channels: list[LiveChannelModel] | None = Field(
        None, description="With `snapshot=1`: the live channels at `index`."
    )
    unreachable: list[str] | None = Field(
        None, description="Nodes of the cluster that do not answer: facts about their channels may be missing."
    )


class GoneModel(BaseModel):
    """The reason for which a follower cannot go on from an index."""

    detail: str
    instance: str
    index: int
    floor: int


@dataclass(slots=True)
class Follower:
    """One request that follows changes.

    Attributes:
        seen: the client has been told of all facts up to this index.
    """

    changes: Changes
    plane: DataPlane
    request: Request
    query: queries.Query
    visible: MayManage
    seen: int = 0

    @property
    def record(self) -> AccessRecord:
        record: AccessRecord = self.request.scope[RECORD]
        return record

    def snapshot(self) -> list[dict[str, Any]] | None:
        """The live channels that the query's terms about names match. The follower goes on from this moment."""
        taken = self.changes.snapshot()
        if taken is None:
            return None
        self.seen = taken.index
        names = self.query.about("channel")
        return [live._asdict() for live in taken.channels if names.matches(live) and self.visible(live.channel)]

    async def next(self, limit: int, until: float) -> list[Change]:
        """Wait for facts, and return at most ``limit``; none at the time ``until``, or if there is a reason to end.

        Raises:
            IndexGone: facts that the client has not been told of are not kept any more.
        """
        while True:
            self.changes.follow()
            self.changes.check(self.seen)
            found, self.seen = self.changes.read(self.seen, self._wants, most=LIMIT, room=limit)
            if found:
                return found
            left = until - self.plane.clock()
            if left <= 0 or self.over() is not None:
                return []
            if self.seen < self.changes.index:
                await asyncio.sleep(REST_S)
            else:
                await self.changes.more(self.seen, min(left, LOOK_S))

    def _wants(self, change: Change) -> bool:
        return self.query.matches(change) and self.visible(change.channel)

    def over(self) -> str | None:
        """The reason to end now; ``None`` if there is none."""
        return why_over(self.request, self.plane)

    async def stream(self, snapshot: list[dict[str, Any]] | None) -> AsyncIterator[bytes]:
        """Server-Sent Events, until there is a reason to end, which is the last event."""
        yield b"retry: %d\nid: %b\n\n" % (RETRY_MS, self._id(self.seen))
        if snapshot is not None:
            data = {"index": self.seen, "channels": snapshot, **_missing(self.changes)}
            yield self._event(data, b"snapshot")
        reason: str | None = None
        detail = ""
        while reason is None:
            try:
                found = await self.next(LIMIT, self.plane.clock() + KEEP_ALIVE_S)
            except IndexGone as error:
                # Its client has not read for as long as facts are kept.
                reason, detail = Reason.EVICTED, str(error)
            else:
                reason = self.over()
                if found:
                    yield b"".join(map(self._fact, found))
                elif reason is None:
                    # An id without data is no event, but the client goes on from it.
                    yield b":\nid: %b\n\n" % self._id(self.seen)
        self.record.reason = reason
        if reason == Reason.SHUTDOWN:
            yield b"retry: %d\n" % (1000 * come_back_s(self.plane))
        yield self._event({"index": self.seen, "reason": reason, "detail": detail}, b"end")

    def _fact(self, change: Change) -> bytes:
        return b"id: %b\ndata: %b\n\n" % (self._id(change.index), encode(change.as_dict()))

    def _event(self, data: dict[str, Any], kind: bytes) -> bytes:
        return b"event: %b\nid: %b\ndata: %b\n\n" % (kind, self._id(self.seen), encode(data))

    def _id(self, index: int) -> bytes:
        # The index alone could be one of an earlier start: without a data directory the server counts anew.
        return f"{index}@{self.changes.instance}".encode()


def changes_router(plane: DataPlane, changes: Changes) -> APIRouter:
    router = APIRouter(tags=["changes"])

    @router.get(
        "/api/v1/changes",
        summary="Follow channels and segments",
        response_model=ChangesModel,
        responses={
            200: {"content": {EVENT_STREAM: {}}},
            400: {"model": ProblemModel},
            410: {"model": GoneModel, "description": "Begin with a snapshot"},
            503: {"model": ProblemModel},
        },
    )
    async def follow(
        request: Request,
        visible: Visible,
        after: Annotated[
            int | None, Query(ge=0, description="Facts after this index. If missing: from now on.")
        ] = None,
        instance: Annotated[str | None, Query(description="The `instance` that `after` comes from.")] = None,
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="How long to wait for a fact.")] = WAIT_S,
        limit: Annotated[int, Query(ge=1, le=LIMIT, description="Maximum number of facts in the answer.")] = LIMIT,
        q: Annotated[str, Query(description="A query, for example `channel = 'a*' AND kind = 'closed'`.")] = "",
        snapshot: Annotated[bool, Query(description="Begin with the live channels, instead of `after`.")] = False,
        accept: Annotated[str, Header(include_in_schema=False)] = "",
        last_event_id: Annotated[str, Header(description="With events: overrides `after` and `snapshot`.")] = "",
    ) -> Response:
        """Facts about channels and segments, in their order. As Server-Sent Events with `Accept: text/event-stream`."""
        if snapshot and after is not None:
            return _problem("snapshot=1 and after exclude each other")
        try:
            query = queries.parse(q, FIELDS)
        except queries.InvalidQuery as error:
            return _problem(str(error), position=error.position)
        streams = EVENT_STREAM in accept
        if streams and last_event_id:
            at, _, named = last_event_id.partition("@")
            if not (at.isdecimal() and at.isascii() and len(at) <= 18):
                return _problem("Last-Event-ID does not come from this server")
            after, instance = int(at), named or None
        if changes.of_cluster and after is not None and instance is None:
            return _problem("the index of another node means nothing here: send instance with after")
        await changes.catch_up()
        follower = Follower(changes, plane, request, query, visible, changes.index if after is None else after)
        if after is not None:
            try:
                changes.check(after, instance)
            except IndexGone as error:
                if not (streams and snapshot):
                    return _gone(error)
                after = None  # a stream that began with a snapshot begins anew
        if snapshot and after is None:
            await changes.known(WORKERS_S)
        if plane.registry.shutting_down:
            return come_back_later(request, plane, STOPS)
        if not changes.followers.admits(join=after is None):
            follower.record.reason = Reason.limit("followers")
            return come_back_later(request, plane, "limit reached: followers")
        live = None
        if snapshot and after is None and (live := follower.snapshot()) is None:
            return come_back_later(request, plane, NO_SNAPSHOT)
        if streams:
            return EventStream(follower.stream(live), changes.followers.take, changes.followers.give_back)
        changes.followers.take()
        try:
            found = [] if live is not None else await follower.next(limit, plane.clock() + wait_s)
        except IndexGone as error:
            return _gone(error)
        finally:
            changes.followers.give_back()
        if not found and live is None and plane.registry.shutting_down:
            return come_back_later(request, plane, STOPS)  # with 200 it would ask again at once, and again
        shown = {} if live is None else {"channels": live}
        facts = [change.as_dict() for change in found]
        where = {"instance": changes.instance, "index": follower.seen, "floor": changes.floor}
        missing = _missing(changes)
        headers = {wire.DEGRADED: f"no answer from {', '.join(changes.missing)}"} if missing else None
        return _json(200, {**where, "changes": facts, **shown, **missing}, headers)

    return router


def _missing(changes: Changes) -> dict[str, Any]:
    return {"unreachable": missing} if (missing := changes.missing) else {}


def _json(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(encode(content), status, headers, "application/json")


def _problem(detail: str, **more: int) -> Response:
    return _json(400, {"detail": detail, **more})


def _gone(error: IndexGone) -> Response:
    where = {"instance": error.instance, "index": error.index, "floor": error.floor}
    return _json(410, {"detail": str(error), **where}, {wire.EARLIEST: str(error.floor)})
