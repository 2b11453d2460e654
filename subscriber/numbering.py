"""The numbering that a subscriber reads: whether an answer is about another one, and which segments are missing in it.

Theory of operation
===================

*The problem.* The seqs of a channel are not unique for ever. A channel that ends and begins again counts from 0. A
server that is killed may lose its newest segments, and other segments get their seqs. A reader that asks for the next
seq would take a segment of the one numbering for the continuation of the other.

*The idea.* The server names the numbering in its answers, and the reader compares. There are two names
(docs/reference/protocol.md, section 5):

- The *epoch* counts how often the channel has begun on this server. A server that has lost its data counts anew.
- The *life* is a name that the publisher gives, with the first seq of that name. It stays the same when a server is
  restarted and its publisher goes on, so it decides where both sides know it.

A life of another name is another numbering if it has had a segment below the wanted seq. Otherwise the epochs decide,
since a publisher may go on with the old numbers on a server that has forgotten the name. For example, a reader wants
120: ``Life: b:7`` is another numbering; ``Life: b:120`` is one only in another epoch.

*Missed segments* are counted from the seq that was expected. When a server's head goes back, the reader cannot know yet
whether the publisher goes on with its numbers or begins anew. So both expectations are kept until a segment shows it: a
seq at or above the former one goes on, a lower one begins anew.

*Invariant.* Knowledge of one numbering is never mixed with knowledge of the next one: where the reader goes
over to another one without a segment of it, a new :class:`KnownNumbering` takes the place of the old one.
"""

from __future__ import annotations

from tricklecast.trickle import wire
from tricklecast.trickle.client.exchange import Answer


class KnownNumbering:
    """A reader's knowledge of the numbering that it reads. The arguments are the attributes."""

    __slots__ = ("begins", "epoch", "expected", "expected_before", "head", "life", "restarted")

    def __init__(
        self,
        epoch: int | None = None,
        life: str | None = None,
        *,
        head: int = 0,
        expected: int | None = None,
        expected_before: int | None = None,
        restarted: bool = False,
    ) -> None:
        # Its names; None where the server has not told them.
        self.epoch = epoch
        self.life = life
        # The highest head of any answer: the segments missing at the end of the channel are counted up to it.
        self.head = head
        # The seq from which missed segments are counted; None where the reader takes any.
        self.expected = expected
        # The same before the server's head went back: its publisher may still go on with those numbers.
        self.expected_before = expected_before
        # The user does not know yet that it is another one than before: the next segment says so.
        self.restarted = restarted
        # The first seq of that life, as long as all that was read is older; else None.
        self.begins: int | None = None

    def is_other(self, answer: Answer, seq: int) -> bool:
        """Whether an answer is about another numbering.

        Args:
            seq: one more than the last seq of which something was read in this one.
        """
        life = answer.life
        if life is not None and self.life is not None:
            if life.name == self.life:
                return False
            if life.first is not None and life.first < seq:
                return True
        epoch = answer.natural(wire.EPOCH)
        return None not in (epoch, self.epoch) and epoch != self.epoch

    def is_other_at_end(self, answer: Answer, seq: int) -> bool:
        """Whether a channel that has ended is another one; ``seq`` as above.

        A head below ``seq`` proves it, too. Not so on a server that sends no epochs: there the head may go back for a
        moment.
        """
        if answer.natural(wire.EPOCH) is None:
            return False
        life, latest = answer.life, answer.natural(wire.LATEST)
        is_same = life is not None and life.name == self.life
        is_behind = latest is not None and latest < seq
        return self.is_other(answer, seq) or (is_behind and not is_same)

    def missed(self, seq: int) -> int:
        """How many wanted segments before this one did not come."""
        before = self.expected_before
        expected = self.expected if before is None or seq < before else before
        return 0 if expected is None else max(0, seq - expected)

    def gone_back(self, head: int, seq: int, *, follows: bool) -> KnownNumbering:
        """The knowledge after the server's head was found to be behind the seq that the reader wants.

        Args:
            head: the head now.
            seq: missed segments are counted from here on if they are counted at all.
            follows: the reader has read the segments before, so they may come again under other numbers.
        """
        expected, before = self.expected, self.expected_before
        if expected is not None:
            expected, before = seq, max(before or 0, expected) if follows else None
        return KnownNumbering(
            None,  # a server that was restarted may count its epochs anew
            self.life,
            head=head,
            expected=expected,
            expected_before=before,
            restarted=self.restarted or follows,
        )

    def take(
        self, seq: int, epoch: int | None, life: wire.Life | None, *, empty: bool, is_other: bool, follows: bool
    ) -> int:
        """Learn from the answer that begins this segment; return how many were missed before it.

        Args:
            epoch, life: the answer's names of its numbering.
            empty: the segment has no byte.
            is_other: the result of :meth:`is_other` for the answer.
            follows: the reader has read the segments before, so those of another numbering count from its first one.
        """
        if life is not None:
            if is_other and follows and life.first is not None:
                self.expected, self.expected_before = life.first, None
            if is_other or life.first is not None:
                self.life, self.begins = life.name, None if (life.first or 0) <= seq else life.first
        if epoch is not None:
            self.epoch = epoch
        missed = self.missed(seq)
        # An empty segment below the former expectation proves nothing: a reader that waits at the head of a restarted
        # server gets one when the publisher goes on above it.
        if not empty or (self.expected_before or 0) <= seq:
            self.expected_before = None
        self.expected = seq + 1
        return missed


def first_of(answer: Answer) -> int:
    """The lowest seq of the numbering that an answer is about, as far as the server says."""
    life = answer.life
    return 0 if life is None or life.first is None else life.first
