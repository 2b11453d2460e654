"""Witnesses: publishers and subscribers of this project that live through everything, and count what came."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from tricklecast.publisher import Publisher
from tricklecast.subscriber import AnyStart, Subscriber
from tricklecast.trickle.errors import TrickleError

PAUSE_S = 0.3
MESSAGE_BYTES = 200


@dataclass(slots=True)
class Account:
    """What one pair saw.

    Attributes:
        confirmed: the numbers of the messages that the server said it has stored.
        received: how often each number arrived.
        gaps: segments that the subscriber said were missed.
        doubtful: messages whose publishing failed: they may have arrived or not.
        errors: what ended a publisher or a subscriber, counted; each was replaced.
    """

    confirmed: set[int] = field(default_factory=set)
    received: Counter[int] = field(default_factory=Counter)
    gaps: int = 0
    doubtful: set[int] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def lost(self) -> set[int]:
        """Confirmed, and never received."""
        return self.confirmed - self.received.keys()

    @property
    def doubled(self) -> int:
        """How many arrivals too many there were."""
        return sum(count - 1 for count in self.received.values())


class Witness:
    """One publisher and one subscriber of one channel.

    Attributes:
        account: what they saw.
    """

    def __init__(self, url: str, every_s: float) -> None:
        self.account = Account()
        self._url = url
        self._every_s = every_s
        self._stopped = asyncio.Event()
        self._number = 0
        self._rng = random.Random(url)

    def stop(self) -> None:
        """Publish no more."""
        self._stopped.set()

    async def publish(self) -> None:
        """Publish a numbered message now and then, until told to stop; then end the channel."""
        while not self._stopped.is_set():
            try:
                async with Publisher(self._url, content_type="text/plain", when_full="wait") as publisher:
                    while not self._stopped.is_set():
                        await self._message(publisher)
            except TrickleError as error:
                self.account.errors[f"publisher: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)

    async def _message(self, publisher: Publisher) -> None:
        self._number += 1
        self.account.doubtful.add(self._number)
        await publisher.publish(f"{self._number} ".encode().ljust(MESSAGE_BYTES, b"."))
        self.account.doubtful.discard(self._number)
        self.account.confirmed.add(self._number)
        await asyncio.sleep(self._rng.uniform(0, 2 * self._every_s))

    async def subscribe(self) -> None:
        """Read the channel until it has ended on request."""
        start: AnyStart = "earliest"
        while True:
            # What a restarted server has is behind a hole, but not lost: not to the live edge.
            subscriber = Subscriber(self._url, start=start, on_lag="earliest", wait_for_channel_s=60.0)
            try:
                async for segment in subscriber:
                    body = await segment.read(1 << 16)
                    self.account.gaps += segment.gap
                    if len(body) == MESSAGE_BYTES:  # else its connection broke, or its publisher was gone
                        self.account.received[int(body.split(b" ", 1)[0])] += 1
            except TrickleError as error:
                self.account.errors[f"subscriber: {type(error).__name__}"] += 1
                start = error.resume or "earliest"
                await asyncio.sleep(PAUSE_S)
                continue
            if self._stopped.is_set():
                return
            start = "earliest"
