"""One run of ``tricklecast publish``: a source in a worker thread, a publisher, and what connects them."""

from __future__ import annotations

import os
import ssl
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import anyio

from publisher.client import Publisher
from publisher.core import Start
from publisher.feed import Feed, Totals
from publisher.media.remux import Remuxer
from publisher.media.source import MediaSource, open_media
from publisher.raw import Splitter, StoppableReader, read_steps
from publisher.status import Status
from publisher.steps import Step
from publisher.worker import IsStopped, Source, stepping
from trickle.errors import InvalidInput

STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Job:
    """What to publish, where to and how.

    Attributes:
        url: the channel.
        source: a path, a URL, or ``-``.
        splitter: divides plain bytes; ``None`` for media.
        realtime: media is paced.
        start: the first seq, or how to find it.
        content_type: the media type of the segments.
        keep: the channel is left open at the end.
        verify: how a server's certificate is checked.
    """

    url: str
    source: str
    splitter: Splitter | None
    realtime: bool
    start: Start
    content_type: str
    keep: bool
    verify: ssl.SSLContext | bool

    async def run(self) -> Totals:
        """Publish all of it.

        Raises:
            TrickleError: it could not be read, or not be published.
        """
        status = Status(self.url)
        # The source is opened first: what cannot be read creates no channel.
        async with (
            stepping(self._source(status.say)) as steps,
            Publisher(self.url, content_type=self.content_type, start=self.start, verify=self.verify) as publisher,
        ):
            feed = Feed(publisher, steps, realtime=self.realtime, warn=status.say)
            try:
                with status.live(feed.totals):
                    await feed.run()
            except anyio.get_cancelled_exc_class():
                status.say(status.summary(feed.totals, "interrupted"))
                raise
            finally:
                if self.keep:
                    await publisher.detach()
        how = "the channel is still open" if self.keep else "the channel is ended"
        status.say(status.summary(feed.totals, how))
        return feed.totals

    def _source(self, warn: Callable[[str], None]) -> Source:
        name = "standard input" if self.source == STDIN else self.source
        splitter = self.splitter
        if splitter is not None:
            return lambda is_stopped: _raw_steps(self.source, name, splitter, is_stopped)
        return lambda is_stopped: Remuxer(_open_media(self.source, name, is_stopped), name, warn).steps()


def _raw_steps(source: str, name: str, splitter: Splitter, is_stopped: IsStopped) -> Iterator[Step]:
    """Open a source of plain bytes; the steps come from it."""
    try:
        descriptor = sys.stdin.fileno() if source == STDIN else os.open(source, os.O_RDONLY)
        os.read(descriptor, 0)  # a directory can be opened, but not read
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror}") from error

    def steps() -> Iterator[Step]:
        try:
            yield from read_steps(descriptor, splitter, is_stopped)
        except OSError as error:
            raise InvalidInput(f"reading {name} failed half-way: {error.strerror}") from error
        finally:
            if source != STDIN:
                os.close(descriptor)

    return steps()


def _open_media(source: str, name: str, is_stopped: IsStopped) -> MediaSource:
    if source != STDIN:
        return open_media(source, name)
    descriptor = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # redirected from a file, which can be sought in
        return open_media(f"/dev/fd/{descriptor}", name)
    return open_media(StoppableReader(descriptor, is_stopped), name)
