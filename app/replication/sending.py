"""The feeds that a server sends: who follows what, and how each of them ends.

A feed lasts as long as its channel, so it must not keep a server from its end: while the server stops, a feed lasts as
long as somebody publishes, and its replica gets all of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from tricklecast.app.clock import to_us
from tricklecast.app.core.copies import Copy
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.state import Channel
from tricklecast.app.replication.feed import Feed
from tricklecast.app.replication.records import FeedEnd, FeedError
from tricklecast.app.replication.transport import send_feed
from tricklecast.trickle.records import Reason

logger = logging.getLogger("tricklecast.replication")

REASONS: Final = {
    FeedEnd.ENDED: Reason.TERMINATED,
    FeedEnd.LAG: Reason.EVICTED,
    FeedEnd.SHUTDOWN: Reason.SHUTDOWN,
    FeedEnd.VERSION: Reason.BAD_REQUEST,
}
"""How the access log calls the ends of a feed."""


class Sending:
    """Feeds of channels of this server.

    Attributes:
        tasks: those that are sent at present, with the channel of each. sent: how many have begun so far.
        ends: how those that were sent to their end have ended.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.tasks: dict[asyncio.Task[object], Channel] = {}
        self._feeds: dict[asyncio.Task[object], Feed] = {}  # of those that have begun
        self.sent = 0
        self.ends: Counter[str] = Counter(dict.fromkeys(FeedEnd, 0))

    async def send(
        self,
        channel: Channel,
        to: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        count: Callable[[int], None] | None = None,
    ) -> str:
        """Send the feed of a channel until it ends, or this task is cancelled; close the connection.

        Args:
            to: who follows, for the log. count: told of the bytes that the connection has taken.

        Returns:
            Why it ended, for the access log.
        """
        task = asyncio.current_task()
        assert task is not None, "a task serves the connection"
        self.tasks[task] = channel
        self.sent += 1
        try:
            begun = partial(self._feeds.__setitem__, task)
            over = await send_feed(channel, reader, writer, self._registry, to_us, begun, count)
            self.ends[over] += 1
            return REASONS[over]
        except FeedError as error:
            logger.warning("%s follows %r no more: %s", to, channel.name, error)
            return Reason.BAD_REQUEST
        except OSError as error:
            logger.info("%s follows %r no more: %s", to, channel.name, error or type(error).__name__)
            return Reason.EVICTED if isinstance(error, TimeoutError) else Reason.CLIENT_GONE
        finally:
            del self.tasks[task]
            self._feeds.pop(task, None)

    def stop(self, channel: Channel) -> None:
        """End the feeds of a channel that another server goes on with: those who follow look for it there."""
        for task in [task for task, one in self.tasks.items() if one is channel]:
            task.cancel()

    def begin_anew(self, channel: Channel) -> None:
        """End the feeds of a channel, so that those who follow look at all of it again."""
        for feed in [feed for task, feed in self._feeds.items() if self.tasks.get(task) is channel]:
            feed.end(FeedEnd.LAG)

    def expire(self) -> None:
        """While this server stops: end the feeds of channels that nobody publishes to any more, and those of copies."""
        if self._registry.shutting_down:
            for task, channel in list(self.tasks.items()):
                if not isinstance(channel, Copy) and any(segment.written for segment in channel.unclosed):
                    continue
                if (feed := self._feeds.get(task)) is None:
                    task.cancel()
                else:
                    feed.end(FeedEnd.SHUTDOWN)
