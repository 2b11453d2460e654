"""The storm guard: how much later a client is answered that repeats what gets it nowhere.

The rule and its reasons: docs/explanation/storm-guard.md. In short: each answer that brings nothing new counts one,
each second pays one back. Up to a limit nothing happens; beyond it every further one doubles the hold, up to
:data:`LONGEST_HOLD_S`. Nobody is ever refused.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from math import exp2
from typing import Final

from tricklecast.app.core.crowd import CROWD, Crowd

FREE: Final = 8
"""So many answers of either sort are free for who is known to be one client. A storm is a storm from 8 on
(docs/reference/storm-classes.md), and clients in the field repeat a 470 five times at once (docs/reference/protocol.md,
section 7). Who may be many has :data:`~app.core.crowd.CROWD`."""

FIRST_HOLD_S: Final = 0.02
LONGEST_HOLD_S: Final = 1.0
"""The first hold, which doubles with each further answer, and the longest: with it a loop makes one request a second,
which costs a server nothing, and a request that would now succeed is late by no more than that."""

DOUBLED: Final = 7
"""No more is counted beyond a limit than it takes to reach the longest hold (20 ms doubled six times), so that it is
paid back soon after the fault is over."""

PAID_BACK_PER_S: Final = 1.0
"""A client that asks once a second, or as seldom as the least ``Retry-After`` (1 s) says, never owes anything."""

FORGOTTEN_S: Final = (CROWD + DOUBLED) / PAID_BACK_PER_S
"""After so many seconds of silence everything is paid back."""

CLIENTS: Final = 65_536
"""So many clients and channels are known at a time, 0.5 kB each; of more the longest silent one is forgotten. More than
there may be readers (50,000): if all of them loop after the end of one great event, none must push another out."""


class Answer(Enum):
    """A kind of answer that brings its client no further."""

    MISSING = auto()
    """404: there is no such channel."""
    AHEAD = auto()
    """470: beyond the head. Rising seqs lead further away from it: they are no progress."""
    REFUSED = auto()
    """Any other refusal: a limit (429, 503), or a request that cannot be right."""
    GONE = auto()
    """470: below the head. Another seq is a step: whoever counts upwards arrives."""
    CLOSED = auto()
    """409, or 200 for what is stored already: this segment is published."""
    EMPTY = auto()
    """200 without a byte: the segment closed empty."""
    SAME = auto()
    """200 with all bytes of a closed segment, which this client may have had before."""
    ENDED = auto()
    """200: the channel is over. It is about the head, whatever the seq: rising ones come to nothing."""
    KNOWN = auto()
    """200: where the head is, or that a channel is there, which this client may have been told before. It is about the
    head, or the channel's life."""


FRUITLESS: Final = frozenset({Answer.MISSING, Answer.AHEAD, Answer.REFUSED})
"""These count always. The others are right once for each reader, and the next step is another seq: they count only if
nobody stood shortly before it (:mod:`app.core.crowd`)."""


