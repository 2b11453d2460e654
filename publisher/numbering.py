"""The seqs of one publisher, and whether the channel that the server shows is still its own. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from typing import Final

from tricklecast.trickle.errors import LocalProtocolError

BACKWARDS: Final = 3
"""The reference server's head goes back when an older segment gets its first byte late: by fewer segments than are
usually in flight."""

MAX_GIVEN_UP: Final = 64
"""Segments that were given up and may still arrive at a server: more than leave in the time for which a proxy can hold
a request back."""


class Numbering:
    """The seqs of one publisher, and whether the channel that the server shows is still its own.

    The server shows its head now and then. Four numbers limit its possible values:

    - ``confirmed``: the newest seq that the server has said it closed for this publisher. The head was beyond it, and
      a head never goes back within one epoch.
    - ``newest``: the newest seq for which there was something to send. Nobody else moves the head beyond the next one.
    - ``newest_sent``: the newest seq of which a byte has left for the server, and ``head``: the lowest that its head
      can be. The server takes a seq up to one beyond its head, so no request is made for more than one beyond these.

    Args:
        start: the first seq; ``None`` while it has to be asked for.

    Attributes:
        next: the seq of the next ticket; ``None`` while it is not known.
        newest, confirmed: see above; -1 while there is none.
        renewals: how often the channel was found to be gone, with all that it had.
        epoch: the channel's, as the server counts; ``None`` while the server has not named the present one.
        forgotten: the segments that the server had confirmed, and does not have any more; ``None`` once the program was
            told.
    """

    def __init__(self, start: int | None) -> None:
        self.next = start
        self.newest = self.confirmed = -1
        self.renewals = 0
        self.epoch: int | None = None
        self.forgotten: range | None = None
        self._oldest = -1  # that the server has said it closed for this publisher
        self._newest_sent = -1 if start is None else start - 1
        self._head = -1  # -1: not known
        self._chosen = start  # the first seq, if the program chose it, until the server has refused it
        self._unsettled: set[int] = set()  # there is something to send as these; neither published nor lost
        self._given_up: deque[int] = deque(maxlen=MAX_GIVEN_UP)  # the newest of those that were lost

    def place(self, head: int, epoch: int | None) -> None:
        """The server was asked for the position before anything was published."""
        self.next = self._head = head
        self._newest_sent = head - 1
        self.epoch = epoch

    def take(self) -> int:
        """Hand out the next seq.

        Raises:
            LocalProtocolError: it is not known yet.
        """
        if self.next is None:
            raise LocalProtocolError("the position has to be asked for before the first segment")
        seq = self.next if self.next not in self._unsettled else self._free(self.next)
        self.next = seq + 1
        return seq

    def may_open(self, seq: int) -> bool:
        """Whether a request for this seq can be made now: the server takes none further ahead of its head."""
        return seq <= self._head + 1 or seq <= self._newest_sent + 1

    def leaps(self, seq: int) -> bool:
        """Whether all before this seq are done with, and the server may not know it: it may never have heard of some
        that were given up here, and would wait for them before it takes this one."""
        return 0 <= self._head < seq - 1 and self.is_oldest(seq)

    def is_oldest(self, seq: int) -> bool:
        """Whether all before this seq are done with, so that those behind it can leap over it if it is not sent."""
        return seq <= min(self._unsettled, default=seq)

    def has_gap(self, head: int, seq: int) -> bool:
        """Whether a number was given up for which a server with this head waits before it takes ``seq``."""
        return any(head <= one < seq for one in self._given_up)

    def is_beside_gap(self, seq: int) -> bool:
        """Whether the one before or after it was given up: the server takes no segment behind two that it has not."""
        return seq - 1 in self._given_up or seq + 1 in self._given_up

    def bind(self, seq: int) -> None:
        """There is something to send as this seq."""
        if seq > self.newest:
            self.newest = seq
        self._unsettled.add(seq)

    def note_sent(self, seq: int) -> None:
        """The first byte of it, or its end, has left for the server."""
        if seq > self._newest_sent:
            self._newest_sent = seq

    def release(self, seq: int) -> bool:
        """There is nothing to send as this seq after all. ``False`` if it is of no use for another segment."""
        if seq < self.newest:
            return False
        self._unsettled.discard(seq)
        return True

    def hand_back(self, seq: int) -> bool:
        """No request is made for this seq: the next segment gets it. ``False`` if others were handed out behind it."""
        if self.next != seq + 1:
            return False
        self.next = seq
        self._unsettled.discard(seq)
        self.newest = min(self.newest, seq - 1)
        return True

    def settle(self, seq: int, *, closed: bool) -> None:
        """This seq was published or lost. If ``closed``, the server said so, and its head is past it."""
        self._unsettled.discard(seq)
        self.note_sent(seq)
        if closed:
            if seq > self.newest:
                self.newest = seq
            if seq > self.confirmed:
                self.confirmed = seq
            if seq < self._oldest or self._oldest < 0:
                self._oldest = seq
            if seq >= self._head:
                self._head = seq + 1
            assert self.next is not None, "a ticket was handed out"
            if seq >= self.next:
                self.next = seq + 1
        else:
            self._given_up.append(seq)

    def compare(
        self,
        head: int,
        since: int,
        epoch: int | None = None,
        *,
        exact: bool = True,
        unwritten: bool = False,
        ours: bool = False,
    ) -> str | None:
        """Take in the head that the server shows; returns why it cannot be this publisher's doing, if so.

        Args:
            head, epoch: as the server says.
            since: the value of ``confirmed`` when it was asked. Its answer may have been overtaken by those that have
                confirmed more, on other connections.
            exact: it is a server whose head never goes back.
            unwritten: nothing was published to the channel since the server started.
            ours: its numbering is this publisher's.

        In a later epoch the channel is another publisher's, unless it goes on with this numbering: a copy of it was
        promoted, which may lack the newest segments. Otherwise a head of 0 is an empty channel, for whose
        numbering nobody but this publisher can be responsible: it goes on with its own. So does a publisher that has
        sent nothing yet, wherever the head is. A head that went back to
        right behind a segment that may still have been on its way is that of a server that lost all, and got that one.
        One that went back where nothing was published since the server started is that of a server that lost the rest.
        """
        older = self.epoch
        if epoch is not None:
            self.epoch = epoch
        if self.newest < 0:
            return None
        promoted = older is not None and epoch is not None and epoch > older
        if promoted and not ours:
            return f"another client ended the channel and began it again (epoch {epoch}, not {older})"
        if head == 0:
            if since >= 0:
                self.begin_epoch(epoch, since=since)
            return None
        if head > self.newest + 1:
            return f"another client has published up to {head - 1}; this publisher has come to {self.newest}"
        if head <= since - (0 if exact else BACKWARDS):
            if unwritten or promoted or head - 1 in self._unsettled or head - 1 in self._given_up:
                self.begin_epoch(epoch, since=since, head=head)
                self._head = head
                return None
            return f"another client has begun the channel anew: its head is {head}, {since} was published before"
        self._head = max(self._head, head)
        return None

    def begin_epoch(self, epoch: int | None = None, *, since: int, head: int = 0) -> None:
        """The channel is gone, with all that the server had of it from ``head`` on: it begins again, under the numbers
        of before.

        Args:
            epoch: the one that the server has begun already.
            since: the value of ``confirmed`` when the server was asked.
        """
        if since >= self._oldest >= 0:
            self.forgotten = range(max(head, self._oldest), since + 1)
            self._oldest = self._oldest if head > self._oldest else -1
        self.renewals += 1
        self.epoch = epoch
        self._head = -1
        self.confirmed = -1

    def move(self, seq: int, head: int, *, begun: bool) -> int | None:
        """A seq lies too far ahead; returns where it goes instead, ``None`` if it is right and only came too early.

        Only the first segment of all may have begun at a wrong place. The segments numbered after it follow it. If the
        program chose its number, it is sent once more with a reset: with that a server takes any number from its head
        on.
        """
        assert self.next is not None, "a ticket was handed out"
        out_of_line = seq >= self.next
        first = self.confirmed < 0 and self.renewals == 0 and seq <= min(self._unsettled, default=seq)
        if not out_of_line and not first:
            return None
        chosen, self._chosen = self._chosen, None
        if first and seq == chosen and head < seq:
            self._head = head
            return None
        if first and not out_of_line:
            self.next = head  # whatever was numbered after it is out of line now
        return self.skip(seq, self.next, begun=begun)

    def skip(self, seq: int, to: int, *, begun: bool) -> int:
        """A seq cannot be used; returns the one that takes its place: ``to``, or the first after all that are in use.

        All seqs beyond it are free again: a segment that has one of them and has not begun must get another.
        """
        assert self.next is not None, "a ticket was handed out"
        self._unsettled.discard(seq)
        # The server may have parts of those that were given up, and has closed them: their numbers are used, too.
        in_use = [other for other in (*self._unsettled, *self._given_up) if other < self.next]
        place = self._free(max([to, self.confirmed + 1, *(other + 1 for other in in_use)]))
        if begun:
            self._unsettled.add(place)
            in_use.append(place)
        self.next = place + 1
        self.newest = max([self.confirmed, *in_use])
        self._newest_sent = place - 1
        return place

    def is_in_line(self, seq: int) -> bool:
        """Whether a number that was handed out is still of use: the numbering did not go back before it."""
        assert self.next is not None, "a ticket was handed out"
        return seq < self.next

    def line_up(self, seq: int, behind: list[int]) -> list[int]:
        """Numbers for a segment that can have ``seq``, and for those that wait behind it, in their order.

        Args:
            behind: the numbers that those have now. The ones that are no longer in line are replaced by the next.
        """
        numbers = [seq, *(one for one in behind if self.is_in_line(one))]
        self._unsettled.difference_update(behind)
        self._unsettled.update(numbers)
        numbers += [self.take() for _ in range(1 + len(behind) - len(numbers))]
        for number in numbers:
            self.bind(number)
        numbers.sort()
        self._newest_sent = min(self._newest_sent, numbers[0] - 1)
        return numbers

    def _free(self, seq: int) -> int:
        """The first one from here on that is not in use; those that are out of line may still lie ahead."""
        while seq in self._unsettled:
            seq += 1
        return seq
