"""The routes below ``/api/v1/mirror``: set and stop the mirror of this server, look at it, and promote its copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field

from tricklecast.app.control_plane.models import ProblemModel
from tricklecast.app.mirror.circle import HOPS, OriginModel, OriginsModel

MAX_PATTERNS: Final = 256
"""Patterns of a selection: each name is tried with one after the other."""

MAX_HAND_OVER_S: Final = 600.0
"""The longest time for which a server that hands over takes no publishers."""

Pattern = Annotated[str, Query(min_length=1, max_length=1024, description="Of names of channels.")]


class Order(StrEnum):
    """Which history is copied first."""

    NEWEST = "newest"
    OLDEST = "oldest"


class Told(StrEnum):
    """Whether a former source knows that it was replaced."""

    NO = "no"
    YES = "yes"
    IMPOSSIBLE = "impossible"
    """It is no tricklecast, or its API does not answer there."""


Patterns = list[Annotated[str, Field(min_length=1, max_length=1024)]]


class SettingModel(BaseModel):
    """What is mirrored, and how."""

    source: str = Field(description="The base URL of the source: `http://HOST:PORT/trickle`.", max_length=2048)
    source_api: str | None = Field(
        default=None,
        max_length=2048,
        description="Any URL of the source's control plane, if that has another address than its channels.",
    )
    channels: Patterns = Field(
        default=["*"],
        min_length=1,
        max_length=MAX_PATTERNS,
        description="Patterns of the names that are mirrored; `*` stands for any number of characters.",
    )
    order: Order = Field(default=Order.NEWEST, description="Which history is copied first.")
    max_rate: int | None = Field(
        default=None, ge=1, le=10**12, description="Bytes per second from the source; no limit if null."
    )


class SetModel(SettingModel):
    """A setting that is in force."""

    promoted: list[str] = Field(
        description="Patterns of channels that were promoted alone: they are this server's own."
    )


class NewSettingModel(SettingModel):
    """A setting, with its secret, which no answer shows."""

    source_token: str | None = Field(
        default=None, max_length=8192, description="Access token for the source. It is kept in the data directory."
    )
    replace: bool = Field(
        default=False, description="Whether channels of this server with these names make way for copies."
    )


class LagModel(BaseModel):
    """How far the copies are behind the source, as far as is known."""

    segments: int = Field(description="Closed segments of the source that are known, and not here yet.")
    bytes: int
    seconds: float | None = Field(
        description="For how long something of live channels has not been here; while the source is not followed, how "
        "long ago it was heard. null if nobody knows."
    )


class DirtyModel(BaseModel):
    """What has waited longest."""

    channel: str
    since: float = Field(description="Seconds since 1970.")


class TroubleModel(BaseModel):
    """Something that went wrong."""

    at: float = Field(description="Seconds since 1970.")
    channel: str = Field(description="Empty if it concerns the source as a whole.")
    error: str


class LossModel(BaseModel):
    """A part of the source that is not here."""

    channel: str
    epoch: int
    seq: int | None = Field(description="The segment; null if it is not known which ones are missing.")
    bytes: int | None = Field(description="Its size; null if that is not known.")
    why: str
    open: bool = Field(default=False, description="It is still being written, as far as is known: its end is missing.")


class MirrorModel(BaseModel):
    """The mirror of this server."""

    state: str = Field(
        description="`none`: it mirrors nothing; `looking`: it compares all channels; `following`; `unreachable`: the "
        "source does not answer; `stopped`; `promoted`; `deposed`: another server has taken this one's place, and it "
        "takes no publishers."
    )
    problem: str = Field(default="", description="Why the source cannot be read now; empty if it can.")
    plain: str = Field(
        default="", description="Why the source is read by plain GETs, and what that means; empty if it is not."
    )
    setting: SetModel | None = None
    told: Told | None = Field(
        default=None, description="Of a promoted server: whether its former source knows that it was replaced."
    )
    storage: str = Field(
        default="", description="Why the data directory of this server cannot be written now; empty if it can."
    )
    successor: str = Field(default="", description="Of a deposed server, the one that has its place.")
    deposed: list[str] = Field(default=[], description="Patterns of the channels for which it has that.")
    stores: bool = Field(default=False, description="Whether segments behind the windows are copied, too.")
    complete: bool = Field(
        default=False,
        description="Whether all that is known of the source is here, but for what this server would not keep.",
    )
    last_contact: float | None = Field(
        default=None, description="When the source has last answered, seconds since 1970. Later losses nobody knows."
    )
    channels: dict[str, int] = Field(
        default={},
        description="Channels by state: `pending`, `started`, `synced`, `failed`; `deleted` have ended at the source.",
    )
    segments: dict[str, int] = Field(
        default={},
        description="Closed segments by state; none of none is complete. `beyond`: this server's retention would not "
        "keep them, so they are not copied.",
    )
    verified: int = Field(default=0, description="Segments whose bytes were read again and compared.")
    live: int = Field(default=0, description="Channels that are followed at their live edge.")
    lag: LagModel = LagModel(segments=0, bytes=0, seconds=None)
    oldest: DirtyModel | None = None
    rate: float = Field(default=0.0, description="Bytes per second that are copied.")
    remaining_s: float | None = Field(default=None, description="Until all is copied; null if nobody can tell.")
    copied_bytes: int = Field(default=0, description="Since this server was started.")
    mismatches: int = Field(default=0, description="Copies that were wrong when they were verified, since then.")
    failures: int = Field(default=0, description="What has gone wrong since then; what has failed is tried again.")
    errors: list[TroubleModel] = Field(default=[], description="The newest ones of these.")
    lost: list[LossModel] | None = Field(
        default=None, description="With `for_promotion=1`: what would be missing after a promotion, as far as is known."
    )

    @property
    def copies(self) -> bool:
        """Whether it is to copy at present. A fault may have ended it."""
        return self.state in ("looking", "following", "unreachable") or (self.state == "stopped" and bool(self.problem))

    @property
    def ailing(self) -> bool:
        """Whether the source cannot be read, or a copy has failed and is not made yet."""
        failed = self.channels.get("failed", 0) + self.segments.get("failed", 0)
        return self.copies and (self.state == "unreachable" or bool(self.problem) or failed > 0)


class PromotedModel(BaseModel):
    """The copies are channels of this server now."""

    channels: int
    lost: list[LossModel] = Field(description="Parts of the source that are missing here, as far as is known.")


class MarkedModel(BaseModel):
    """How many channels are looked at again."""

    channels: int


class DeposedModel(BaseModel):
    """Another server has taken the place of this one."""

    by: str = Field(max_length=2048, description="The base URL of that server.")
    channels: Patterns = Field(
        default=["*"], min_length=1, max_length=MAX_PATTERNS, description="Patterns of the names that concerns."
    )


class HandOverModel(DeposedModel):
    """Another server is about to take the place of this one."""

    within_s: float = Field(
        ge=0, le=MAX_HAND_OVER_S, description="For how long no new segments are taken; 0: from now on they are again."
    )


class HandedOverModel(BaseModel):
    """How far a server is that hands over its channels."""

    open: int = Field(description="Segments that are not closed.")
    heads: dict[str, tuple[int, int]] = Field(
        description="The epoch and the head of each channel, as soon as no segment is open."
    )


class Mirrors(Protocol):
    """The mirror of this server (:class:`app.mirror.service.MirrorService`)."""

    def status(self, *, lost: bool) -> MirrorModel:
        """How things stand."""

    async def origins(self, hops: int) -> list[OriginModel]:
        """List this server, its source, the source of that one, and so on: at most ``hops`` behind this one."""

    async def set(self, setting: NewSettingModel, me: str) -> None:
        """Mirror a source from now on, or change what is mirrored.

        Args:
            me: the base URL of this server, as the client knows it.

        Raises:
            Conflict: this server cannot do that now.
        """

    async def stop(self) -> None:
        """Copy nothing more."""

    async def promote(self, patterns: Sequence[str], drain_s: float) -> PromotedModel:
        """Take the source's place.

        Args:
            patterns: of the channels for which; none: all, and the mirror is over.
            drain_s: so long the source may take to end its open segments, and this server to have all; 0: as it is.

        Raises:
            Conflict: there is nothing to promote, or something is missing after that time.
        """

    def resync(self, pattern: str, *, failed: bool) -> int:
        """Copy again; how many channels that concerns."""

    async def reverify(self, pattern: str) -> int:
        """Compare again; how many channels that concerns."""

    async def depose(self, by: str, patterns: Sequence[str]) -> None:
        """Take no publishers any more for these channels, since another server has this one's place."""

    def hand_over(self, to: HandOverModel) -> HandedOverModel:
        """Take no new segments for these channels for a time."""


