"""The requests of a publisher that are under way: the segment being written, and the preconnect of the next one."""

from __future__ import annotations

from typing import Final, assert_never

import anyio
from anyio.abc import TaskGroup

from publisher.body import Body
from publisher.core import Advance, Plan, Progress, Receipt, Resync, RetryAfter, Stop, Ticket
from publisher.exchanges import Exchanges
from trickle.errors import ClosedHere, LocalProtocolError, TrickleError

LINGER_S: Final = 0.5
"""How long the preconnect's answer is waited for after the channel was ended."""


class Post:
    """One segment's request, which begins as a preconnect.

    Attributes:
        ticket: which segment, and the how-many-th attempt.
        body: its bytes.
        scope: cancelling it cuts the request off.
        begun: its first chunk was written.
        done: set when the segment's fate is known.
        verdict: its fate; ``None`` while open, and if it was cut off here.
    """

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.body = Body()
        self.scope = anyio.CancelScope()
        self.begun = False
        self.done = anyio.Event()
        self.verdict: Advance | Stop | None = None

    def receipt(self) -> Receipt:
        """What the server said about the segment.

        Raises:
            TrickleError: it failed.
            LocalProtocolError: it is not over yet (``ClosedHere``: it was cut off here).
        """
        match self.verdict:
            case Advance(receipt=Receipt() as receipt):
                return receipt
            case Advance(error=TrickleError() as error) | Stop(error=error):
                raise error
        if self.done.is_set():
            raise ClosedHere("the segment was cut off")
        raise LocalProtocolError("the segment is not over yet")


class Posts:
    """Opens, carries and closes the requests of one publisher.

    Args:
        plan: decides.
        exchanges: makes the requests.
        tasks: runs them.
        preconnect: how many are opened ahead, 0 or 1.
    """

    def __init__(self, plan: Plan, exchanges: Exchanges, tasks: TaskGroup, preconnect: int) -> None:
        self._plan = plan
        self._exchanges = exchanges
        self._tasks = tasks
        self._preconnect = preconnect
        self._accepting = True
        self._ahead: Post | None = None
        self._current: Post | None = None

    def claim(self) -> Post:
        """Take the next segment's request, which most often is already open."""
        if not self._accepting:
            raise ClosedHere("the publisher was closed")
        if self._current is not None:
            raise LocalProtocolError("the segment before is still open")
        if self._plan.error is not None:
            raise self._plan.error
        self._current, self._ahead = self._ahead or self._open(), None
        return self._current

    async def write(self, post: Post, chunk: bytes) -> None:
        """Write one chunk; with the first one, the next preconnect is opened."""
        if self._current is not post:
            raise LocalProtocolError("the segment is not open")
        if not chunk:
            return
        if not await post.body.put(chunk):
            post.receipt()  # raises what happened
        if not post.begun:
            post.begun = True
            self._plan.begin(post.ticket)
            self.open_ahead()

    async def end(self, post: Post) -> None:
        """End a segment and wait for its fate."""
        post.body.end()
        await post.done.wait()
        post.receipt()

    def leave(self, post: Post) -> None:
        """The writer has no more to do with this segment; cut it off if it is still open."""
        post.scope.cancel()
        self._current = None
        self.open_ahead()

    def open_ahead(self) -> None:
        """Open the preconnect, unless there is one or there is to be none."""
        if self._ahead is None and self._preconnect and self._accepting and self._plan.error is None:
            self._ahead = self._open()

    def stop(self) -> None:
        """No further request is made, neither a new one nor a retry: it could bring an ended channel back to life."""
        self._accepting = False

    async def close_ahead(self) -> None:
        """End the preconnect, whose answer is most often there already."""
        if self._ahead is not None:
            self._ahead.body.end()
            with anyio.move_on_after(LINGER_S):
                await self._ahead.done.wait()
            self.cut_ahead()

    def cut_ahead(self) -> None:
        """Cut the preconnect off. Were it ended, it would become an empty segment."""
        if self._ahead is not None:
            self._ahead.scope.cancel()

    def _open(self) -> Post:
        post = Post(self._plan.take())
        self._tasks.start_soon(self._carry, post)
        return post

    async def _carry(self, post: Post) -> None:
        """One segment's request and its retries, until its fate is known."""
        try:
            with post.scope:
                while await self._attempt(post):
                    pass
        finally:
            post.body.stop()
            post.done.set()

    async def _attempt(self, post: Post) -> bool:
        """One request; whether another one is to follow."""
        begun_at = anyio.current_time()
        outcome = await self._exchanges.post(post.ticket, post.body)
        progress = Progress(post.body.sent, post.body.ended, anyio.current_time() - begun_at)
        verdict = self._plan.on_post(post.ticket, outcome, progress)
        match verdict:
            case Advance():
                post.verdict = verdict
                return False
            case Stop():
                post.verdict = verdict
                self.cut_ahead()
                return False
            case RetryAfter(delay_s):
                post.ticket = post.ticket.again()
            case Resync(delay_s, seq):
                post.ticket = post.ticket.again(seq)
            case _:
                assert_never(verdict)
        await anyio.sleep(delay_s)
        return self._accepting
