"""The requests of a publisher: those of the segments in flight, and the preconnects ahead of them.

A request is opened as a preconnect, or when there is something to send and none is open. The first segment with
something to send gets the first of them: so segments begin in the order of their seqs, whoever entered them when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from tricklecast.publisher.body import Body
from tricklecast.publisher.core import Plan
from tricklecast.publisher.errands import Errands
from tricklecast.publisher.exchanges import Exchanges
from tricklecast.publisher.flights import Flight, Flights
from tricklecast.publisher.pause import Pause
from tricklecast.publisher.post import Options, Post
from tricklecast.publisher.statistics import Counters
from tricklecast.publisher.turns import Turns
from tricklecast.publisher.verdicts import Advance, Progress, Receipt, Resync, RetryAfter, Stop
from tricklecast.trickle.errors import ClosedHere, ConnectionLost, SegmentDropped, TrickleError


class Posts:
    """Opens, carries and closes the requests of one publisher.

    Args:
        plan: decides.
        exchanges: makes the requests.
        tasks: runs them.
        options: how they are made.
    """

    def __init__(self, plan: Plan, exchanges: Exchanges, tasks: TaskGroup, options: Options) -> None:
        self.flights = Flights(options.max_in_flight, options.when_full, self.drop)
        self.idle_since = anyio.current_time()
        self._plan = plan
        self._exchanges = exchanges
        self._tasks = tasks
        self._options = options
        self._accepting = True
        self._ahead: list[Post] = []
        self._pause = Pause()
        self.errands = Errands(plan, exchanges, tasks, self._pause, self.flights.notify)
        self._turns = Turns(plan, self.flights, self.errands, self._pause)
        self.counters = Counters(self.flights, self.errands)

    # For segments.

    async def enter(self) -> Flight:
        """A new segment; there may have to be room for it first."""
        return await self.flights.enter(self._check_open)

    def seq_of(self, flight: Flight) -> int:
        """Its number; as long as there is nothing to send, the one that it would get now."""
        if flight.post is not None:
            return flight.post.ticket.seq
        seq = self._ahead[0].ticket.seq if self._ahead else self._plan.next_seq
        assert seq is not None, "the position was found before the first segment"
        return seq

    async def write(self, flight: Flight, chunk: bytes) -> None:
        """Write one chunk; the first one takes a request for the segment."""
        if flight.fate is not None:
            flight.receipt()  # raises what happened
        if chunk and not await self._bind(flight).body.put(chunk):
            flight.receipt()

    async def end(self, flight: Flight) -> None:
        """End a segment; returns once that was handed over."""
        if flight.fate is None:
            body = self._bind(flight).body
            body.end()
            await body.flush()

    def give_up(self, flight: Flight, fate: TrickleError, *, tell: bool = True) -> None:
        """End a segment in the middle.

        Args:
            fate: what its writer is told.
            tell: the server, too, so that its readers do not wait for the rest.
        """
        post = flight.post
        if flight.fate is None and post is not None and not self._regain(post):
            self._plan.give_up(post.ticket)
            if post.touched and tell:
                self.errands.delete(post.ticket.seq)
            post.scope.cancel()
        self._settle(flight, fate)
        self.open_ahead()

    def drop(self, flight: Flight) -> None:
        """Give a segment up for a newer one."""
        if flight.begun_as is not None:
            self._plan.overrun()
        error = SegmentDropped(flight.begun_as)
        error.__cause__ = self._plan.trouble
        self.give_up(flight, error)

    # For the publisher.

    def open_ahead(self) -> None:
        """Open the preconnects that are missing and that the server would take now."""
        while len(self._ahead) < self._options.preconnect and not self._turns.stopped and self._plan.error is None:
            seq = self._plan.next_seq
            if not self._accepting or seq is None or not self._plan.may_open(seq):
                return
            self._ahead.append(self._open())

    async def rotate(self, every_s: float) -> None:
        """End the preconnect as an empty segment whenever nothing was sent for so many seconds; never returns."""
        while True:
            await anyio.sleep_until(self.idle_since + every_s)
            if anyio.current_time() < self.idle_since + every_s:
                continue
            self.idle_since = anyio.current_time()
            if not self.flights.sending and not self._plan.uncertain and self._accepting and self._plan.error is None:
                flight = Flight()
                self._bind(flight).body.end()
                await flight.done.wait()

    async def finish(self, limit_s: float, *, tell: bool) -> tuple[int, ...]:
        """Take no more segments: those being written are cut off, those that were ended get ``limit_s`` seconds.

        Args:
            tell: the server which ones are cut off.

        Returns:
            The seqs of segments with bytes that the server has not confirmed.
        """
        self._accepting = False
        before = [flight for flight in self.flights if flight.handed]
        for flight in self.flights:
            if flight.post is None or not flight.post.body.over:
                self.give_up(flight, ClosedHere("the publisher was closed"), tell=tell)
        with anyio.move_on_after(limit_s):
            await self.flights.empty()
            while self.errands.under_way:
                await self.flights.changed()
        for flight in self.flights:
            why = f"no answer within {limit_s:.0f} s after the publisher was closed"
            self.give_up(flight, ConnectionLost(seq=self.seq_of(flight), detail=why), tell=False)
        return tuple(self.seq_of(flight) for flight in before if not isinstance(flight.fate, Receipt))

    def stop(self) -> None:
        """No further request is made, neither a new one nor a retry: it could bring an ended channel back to life."""
        self._accepting = False
        self._turns.stopped = True
        self.errands.stop()

    async def close_ahead(self, limit_s: float) -> None:
        """End the preconnects, and wait for their answers, which are most often there already."""
        for post in self._ahead:
            post.body.end()
        with anyio.move_on_after(limit_s):
            while self._ahead:
                await self.flights.changed()

    def cut_ahead(self) -> None:
        """Cut the preconnects off. Were they ended, they would become empty segments."""
        ahead, self._ahead = self._ahead, []
        for post in ahead:
            post.scope.cancel()

    # Requests.

    def _check_open(self) -> None:
        if not self._accepting:
            raise ClosedHere("the publisher was closed")
        if self._plan.error is not None:
            raise self._plan.error

    def _bind(self, flight: Flight) -> Post:
        """The request of a segment for which there is something to send."""
        if flight.post is None:
            if self._plan.error is not None:
                raise self._plan.error
            post = self._ahead.pop(0) if self._ahead else self._open()
            post.flight, flight.post = flight, post
            self._plan.bind(post.ticket)
        return flight.post

    def _regain(self, post: Post) -> bool:
        """Make a preconnect again of a request to which nothing was handed over, if its number is still of use."""
        if post.touched or not post.body.take_all_back() or not self._plan.release(post.ticket):
            return False
        post.flight, post.resting = None, False
        self._ahead.insert(0, post)
        return True

    def _open(self) -> Post:
        post = Post(self._plan.take(), Body(self._options.retain_bytes))
        self._tasks.start_soon(self._carry, post)
        return post

    async def _carry(self, post: Post) -> None:
        """Make the requests for one seq until its fate is known."""
        try:
            with post.scope:
                while await self._admit(post) and await self._attempt(post):
                    pass
        finally:
            post.body.stop()
            if post in self._ahead:
                self._ahead.remove(post)
            if post.flight is not None:
                self._settle(post.flight, self._plan.error or ClosedHere("the segment was cut off"))
            self.flights.notify()

    async def _admit(self, post: Post) -> bool:
        """Wait until a request may be made; ``False`` if there is to be none any more."""
        if not await self._turns.wait(post):
            return False
        ticket = self._plan.before_request(post.ticket)
        if isinstance(ticket, Advance):
            self._conclude(post, ticket)
            return False
        post.ticket = ticket
        self.open_ahead()
        return True

    async def _attempt(self, post: Post) -> bool:
        """One request; whether another one is to follow."""
        begun_at = anyio.current_time()
        body, ticket = post.body, post.ticket
        sending = body.send(self._on_begun(post))
        outcome = await self._exchanges.post(ticket, sending)
        lived_s = anyio.current_time() - begun_at
        progress = Progress(sending.sent, sending.ended, lived_s, body.handed, body.over, body.held)
        verdict = self._plan.on_post(ticket, outcome, progress)
        match verdict:
            case Advance():
                self._conclude(post, verdict)
                return False
            case Stop(error):
                if post.flight is not None:
                    self._settle(post.flight, error)
                self.cut_ahead()  # what else is under way gets its own answer
                return False
            case RetryAfter(delay_s, exposed, holds):
                post.ticket = ticket.again(exposed=exposed)
                if holds:
                    self._pause.extend(delay_s)
                    delay_s = 0.0  # which is waited for there
            case Resync(delay_s, seq):
                post.ticket = ticket.again(seq)
                self._void_ahead(post)
            case _:
                assert_never(verdict)
        self.counters.retries += 1
        post.resting = True
        body.rest()
        await anyio.sleep(delay_s)
        return True

    def _on_begun(self, post: Post) -> Callable[[], None]:
        def begun() -> None:
            post.touched, post.resting = True, False
            self._plan.begin(post.ticket)
            if post.flight is not None:
                post.flight.begun()
            self.flights.notify()
            self.open_ahead()

        return begun

    def _conclude(self, post: Post, verdict: Advance) -> None:
        """The fate of a seq is known."""
        if verdict.drop and post.touched:
            self.errands.delete(post.ticket.seq)
        fate = verdict.receipt or verdict.error
        assert fate is not None, "a segment that is done with was published or lost"
        if post in self._ahead:
            self._ahead.remove(post)
        if post.flight is not None:
            self._settle(post.flight, fate)
        self.open_ahead()

    def _settle(self, flight: Flight, fate: Receipt | TrickleError) -> None:
        if flight.settle(fate):
            self.idle_since = anyio.current_time()
            self.counters.settle(fate, flight.handed)
        self.flights.leave(flight)

    def _void_ahead(self, moved: Post) -> None:
        """Preconnects behind a segment that got another number are opened again, under numbers that follow it."""
        for post in [post for post in self._ahead if post is not moved]:
            self._ahead.remove(post)
            post.scope.cancel()
