"""The mirror of this server: its setting, over restarts, and the one thing that it does at a time.

A setting is in one of three phases. ``on``: the engine copies. ``stopped``: the copies are what they are. ``promoted``:
they are channels of this server, and its former source has to hear of it, as soon as it answers. The phase and the
setting are in the registry, in the data directory; without one they last as long as the process.

Each change of the setting ends what is done at present, and begins what the new phase wants. So no two of these ever
work on the registry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import orjson
from pydantic import ValidationError

from tricklecast.app.access.rights import ANY, matches_any
from tricklecast.app.daemon_thread import DaemonThread
from tricklecast.app.mirror.circle import HOPS, OriginModel, OriginsModel, circle
from tricklecast.app.mirror.destination import ServerDestination
from tricklecast.app.mirror.engine import Mirror, pause_s
from tricklecast.app.mirror.opening import open_source
from tricklecast.app.mirror.plain_source import PlainSource
from tricklecast.app.mirror.registry import CONTACT, MirrorRegistry, RegistryError
from tricklecast.app.mirror.routes import (
    MAX_PATTERNS,
    Conflict,
    DirtyModel,
    HandedOverModel,
    HandOverModel,
    LagModel,
    LossModel,
    MirrorModel,
    NewSettingModel,
    Order,
    PromotedModel,
    SetModel,
    Told,
    TroubleModel,
)
from tricklecast.app.mirror.status import Loss, Status
from tricklecast.app.mirror.trickle_source import TrickleSource
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client.arguments import server_url
from tricklecast.trickle.client.control import answer_of
from tricklecast.trickle.errors import RemoteProtocolError, TrickleError
from tricklecast.trickle.wire import redacted

logger = logging.getLogger("tricklecast.mirror")

FILE: Final = "mirror.sqlite"

STOP_S: Final = 5.0
"""What the mirror does at present ends within this time, or is given up."""

DRAIN_LOOK_S: Final = 0.1
"""A source that hands over is asked this often whether all of its segments have ended."""

DRAINED_S: Final = 30.0
"""It takes no publishers for this time after that: a promotion takes less."""

SHOWN_ERRORS: Final = 5
"""The dashboard shows the newest ones."""


T = TypeVar("T")


class Phase(StrEnum):
    """What a server does with its setting."""

    ON = "on"
    STOPPED = "stopped"
    PROMOTED = "promoted"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is mirrored, and how.

    Attributes:
        source: its base URL. channels: patterns of names. order, max_rate, token: as given by the operator.
        phase: what is done. me: the base URL by which the source's operator may know this server.
        told: whether the former source has heard of the promotion. deaf: it has no mirrors, and is told no more.
        source_api: a URL of its control plane, if that has another address.
        promoted: patterns of the channels that were promoted alone. untold: those of which the source has not heard.
    """

    source: str
    channels: tuple[str, ...] = ("*",)
    order: str = Order.NEWEST
    max_rate: int | None = None
    token: str | None = None
    phase: str = Phase.ON
    me: str = ""
    told: bool = False
    promoted: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    source_api: str | None = None
    deaf: bool = False

    @property
    def root(self) -> str:
        """Scheme and authority of the source's control plane."""
        return server_url(self.source_api or self.source)

    @property
    def bearer(self) -> Bearer | None:
        """Adds the token to requests."""
        return None if self.token is None else Bearer(lambda: self.token or "")

    def selected(self, name: str) -> bool:
        """Whether a channel is mirrored."""
        return matches_any(self.channels, name) and not matches_any(self.promoted, name)


