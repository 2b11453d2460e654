"""Which seq comes next, and whether the channel that the server shows is still this publisher's own. No I/O.

The server shows its head now and then. Four numbers say what it may be:

- ``confirmed``: the newest seq that the server has said it closed for this publisher. The head was beyond it, and a
  head never goes back within one life of a channel.
- ``newest``: the newest seq for which there was something to send. Nobody else moves the head beyond the next one.
- ``flowed``: the newest seq of which a byte has left for the server, and ``head``: the lowest that its head can be.
  The server takes a seq up to one beyond its head, so no request is made for more than one beyond these.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tricklecast.trickle.errors import LocalProtocolError

BACKWARDS: Final = 3
"""The reference server's head goes back when an older segment gets its first byte late: by less than what is usually
in flight."""


LOOSE: Final = 64
"""So many of the segments that were given up may still arrive at a server: more than leave in the time that whatever
stands between here and there can hold a request back."""


class Numbering:
    """The seqs of one publisher.

    Args:
        start: the first seq; ``None`` while it has to be asked for.

    Attributes:
        next: the seq of the next ticket; ``None`` while it is not known.
        newest, confirmed: see above; -1 while there is none.
        life: counts how often the channel was found to be gone, with all that it had.
    """

    def __init__(self, start: int | None) -> None:
        self.next: int | None = None
        self.newest = self.confirmed = -1
        self.life = 0
        self._flowed = self._head = -1
        self._epoch: int | None = None
        self._unsettled: set[int] = set()
        self._loose: deque[int] = deque(maxlen=LOOSE)
        if start is not None:
            self._begin_at(start)

    def place(self, head: int, epoch: int | None) -> None:
        """The server was asked for the position before anything was published."""
        self._begin_at(head)
        self._head = head
        self._epoch = epoch

    def take(self) -> int:
        """Hand out the next seq.

        Raises:
            LocalProtocolError: it is not known yet.
        """
        if self.next is None:
            raise LocalProtocolError("the position has to be asked for before the first segment")
        seq = self._free(self.next)
        self.next = seq + 1
        return seq

    def may_open(self, seq: int) -> bool:
        """Whether a request for this seq can be made now: the server takes none further ahead of its head."""
        return seq <= max(self._head, self._flowed) + 1

    def leaps(self, seq: int) -> bool:
        """Whether all before this seq are done with, and the server may not know it: it may never have heard of some
        that were given up here, and would wait for them before it takes this one."""
        return 0 <= self._head < seq - 1 and seq <= min(self._unsettled, default=seq)

    def bind(self, seq: int) -> None:
        """There is something to send as this seq."""
        self.newest = max(self.newest, seq)
        self._unsettled.add(seq)

    def is_last(self, seq: int) -> bool:
        """Whether nothing was bound behind this seq, so that it can still be used for something else."""
        return seq >= self.newest

    def flow(self, seq: int) -> None:
        """The first byte of it, or its end, has left for the server."""
        self._flowed = max(self._flowed, seq)

    def release(self, seq: int) -> None:
        """There is nothing to send as this seq after all."""
        self._unsettled.discard(seq)

    def settle(self, seq: int, *, closed: bool) -> None:
        """The fate of this seq is known; if ``closed``, by the server's word, which has moved its head past it."""
        self._unsettled.discard(seq)
        self.flow(seq)
        if closed:
            self.newest = max(self.newest, seq)
            self.confirmed = max(self.confirmed, seq)
            self._head = max(self._head, seq + 1)
            assert self.next is not None, "a ticket was handed out"
            self.next = max(self.next, seq + 1)
        else:
            self._loose.append(seq)

    def judge(
        self, head: int, since: int, epoch: int | None = None, *, exact: bool = True, unwritten: bool = False
    ) -> str | None:
        """Take in the head that the server shows; returns why it cannot be this publisher's doing, if so.

        Args:
            head, epoch: what it says.
            since: what was ``confirmed`` when it was asked. Its answer may have been overtaken by those that have
                confirmed more, on other connections.
            exact: it is a server whose head never goes back.
            unwritten: nothing was published to the channel since the server started.

        A head of 0 is an empty channel, for whose numbering nobody but this publisher can be responsible: it goes on
        with its own. So does a publisher that has sent nothing yet, wherever the head is. A head that went back to
        right behind a segment that may still have been on its way is that of a server that lost all, and got that one.
        One that went back where nothing was published since the server started is that of a server that lost the rest.
        """
        older, self._epoch = self._epoch, epoch or self._epoch
        if head == 0 or self.newest < 0:
            if head == 0 and since >= 0:
                self.begin_life()
            return None
        if older is not None and epoch is not None and epoch > older:
            return f"the channel was ended and begun again, by somebody else (epoch {epoch}, not {older})"
        if head > self.newest + 1:
            return f"the head is {head}, and nothing was published here beyond {self.newest}"
        if head <= since - (0 if exact else BACKWARDS):
            if unwritten or head - 1 in self._unsettled or head - 1 in self._loose:
                self.begin_life()
                self._head = head
                return None
            return f"the head is {head}, and {since} was published here before: it is another's channel by now"
        self._head = max(self._head, head)
        return None

    def begin_life(self) -> None:
        """The channel is gone, with all that the server had of it: it begins again, under the numbers of before."""
        self.life += 1
        self._epoch = None
        self._head = -1
        self.confirmed = -1

    def move(self, seq: int, head: int, *, begun: bool) -> int | None:
        """A seq lies too far ahead; returns where it goes instead, ``None`` if it is right and only came too early.

        Only the first segment of all may have begun at a wrong place. What was numbered after it follows it.
        """
        assert self.next is not None, "a ticket was handed out"
        out_of_line = seq >= self.next
        first = self.confirmed < 0 and self.life == 0 and seq <= min(self._unsettled, default=seq)
        if not out_of_line and not first:
            return None
        if first and not out_of_line:
            self.next = head  # whatever was numbered after it is out of line now
        return self.skip(seq, self.next, begun=begun)

    def skip(self, seq: int, to: int, *, begun: bool) -> int:
        """A seq cannot be used; returns the one that takes its place: ``to``, or the first after all that are in use.

        All seqs beyond it are free again: whoever has one of them without having begun must ask for another.
        """
        assert self.next is not None, "a ticket was handed out"
        self._unsettled.discard(seq)
        in_use = [other for other in self._unsettled if other < self.next]
        place = self._free(max([to, self.confirmed + 1, *(other + 1 for other in in_use)]))
        if begun:
            self._unsettled.add(place)
            in_use.append(place)
        self.next = place + 1
        self.newest = max([self.confirmed, *in_use])
        self._flowed = place - 1
        return place

    def _free(self, seq: int) -> int:
        """The first one from here on that is not in use; those that are out of line may still lie ahead."""
        while seq in self._unsettled:
            seq += 1
        return seq

    def _begin_at(self, seq: int) -> None:
        self.next = seq
        self._flowed = seq - 1