class _Here:
    """The connections over which an account's clients were last told in vain, and which are still open.

    Attributes:
        count: how many.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class _Account:
    """What is known of a client on a channel; or, without names, of all who cannot be told apart.

    Attributes:
        owed: fruitless answers that were not paid back, as of ``at`` (seconds).
        asked: of these those that came over a connection which had not asked in vain before, likewise.
        more: readers that have come without having stood before, or come again, likewise.
        crowd: where they stand; ``None`` before there was one.
        here: the connections that have asked in vain; ``None`` before there was one that counts.
    """

    __slots__ = ("asked", "at", "crowd", "here", "more", "owed")

    def __init__(self, now: float) -> None:
        self.at = now
        self.owed = self.asked = self.more = 0.0
        self.crowd: Crowd | None = None
        self.here: _Here | None = None

    def pay_back(self, now: float) -> None:
        """So much time has passed."""
        paid_back = (now - self.at) * PAID_BACK_PER_S
        self.at = now
        self.owed = max(0.0, self.owed - paid_back)
        self.asked = max(0.0, self.asked - paid_back)
        self.more = max(0.0, self.more - paid_back)


class Guard:
    """Counts the fruitless answers of each client on each channel.

    Args:
        clients: accounts kept at a time.
    """

    def __init__(self, clients: int = CLIENTS) -> None:
        self._limit = clients
        self._accounts: OrderedDict[tuple[int, str], _Account] = OrderedDict()
        self._here: dict[int, _Here] = {}

    def __len__(self) -> int:
        """Accounts kept."""
        return len(self._accounts)

    @property
    def connections(self) -> int:
        """Connections that are remembered for having asked in vain."""
        return len(self._here)

    def hold(
        self, client: int, channel: str, seq: int, answer: Answer, now: float, *, connection: int | None = None
    ) -> float:
        """A client is about to be given an answer that may bring it nothing new; count it.

        Args:
            client: who asks, as a number that is the same each time.
            channel: the channel's name.
            seq: the seq that the answer is about, resolved if it could be.
            answer: what it is about to be told.
            now: the time in seconds; never earlier than in the call before.
            connection: the number of its connection, if ``client`` may be many who cannot be told apart; to be given
                to :meth:`left` when it closes.

        Returns:
            How many seconds later it is to be told so: 0 for at once, at most :data:`LONGEST_HOLD_S`.
        """
        account = self._account((client, channel), now)
        account.pay_back(now)
        free = FREE if connection is None else CROWD
        if answer not in FRUITLESS:
            account.crowd = account.crowd or Crowd()
            if account.crowd.step(seq):
                return 0.0
            account.more = min(account.more + 1.0, free + DOUBLED)
            return _hold_s(account.more - free)
        share = 1.0
        if connection is not None:
            account.here = account.here or _Here()
            if self._comes(connection, account.here):
                account.asked = min(account.asked + 1.0, free + DOUBLED)
                return _hold_s(account.asked - free)
            # It asks once more. As many clients as there are connections share what is paid back, so that each may ask
            # as often as if it were alone.
            share = 1.0 / min(account.here.count, CROWD)
        account.owed = min(account.owed + share, FREE + DOUBLED)
        return _hold_s(account.owed - FREE)

    def left(self, connection: int) -> None:
        """A connection has closed, whether it had asked in vain or not."""
        here = self._here.pop(connection, None)
        if here is not None:
            here.count -= 1

    def served(self, client: int, channel: str, *, fewer: bool = False) -> None:
        """A client got what it asked for, or waits for it: what it was told in vain is not held against it any more.

        Args:
            fewer: it has read before without having stood anywhere, and is seen now to go on: it was no repetition.
        """
        account = self._accounts.get((client, channel))
        if account is None:
            return
        account.owed = account.asked = 0.0
        if fewer:
            account.more = max(0.0, account.more - 1.0)
        if account.crowd is None:
            del self._accounts[client, channel]

    def expire(self, now: float) -> None:
        """Forget the accounts that were paid back by waiting."""
        while self._accounts:
            key, account = next(iter(self._accounts.items()))
            if now - account.at < FORGOTTEN_S:
                return
            del self._accounts[key]

    def _comes(self, connection: int, here: _Here) -> bool:
        """Note over which connection somebody asks in vain; whether it is a new one here."""
        before = self._here.get(connection)
        if before is here:
            return False
        if before is not None:
            before.count -= 1
        self._here[connection] = here
        here.count += 1
        return True

    def _account(self, key: tuple[int, str], now: float) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(now)
            if len(self._accounts) > self._limit:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(key)
        return account


def _hold_s(beyond: float) -> float:
    """How long an answer is held that is so far beyond what is free."""
    return min(FIRST_HOLD_S * exp2(beyond - 1.0), LONGEST_HOLD_S) if beyond > 0.0 else 0.0
