"""Channels over the control plane: list, describe, create, end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Request, Response

from tricklecast.app.control_plane.models import (
    ChannelModel,
    ChannelsModel,
    NewChannelModel,
    ProblemModel,
    channel_model,
)
from tricklecast.app.control_plane.page import Page
from tricklecast.app.control_plane.scope import RECORD, MayManage, Visible, everything
from tricklecast.app.core.results import Refusal, Why
from tricklecast.app.data_plane.plane import DataPlane
from tricklecast.trickle.errors import InvalidChannelName
from tricklecast.trickle.paths import is_reserved, parse_channel
from tricklecast.trickle.records import AccessRecord, Reason

STATUS_OF_REFUSAL = {Why.NOT_FOUND: 404, Why.ENDED: 404, Why.RESERVED: 403, Why.LIMIT: 503, Why.SHUTDOWN: 503}

# Starlette has decoded the path already; parse_channel decodes once more, which a percent sign in a name would not
# survive. So it is encoded again first.
ChannelName = Annotated[str, Path(description="The channel's name.")]


def channels_router(plane: DataPlane) -> APIRouter:
    """The routes below ``/api/v1/channels``."""
    router = APIRouter(prefix="/api/v1/channels", tags=["channels"])
    registry = plane.registry

    def to_wall(at: float) -> float:
        return time.time() - (plane.clock() - at)

    def listed(visible: MayManage) -> bytes:
        shown = [channel.statistics() for name, channel in registry.channels.items() if visible(name)]
        # Totals of all would tell of the channels that are not shown.
        is_all = len(shown) == len(registry.channels)
        model = ChannelsModel(
            channels=[channel_model(channel, to_wall) for channel in shown],
            readers=sum(channel.readers for channel in shown),
            bytes_held=registry.budget.used if is_all else sum(channel.bytes for channel in shown),
        )
        return model.model_dump_json().encode()

    page = Page(lambda: listed(everything))

    @router.get("", summary="List all channels", response_model=ChannelsModel)
    async def list_channels(visible: Visible) -> Response:
        """Where there are hundreds, the list may be a moment old: `Age` says how many seconds."""
        if visible is not everything:
            return Response(listed(visible), media_type="application/json")
        text = page.text()
        return Response(text, headers={"Age": str(int(page.age_s))}, media_type="application/json")

    @router.get("/{name}", summary="Describe a channel", responses={404: {"model": ProblemModel}})
    async def describe_channel(name: ChannelName, visible: Visible) -> ChannelModel:
        channel = registry.channels.get(_checked(name, visible))
        if channel is None:
            raise HTTPException(404, "no such channel")
        return channel_model(channel.statistics(), to_wall)

    @router.post(
        "",
        summary="Create a channel",
        status_code=201,
        responses={200: {"model": ChannelModel, "description": "It exists already"}, 400: {"model": ProblemModel}},
    )
    async def create_channel(
        new: NewChannelModel, request: Request, response: Response, visible: Visible
    ) -> ChannelModel:
        name = _checked(new.name, visible)
        existed = registry.live(name) is not None
        channel = registry.create(name, new.content_type, plane.clock(), force=not is_reserved(name))
        if isinstance(channel, Refusal):
            raise _refused(channel, request, plane.jitter)
        response.status_code = 200 if existed else 201
        return channel_model(channel.statistics(), to_wall)

    @router.delete("/{name}", summary="End a channel", responses={404: {"model": ProblemModel}})
    async def end_channel(name: ChannelName, request: Request, visible: Visible) -> ChannelModel:
        channel = registry.channels.get(_checked(name, visible))
        refusal = registry.end(name, plane.clock())
        if refusal is not None:
            raise _refused(refusal, request, plane.jitter)
        assert channel is not None, "what could be ended was there"
        return channel_model(channel.statistics(), to_wall)

    return router


def _checked(name: str, visible: MayManage) -> str:
    try:
        channel = parse_channel(name.replace("%", "%25"))
    except InvalidChannelName as error:
        raise HTTPException(400, str(error)) from None
    if not visible(channel):
        # Whether there is such a channel is none of the caller's business.
        raise HTTPException(403, "not allowed")
    return channel


def _refused(refusal: Refusal, request: Request, jitter: Callable[[int, int], int]) -> HTTPException:
    record: AccessRecord = request.scope[RECORD]
    detail = {
        Why.RESERVED: "names that begin with _ belong to the server",
        Why.LIMIT: f"limit reached: {refusal.limit}",
        Why.SHUTDOWN: "the server is shutting down",
    }.get(refusal.why, "no such channel")
    headers = None
    if refusal.why in (Why.LIMIT, Why.SHUTDOWN):
        wait_s = jitter(*refusal.come_back_s)
        headers, record.retry_after_ms = {"Retry-After": str(wait_s)}, wait_s * 1000
    if refusal.limit is not None:
        record.reason = Reason.limit(refusal.limit)
    return HTTPException(STATUS_OF_REFUSAL[refusal.why], detail, headers)
