"""The mirror: it learns what the source has, and works until the destination has the same.

**The problem.** News come late, twice, in another order, or not at all. Copies take long, and the world goes on while
they are made. A mirror that acts on old news brings ended channels back, or keeps old bytes.

**The idea.** News never act: they mark a row of the registry (:mod:`~app.mirror.registry`) as dirty. Work on
a dirty row asks the source how things stand *now*, and what it has learned counts only if nothing has happened to the
row meanwhile. That question, and the step that the answer allows (a channel ends here, a feed is followed, a segment
can be read), have no ``await`` between them. So the same news twice are the same as once, and lost news only take until
the next full difference, which marks rows dirty, too, and does nothing else.

**A live channel** is followed: one task carries the source's feed into the copy here, at the live edge. A follower that
ends, for whatever reason, makes its row dirty. When it has begun, and all of the window is here, the history behind it
is compared, and the segments that are not here get their rows. Live channels come first, in the order of work and
within the limit of bytes per second.

**The source has one backoff.** If it does not answer, one question is asked again and again, more and more seldom: for
the list of all channels. All other work waits until it is answered. A source that is away is asked every second or two
for a minute, and every few seconds after that: one question is no burden, and its copies should be live soon when it is
back. A row that fails alone has a backoff of its own, which begins anew when the source has been away, or was
restarted: that is why the row has failed.

**The fence of a follower**: before it applies bytes it looks whether it is still the one that follows its channel. A
follower of an older epoch is removed in the step in which the newer one begins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from math import inf
from random import Random
from typing import Final
from zlib import crc32

from tricklecast.app.access.rights import matches_any
from tricklecast.app.daemon_thread import DaemonThread
from tricklecast.app.mirror.pace import Pace
from tricklecast.app.mirror.registry import COMMIT_S, ChannelRow, MirrorRegistry, RegistryError, RowState, SegmentRow
from tricklecast.app.mirror.sides import (
    Destination,
    GoneThere,
    Held,
    HeldCopy,
    IndexTooOld,
    Listing,
    Source,
    SourceAway,
    SourceChannel,
    SourceError,
    SourceLies,
    SourceSegment,
)
from tricklecast.app.mirror.status import Loss, Status, Trouble
from tricklecast.app.replication.records import FeedEnd
from tricklecast.trickle.backoff import Backoff
from tricklecast.trickle.errors import ConnectionLost, TrickleError
from tricklecast.trickle.paths import is_reserved

logger = logging.getLogger("tricklecast.mirror")

LOOKS: Final = 8
"""Channels that are looked at at a time."""

LISTS: Final = 4
"""Channels whose history is listed at a time: after a restart all are live long before all are compared."""

COPIES: Final = 4
"""Segments that are copied at a time."""

LEFT_OUT: Final = 256
"""Segments that are found in one turn not to be kept here."""

IN_FLIGHT: Final = 64 << 20
"""Bytes of segments that are being copied; a segment that is larger is copied alone."""

MAX_CHANNELS: Final = 20_000
"""Channels that are mirrored: each of them has a feed."""

MAX_LISTED: Final = 1_000_000
"""Closed segments of a channel: a longer list is taken for an endless one."""

DIFFERENCE_S: Final = 600.0
"""All that is here is compared with all that is there this often, and whenever news may have been missed."""

ANSWER_S: Final = 60.0
"""The longest time for an answer; news come within it, or none of them."""

SILENCE_S: Final = 15.0
"""A feed, or a segment, of which nothing comes for so long is broken."""

LIVE_S: Final = 30.0
"""The history of a channel is compared when its window is here, or after this time."""

FEED_S: Final = 5.0
"""A segment that may be on its way by the feed is not copied before."""

COPY_S: Final = 3600.0
"""The longest time for the copy of a segment, and for a look at a channel."""

STEADY_S: Final = 10.0
"""A feed, or a source, that has worked for this time begins its backoff anew."""

SWEEP_S: Final = 60.0
REVERIFY_S: Final = 7 * 86400.0
"""Bytes that were checked so long ago are checked again."""

VERIFY_RATE: Final = 4 << 20
"""Bytes per second that are read again here."""

MAX_ERRORS: Final = 20

PAUSES: Final = Backoff(base_s=0.5, cap_s=60.0)
"""Of a source that answers, but not as it should, and of each row."""

AWAY: Final = Backoff(base_s=0.5, cap_s=2.0)
"""Of a source that cannot be reached, for the first :data:`AWAY_TRIES` questions: about a minute."""

LONG_AWAY: Final = Backoff(base_s=10.0, cap_s=10.0)
"""Of the same source after that."""

AWAY_TRIES: Final = 60


@dataclass(eq=False, slots=True)
class _Follower:
    """A channel that is followed. live: as of ``held``; arrived: set when it first is, or when nobody follows it."""

    truth: SourceChannel
    held: Held
    attempts: int
    live: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Mirror:
    """Mirrors channels of a source here.

    Args:
        registry, source, destination: see there. The registry is used by nobody else.
        channels: patterns of the names that are mirrored. promoted: of those that are this server's own by now.
        address: of the source, for people.
        newest_first: the order in which history is copied.
        max_rate: bytes per second that are read from the source; ``None``: as many as come.
        reverify_s: a copy is checked again when its last check is older, in seconds.
        wall: the time, in seconds since 1970. dice: draws the jitter.
    """

    def __init__(
        self,
        registry: MirrorRegistry,
        source: Source,
        destination: Destination,
        channels: Sequence[str],
        *,
        promoted: Sequence[str] = (),
        address: str = "",
        newest_first: bool = True,
        max_rate: float | None = None,
        reverify_s: float = REVERIFY_S,
        wall: Callable[[], float] = time.time,
        dice: Random | None = None,
    ) -> None:
        self.registry, self.source, self.destination = registry, source, destination
        self.patterns, self.address, self.newest_first = tuple(channels), address, newest_first
        self._promoted = promoted
        self._pace = Pace(max_rate)
        self._reverify_s, self._wall, self._dice = reverify_s, wall, dice or Random()
        self.mismatches = self._failures = 0
        self._errors: deque[Trouble] = deque(maxlen=MAX_ERRORS)
        self._state, self._since = "stopped", 0.0
        self._contact = registry.contact()
        self._instance = ""
        self._main: asyncio.Task[None] | None = None
        self._stopping = False
        self._patience: asyncio.Timeout | None = None  # while news are waited for
        self._again = self._doubted = False
        self._reached, self._wake = asyncio.Event(), asyncio.Event()
        self._written, self._reverify = asyncio.Event(), asyncio.Event()
        self._followers: dict[str, _Follower] = {}
        self._live = 0  # how many of these are at their live edge
        self._looking = self._copying = self._in_flight = 0
        self._listing = asyncio.Semaphore(LISTS)
        self._thread = DaemonThread("mirror")
        registry.begun = self._written.set

    # Life.

    async def run(self) -> None:
        """Mirror until :meth:`stop`."""
        self._main = asyncio.ensure_future(self._run())
        try:
            await self._main
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self._state = "stopped"

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Stop. What is here stays as it is; what is under way is done again by the next one."""
        self._stopping = True
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait((self._main,), timeout=deadline_s)
        self._keep_contact()
        self.registry.commit()

    def _keep_contact(self) -> None:
        if self._contact is not None:
            self.registry.heard(self._contact)

    async def _run(self) -> None:
        failures = 0
        while True:
            self._state, self._followers, self._live = "looking", {}, 0
            self._looking = self._copying = self._in_flight = 0
            self._listing = asyncio.Semaphore(LISTS)
            self._reached.clear()
            began = self._now()
            try:
                self.registry.sweep(self._wall(), self._wall())  # nothing is under way
                async with asyncio.TaskGroup() as self._group:
                    for one in (self._listen, self._work, self._verify, self._commit, self._sweep):
                        self._group.create_task(one())
            except* RegistryError as errors:
                self.registry.roll_back()
                self._tell("", errors.exceptions[0])
            failures = 1 if self._now() - began >= STEADY_S else failures + 1
            await asyncio.sleep(PAUSES.delay(failures, self._dice))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _pause(self, attempts: int) -> float:
        """When a row is tried again."""
        return self._wall() + PAUSES.delay(max(1, attempts), self._dice)

    def _tell(self, channel: str, error: BaseException | str) -> str:
        text = str(error) or type(error).__name__
        self._failures += 1
        before = [one for one in self._errors if one[1:] == (channel, text)]
        for one in before:
            self._errors.remove(one)
        if not before:  # or a row that fails again and again would fill the log
            logger.warning("mirror of %s: %s%s", self.address, f"{channel!r}: " if channel else "", text)
        self._errors.append(Trouble(self._wall(), channel, text))
        return text

    async def _commit(self) -> None:
        while True:
            await self._written.wait()
            await asyncio.sleep(COMMIT_S)
            self._written.clear()
            self.registry.commit()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            self._keep_contact()
            if swept := self.registry.sweep(self._wall(), self._wall() - COPY_S):
                self._tell("", f"{swept} copies had no end, and begin again")
                self._wake.set()
            if self.registry.path is not None:
                await loop.run_in_executor(self._thread, self.registry.checkpoint)

    # What may have happened: it marks rows as dirty.

    def selected(self, name: str) -> bool:
        """Whether a channel is mirrored."""
        return not is_reserved(name) and matches_any(self.patterns, name) and not matches_any(self._promoted, name)

    def select(self, patterns: Sequence[str]) -> None:
        """Mirror the channels of these names from now on. Copies of others end; what is stored of them stays."""
        self.patterns = tuple(patterns)
        self._let_go([name for name in self.registry.channels() if not self.selected(name)])
        self.look_again()

    def _let_go(self, names: Sequence[str]) -> None:
        for name in names:
            self._unfollow(name)
            self.destination.end(name)
        self.registry.let_go(names)

    def look_again(self) -> None:
        """Ask for all channels now."""
        self._again = True
        if self._patience is not None:
            self._patience.reschedule(self._now())

    def matching(self, patterns: Sequence[str]) -> list[str]:
        """The copied channels with such a name, but for those that have ended at the source."""
        rows = self.registry.channels().items()
        return [name for name, row in rows if row.state != RowState.DELETED and matches_any(patterns, name)]

    def resync(self, names: Sequence[str], *, failed: bool = False) -> int:
        """Look at channels anew, and try at once what has failed; how many these are.

        Args:
            failed: those of them only of which something has failed.
        """
        if failed:
            wrong = self.registry.failed_names()
            names = [name for name in names if name in wrong]
        self.registry.resync(names, self._wall())
        self._wake.set()
        return len(names)

    async def reverify(self, names: Sequence[str]) -> None:
        """Check the bytes of channels anew, before all others."""
        for name in names:
            self.registry.reverify([name])
            await asyncio.sleep(0)  # it may have many segments
        self._reverify.set()

    def not_kept(self, name: str, epoch: int, seq: int) -> None:
        """The destination has shown a segment, but could not keep it."""
        self.registry.forget(name, epoch, [seq])
        if (follower := self._followers.get(name)) is not None and follower.truth.epoch == epoch:
            self._mark([name])

    def expired(self, name: str, epoch: int, seq: int) -> None:
        """The destination's retention has removed a segment. It is not missing, and storage goes on in any case."""
        with suppress(RegistryError):  # then its verification finds it
            self.registry.forget(name, epoch, [seq])

    def _mark(self, names: Sequence[str]) -> None:
        """Something may have happened to channels. The one thing that news do."""
        names = [name for name in names if self.selected(name)]
        if sum(n for (kind, _), (n, _) in self.registry.counts().items() if kind == "channel") >= 2 * MAX_CHANNELS:
            here = self.registry.channels()
            names = [name for name in names if name in here]
        self.registry.mark(names, self._wall())
        self._wake.set()

    async def _listen(self) -> None:
        """Look at all, then hear the news; when they may have been missed, look at all again."""
        failures, told = [0, 0], ""  # of a source that answers, and of one that is away: each has its own pauses
        while True:
            began, self._doubted = self._now(), False
            problem: Exception | None = None
            try:
                async with asyncio.timeout(ANSWER_S):
                    listing = await self.source.look()
                if self._state == "unreachable" or listing.instance != self._instance:
                    self.registry.try_now(self._wall())
                    self._wake.set()
                self._instance = listing.instance
                self._heard()
                await self._compare(listing)
                self._state = "following"
                self._reached.set()
                try:
                    await self._hear(listing)
                finally:
                    if self._now() - began >= STEADY_S:
                        failures = [0, 0]
                if wrong := self._doubted:
                    problem = SourceAway("an answer has not come")  # so it is asked soon, however often this happens
            except IndexTooOld:
                wrong = True
            except (SourceError, OSError) as error:
                wrong, problem = True, error
                if self._state != "unreachable":
                    self._state, self._since, told = "unreachable", self._wall(), ""
                if str(error) != told:  # a question that fails as before is nothing new
                    told = self._tell("", error)
                self._reached.clear()
            if wrong:
                is_away = isinstance(problem, SourceAway)
                failures[is_away] += 1
                await asyncio.sleep(pause_s(problem, failures[is_away], self._dice))

    async def _hear(self, listing: Listing) -> None:
        index = listing.index
        try:
            async with asyncio.timeout(DIFFERENCE_S) as self._patience:
                while not self._again:
                    async with asyncio.timeout(ANSWER_S):
                        news = await self.source.news(index, listing.instance)
                    if news.index < index:
                        raise SourceLies(f"its news go back from {index} to {news.index}")
                    index = news.index
                    self._heard()
                    self._mark(news.names)
        except TimeoutError:
            if self._patience is None or not self._patience.expired():
                raise
        finally:
            self._patience = None

    async def _compare(self, listing: Listing) -> None:
        """The full difference: what is not as it was there a moment ago is dirty."""
        self._again = False
        rows, there = self.registry.channels(), {one.name: one for one in listing.channels if self.selected(one.name)}
        if len(there) > MAX_CHANNELS:
            self._tell("", f"it has {len(there)} channels of these names; at most {MAX_CHANNELS} are mirrored")
        self._let_go([name for name in {**rows, **self.destination.channels()} if not self.selected(name)])
        dirty = [name for name, one in there.items() if not self._is_as(rows.get(name), one)]
        dirty += [name for name, row in rows.items() if row.state != RowState.DELETED and name not in there]
        dirty += [name for name in self.destination.channels() if name not in rows and name not in there]
        for at in range(0, len(dirty), 1000):
            self._mark(dirty[at : at + 1000])
            await asyncio.sleep(0)

    def _is_as(self, row: ChannelRow | None, one: SourceChannel) -> bool:
        """Whether a row is dirty already, or agrees with the source."""
        if row is None or row.state == RowState.DELETED:
            return False
        if row.state in (RowState.PENDING, RowState.FAILED):
            return True
        same = row.epoch == one.epoch and _began_together(row.created_us, one.created_us)
        return same and (row.state == RowState.STARTED or one.name in self._followers)

    def _heard(self) -> None:
        self._contact = self._wall()

    def _doubt(self, error: Exception, since: float) -> None:
        """A question had no answer. If nothing was heard since it was asked, find out whether the source is there."""
        if not isinstance(error, SourceError | OSError) or isinstance(error, SourceLies | GoneThere):
            return
        if (self._contact or 0.0) < since and self._reached.is_set():
            self._reached.clear()
            self._doubted = True
            self.look_again()

    # What is done.

    async def _work(self) -> None:
        """Begin what is due."""
        while True:
            await self._reached.wait()
            self._wake.clear()
            now = self._wall()
            self.registry.revive(now)
            if self._looking < LOOKS:
                for row in self.registry.take_channels(now, LOOKS - self._looking):
                    self._looking += 1
                    self._begin(row.name, partial(self._look_at, row))
            left_out = 0
            while self._copying < COPIES and (segment := self.registry.next_segment(newest=self.newest_first)):
                if not self.destination.keeps(segment.name, segment.epoch, segment.told):
                    self.registry.left_out(segment, now)
                    left_out += 1
                    if left_out == LEFT_OUT:
                        self._wake.set()
                        break
                    continue
                if self._in_flight and self._in_flight + segment.size > IN_FLIGHT:
                    break
                self._copying += 1
                self._in_flight += segment.size
                self._begin(segment.name, partial(self._copy, self.registry.start_segment(segment, now)))
            due = self.registry.next_due()
            await asyncio.sleep(0)  # others have a turn also if there is more to do
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._wake.wait()

    def _begin(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work()
            finally:
                self._wake.set()

        return self._group.create_task(run(), name=f"mirror {name}")

    # Channels.

    async def _look_at(self, row: ChannelRow) -> None:
        began, instance = self._wall(), self._instance
        try:
            try:
                async with asyncio.timeout(ANSWER_S):
                    truth = await self.source.channel(row.name)
                self._heard()
                lives = self._apply(row, truth, instance)
            finally:
                self._looking -= 1
                self._wake.set()
            if lives and truth is not None:
                async with asyncio.timeout(COPY_S):
                    await self._history(row, truth)
                self.registry.finish_channel(row, self._wall())
        except RegistryError:
            raise
        except Exception as error:
            if not isinstance(error, TrickleError | OSError):
                logger.exception("a fault of the mirror, at %r", row.name)
            self._doubt(error, began)
            if self.registry.fail_channel(row, self._wall(), self._pause(row.attempts + 1), str(error)):
                self._tell(row.name, error)

    def _apply(self, row: ChannelRow, truth: SourceChannel | None, instance: str) -> bool:
        """One step: whether what was learned counts, and the channel lives. Then it is followed."""
        name = row.name
        if not self.registry.is_current(row):
            return False
        if not self.selected(name):
            self._let_go([name])
            return False
        gone = self.registry.lacking(name, inf if truth is None else truth.epoch)
        if truth is None:
            if self.registry.bury(row, self._wall()):
                self._unfollow(name)
                self.destination.end(name)
                self._tell_of(name, gone)
            return False
        if truth.epoch < row.epoch and row.instance == instance:
            raise SourceLies(f"its epochs go back from {row.epoch} to {truth.epoch}")
        others = self.registry.has_others(truth)
        if self.registry.learn(row, truth, instance):
            self._tell_of(name, gone)
        if (before := self._followers.get(name)) is not None:
            if before.truth == truth:
                return True
            self._unfollow(name)
        if others:
            self.destination.end(name)
            old = {copy.seq for copy in self.destination.copies(name, truth.epoch)}
            for seq in old:
                self.destination.remove(name, truth.epoch, seq)
            self.registry.forget(name, truth.epoch, old | self.registry.synced(name, truth.epoch).keys())
        if len(self._followers) >= MAX_CHANNELS:
            raise SourceError(f"{MAX_CHANNELS} channels are followed already: mirror fewer of them")
        held = self.destination.hold(name, truth.epoch, partial(self._closed, name, truth))
        self._followers[name] = follower = _Follower(truth, held, row.attempts)
        follower.task = self._begin(name, partial(self._follow, follower))
        return True

    def _tell_of(self, name: str, gone: int) -> None:
        """Some segments of a channel that has ended are not here: with it they have gone at the source."""
        if gone:
            self._tell(name, f"it ended at the source before {gone} of its segments were copied")

    def _unfollow(self, name: str) -> None:
        if (follower := self._remove(name)) is not None and follower.task is not None:
            follower.task.cancel()

    def _remove(self, name: str) -> _Follower | None:
        """Nobody follows a channel any more, and nobody waits for its window."""
        if (follower := self._followers.pop(name, None)) is not None:
            self._live -= follower.live
            follower.arrived.set()
        return follower

    def _closed(self, name: str, truth: SourceChannel, copy: HeldCopy) -> None:
        """A segment has come by the feed."""
        follower = self._followers.get(name)
        if self.destination.stores and follower is not None and follower.truth == truth:
            self.registry.arrived(truth, [copy], self._wall())

    async def _follow(self, me: _Follower) -> None:
        """Carry the feed of a channel into its copy, until it ends."""
        name, held = me.truth.name, me.held
        began, over, trouble = self._now(), None, ""
        try:
            async with asyncio.timeout(SILENCE_S) as patience, self.source.follow(name) as stream:
                await stream.send(held.hello())
                self.registry.set_whole(name, whole=False)
                while over is None:
                    data = await stream.receive()
                    if self._followers.get(name) is not me:
                        return
                    if not data:
                        raise SourceError("the source has closed the feed")
                    self._heard()
                    self._pace.got(len(data))
                    over = held.receive(data)
                    if held.live is not me.live:
                        me.live = held.live
                        self._live += 1 if me.live else -1
                    if me.live and not me.arrived.is_set():
                        me.arrived.set()
                        self.registry.set_whole(name, whole=True)
                    patience.reschedule(None)
                    await self._pace.wait(live=True)
                    patience.reschedule(self._now() + SILENCE_S)
        except RegistryError:
            raise
        except Exception as error:
            if not isinstance(error, TrickleError | OSError):
                logger.exception("a fault of the mirror, at %r", name)
            trouble = str(error) or f"nothing came for {SILENCE_S:.0f} s"
            self._doubt(error, self._wall() - 1.0)
        if self._followers.get(name) is not me:
            return
        self._remove(name)
        attempts = 1 if self._now() - began >= STEADY_S else me.attempts + 1
        at_once = over in (FeedEnd.ENDED, FeedEnd.LAG) and attempts == 1
        again = self._wall() if at_once else self._pause(attempts)
        self.registry.lost(name, self._wall(), again, attempts, trouble or f"the feed has ended: {over}")
        if trouble and attempts > 1:
            self._tell(name, trouble)

    async def _history(self, row: ChannelRow, truth: SourceChannel) -> None:
        """Give the segments that are there and not here their rows, unless something happens meanwhile."""
        follower = self._followers[row.name]
        with suppress(TimeoutError):
            async with asyncio.timeout(LIVE_S):
                await follower.arrived.wait()
        async with self._listing:
            if self.registry.is_current(row) and self.destination.stores:
                await self._list(row, truth, follower)

    async def _list(self, row: ChannelRow, truth: SourceChannel, follower: _Follower) -> None:
        name, epoch = row.name, truth.epoch
        have = {copy.seq: copy for copy in self.destination.copies(name, epoch)}
        known = self.registry.synced(name, epoch)
        new = (have[seq] for seq in have.keys() - known.keys())
        self.registry.arrived(truth, new, self._wall(), late=True)
        self.registry.forget(name, epoch, known.keys() - have.keys())
        # What is above may come by the feed.
        top = max(have, default=inf) if follower.held.live else inf
        after, listed, began = -1, 0, self._wall()
        while True:
            async with asyncio.timeout(ANSWER_S):
                page = await self.source.segments(name, epoch, after)
            self._heard()
            if not self.registry.is_current(row):
                return
            if not page:
                self.registry.forget_left_out(name, epoch, began)
                return
            listed += len(page)
            seqs = [after, *(one.seq for one in page)]
            if any(a >= b for a, b in pairwise(seqs)) or listed > MAX_LISTED:
                raise SourceLies(f"its list of the segments of {name!r} goes back, or has no end")
            here = [(one, have[one.seq]) for one in page if one.seq in have]
            self._copy_again(truth, [one for one, copy in here if _differs(one, copy.size, copy.crc)])
            right = [copy for one, copy in here if one.seq not in known and not _differs(one, copy.size, copy.crc)]
            self.registry.arrived(truth, right, self._wall())
            lacking: list[SourceSegment] = []
            beyond: list[SourceSegment] = []
            for one in page:
                if one.seq not in have:
                    (lacking if self.destination.keeps(name, epoch, one) else beyond).append(one)
            now = self._wall()
            self.registry.leave_out(truth, beyond, now)
            self.registry.add(truth, [one for one in lacking if one.seq < top], now)
            self.registry.add(truth, [one for one in lacking if one.seq > top], now, now + FEED_S)
            self._wake.set()
            after = page[-1].seq

    # Segments.

    async def _copy(self, row: SegmentRow) -> None:
        name, told, began, follower = row.name, row.told, self._wall(), self._followers.get(row.name)
        body: list[bytes] = []
        size = crc = 0
        try:
            async with asyncio.timeout(SILENCE_S) as patience:
                async with aclosing(self.source.read(name, row.epoch, told)) as chunks:
                    async for chunk in chunks:
                        self._heard()
                        self._pace.got(len(chunk))
                        size, crc = size + len(chunk), crc32(chunk, crc)
                        if size > told.size:
                            break
                        body.append(chunk)
                        patience.reschedule(None)
                        await self._pace.wait(live=False)
                        patience.reschedule(self._now() + SILENCE_S)
            is_as_listed = size == told.size and told.crc in (None, crc)
            # Its feed breaks off when the source is started anew. Then these may be bytes of another channel, which has
            # the same name, epoch and seq; the checksum tells.
            if not self._stands(name, follower) and (told.crc is None or not is_as_listed):
                raise SourceError("the feed of its channel broke off meanwhile")
            if not is_as_listed:
                raise SourceLies(f"it came with {size} bytes and the CRC-32 {crc:08x}, and not as it was listed")
            self._show(row, body, crc)
        except RegistryError:
            raise
        except Exception as error:
            if not isinstance(error, TrickleError | OSError):
                logger.exception("a fault of the mirror, at %r", name)
            self._doubt(error, began)
            if isinstance(error, GoneThere) and row.attempts and self.registry.is_current(row):
                # Retention has removed it there: it is not missing, and a part that has come before stays.
                self.registry.forget(name, row.epoch, [row.seq])
                part = [copy for copy in self.destination.copies(name, row.epoch) if copy.seq == row.seq]
                self.registry.arrived(SourceChannel(name, row.epoch, row.created_us), part, self._wall())
                return
            text = str(error) or f"nothing came for {SILENCE_S:.0f} s"
            if self.registry.fail_segment(row, self._wall(), self._pause(row.attempts + 1), text):
                self._tell(name, f"segment {row.seq}: {text}")
        finally:
            self._copying -= 1
            self._in_flight -= row.size

    def _stands(self, name: str, follower: _Follower | None) -> bool:
        return follower is not None and self._followers.get(name) is follower

    def _show(self, row: SegmentRow, body: Sequence[bytes], crc: int) -> None:
        """One step: if nothing has happened to the segment and its channel, it can be read from now on."""
        if not self.selected(row.name) or not self.registry.finish_segment(row, crc, self._wall()):
            return
        shown = self.destination.insert(row.name, row.epoch, row.told, body)
        if not shown and any(copy.seq == row.seq for copy in self.destination.copies(row.name, row.epoch)):
            self.destination.remove(row.name, row.epoch, row.seq)
            shown = self.destination.insert(row.name, row.epoch, row.told, body)
        if not shown and not self.destination.keeps(row.name, row.epoch, row.told):
            self.registry.left_out(row, self._wall())
        elif not shown:
            self.registry.fail_segment(row, self._wall(), None, "there is no room for it here")

    def _copy_again(self, channel: SourceChannel, segments: Sequence[SourceSegment]) -> None:
        """These are here, and are others at the source. What is here stays until they have come, and are as listed.

        So it is with one of which a part had come when the feed broke off, and that had left the source's window when
        the next feed began: it is truncated here.
        """
        self.registry.forget(channel.name, channel.epoch, [one.seq for one in segments])
        self.registry.add(channel, segments, self._wall())

    # Verification.

    async def _verify(self) -> None:
        """Read again what is here, those first that were checked the longest time ago."""
        while True:
            self._reverify.clear()
            rows = self.registry.unverified(self._wall() - self._reverify_s, 64)
            for (name, epoch), some in groupby(sorted(rows), key=lambda row: row[:2]):
                try:
                    await self._verify_some(name, epoch, list(some))
                except OSError as error:
                    self._tell(name, error)
                    await asyncio.sleep(SWEEP_S)
            if not rows:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(SWEEP_S, self._reverify_s)):
                        await self._reverify.wait()

    async def _verify_some(self, name: str, epoch: int, rows: Sequence[SegmentRow]) -> None:
        there: dict[int, SourceSegment] = {}
        follower, asked = self._followers.get(name), -1
        for row in rows:
            if follower is not None and follower.truth.epoch == epoch and row.seq > asked:
                with suppress(SourceError, OSError):  # then only what is here is checked
                    async with asyncio.timeout(ANSWER_S):
                        there = {one.seq: one for one in await self.source.segments(name, epoch, row.seq - 1)}
                asked = max(there, default=row.seq)
            crc = await self.destination.checksum(name, epoch, row.seq)
            if crc is None or row.crc not in (None, crc):
                if self.registry.is_current(row):
                    if crc is not None:
                        self.mismatches += 1
                        self._tell(name, f"segment {row.seq} is damaged here, and is copied again")
                        self.destination.remove(name, epoch, row.seq)
                    self.not_kept(name, epoch, row.seq)
                continue
            told = there.get(row.seq)
            if follower is not None and told is not None and _differs(told, row.size, crc):
                self.mismatches += 1
                self._tell(name, f"segment {row.seq} is another one at the source, and is copied again")
                if self._stands(name, follower) and self.registry.is_current(row):
                    self._copy_again(follower.truth, [told])
            self.registry.verified(row, crc, self._wall())
            await asyncio.sleep(row.size / VERIFY_RATE)

    # Seeing it.

    def status(self) -> Status:
        """How the mirror stands; cheap."""
        counts, now = self.registry.counts(), self._wall()
        channels, segments = (
            {state: n for (kind, state), (n, _) in counts.items() if kind == of and n} for of in ("channel", "segment")
        )
        (segments_behind, bytes_behind), rate = self.registry.behind(), self._pace.rate()
        return Status(
            source=self.address,
            state=self._state,
            unreachable_since=self._since if self._state == "unreachable" else None,
            last_contact=self._contact,
            channels=channels,
            segments=segments,
            verified=counts["verified", RowState.SYNCED][0],
            stores=self.destination.stores,
            live=self._live,
            segments_behind=segments_behind,
            bytes_behind=bytes_behind,
            seconds_behind=self._seconds_behind(now),
            oldest_dirty=self.registry.oldest_dirty(),
            rate=rate,
            seconds_left=0.0 if not bytes_behind else bytes_behind / rate if rate else None,
            received=self._pace.total,
            mismatches=self.mismatches,
            failures=self._failures,
            errors=tuple(self._errors),
        )

    def _seconds_behind(self, now: float) -> float | None:
        if self._contact is None:
            return None
        if self._state != "following":
            return max(0.0, now - self._contact)
        dirty = self.registry.oldest_dirty(segments=False)
        return 0.0 if dirty is None else max(0.0, now - dirty[1])

    def lost_if_promoted(self) -> Loss:
        """List the parts of the source that are missing here, and would be lost by a promotion."""
        channels, segments = self.registry.missing(reachable=self._state == "following")
        arriving = [name for name, one in self._followers.items() if not one.held.live]
        return Loss(channels, arriving, segments, None if self._contact is None else self._wall() - self._contact)


def pause_s(error: Exception | None, failures: int, dice: Random) -> float:
    """How long a source that has failed so often is left alone, in seconds."""
    if not isinstance(error, SourceAway | ConnectionLost):
        return PAUSES.delay(failures, dice)
    return (AWAY if failures <= AWAY_TRIES else LONG_AWAY).delay(failures, dice)


def _differs(there: SourceSegment, size: int, crc: int | None) -> bool:
    """Whether a copy cannot be the segment that the source has."""
    return there.size != size or (None not in (there.crc, crc) and there.crc != crc)


def _began_together(here: int, there: int) -> bool:
    """Whether two times may be that of one channel: 0 is not told."""
    return here == there or not (here and there)
