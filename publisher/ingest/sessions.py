"""Publishes the streams of encoders: one session for each channel, and a session may outlive a connection.

::

    listener (RTMP, SRT)            session                                        server
    attach(channel) -> Source  ──>  a socket pair  ──>  a thread demuxes and   ──>  segments
    source.send(bytes)              (bytes)             cuts at keyframes

A session begins with a channel's first source. When a source breaks, the session waits for the next one, and the
channel goes on with the next segment. It ends when the encoder ended its stream, or when none came back in time.
The kernel's buffer between the event loop and the thread limits the bytes that wait: a sender is read no faster than
its stream is demuxed. Where the server is too slow, segments are dropped, as by ``tricklecast publish``.
"""

from __future__ import annotations

import asyncio
import math
import queue
import socket
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup

from tricklecast.publisher.media.inputs import Input, Kind, Opened, open_media
from tricklecast.publisher.media.reader import MediaInput, MediaOptions
from tricklecast.publisher.run import run
from tricklecast.publisher.steps import POLL_S, IsStopped, Report, Step
from tricklecast.trickle.amounts import count
from tricklecast.trickle.client.retry import RECONNECT_S
from tricklecast.trickle.client.tasks import Notifier
from tricklecast.trickle.errors import InvalidInput, TrickleError
from tricklecast.trickle.paths import ChannelURL
from tricklecast.trickle.pyav import codec_name
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials, Lines

if TYPE_CHECKING:
    from av.stream import Stream

CLOSE_S: Final = 10.0
"""How long the last segments of all channels may take when the command ends, in seconds."""

SILENCE_S: Final = 10.0
"""Seconds without media after which an encoder counts as gone."""

LINE_S: Final = 1.0
"""Time from one line about refused clients to the next, in seconds."""

UNUSABLE: Final = "the stream cannot be published"
"""Encoders get no other reason; the command's user does."""

_PROBE: Final = {"fpsprobesize": "0", "analyzeduration": "1000000"}
"""Options of libavformat: frames are not counted to find the frame rate, and a stream that has not begun one second
(of media) after the first one is left out. The defaults would hold back the first seconds."""


class SourceRefused(TrickleError):
    """A source is not taken; the message is for the encoder's user."""


Say: TypeAlias = Callable[[str], None]
"""Shows one line to the user. It is also called from the sessions' threads."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How all sessions publish.

    Attributes:
        media: how segments are made, and for how long a session waits for a source to come back.
        outage_s: for how long it waits for a server that is away, as of ``Publisher``.
        max_sessions: number of channels at a time.
        takeover: a new source of a channel replaces the one that is connected, and another client that publishes to
            the channel; otherwise the new one is refused.
        credentials: how they reach the server.
    """

    media: MediaOptions = field(default_factory=MediaOptions)
    outage_s: float | None = RECONNECT_S
    max_sessions: int = 16
    takeover: bool = False
    credentials: Credentials = NO_CREDENTIALS


class Source:
    """An encoder's connection to a session: takes the bytes that arrive.

    Attributes:
        scope: covers the work with the connection. The session cancels it when it reads no more.
        refusal: why it reads no more.
    """

    def __init__(self, peer: str, end: socket.socket) -> None:
        self.peer = peer
        self.scope = anyio.CancelScope()
        self.refusal: str | None = None
        self._socket = end

    async def send(self, data: bytes) -> None:
        """Pass bytes on; waits until there is room for them.

        Raises:
            SourceRefused: the session has closed the source, because it cannot be demuxed or published.
        """
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError:
            raise SourceRefused(UNUSABLE) from None

    def refuse(self, why: str) -> None:
        """Disconnect the source."""
        self.refusal = why
        self.scope.cancel()


