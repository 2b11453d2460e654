"""The segments in flight of one publisher, and their requests.

A request is opened ahead (a preconnect), or when there is something to send and none is open. The first segment with
something to send gets the first preconnect: so segments begin in the order of their seqs, whichever was entered first.

The meaning of an answer is decided in :mod:`tricklecast.publisher.core`, and :mod:`tricklecast.publisher.requests`
makes the requests; this module obeys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

import anyio

from tricklecast.publisher.body import Body, Buffer
from tricklecast.publisher.core import Advance, Plan, Progress, Receipt, Resync, RetryAfter, Ticket
from tricklecast.publisher.events import (
    Failed,
    Forgotten,
    PublisherReporter,
    PublisherStatistics,
    Renumbered,
    Retrying,
    SegmentBegun,
    SegmentLost,
    SegmentPublished,
)
from tricklecast.publisher.requests import Requests
from tricklecast.publisher.uploads import Carriers, InFlight, StartTask, Upload
from tricklecast.trickle import wire
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost
from tricklecast.trickle.client.retry import Stop
from tricklecast.trickle.client.tasks import HomeLoop, Notifier, clock
from tricklecast.trickle.errors import (
    ChannelEnded,
    ClosedHere,
    ConnectionLost,
    PublisherFull,
    SegmentDropped,
    TrickleError,
)

MAX_IN_FLIGHT: Final = 1000
"""Segments that may wait for the server, however small they are: each takes some kilobytes besides its bytes."""

GIVE_UP_S: Final = 5.0
"""How long the server is given to hear that a segment was given up. It finds out by itself after about as long."""

READ_BACK_S: Final = 10.0
"""How long a segment that a server may have stored before it was killed is read back."""

MAX_UNSEEN: Final = 1000
"""Failed segments that are remembered until the end, in case the program does not ask for their result."""


def _connection_use(segment: InFlight) -> int:
    """How much of a connection a segment has: nothing, one that is being made, or one that has taken bytes of it."""
    upload = segment.upload
    return 0 if upload is None or not upload.is_carried else 1 + (upload.is_begun and not upload.awaits_retry)


class Segments:
    """Opens, carries and closes the requests of one publisher.

    Args:
        drops: where the buffer is full, the oldest segments are given up for a new one, which otherwise waits.
        preconnect, buffer_bytes, buffer_s: as :class:`~tricklecast.publisher.client.Publisher` explains.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Requests,
        report: PublisherReporter,
        *,
        drops: bool,
        preconnect: int,
        buffer_bytes: int,
        buffer_s: float,
    ) -> None:
        self.failure: Exception | None = None  # see fail()
        self.now = anyio.current_time
        self._plan = plan
        self._requests = requests
        self._drops = drops
        self._preconnect = preconnect
        self._buffer = Buffer(buffer_bytes, reclaim=self._reclaim if drops else None)
        self._buffer_s = buffer_s
        self._report = report
        self._start: StartTask | None = None
        self._home: HomeLoop | None = None  # the event loop in which the publisher was opened
        self._accepting = True  # segments may be entered
        self._stopped = False  # no further request is made
        self.most = MAX_IN_FLIGHT  # segments that may wait
        self._pending: list[InFlight] = []  # those without a result, the oldest first
        self._ahead: list[Upload] = []  # preconnects, by seq
        self._turns = 0  # uploads so far
        self._carriers = Carriers(self._carry)
        self._entering: deque[Notifier] = deque()  # of tasks that wait for room; the first one enters next
        self._unseen: deque[InFlight] = deque()  # failed; at most MAX_UNSEEN
        self._older_unseen = 0  # older ones of them whose writers did not know it
        self._pause_until = 0.0  # no request is begun before
        self._idle_since = 0.0  # when the last segment got its result
        self._locating = False  # a task asks where the head is
        self._deleting = 0  # tasks that tell the server of segments that were given up
        self._changed = Notifier()  # requests may begin, or are over
        self._last_error: Exception | None = None

    def statistics(self) -> PublisherStatistics:
        """Return the counters so far."""
        error = self.error or self._last_error
        return PublisherStatistics(
            **self._report.counts, in_flight=len(self._pending), buffered_bytes=self._buffer.used, last_error=error
        )

    @property
    def error(self) -> Exception | None:
        """Why nothing more can be published: a :class:`TrickleError`, or the error of a foreign transport."""
        return self.failure or self._plan.error

    @property
    def unseen(self) -> tuple[tuple[int, ...], int]:
        """The segments that were lost, dropped or cut off, and of which their writers do not know it: the seqs of the
        newest, and how many there are besides, older ones or without a number."""
        found = [one for one in self._unseen if not (one.is_seen or one.asking)]
        seqs = sorted(one.seq for one in found if one.seq is not None)
        return tuple(seqs), self._older_unseen + len(found) - len(seqs)

    # For segments.

    async def enter(self) -> InFlight:
        """Begin a segment. If the buffer is full, drop the oldest ones or wait.

        Raises:
            PublisherFull: there was no room within ``buffer_s``.
            LocalProtocolError: the publisher was opened in another event loop.
        """
        self._check_open()
        self.check_loop()
        if self._drops:
            since = self.now() - self._buffer_s
            if self._pending and (self._is_full or 0 < self._pending[0].ended_at < since):
                self._drop_while(lambda oldest: self._is_full or 0 < oldest.ended_at < since)
        elif self._is_full or self._entering:
            await self._wait_for_room()
        segment = InFlight(self.now(), self._report.is_detailed)
        self._pending.append(segment)
        if self._entering:
            self._let_in()
        return segment

    def check_loop(self) -> None:
        """Check that this is the event loop in which the publisher was opened.

        Raises:
            LocalProtocolError: it is another one.
        """
        if self._home is not None:
            self._home.check()

    async def _wait_for_room(self) -> None:
        """Wait until the buffer has room.

        Tasks get it in the order in which they asked. Only the first one is woken: to wake all of them would cost a
        thousand turns for each answer if a thousand tasks wait.
        """
        place = Notifier()
        self._entering.append(place)
        try:
            with anyio.move_on_after(self._buffer_s) as limit:
                while self._is_full or self._entering[0] is not place:
                    await place.wait()
                    self._check_open()
            if limit.cancelled_caught:
                raise PublisherFull(len(self._pending), self._buffer_s) from self._plan.trouble
        finally:
            self._entering.remove(place)
            self._let_in()

    def _let_in(self) -> None:
        """Wake the task that enters next, if there is room; at the end, all of them."""
        if not self._accepting or self.error is not None:
            for place in self._entering:
                place.notify()
        elif self._entering and not self._is_full:
            self._entering[0].notify()

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= self.most or 0 < self._buffer.limit <= self._buffer.used

    def _reclaim(self, body: Body, size: int) -> bool:
        """Drop the oldest segments until ``size`` bytes of another one fit; whether they do."""
        self._drop_while(lambda oldest: not self._buffer.fits(size), spare=body)
        return self._buffer.fits(size)

    def _drop_while(self, condition: Callable[[InFlight], bool], spare: Body | None = None) -> None:
        """Drop the oldest segments as long as the condition holds for the oldest one that is left.

        Those that a connection carries come last: on a slow network each would be cut when most of it had been sent,
        and half of the network's capacity would be wasted. A connection that is silent for long is given up, and
        then its segment is the oldest one again. Before them come those for which a connection is being made: their
        numbers have to be used all the same.
        """
        found = [one for one in self._pending if one.upload is None or one.upload.body is not spare]
        found.sort(key=_connection_use)
        for oldest in found:  # in their order, those that are carried behind all others
            if not condition(oldest):
                break
            self.drop(oldest)

    def _check_open(self) -> None:
        """Raise if there must not be another segment."""
        if not self._accepting:
            raise ClosedHere("the publisher was closed")
        if self.error is not None:
            raise self.error

    @property
    def coming_seq(self) -> int:
        """The number that the next segment with something to send gets, as things are now."""
        seq = self._ahead[0].ticket.seq if self._ahead else self._plan.numbering.next
        assert seq is not None, "the position was found before the first segment"
        return seq

    def bind(self, segment: InFlight) -> Upload:
        """The request of a segment for which there is something to send: the oldest preconnect, or a new one."""
        if segment.upload is None:
            if self.error is not None:
                segment.is_seen = True
                raise self.error
            upload = self._ahead.pop(0) if self._ahead else self._open()
            upload.segment, segment.upload = segment, upload
            self._plan.numbering.bind(upload.ticket.seq)
        return segment.upload

    def give_up(self, segment: InFlight, result: TrickleError, *, tell: bool = True, gap: bool = False) -> None:
        """End a segment in the middle, with the error that its writer gets.

        Args:
            tell: tell the server, too, so that readers do not wait for the rest.
            gap: its number may stay unused.
        """
        upload = segment.upload
        if upload is not None and segment.result is None:
            if upload.waits and gap:
                self._carriers.remove(upload)
                self._plan.numbering.settle(upload.ticket.seq, closed=False)
                upload.body.stop()
            elif upload.waits and self._close_up(upload):
                upload.body.stop()
                segment.has_number = False
            elif not self._regain(upload, gap=gap):
                self._plan.numbering.settle(upload.ticket.seq, closed=False)
                if upload.is_begun and tell:
                    self._tell_dropped(upload.ticket.seq)
                upload.body.forget()
                upload.cut()
        self._settle(segment, result)
        self.open_ahead()

    # For the publisher.

    def start(self, start: StartTask) -> None:
        """Open the preconnects, in tasks that ``start`` makes."""
        self._start = start
        self._home = HomeLoop("publisher")
        self.now = clock()
        self._idle_since = self.now()
        self.open_ahead()

    def open_ahead(self) -> None:
        """Open the preconnects that are missing and that the server would take now."""
        while len(self._ahead) < self._preconnect and not self._stopped and self.error is None:
            seq = self._plan.numbering.next
            if not self._accepting or self._start is None or seq is None or not self._plan.numbering.may_open(seq):
                return
            self._ahead.append(self._open())

    async def rotate(self, every_s: float) -> None:
        """End the preconnect as an empty segment whenever nothing was sent for ``every_s`` seconds; never returns."""
        while True:
            await anyio.sleep_until(self._idle_since + every_s)
            if self.now() < self._idle_since + every_s:
                continue
            self._idle_since = self.now()
            idle = all(segment.upload is None for segment in self._pending)
            if idle and not self._plan.uncertain and self._accepting and self.error is None:
                segment = InFlight(self._idle_since, self._report.is_detailed)
                self.bind(segment).body.end()
                while segment.result is None:
                    await segment.done.wait()

    async def finish(self, limit_s: float, patience_s: float, *, tell: bool) -> tuple[int, ...]:
        """Take no more segments: those being written are cut off, those that were ended may still be confirmed.

        Args:
            limit_s: how long to wait for answers in all.
            patience_s: how long to wait for the next one.
            tell: tell the server which segments are cut off.

        Returns:
            The seqs of segments with bytes that the server has not confirmed.
        """
        self._accepting = False
        self._notify()  # tasks that wait for room hear of the end
        before = [segment for segment in self._pending if segment.handed]
        for segment in list(self._pending):
            if segment.upload is None or not segment.upload.body.over:
                self.give_up(segment, ClosedHere("the publisher was closed"), tell=tell)
        with anyio.move_on_after(limit_s):
            left = len(self._pending) + 1
            while (self._pending or self._deleting) and len(self._pending) < left:
                left = len(self._pending)
                with anyio.move_on_after(patience_s):
                    while (self._pending or self._deleting) and len(self._pending) == left:
                        await self._changed.wait()
        for segment in list(self._pending):
            why = f"no answer within {patience_s:.0f} s after the publisher was closed"
            self.give_up(segment, ConnectionLost(seq=segment.seq, detail=why), tell=False, gap=True)
        return tuple(one.seq for one in before if one.seq is not None and not isinstance(one.result, Receipt))

    def stop(self) -> None:
        """No further request is made, neither a new one nor a retry: it could bring an ended channel back to life."""
        self._accepting = False
        self._stopped = True

    async def close_ahead(self, limit_s: float) -> bool:
        """The channel was ended: end the preconnects, and wait for their answers, which are most often there already.

        Returns:
            Whether the channel may be there again. Each preconnect has a connection of its own, and one that came to
            the server after the end has begun the channel anew, if the server creates channels: it is answered as an
            empty segment, and not with the channel's end.
        """
        confirmed = self._plan.numbering.confirmed
        for upload in self._ahead:
            upload.body.end()
        with anyio.move_on_after(limit_s):
            while self._ahead:
                await self._changed.wait()
        unanswered = len(self._ahead) > 0
        self.cut_ahead()
        return unanswered or self._plan.numbering.confirmed > confirmed

    async def leave(self, limit_s: float) -> None:
        """Tell the server, within ``limit_s`` seconds, that another publisher need not wait for this one to come back.

        Nothing depends on the answer: a server that does not know the request keeps the channel for its usual time.
        """
        if (seq := self._plan.numbering.newest) >= 0:
            with anyio.move_on_after(limit_s):
                await self._requests.leave(seq, self._plan.numbering.epoch)

    def cut_ahead(self, spare: Upload | None = None) -> None:
        """Cut the preconnects off, all but one. Were they ended, they would become empty segments."""
        for upload in list(self._ahead):
            if upload is not spare:
                self._ahead.remove(upload)
                if upload.waits:  # its number is free again: the next segment may get it
                    self._carriers.remove(upload)
                upload.cut()

    def fail(self, error: Exception) -> None:
        """Something raised that this package does not know: nothing more can be published."""
        if self.failure is None:
            self.failure = error
            self._report(Failed(error))
        for segment in list(self._pending):
            self._settle(segment, error)
        self.cut_ahead()
        self._notify()

    # Requests.

    def drop(self, segment: InFlight) -> None:
        """Give a segment up for a newer one."""
        upload = segment.upload
        begun_as = upload.ticket.seq if upload is not None and upload.is_begun else None
        if begun_as is not None:
            self._plan.uncertain = True
        error = SegmentDropped(begun_as)
        error.__cause__ = self._plan.trouble
        self.give_up(segment, error, gap=upload is not None and self._may_leave_gap(upload))

    def _may_leave_gap(self, upload: Upload) -> bool:
        """Whether the server takes those behind a segment if there is no request for it any more.

        They leap over it if all that are older are done with. Otherwise it counts against the one segment that the
        server takes beyond its head, and a later one that overtakes another on the way would be refused. So there are
        as few gaps as can be: a segment whose request waits for others gives its number away. So does one that was to
        reset the channel, with that.
        """
        numbering, seq = self._plan.numbering, upload.ticket.seq
        if upload.waits and upload.ticket.reset:
            return False
        return numbering.is_oldest(seq) or not (upload.waits or numbering.is_beside_gap(seq))

    def _close_up(self, upload: Upload) -> bool:
        """Take out a segment that waits, and give its number to the one behind it, and so on: the last one is free.

        A number for which there is no request would hold those behind it up, for as long as an older segment is open.
        Returns ``False``, and changes no number, if others are numbered behind those that wait.
        """
        waiting = self._carriers.waiting
        while waiting[-1].segment is None:  # a preconnect, which is opened again
            last = waiting.pop()
            if not self._plan.hand_back(last.ticket):
                return False
            self._carriers.remove(last)
            if last in self._ahead:
                self._ahead.remove(last)
        if not self._plan.hand_back(waiting[-1].ticket):
            return False
        self._carriers.remove(upload)
        behind = waiting[waiting.index(upload) :]
        places = [(one.ticket.seq, one.ticket.reset) for one in behind[:-1]]
        for one, place in zip(behind[1:], places, strict=True):
            one.ticket.seq, one.ticket.reset = place
        return True

    def _regain(self, upload: Upload, *, gap: bool) -> bool:
        """Take a request to which nothing was handed over from its segment; ``False`` if it has to be cut off.

        It becomes a preconnect again, if its number is still the newest. Otherwise it ends as an empty segment, unless
        there may be a gap: the server takes those behind it only once its head has passed it.
        """
        if upload.is_begun or not upload.body.take_all_back():
            return False
        assert upload.segment is not None, "it is taken from it"
        is_wanted = self._accepting or not gap  # at the end, no segment gets it
        if is_wanted and not upload.waits and self._plan.numbering.release(upload.ticket.seq):
            self._ahead.insert(0, upload)
            upload.segment.has_number = False
        elif gap:
            return False
        else:
            upload.body.end()
            upload.fills_gap = True
            upload.segment.has_number = not upload.waits
        upload.segment, upload.awaits_retry = None, False
        return True

    def _open(self) -> Upload:
        assert self._start is not None, "the publisher is open"
        self._turns += 1
        upload = Upload(self._plan.take(), Body(self._buffer), self._turns)
        self._carriers.add(upload, self._start)
        return upload

    async def _carry(self, upload: Upload) -> None:
        """Make the requests for one seq until its segment was published or lost."""
        try:
            while not upload.is_cut and (self._may_begin(upload) or await self._admitted(upload)):
                if not self._begin(upload) or not await self._attempt(upload):
                    break
        except Exception as error:
            self.fail(error)
        finally:
            upload.body.stop()
            if upload in self._ahead:
                self._ahead.remove(upload)
            if upload.segment is not None and upload.segment.result is None:
                self._settle(upload.segment, self.error or ClosedHere("the segment was cut off"))
            upload.segment = None  # no cycle: the collector of garbage has nothing to do for segments
            self._notify()

    async def _admitted(self, upload: Upload) -> bool:
        """Wait until a request may be made; ``False`` if there is to be none any more."""
        while not self._may_begin(upload):
            if self._stopped or self.error is not None:
                return False
            upload.body.rest()
            if self.now() < self._pause_until:
                with anyio.CancelScope(deadline=self._pause_until):
                    await self._changed.wait()
            else:
                if self._plan.uncertain:
                    self._locate_soon()
                await self._changed.wait()
        return True

    def _begin(self, upload: Upload) -> bool:
        """Get the ticket of a request that is made now; ``False`` if there is to be none."""
        ticket = self._plan.before_request(upload.ticket)
        if isinstance(ticket, Advance):
            self._conclude(upload, ticket)
            return False
        upload.ticket = ticket
        self.open_ahead()
        return True

    def _may_begin(self, upload: Upload) -> bool:
        """Whether a request may be made now.

        An older segment that has to be sent again goes first: a channel that begins anew begins at its first byte.
        """
        seq, plan = upload.ticket.seq, self._plan
        if plan.uncertain or self._stopped or self.error is not None or self.now() < self._pause_until:
            return False
        for segment in self._pending:
            other = segment.upload
            if other is not None and other.awaits_retry and other.ticket.seq < seq:
                return False
        return plan.numbering.may_open(seq)

    async def _attempt(self, upload: Upload) -> bool:
        """Make one request; whether another one is to follow."""
        begun_at = self.now()
        upload.is_carried = True
        body, ticket = upload.body, upload.ticket
        sending = body.send(partial(self._on_begun, upload))
        outcome: ExchangeOutcome | None = None
        if self._requests.alone:
            outcome = await self._requests.post(ticket, sending)
        else:
            with anyio.CancelScope() as upload.attempt_scope:
                outcome = await self._requests.post(ticket, sending)
        if outcome is None:  # its node was left
            upload.is_carried = False
            return True
        now, segment = self.now(), upload.segment
        first_byte_s = answered_s = None
        if segment is not None:
            first_byte_s, answered_s = segment.first_byte_s, now - segment.entered_at
        progress = Progress(
            sending.sent,
            sending.is_whole,
            now - begun_at,
            body.handed,
            body.over,
            body.held,
            first_byte_s,
            answered_s,
            now,
        )
        self._note(outcome)
        if (
            upload.fills_gap and isinstance(outcome, Answer) and outcome.status == wire.Status.CONFLICT
        ):  # the server has passed that number: there is nothing to be sent under another one
            self._plan.numbering.settle(ticket.seq, closed=False)
            return False
        decision = self._plan.on_post(ticket, outcome, progress)
        if self._plan.numbering.forgotten:
            self._tell_forgotten()
        match decision:
            case Advance(in_doubt=in_doubt):
                if in_doubt and await self._is_stored(upload):
                    decision = self._plan.found(ticket, progress, progress.handed)
                self._conclude(upload, decision)
                return False
            case Stop(error):
                if not self._stopped:
                    self._report(Failed(error))
                    self.cut_ahead()  # other requests under way get their own answers
                    knows_epochs = isinstance(outcome, Answer) and wire.EPOCH in outcome.headers
                    if isinstance(error, ChannelEnded) and not knows_epochs:
                        self._end_with_channel(error)
                if upload.segment is not None:
                    self._settle(upload.segment, error)
                return False
            case RetryAfter(delay_s, exposed, holds):
                upload.ticket = ticket.again(exposed=exposed)
                if holds:
                    self._pause_until = max(self._pause_until, self.now() + delay_s)
            case Resync(delay_s, seq):
                holds = False
                self.cut_ahead(upload)  # those behind it are opened again, under numbers that follow it
                self._renumber(upload, ticket, seq)
            case _:
                assert_never(decision)
        self._report.counts["retries"] += 1
        if decision.error is not None:
            self._report(Retrying(decision.error, delay_s, ticket.attempt + 1, ticket.seq))
        upload.awaits_retry, upload.is_carried = True, False
        body.rest()
        self._notify()  # the answer may have told of a head that lets others begin
        await anyio.sleep(0.0 if holds else delay_s)
        return True

    def _end_with_channel(self, error: ChannelEnded) -> None:
        """The channel has ended at a server of another make, go-livepeer's for example.

        Such a server answers only the preconnects with that. It takes the rest of a segment under way and confirms it,
        although readers got the first part only.
        """
        for segment in list(self._pending):
            if segment.upload is not None:
                self._settle(segment, error)
                segment.upload.cut()

    def _renumber(self, upload: Upload, ticket: Ticket, seq: int) -> None:
        """Give a segment another number, and those that wait behind it the ones behind that, in their order.

        Theirs may lie beyond all that is in use now: the server would never come to them, and they would wait for ever.
        Or the segment has got one behind theirs: the server would refuse it until they are there, and it would keep a
        carrier from them.

        Args:
            upload, seq: the segment, and its number.
            ticket: with which it was refused.
        """
        numbering = self._plan.numbering
        if upload in self._ahead:  # a preconnect: those behind it were cut off
            upload.ticket = ticket.again(seq)
            self._report(Renumbered(ticket.seq, seq))
            return
        waiting = [upload]
        for other in (*self._carriers.carrying, *self._carriers.waiting):
            stays = (other.ticket.exposed or other.ticket.final) and numbering.is_in_line(other.ticket.seq)
            if other.turn > upload.turn and not (other.is_carried or other.is_cut or stays):
                waiting.append(other)
        waiting.sort(key=lambda one: one.turn)
        numbers = numbering.line_up(seq, [one.ticket.seq for one in waiting[1:]])
        for one, number in zip(waiting, numbers, strict=True):
            old = one.ticket.seq
            one.ticket = ticket.again(number) if one is upload else replace(one.ticket, seq=number, exposed=False)
            if number != old and (one is upload or one.is_begun):
                self._report(Renumbered(old, number))
        self._carriers.sort()

    async def _is_stored(self, upload: Upload) -> bool:
        """Whether the server has all of a segment."""
        with anyio.move_on_after(READ_BACK_S):
            return await self._requests.has(upload.ticket.seq, upload.body)
        return False

    def _on_begun(self, upload: Upload) -> None:
        upload.is_begun, upload.awaits_retry = True, False
        self._plan.begin(upload.ticket)
        if upload.segment is not None:
            upload.segment.first_byte_s = self.now() - upload.segment.entered_at
            if upload.segment.is_told:
                self._report(SegmentBegun(upload.ticket.seq))
        self._notify()
        self.open_ahead()

    def _conclude(self, upload: Upload, decision: Advance) -> None:
        """A seq is done with."""
        if decision.drop and upload.is_begun:
            self._tell_dropped(upload.ticket.seq)
        result = decision.receipt or decision.error
        assert result is not None, "a segment that is done with was published or lost"
        if upload in self._ahead:
            self._ahead.remove(upload)
        if upload.segment is not None:
            self._settle(upload.segment, result)
        self.open_ahead()

    def _settle(self, segment: InFlight, result: Receipt | Exception) -> None:
        """A segment was published or lost, unless that was known before."""
        if segment.result is None:
            self._idle_since = self.now()
            segment.result = result
            segment.done.notify()
            self._report_result(segment, result)
        if segment in self._pending:
            self._pending.remove(segment)
            self._notify()

    def _report_result(self, segment: InFlight, result: Receipt | Exception) -> None:
        match result:
            case Receipt(sent=size):
                self._report.counts["segments" if size else "empty"] += 1
                self._report.counts["bytes"] += size
                if segment.is_told:
                    self._report(SegmentPublished(result))
                return
            case SegmentDropped():
                self._report.counts["dropped"] += 1
                self._last_error = result
                if segment.upload is not None:
                    self._unseen.append(segment)
            case ClosedHere():
                if segment.handed and not segment.left:  # by the end of the publisher, not by its own writer
                    self._unseen.append(segment)
            case Exception():
                self._last_error = result
                if segment.handed:
                    self._report.counts["lost"] += 1
                    self._unseen.append(segment)
        if len(self._unseen) > MAX_UNSEEN:
            oldest = self._unseen.popleft()
            self._older_unseen += not (oldest.is_seen or oldest.asking)
        self._report(SegmentLost(segment.seq, result))

    # Requests that carry no segment.

    def _locate_soon(self) -> None:
        """Ask where the head is until the plan is certain or has given up, by one request at a time.

        That is no segment's request in particular: segments may come and go meanwhile.
        """
        if not self._locating and not self._stopped and self._start is not None:
            self._locating = True
            self._start(self._locate)

    async def _locate(self) -> None:
        attempt = 0 if self._plan.trouble is None else 1  # the one that failed was the first
        try:
            while self._plan.uncertain and self.error is None and not self._stopped:
                await anyio.sleep_until(self._pause_until)
                attempt += 1
                self._report.counts["retries"] += 1
                since, begun_at = self._plan.numbering.confirmed, self.now()
                outcome = await self._requests.next(attempt)
                self._note(outcome)
                now = self.now()
                decision = self._plan.on_located(outcome, since, now, now - begun_at)
                self._tell_forgotten()
                if isinstance(decision, RetryAfter):
                    self._pause_until = max(self._pause_until, self.now() + decision.delay_s)
                    if decision.error is not None:
                        self._report(Retrying(decision.error, decision.delay_s, attempt + 1))
                elif isinstance(decision, Stop):
                    self._report(Failed(decision.error))
        except Exception as error:
            self.fail(error)
        finally:
            self._locating = False
            self._notify()

    def _tell_forgotten(self) -> None:
        """Tell the program which confirmed segments the server has lost, if the newest answer says so."""
        forgotten, self._plan.numbering.forgotten = self._plan.numbering.forgotten, None
        if forgotten:
            self._report(Forgotten(forgotten[0], forgotten[-1]))

    def _tell_dropped(self, seq: int) -> None:
        """Tell the server that a segment was given up."""
        if not self._stopped and self._start is not None:
            self._deleting += 1
            self._start(self._delete, seq)

    async def _delete(self, seq: int) -> None:
        try:
            with anyio.move_on_after(GIVE_UP_S):
                await self._requests.give_up(seq, self._plan.numbering.epoch)
        except Exception as error:
            self.fail(error)
        finally:
            self._deleting -= 1
            self._notify()

    def _leave_node(self) -> None:
        """A node was lost: if it is one of a cluster, open the preconnects again, at another node.

        One to a node that is silent would hold the next segment up for as long again.
        """
        if not self._requests.alone:
            for upload in self._ahead:
                upload.awaits_retry = True
                upload.body.rest()  # from now on nothing goes to the old connection
                if upload.attempt_scope is not None:
                    upload.attempt_scope.cancel()

    def _note(self, outcome: ExchangeOutcome) -> None:
        if isinstance(outcome, Lost):
            self._report.lost(outcome.error)
            self._leave_node()
        else:
            self._report.answered()

    def _notify(self) -> None:
        """Something has changed: wake each task that waits for it."""
        if self._entering:
            self._let_in()
        self._changed.notify()