class MirrorService:
    """Sets, stops and promotes the mirror of this server (:class:`app.mirror.routes.Mirrors`).

    Args:
        destination: this server; ``None``: it can mirror nothing, for the reason ``refused``.
        folder: its data directory; ``None`` without one.

    Raises:
        RegistryUnusable: the file in the data directory cannot be used.
    """

    def __init__(self, destination: ServerDestination | None, folder: Path | None, refused: str = "") -> None:
        self._destination, self._folder, self._refused = destination, folder, refused
        self._registry: MirrorRegistry | None = None
        self._setting: Setting | None = None
        self._engine: Mirror | None = None
        self._work: asyncio.Task[None] | None = None  # what is done at present
        self._changing = asyncio.Lock()  # one change of the setting at a time
        self._problem = ""  # why the source cannot be opened
        self._plain = ""  # why it is read by plain GETs
        self._dice = Random()
        self._thread = DaemonThread("mirror setting")
        if destination is not None and folder is not None and (folder / FILE).exists():
            self._open()
            if (text := self._rows.settings().get("setting")) is not None:
                about: dict[str, Any] = orjson.loads(text)
                lists = {key: tuple(one) for key, one in about.items() if isinstance(one, list)}
                self._setting = Setting(**(about | lists))
                self._close_to_publishers()

    # The node's.

    def start(self) -> None:
        """Begin with what the setting says."""
        self._begin()

    async def close(self) -> None:
        """End what is done, before storage ends."""
        await self._end()
        if self._registry is not None:
            with suppress(TrickleError):  # it was told when it failed
                self._registry.close()

    # The routes'.

    def status(self, *, lost: bool) -> MirrorModel:
        """How things stand."""
        setting, engine, destination = self._setting, self._engine, self._destination
        by = "" if destination is None else destination.read_only.by
        deposed = list(destination.read_only.deposed) if destination is not None and by else []
        if setting is None or destination is None:
            state = "deposed" if by else "none"
            return MirrorModel(state=state, successor=by, deposed=deposed, problem=self._problem)
        state = setting.phase if setting.phase != Phase.ON else "unreachable" if self._problem else "looking"
        model = MirrorModel(
            state="deposed" if by and (setting.phase == Phase.PROMOTED or ANY in deposed) else state,
            successor=by,
            deposed=deposed,
            problem=self._problem,
            plain=self._plain,
            stores=destination.stores,
            told=_told(setting),
            storage=destination.storage_problem,
        )
        model.setting = SetModel(
            source=redacted(setting.source),
            source_api=None if setting.source_api is None else redacted(setting.source_api),
            channels=list(setting.channels),
            order=Order(setting.order),
            max_rate=setting.max_rate,
            promoted=list(setting.promoted),
        )
        try:
            if engine is not None:
                _show(engine.status(), model)
            else:
                self._show_rows(setting, model)
        except RegistryError as error:
            model.problem = str(error)
        if lost and setting.phase != Phase.PROMOTED:
            model.lost = _losses(self._lost() if engine is None else engine.lost_if_promoted())
            here = "it is being written, and its end is missing: {} bytes of it are here"
            model.lost += [
                LossModel(channel=name, epoch=epoch, seq=seq, bytes=None, why=here.format(size), open=True)
                for name, epoch, seq, size in destination.unfinished()
            ]
        return model

    def _show_rows(self, setting: Setting, model: MirrorModel) -> None:
        """While nothing is copied: what is here, and how long ago the source was heard. More nobody knows."""
        for (kind, row_state), (rows, _) in self._rows.counts().items():
            if rows and kind != "verified":
                (model.channels if kind == "channel" else model.segments)[row_state] = rows
        if setting.phase != Phase.PROMOTED:
            model.last_contact, (segments, size) = self._rows.contact(), self._rows.behind()
            age_s = None if model.last_contact is None else max(0.0, time.time() - model.last_contact)
            model.lag = LagModel(segments=segments, bytes=size, seconds=age_s)

    def figures(self) -> dict[str, Any] | None:
        """How things stand, for the dashboard; ``None``: this server mirrors nothing."""
        now = self.status(lost=False)
        now.errors = now.errors[-SHOWN_ERRORS:]
        return None if now.state == "none" else now.model_dump(mode="json", exclude={"lost"})

    def _lost(self) -> Loss:
        channels, segments = self._rows.missing(reachable=False)
        contact = self._rows.contact()
        return Loss(channels, (), segments, None if contact is None else max(0.0, time.time() - contact))

    async def origins(self, hops: int) -> list[OriginModel]:
        """List this server, its source, the source of that one, and so on: at most ``hops`` behind this one."""
        setting = self._setting
        copies = setting is not None and setting.phase != Phase.PROMOTED
        here = OriginModel(instance=self._instance, channels=list(setting.channels) if setting and copies else [])
        return [here, *(await self._origins_of(setting, hops - 1) if setting and copies and hops else ())]

    async def _origins_of(self, setting: Setting, hops: int) -> list[OriginModel]:
        """The source of a setting, and so on; none if it does not answer, or tells this token nothing."""
        route, absent = f"/api/v1/mirror/origins?hops={hops}", "has no mirrors"
        try:
            answer = await answer_of(setting.root, route, None, setting.bearer, absent=absent, within_s=1.0 + hops)
            return OriginsModel.model_validate(answer).origins
        except (TrickleError, ValidationError) as error:
            logger.info("nobody can tell whether this is a circle of mirrors: %s", error)
            return []

    async def _circle(self, setting: Setting, *, replaces: bool) -> str:
        origins = await self._origins_of(setting, HOPS)
        return circle(origins, self._instance, setting.channels, replaces=replaces)

    async def set(self, setting: NewSettingModel, me: str) -> None:
        """Mirror a source from now on, or change what is mirrored.

        Raises:
            Conflict: this server cannot do that now.
        """
        destination = self._able()
        wanted = Setting(
            setting.source,
            tuple(setting.channels),
            setting.order,
            setting.max_rate,
            setting.source_token,
            me=me,
            source_api=setting.source_api,
        )
        async with self._changing:
            before = self._setting
            if before is not None and before.phase is not Phase.PROMOTED and before.source != wanted.source:
                text = f"this server holds copies of {redacted(before.source)}: use another server for another source"
                raise Conflict(text)
            if before is not None and before.phase is not Phase.PROMOTED and not setting.replace:
                wanted = replace(wanted, promoted=before.promoted, untold=before.untold)
            if before == wanted:
                return
            if problem := await self._circle(wanted, replaces=setting.replace):
                raise Conflict(problem)
            own = [name for name in destination.own_channels() if wanted.selected(name)]
            if own and not setting.replace:
                text = f"this server has {len(own)} channels of its own that the mirror would include, as {own[0]!r}"
                raise Conflict(f"{text}: choose others with `channels`, end them, or let them make way with `replace`")
            await self._end()
            self._open()
            destination.replaces = setting.replace
            destination.read_only.release()
            is_other = before is None or before.source != wanted.source
            self._keep(wanted, **({CONTACT: None} if is_other else {}))
            self._close_to_publishers()
            self._begin()

    async def stop(self) -> None:
        """Copy nothing more."""
        async with self._changing:
            setting = self._set()
            if setting.phase == Phase.ON:
                await self._end()
                self._keep(replace(setting, phase=Phase.STOPPED))

    async def promote(self, patterns: Sequence[str] = (), drain_s: float = 0.0) -> PromotedModel:
        """Take the source's place, for all channels or some."""
        async with self._changing:
            setting, destination = self._set(), self._able()
            promoted, untold = (dict.fromkeys((*known, *patterns)) for known in (setting.promoted, setting.untold))
            if len(promoted) > MAX_PATTERNS:
                raise Conflict(f"at most {MAX_PATTERNS} patterns of channels are promoted alone: promote all")
            if drain_s:
                await self._drain(setting, patterns, drain_s)
            await self._end()
            lost = self._lost_of(patterns)
            names = [name for name in destination.channels() if matches_any(patterns, name)] if patterns else None
            if patterns:
                setting = replace(setting, promoted=tuple(promoted), untold=tuple(untold))
            else:
                setting = replace(setting, phase=Phase.PROMOTED)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._rows.sync)
            self._keep(setting)
            self._close_to_publishers()
            try:
                count = await destination.promote(names)
            except OSError as error:
                self._begin()
                text = f"the copies are channels of this server now, but {error}"
                raise Conflict(f"{text}: after a restart they begin with what was copied") from None
            self._begin()
            logger.warning("this server has taken the place of %s for %d channels", redacted(setting.source), count)
            return PromotedModel(channels=count, lost=lost)

    def _lost_of(self, patterns: Sequence[str]) -> list[LossModel]:
        """The parts that a promotion of these channels would lose, as far as this server knows; no pattern: of all."""
        return [one for one in self.status(lost=True).lost or () if not patterns or matches_any(patterns, one.channel)]

    async def _drain(self, setting: Setting, patterns: Sequence[str], within_s: float) -> None:
        """Let the source take no new segments, and wait until all is here that it has.

        Raises:
            Conflict: the source cannot do that, or it takes too long; the source goes on.
        """
        destination, clock = self._able(), asyncio.get_running_loop().time
        until, chosen = clock() + within_s, list(patterns or setting.channels)
        try:
            while True:
                there = await self._hand_over(setting, chosen, within_s + DRAINED_S)
                heads = {name: at for name, at in there.heads.items() if setting.selected(name)}
                behind = [name for name, (epoch, head) in heads.items() if not destination.has_all(name, epoch, head)]
                lost = [] if there.open or behind else self._lost_of(patterns)
                if not (there.open or behind or lost):
                    return
                if clock() > until:
                    parts = f"{there.open} segments are open there, {len(behind) + len(lost)} parts are not here"
                    raise Conflict(f"after {within_s:g} s {parts}: {redacted(setting.source)} goes on")
                await asyncio.sleep(DRAIN_LOOK_S)
        except BaseException as error:
            with suppress(TrickleError):
                await self._hand_over(setting, chosen, 0.0)
            if isinstance(error, TrickleError):
                raise Conflict(f"the source does not hand over: {error}") from None
            raise

    async def _hand_over(self, setting: Setting, patterns: Sequence[str], within_s: float) -> HandedOverModel:
        absent, body = "cannot hand over", {"by": setting.me, "channels": patterns, "within_s": within_s}
        route = "/api/v1/mirror/handover"
        answer = await answer_of(setting.root, route, None, setting.bearer, absent=absent, method="POST", body=body)
        return HandedOverModel.model_validate(answer)

    def hand_over(self, to: HandOverModel) -> HandedOverModel:
        """Take no new segments for these channels for a time."""
        opened, heads = self._able().hand_over(to.by, to.channels, to.within_s)
        return HandedOverModel(open=opened, heads=heads)

    def resync(self, pattern: str, *, failed: bool) -> int:
        """Copy again; how many channels that concerns."""
        engine, names = self._running(pattern)
        return engine.resync(names, failed=failed)

    async def reverify(self, pattern: str) -> int:
        """Compare again; how many channels that concerns."""
        engine, names = self._running(pattern)
        await engine.reverify(names)
        return len(names)

    def _running(self, pattern: str) -> tuple[Mirror, list[str]]:
        """Return the engine, if it copies now, and the copied channels whose names match the pattern."""
        setting, engine = self._set(), self._engine
        if setting.phase == Phase.STOPPED:
            text = f"tricklecast mirror {redacted(setting.source)} DST"
            raise Conflict(f"the mirror is stopped, and looks at nothing: begin again first ({text})")
        if engine is None:
            raise Conflict(f"the source is not open yet: {self._problem or 'it was asked a moment ago'}")
        if not (names := engine.matching([pattern])):
            raise Conflict(f"there is no copy of a channel with the name {pattern!r}")
        return engine, names

    async def depose(self, by: str, patterns: Sequence[str] = ("*",)) -> None:
        """Take no publishers any more for these channels, since another server has this one's place."""
        destination = self._able()
        known = destination.read_only.deposed if destination.read_only.by == by else ()
        all_of = ("*",) if ANY in (*known, *patterns) else tuple(dict.fromkeys((*known, *patterns)))
        try:
            destination.depose(by, all_of)
        except OSError as error:
            raise Conflict(f"it holds until this server is restarted, since {error}") from None
        logger.warning("%s has taken this server's place: it takes no publishers any more", redacted(by))

    # What is done at present.

    def _begin(self) -> None:
        setting = self._setting
        if setting is None:
            return
        work: Coroutine[Any, Any, None]
        if setting.phase == Phase.ON:
            work = self._copy(setting)
        elif setting.phase == Phase.PROMOTED:
            work = self._tell(setting)
        else:
            return
        self._work = asyncio.get_running_loop().create_task(work, name="mirror")
        self._work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._problem = f"a fault of the mirror has ended it: {error!r}"
            logger.error("a fault of the mirror has ended it", exc_info=error)

    async def _end(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.stop()
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.wait((work,), timeout=STOP_S)
        self._problem = self._plain = ""

    async def _copy(self, setting: Setting) -> None:
        destination, rows = self._able(), self._rows
        await self._own(setting)

        def last_epoch(name: str) -> int:
            row = rows.channel(name)
            return 0 if row is None else row.epoch

        async def attempt() -> TrickleSource | PlainSource:
            if problem := await self._circle(setting, replaces=destination.replaces):
                raise TrickleError(problem)
            if setting.untold:
                await self._tell_once(setting, setting.untold)
            about = setting.source, setting.token, setting.channels
            return await open_source(*about, api=setting.source_api, last_epoch=last_epoch)

        source = await self._until(attempt)
        if setting.untold:
            self._keep(replace(setting, untold=()))
        self._plain = source.plain
        try:
            self._engine = engine = Mirror(
                rows,
                source,
                destination,
                setting.channels,
                promoted=setting.promoted,
                address=redacted(setting.source),
                newest_first=setting.order == Order.NEWEST,
                max_rate=setting.max_rate,
            )
            destination.lost, destination.expired = engine.not_kept, engine.expired
            await engine.run()
        finally:
            await source.close()

    async def _tell(self, setting: Setting) -> None:
        """Tell the former source that it has a successor, until it has heard it."""
        await self._own(setting)
        if not setting.told:
            hears = await self._until(partial(self._tell_once, setting, (ANY,)))
            self._keep(replace(setting, told=True, deaf=not hears))

    async def _own(self, setting: Setting) -> None:
        """Promote what a promotion that ended in the middle has left a copy."""
        destination = self._able()
        left = destination.channels()
        if setting.phase != Phase.PROMOTED:
            left = {name: epoch for name, epoch in left.items() if matches_any(setting.promoted, name)}
        if left:
            try:
                await destination.promote(left)
                logger.warning("%d channels were copies still, and are promoted now", len(left))
            except OSError as error:
                logger.warning("%d channels were copies still, and are promoted now, but %s", len(left), error)

    async def _tell_once(self, setting: Setting, patterns: Sequence[str]) -> bool:
        """Tell the source for which channels it has a successor; ``False``: it has no mirrors, and cannot be told."""
        route, absent = "/api/v1/mirror/deposed", "has no mirrors, and cannot be told"
        root, news = setting.root, {"by": setting.me, "channels": patterns}
        try:
            await answer_of(root, route, None, setting.bearer, absent=absent, method="POST", body=news)
        except RemoteProtocolError as error:
            logger.warning("%s", error)
            return False
        logger.warning("%s has heard that this server has its place", redacted(setting.source))
        return True

    async def _until(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Try until the source answers."""
        failures = 0
        while True:
            try:
                found = await attempt()
                self._problem = ""
                return found
            except TrickleError as error:
                failures += 1
                pause = pause_s(error, failures, self._dice)
                if str(error) != self._problem:
                    logger.warning("the source of the mirror: %s", error)
                self._problem = str(error)
            await asyncio.sleep(pause)

    # Mechanics.

    @property
    def _instance(self) -> str:
        """The name of this start of the server."""
        return "" if self._destination is None else self._destination.plane.registry.instance

    @property
    def _rows(self) -> MirrorRegistry:
        assert self._registry is not None, "a setting has a registry"
        return self._registry

    def _open(self) -> None:
        if self._registry is None:
            self._registry = MirrorRegistry(None if self._folder is None else self._folder / FILE)

    def _keep(self, setting: Setting, **also: str | None) -> None:
        self._rows.change_settings({"setting": orjson.dumps(asdict(setting)).decode(), **also})
        self._setting = setting

    def _close_to_publishers(self) -> None:
        setting = self._setting
        if setting is not None and setting.phase != Phase.PROMOTED:
            self._able().mirror(redacted(setting.source), setting.selected)

    def _able(self) -> ServerDestination:
        if self._destination is None:
            raise Conflict(self._refused)
        return self._destination

    def _set(self) -> Setting:
        self._able()
        if self._setting is None or self._setting.phase == Phase.PROMOTED:
            raise Conflict("this server mirrors nothing")
        return self._setting


def _told(setting: Setting) -> Told | None:
    if setting.phase != Phase.PROMOTED:
        return None
    return Told.IMPOSSIBLE if setting.deaf else Told.YES if setting.told else Told.NO


def _show(status: Status, model: MirrorModel) -> None:
    """Put the figures of the engine into the answer."""
    model.state, model.complete, model.last_contact = status.state, status.complete, status.last_contact
    model.channels, model.segments = dict(status.channels), dict(status.segments)
    model.verified, model.live = status.verified, status.live
    model.mismatches, model.failures = status.mismatches, status.failures
    model.lag = LagModel(segments=status.segments_behind, bytes=status.bytes_behind, seconds=status.seconds_behind)
    if status.oldest_dirty is not None:
        model.oldest = DirtyModel(channel=status.oldest_dirty[0], since=status.oldest_dirty[1])
    model.rate, model.remaining_s, model.copied_bytes = status.rate, status.seconds_left, status.received
    if status.unreachable_since is not None:
        model.problem = next((one.text for one in reversed(status.errors) if not one.channel), "it does not answer")
    model.errors = [TroubleModel(at=one.at, channel=one.channel, error=one.text) for one in status.errors]


def _losses(loss: Loss) -> list[LossModel]:
    """What a promotion would lose."""
    found = [
        LossModel(channel=row.name, epoch=row.epoch, seq=None, bytes=None, why=row.error or f"it is {row.state}")
        for row in loss.channels
    ]
    found += [
        LossModel(channel=name, epoch=0, seq=None, bytes=None, why="its window has not come wholly")
        for name in loss.arriving
    ]
    found += [
        LossModel(channel=row.name, epoch=row.epoch, seq=row.seq, bytes=row.size, why=row.error or f"it is {row.state}")
        for row in loss.segments
    ]
    return found
