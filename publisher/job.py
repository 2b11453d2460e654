"""One run of ``tricklecast publish``: a source in a worker thread, a publisher, and what connects them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from tricklecast.publisher.client import CLOSE_S, Publisher
from tricklecast.publisher.core import Start
from tricklecast.publisher.feed import Feed, Totals
from tricklecast.publisher.raw import Splitter, read_steps, standard_input
from tricklecast.publisher.status import Status
from tricklecast.publisher.steps import Step
from tricklecast.publisher.worker import IsStopped, Source, stepping
from tricklecast.trickle import wire
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.terminal import Bearer

if TYPE_CHECKING:
    from tricklecast.publisher.media.relay import MediaOptions


STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Raw:
    """Plain bytes.

    Attributes:
        path: of a file; ``None``: standard input.
        splitter: divides them into segments.
    """

    path: str | None
    splitter: Splitter

    @property
    def content_type(self) -> str:
        """Media type of the segments."""
        return wire.DEFAULT_CONTENT_TYPE

    @property
    def drops(self) -> bool:
        """Whether it may not be held up: bytes wait."""
        return False

    def open(self, status: Status, is_stopped: IsStopped) -> Iterator[Step]:
        """Open it; its steps.

        Raises:
            InvalidInput: it cannot be read.
        """
        name = self.path or "standard input"
        try:
            descriptor = standard_input() if self.path is None else os.open(self.path, os.O_RDONLY)
            os.read(descriptor, 0)  # a directory can be opened, but not read
        except OSError as error:
            raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
        return self._steps(descriptor, name, is_stopped)

    def _steps(self, descriptor: int, name: str, is_stopped: IsStopped) -> Iterator[Step]:
        try:
            yield from read_steps(descriptor, self.splitter, is_stopped)
        except OSError as error:
            raise InvalidInput(f"reading {name} failed half-way: {error.strerror}") from error
        finally:
            if self.path is not None:
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Media:
    """Anything that PyAV opens, and what is generated.

    Attributes:
        source: what it is called on the command line.
        input_options: libavformat's.
        options: how it is read and written.
    """

    source: str
    input_options: Mapping[str, str]
    options: MediaOptions

    @property
    def content_type(self) -> str:
        """Media type of the segments."""
        return self.options.container.make().content_type

    @property
    def drops(self) -> bool:
        """Whether it may not be held up, so that segments are dropped where the network is too slow."""
        return self.options.realtime

    @property
    def name(self) -> str:
        """The input's name in messages."""
        from tricklecast.publisher.media.inputs import Input

        return Input.parse(self.source).name

    @property
    def repeats(self) -> bool:
        """Whether the input can be played again."""
        from tricklecast.publisher.media.inputs import Input, Kind

        return Input.parse(self.source).kind is Kind.FILE

    def open(self, status: Status, is_stopped: IsStopped) -> Iterator[Step]:
        """Open it; its steps.

        Raises:
            InvalidInput: it cannot be read.
        """
        from tricklecast.publisher.media.inputs import Input
        from tricklecast.publisher.media.relay import Relay

        what = Input.parse(self.source, self.input_options, realtime=self.options.realtime)
        return Relay(what, self.options, status, is_stopped).open()


@dataclass(frozen=True, slots=True)
class Job:
    """What to publish, where to and how.

    Attributes:
        url: the channel.
        what: plain bytes or media.
        start: the first seq, or how to find it.
        content_type: the media type of the segments.
        keep: the channel is left open at the end.
        verify: how a server's certificate is checked.
        auth: adds an access token to requests, if there is one.
    """

    url: str
    what: Raw | Media
    start: Start
    content_type: str
    keep: bool
    verify: ssl.SSLContext | bool
    auth: Bearer | None = None

    async def run(self) -> Totals:
        """Publish all of it.

        Raises:
            TrickleError: it could not be read, or not be published.
        """
        status = Status(wire.redacted(self.url))
        publisher = self._publisher()
        feed: Feed | None = None
        how = "broken off"
        try:
            # The source is opened first: what cannot be read creates no channel.
            async with stepping(self._source(status)) as steps, publisher:
                feed = Feed(publisher, steps, drops=self.what.drops, warn=status.say)
                await self._run(feed, publisher, status)
            how = "the channel is still open" if self.keep else "the channel is ended"
        except anyio.get_cancelled_exc_class():
            how = "interrupted"
            raise
        finally:
            if feed is not None:
                status.say(status.summary(feed.totals, publisher.statistics(), how))
        return feed.totals

    async def _run(self, feed: Feed, publisher: Publisher, status: Status) -> None:
        try:
            with status.live(feed.totals, publisher.statistics):
                await feed.run()
        except anyio.get_cancelled_exc_class():
            if not self.keep:  # an interruption is a normal end of the command
                with anyio.CancelScope(shield=True):
                    await publisher.close()
            raise
        finally:
            if self.keep:
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSE_S):
                    await publisher.detach()

    def _publisher(self) -> Publisher:
        return Publisher(
            self.url,
            content_type=self.content_type,
            start=self.start,
            verify=self.verify,
            auth=self.auth,
            when_full="drop" if self.what.drops else "wait",
        )

    def _source(self, status: Status) -> Source:
        return lambda is_stopped: self.what.open(status, is_stopped)
