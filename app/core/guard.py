"""The storm guard: how much later a client is answered that repeats what gets it nowhere.

The rule and its reasons: docs/explanation/storm-guard.md. In short: each answer that brings nothing new counts one,
each second pays one back, and what a client could not have before pays back all of it. Up to :data:`FREE` nothing
happens; beyond it every further one doubles the hold, up to :data:`LONGEST_HOLD_S`. Nobody is ever refused.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from math import exp2
from typing import Final

FREE: Final = 8
"""So many fruitless answers are free. A storm is a storm from 8 on (docs/reference/storm-classes.md), and clients in
the field repeat a 470 five times at once (docs/reference/protocol.md, section 7)."""

FIRST_HOLD_S: Final = 0.02
LONGEST_HOLD_S: Final = 1.0
"""The first hold, which doubles with each further answer, and the longest: with it a loop makes one request a second,
which costs a server nothing, and a request that would now succeed is late by no more than that."""

FULL: Final = FREE + 7
"""No more is counted than it takes to reach the longest hold (20 ms doubled six times), so that it is paid back soon
after the fault is over."""

PAID_BACK_PER_S: Final = 1.0
"""A client that asks once a second, or as seldom as the least ``Retry-After`` (1 s) says, never owes anything."""

RECENT: Final = 4
"""So many seqs are remembered of a client that is given them: a loop over a few segments in turn is one, too."""

CLIENTS: Final = 65_536
"""So many clients and channels are known at a time, 0.5 kB each; of more the longest silent one is forgotten. More than
there may be readers (50,000): if all of them loop after the end of one great event, none must push another out."""


class Answer(Enum):
    """A kind of answer that brings its client no further."""

    MISSING = auto()
    """404: there is no such channel."""
    AHEAD = auto()
    """470: beyond the head. Rising seqs lead further away from it: they are no progress."""
    ENDED = auto()
    """200: the channel is over."""
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


STEPS: Final = frozenset({Answer.GONE, Answer.CLOSED, Answer.EMPTY, Answer.SAME})
"""After these a client goes on by asking for another seq: they count only for one that it was told of lately."""


class _Account:
    """What is known of a client on a channel.

    Attributes:
        owed: fruitless answers that were not paid back, as of ``at`` (seconds).
        seqs: the seqs that it was given last, of the answers in :data:`STEPS`.
    """

    __slots__ = ("at", "owed", "seqs")

    def __init__(self, now: float) -> None:
        self.at = now
        self.owed = 0.0
        self.seqs: tuple[int, ...] = ()


class Guard:
    """Counts the fruitless answers of each client on each channel.

    Args:
        clients: accounts kept at a time.
    """

    def __init__(self, clients: int = CLIENTS) -> None:
        self._limit = clients
        self._accounts: OrderedDict[tuple[int, str], _Account] = OrderedDict()

    def __len__(self) -> int:
        """Accounts kept."""
        return len(self._accounts)

    def hold(self, client: int, channel: str, seq: int, answer: Answer, now: float) -> float:
        """A client is about to be given an answer that brings it nothing new; count it.

        Args:
            client: who asks, as a number that is the same each time.
            channel: the channel's name.
            seq: the seq that the answer is about, resolved if it could be.
            answer: what it is about to be told.
            now: the time in seconds; never earlier than in the call before.

        Returns:
            How many seconds later it is to be told so: 0 for at once, at most :data:`LONGEST_HOLD_S`.
        """
        account = self._account((client, channel), now)
        account.owed = max(0.0, account.owed - (now - account.at) * PAID_BACK_PER_S)
        account.at = now
        if answer in STEPS and seq not in account.seqs:
            account.seqs = (seq, *account.seqs[: RECENT - 1])
            account.owed = 0.0
            return 0.0
        account.owed = min(account.owed + 1.0, FULL)
        if account.owed <= FREE:
            return 0.0
        return min(FIRST_HOLD_S * exp2(account.owed - FREE - 1.0), LONGEST_HOLD_S)

    def served(self, client: int, channel: str) -> None:
        """A client got what it asked for, or waits for it: nothing is held against it any more."""
        self._accounts.pop((client, channel), None)

    def expire(self, now: float) -> None:
        """Forget the accounts that were paid back by waiting."""
        while self._accounts:
            key, account = next(iter(self._accounts.items()))
            if now - account.at < FULL / PAID_BACK_PER_S:
                return
            del self._accounts[key]

    def _account(self, key: tuple[int, str], now: float) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(now)
            if len(self._accounts) > self._limit:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(key)
        return account