class Conflict(Exception):
    """The mirror of this server is not in a state in which that can be done; the text says what to do."""


def mirror_router(mirror: Mirrors, base_path: str, port: int | None = None) -> APIRouter:
    """The routes of the mirror.

    Args:
        base_path: of the channels of this server. port: theirs, if these routes have another one.
    """
    problems: dict[int | str, dict[str, Any]] = {409: {"model": ProblemModel}}
    router = APIRouter(prefix="/api/v1/mirror", tags=["mirror"])

    @router.get("", summary="How far the copies are")
    async def status(
        for_promotion: Annotated[bool, Query(description="Also list what would be missing after a promotion.")] = False,
    ) -> MirrorModel:
        """Of a server that mirrors nothing the state is `none`."""
        return mirror.status(lost=for_promotion)

    @router.get("/origins", summary="Where the copies come from")
    async def origins(
        hops: Annotated[int, Query(ge=0, le=HOPS, description="Servers behind this one.")] = HOPS,
    ) -> OriginsModel:
        """This server, the server that it mirrors, and so on. One that does not answer ends the list."""
        return OriginsModel(origins=await mirror.origins(hops))

    @router.put("", summary="Mirror another server", responses=problems)
    async def set_mirror(request: Request, setting: NewSettingModel) -> MirrorModel:
        """This server copies the channels of the source, and takes no publishers for these names.

        With a data directory it goes on after a restart. The same setting again changes nothing. Other patterns,
        another rate or token are taken over at once. Another source is 409: begin with an empty server for that. The
        source may be a mirror itself, but not one of this server.
        """
        with _conflicts():
            here = request.url if port is None else request.url.replace(port=port)
            await mirror.set(setting, f"{here.scheme}://{here.netloc}{base_path}")
        return mirror.status(lost=False)

    @router.delete("", summary="Stop the mirror", responses=problems)
    async def stop() -> MirrorModel:
        """Nothing more is copied. The copies can be read, and take no publishers; `PUT` goes on, promotion too."""
        with _conflicts():
            await mirror.stop()
        return mirror.status(lost=False)

    @router.post("/promote", summary="Take the source's place", responses=problems)
    async def promote(
        pattern: Annotated[
            list[str], Query(max_length=MAX_PATTERNS, description="Of names of channels; without any, all.")
        ] = [],  # noqa: B006
        drain_s: Annotated[
            float, Query(ge=0, le=MAX_HAND_OVER_S, description="The source may end its open segments within this time.")
        ] = 0.0,
    ) -> PromotedModel:
        """Copies become channels of this server, one epoch up, and take publishers.

        With `drain_s` the source takes no new segments before, and all of it is copied. If it is not within that time,
        the source goes on, and the answer is 409. Without, whatever the source has then and is not here is lost.

        The mirror stops, or, with patterns, goes on with all other channels: those that match, now and later, are this
        server's own. When the source answers, it is told, and takes no publishers for them any more.
        """
        with _conflicts():
            return await mirror.promote(pattern, drain_s)

    @router.post("/resync", summary="Copy again", responses=problems)
    async def resync(
        pattern: Pattern = "*",
        failed: Annotated[bool, Query(description="Only channels of which something has failed.")] = False,
    ) -> MarkedModel:
        """These channels are compared with the source's, and what has failed is tried again at once."""
        with _conflicts():
            return MarkedModel(channels=mirror.resync(pattern, failed=failed))

    @router.post("/reverify", summary="Verify again", responses=problems)
    async def reverify(pattern: Pattern = "*") -> MarkedModel:
        """The bytes of these channels are read again and compared, before all others."""
        with _conflicts():
            return MarkedModel(channels=await mirror.reverify(pattern))

    @router.post("/deposed", summary="Another server has taken this one's place", responses=problems)
    async def deposed(successor: DeposedModel) -> MirrorModel:
        """This server takes no publishers from now on, also after a restart if it has a data directory.

        `tricklecast mirror back` makes it a mirror of its successor.
        """
        with _conflicts():
            await mirror.depose(successor.by, successor.channels)
        return mirror.status(lost=False)

    @router.post("/handover", summary="Another server is about to take this one's place", responses=problems)
    async def hand_over(heir: HandOverModel) -> HandedOverModel:
        """This server takes no new segments for a time; those that are open may end."""
        with _conflicts():
            return mirror.hand_over(heir)

    return router


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except Conflict as error:
        raise HTTPException(409, str(error)) from None