class Refusals:
    """Shows refusals, at most one line in :data:`LINE_S`: hostile clients must not fill the terminal or a log."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._shown_at = -math.inf
        self._hidden = 0

    def show(self, line: str) -> None:
        """Show a line, or count it."""
        now = monotonic()
        if now - self._shown_at < LINE_S:
            self._hidden += 1
            return
        self._say(f"{line} (and {self._hidden} more before)" if self._hidden else line)
        self._shown_at, self._hidden = now, 0


class Receiver(Protocol):
    """Takes streams over a network."""

    async def run(self, sessions: Sessions, /) -> None:
        """Attach each stream to its session, until it is cancelled; then take no more."""


async def publish_from(receiver: Receiver, options: SessionOptions, say: Say) -> None:
    """Publish the streams that a receiver takes, until this is cancelled. Then all channels are ended."""
    async with anyio.create_task_group() as tasks:
        sessions = Sessions(tasks, options, say)
        try:
            await receiver.run(sessions)
        finally:
            await sessions.close()


class Sessions:
    """The sessions of all channels."""

    def __init__(self, tasks: TaskGroup, options: SessionOptions, say: Say) -> None:
        self._tasks = tasks
        self._options = options
        self._say = say
        self._sessions: dict[tuple[ChannelURL, ...], _Session] = {}
        self._changed = Notifier()

    @asynccontextmanager
    async def attach(self, urls: tuple[ChannelURL, ...], peer: str, format: str) -> AsyncIterator[Source]:
        """Connect a source to the session of its channel. The session begins if there is none.

        Leave the block with an exception if the connection broke: the session then waits for another source. Leave it
        without one if the encoder ended its stream: the channel ends.

        Args:
            format: the format of its stream, as libavformat calls it.

        Raises:
            SourceRefused: there are too many sessions, the channel has a source, another one took over,
                or the session failed; the message says why.
        """
        session = await self._session(urls)
        try:
            with session.attached(peer, format) as source:
                yield source
        finally:
            self._changed.notify()

    async def close(self) -> None:
        """End all channels, and wait for the end; after :data:`CLOSE_S`, or if this is cancelled, cut them off."""
        try:
            for session in self._sessions.values():
                session.end()
            with anyio.move_on_after(CLOSE_S, shield=True):
                while self._sessions:
                    await self._changed.wait()
        finally:
            for session in self._sessions.values():
                session.scope.cancel()

    async def _session(self, urls: tuple[ChannelURL, ...]) -> _Session:
        while (session := self._sessions.get(urls)) is not None:
            if session.source is None and not session.is_ending:
                return session
            if session.source is not None:
                if not self._options.takeover:
                    raise SourceRefused(f"{session.source.peer} is already streaming to {urls[0].channel}")
                session.source.refuse("another encoder took over")
            await self._changed.wait()
        if len(self._sessions) >= self._options.max_sessions:
            raise SourceRefused(f"this server takes {count(self._options.max_sessions, 'stream')} at a time")
        session = self._sessions[urls] = _Session(urls, self._options, self._say)
        self._tasks.start_soon(self._run, session)
        return session

    async def _run(self, session: _Session) -> None:
        try:
            with session.scope:
                await session.run()
        finally:
            del self._sessions[session.urls]
            self._changed.notify()


class _Session:
    """A channel, from its first source to its end.

    Attributes:
        source: the present one, if an encoder is connected.
        scope: covers the session. It is shielded: a cancellation of the command ends sessions in order.
    """

    def __init__(self, urls: tuple[ChannelURL, ...], options: SessionOptions, say: Say) -> None:
        self.urls = urls
        self.source: Source | None = None
        self.scope = anyio.CancelScope(shield=True)
        self._options = options
        self._say_line = say
        self._arrivals = _Arrivals(urls[0].channel, Kind.NETWORK, say=self._say)
        self._has_ended = threading.Event()

    @property
    def is_ending(self) -> bool:
        """Whether no further source is taken."""
        return self._has_ended.is_set()

    def end(self) -> None:
        """The channel ends with the source that is connected, or at once if there is none."""
        self._has_ended.set()

    @contextmanager
    def attached(self, peer: str, format: str) -> Iterator[Source]:
        ours, theirs = socket.socketpair()
        with ours:  # its end is the end of the file that the thread reads
            ours.setblocking(False)
            self.source = source = Source(peer, ours)
            self._arrivals.waiting.put((theirs, peer, format))
            try:
                with source.scope:
                    yield source
                    self.end()
            except anyio.get_cancelled_exc_class():  # the command is ending
                self.end()
                raise
            finally:
                self.source = None
        if source.refusal is not None:
            raise SourceRefused(source.refusal)

    async def run(self) -> None:
        """Publish until the channel ends."""
        options = self._options
        try:
            await run(
                ",".join(map(str, self.urls)),
                _SessionSource(self._arrivals, options.media, has_ended=self._has_ended),
                screen=Lines(self._say),
                takeover=options.takeover,
                outage_s=options.outage_s,
                **options.credentials.arguments,
            )
        except TrickleError as error:
            self._say(str(error))
        except Exception:  # of one session: the others go on
            traceback.print_exc()
            self._say("stopped by a fault of this program")
        finally:
            self.end()
            self._arrivals.close()
            if self.source is not None:
                self.source.refuse(UNUSABLE)

    def _say(self, message: str) -> None:
        self._say_line(f"{self.urls[0].channel}: {message}")


class _SessionSource(MediaInput):
    """The media of all sources of a session.

    Args:
        has_ended: no source follows the one that is connected.
    """

    def __init__(self, arrivals: _Arrivals, options: MediaOptions, *, has_ended: threading.Event) -> None:
        super().__init__(arrivals, options)
        self._has_ended = has_ended

    def open(self, report: Report, is_stopped: IsStopped) -> Iterator[Step]:
        """Open the first source; the others are opened as they come."""
        return self._until_end(super().open(report, lambda: is_stopped() or self._has_ended.is_set()))

    def _until_end(self, steps: Iterator[Step]) -> Iterator[Step]:
        try:
            yield from steps
        finally:
            self._has_ended.set()  # a source that comes now begins a new session


@dataclass(frozen=True, slots=True)
class _Arrivals(Input):
    """The sources of one session as one input, which is opened again after each of them.

    Attributes:
        waiting: sources that nobody has opened yet: the end to read from, the encoder's address and the format.
        has_begun: the first source was opened.
    """

    say: Say = field(kw_only=True)
    waiting: queue.SimpleQueue[tuple[socket.socket, str, str]] = field(default_factory=queue.SimpleQueue)
    has_begun: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """For messages, which begin with the channel."""
        return "the stream"

    @property
    def advice(self) -> str:
        """The command encodes nothing."""
        return ""

    @property
    def listens(self) -> bool:
        """Whether it waits for a source. The first one is there when a session begins."""
        return self.has_begun.is_set()

    def open(self, is_stopped: IsStopped, *, within_s: float | None = None) -> Opened:
        """Open the next source; blocks until there is one.

        Raises:
            InvalidInput: there was none within ``within_s`` seconds, or it cannot be read.
        """
        deadline = monotonic() + (math.inf if within_s is None else within_s)
        while True:
            try:
                end, peer, format = self.waiting.get(timeout=POLL_S)
            except queue.Empty:
                if is_stopped() or monotonic() >= deadline:
                    raise InvalidInput("no encoder connected") from None
            else:
                source = open_media(_SocketBytes(end), self.name, format=format, options=_PROBE)
                self.has_begun.set()
                self.say(f"{peer} streams {_description(source.streams.values())}")
                return Opened(source, is_live=True)

    def close(self) -> None:
        """Close the sources that were not opened."""
        with suppress(queue.Empty):
            while True:
                self.waiting.get_nowait()[0].close()


class _SocketBytes:
    """The bytes of one source, for libavformat.

    Args:
        end: the socket to read from. Closing it has the session disconnect the encoder.
    """

    def __init__(self, end: socket.socket) -> None:
        self.read = end.recv  # waits for bytes and returns at most n of them; none at the end
        self.close = end.close


def _description(streams: Iterable[Stream]) -> str:
    """The streams for people, as in ``h264 1280x720, aac``."""
    return ", ".join(codec_name(stream) + _picture_size(stream) for stream in streams)


def _picture_size(stream: Stream) -> str:
    from av import VideoStream

    if isinstance(stream, VideoStream) and stream.codec_context is not None and stream.width:  # it is known, and began
        return f" {stream.width}x{stream.height}"
    return ""
