"""Publish and subscribe without ``async``, from scripts, notebooks and threads.

::

    from tricklecast.sync import Publisher, Subscriber

    with Publisher("http://127.0.0.1:2939/trickle/chat") as publisher:
        publisher.publish(b"a whole segment")

    with Subscriber("http://127.0.0.1:2939/trickle/chat", start="earliest") as subscriber:
        for segment in subscriber:
            print(segment.seq, segment.read())

The classes have the names, arguments, attributes, methods and errors of those in :mod:`tricklecast`. Write ``with``,
``for`` and ``next()`` instead of ``async with``, ``async for`` and ``anext()``, and leave ``await`` out. Arguments that
belong to an event loop of the program (``transport``, ``client``, an ``auth`` of httpx's own) are for the asynchronous
classes alone: here ``auth`` is a token, or a pair of user and password. A ``for`` alone does not open a client: use its
block. ``subscriber.messages()`` and ``lines()`` stand for ``json_messages`` and ``json_lines``. A function that
works until its end needs no client: ``anyio.run(record, url, "folder")``.

Each client runs in an event loop in a thread of its own; a call is sent there and waits for its result. Any number of
threads may share a publisher. Ctrl-C interrupts a call that waits, and cancels it in that thread. Python sends it to
the main thread alone, which ends the others by closing their clients: their calls raise ``ClosedHere``. A program that
ends inside a ``with`` block, as a notebook may, leaves its channel open, as after an exception.

A forked process does not have its parent's threads. So the parent's clients raise an error there, and each process
opens clients of its own.
"""

from __future__ import annotations

import atexit
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread, current_thread
from types import TracebackType
from typing import Final, Generic, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack

import anyio
from anyio.from_thread import BlockingPortal

import tricklecast
from tricklecast import publisher as publishing
from tricklecast import subscriber as subscribing
from tricklecast.publisher import PublisherEvent, PublisherStatistics, Receipt
from tricklecast.publisher.client import PublishingOptions
from tricklecast.subscriber import AnyStart, Message, Position, SubscriberStatistics
from tricklecast.subscriber.client import ReadingOptions
from tricklecast.subscriber.events import OnEvent
from tricklecast.subscriber.messages import OnError
from tricklecast.subscriber.segment import READ_LIMIT, OnBroken
from tricklecast.trickle.client.arguments import URLs, check_options
from tricklecast.trickle.client.channel import Head
from tricklecast.trickle.client.control import TIMEOUT_S
from tricklecast.trickle.client.listing import Channels
from tricklecast.trickle.errors import ClosedHere, ConnectionLost, LocalProtocolError, TrickleError
from tricklecast.trickle.paths import ChannelURL
from tricklecast.trickle.wire import DEFAULT_CONTENT_TYPE, MESSAGE_LIMIT

__all__ = ["Channel", "JsonLines", "Messages", "Publisher", "Segment", "SegmentWriter", "Subscriber", "list_channels"]

END_S: Final = 5.0
"""How long a thread is waited for that an interrupt may have prevented from beginning at all."""

WAKE_S: Final = 1.0
"""How often a thread that waits looks for a Ctrl-C: Python misses one that comes just before the thread begins to wait.
"""

P = ParamSpec("P")
T = TypeVar("T")

_NOT_OPEN = "this client is not open: use it inside `with ... as client:`"
_CLOSED = "this client was closed: make another one"
_FORKED = "this client was opened before a fork: open one in each process"
_OWN_LOOP = "this client is called by its own on_event; that needs another thread"


class PublisherOptions(PublishingOptions, total=False):
    """The arguments of :class:`Publisher`, which :class:`tricklecast.Publisher` explains."""

    content_type: str
    start: int | Literal["resume", "reset"]
    when_full: Literal["wait", "drop"]
    auth: str | tuple[str, str] | None
    on_event: Callable[[PublisherEvent], None] | None


class SubscriberOptions(ReadingOptions, total=False):
    """The arguments of :class:`Subscriber`, which :class:`tricklecast.Subscriber` explains."""

    start: AnyStart
    on_broken: OnBroken
    auth: str | tuple[str, str] | None
    on_event: OnEvent | None


class ChannelOptions(TypedDict, total=False):
    """The arguments of :class:`Channel`, which :class:`tricklecast.Channel` explains."""

    headers: Mapping[str, str] | None
    auth: str | tuple[str, str] | None
    verify: ssl.SSLContext | bool
    timeout_s: float


def _waited(portal: BlockingPortal, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a coroutine function in the event loop of another thread, and wait for its result.

    Raises:
        ClosedHere: the event loop is over, or ends before the function does.
    """
    try:
        future: Future[T] = portal.start_task_soon(partial(function, *args, **kwargs))
    except RuntimeError as error:
        raise ClosedHere(_CLOSED) from error
    try:
        while True:
            try:
                return future.result(WAKE_S)
            except TimeoutError:
                if future.done():  # perhaps it is the function's own
                    return future.result()
    except CancelledError as error:
        raise ClosedHere(_CLOSED) from error
    except BaseException:
        # A KeyboardInterrupt: the call must not go on beside the next one.
        future.cancel()
        wait([future])
        raise


def _alone(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a coroutine function in an event loop for it alone, and wait for its result."""
    thread, portal = _event_loop()
    try:
        return _waited(portal, function, *args, **kwargs)
    finally:
        portal.call(portal.stop, True)
        thread.join()


class _Blocking(ABC):
    """Stands for an asynchronous object in another thread."""

    @abstractmethod
    def _call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the object, and wait for its result.

        Raises:
            ClosedHere: the client was closed.
            LocalProtocolError: the client is not open (in this process), or is called from its own event loop.
        """

    def _do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method that does not wait: it, too, may only run in the event loop's thread."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self._call(called)

    def _next(self, iterator: AsyncIterator[T]) -> T:
        """The next item of an asynchronous iterator. An error is not its end: the next call goes on, as there."""

        async def following() -> tuple[T, ...]:
            try:
                return (await anext(iterator),)
            except StopAsyncIteration:
                return ()

        found = self._call(following)
        if not found:
            raise StopIteration
        return found[0]


def _event_loop() -> tuple[Thread, BlockingPortal]:
    """Start a thread with an event loop; return it with a portal that calls functions there."""
    # Not by anyio's start_blocking_portal: that is a generator, and waits for its thread when it is collected. In a
    # forked process, which does not have the thread, that would never end.
    started: Future[BlockingPortal] = Future()
    over = Event()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            if started.set_running_or_notify_cancel():  # else nobody will ever stop it
                started.set_result(portal)
                await portal.sleep_until_stopped()

    def run() -> None:
        try:
            anyio.run(serve)
        except BaseException as error:  # for example, no file descriptor is left
            if not started.done():
                started.set_exception(error)
            elif "interpreter shutdown" not in str(error):
                raise
            # Else asyncio wanted another thread to end those that look names up. Python 3.12 starts none at the end of
            # a program, and they end with it.
        finally:
            over.set()

    # A daemon thread: the interpreter waits for all others before it calls _left_open(), which ends this one.
    thread = Thread(target=run, name="tricklecast.sync", daemon=True)
    try:
        thread.start()
        return thread, started.result()
    except BaseException:  # a KeyboardInterrupt, which may come before there is a thread, or a portal
        if not started.cancel() and started.exception() is None:
            portal = started.result()
            portal.call(portal.stop, True)
        # A thread that imports something resets Python's note that the program ends by Ctrl-C: its status would be 1.
        over.wait(END_S)
        raise


B = TypeVar("B", publishing.SegmentWriter, publishing.JsonLines)
C = TypeVar("C", tricklecast.Publisher, tricklecast.Subscriber, tricklecast.Channel)


class _Client(_Blocking, Generic[C]):
    """A client whose event loop runs from its opening to its closing."""

    def __init__(self, target: C) -> None:
        self._target: C = target
        self._portal: BlockingPortal | None = None  # while it is open; calls functions in its event loop
        self._thread: Thread | None = None  # of the event loop
        self._process = os.getpid()  # the process that has the thread
        self._was_closed = False
        self._closing = Lock()  # of two threads that close it, the second one waits

    def __enter__(self) -> Self:
        thread, portal = _event_loop()
        try:
            _waited(portal, self._target.__aenter__)
            self._portal, self._thread, self._process = portal, thread, os.getpid()
            # The event loop's thread stands still once the interpreter shuts down: waiting for it then would never end.
            atexit.register(self._left_open)
        except BaseException as error:
            if self._portal is portal:  # a KeyboardInterrupt at the last moment: it is open
                self.__exit__(type(error), error, None)
            else:
                portal.call(portal.stop, True)
                thread.join()
            raise
        return self

    def _call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        portal = self._portal
        if portal is None:
            raise ClosedHere(_CLOSED) if self._was_closed else LocalProtocolError(_NOT_OPEN)
        if self._process != os.getpid():
            raise LocalProtocolError(_FORKED)
        if self._thread is current_thread():
            raise LocalProtocolError(_OWN_LOOP)
        return _waited(portal, function, *args, **kwargs)

    @property
    def url(self) -> ChannelURL:
        """The channel, or the first one of its URLs, taken apart."""
        return self._target.url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(partial(self._target.__aexit__, kind, error, trace), None, cancel=kind is not None)

    def _close(self, closing: Callable[[], Awaitable[T]], otherwise: T, *, cancel: bool = False) -> T:
        """Close the client in its event loop, and end that.

        Args:
            closing: closes it.
            otherwise: the result if it is not open.
            cancel: cancel the calls that other threads wait for.

        Raises:
            LocalProtocolError: the client's own ``on_event`` calls this.
        """
        if self._process != os.getpid():  # a forked process: the connections are still in use by its parent
            atexit.unregister(self._left_open)
            self._portal = None
        if self._thread is current_thread():
            raise LocalProtocolError(_OWN_LOOP)
        with self._closing:
            if self._portal is None or self._thread is None:
                return otherwise
            atexit.unregister(self._left_open)
            try:
                return self._call(closing)
            finally:
                self._was_closed = True  # first: a call that finds no portal looks at it
                portal, self._portal = self._portal, None
                portal.call(portal.stop, cancel)
                self._thread.join()

    def _left_open(self) -> None:
        """Close the client when the program ends inside the block."""
        self.__exit__(SystemExit, SystemExit(), None)


class _Part(_Blocking):
    """A segment, or a writer of lines: it works in the event loop of its client, and ends with that."""

    def __init__(self, client: _Client[tricklecast.Publisher] | _Client[tricklecast.Subscriber]) -> None:
        self._client = client

    def _call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._client._call(function, *args, **kwargs)


class _Writer(_Part, Generic[B]):
    """Stands for an object with a block of its own, inside that of its client."""

    def __init__(self, target: B, client: _Client[tricklecast.Publisher]) -> None:
        super().__init__(client)
        self._target: B = target

    def __enter__(self) -> Self:
        self._call(self._target.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self._target.__aexit__, kind, error, trace)
        except ClosedHere:
            if error is None:  # else that is why the block is left
                raise


class Publisher(_Client[tricklecast.Publisher]):
    """Publishes the segments of one channel; see :class:`tricklecast.Publisher` for arguments and errors."""

    def __init__(self, url: URLs, **options: Unpack[PublisherOptions]) -> None:
        check_options("Publisher()", options, PublisherOptions.__optional_keys__)
        super().__init__(tricklecast.Publisher(url, **options))

    @property
    def error(self) -> TrickleError | None:
        """Why nothing more can be published."""
        return self._target.error

    @property
    def trouble(self) -> TrickleError | None:
        """The server's last failure, as long as nothing was published since."""
        return self._target.trouble

    def open(self) -> Self:
        """Open the publisher without a block; :meth:`close` or :meth:`detach` closes it."""
        return self.__enter__()

    def segment(self, *, wait: bool = True) -> SegmentWriter:
        """Return the next segment. Use it in a ``with`` block."""
        return SegmentWriter(self._target.segment(wait=wait), self)

    def begin(self) -> SegmentWriter:
        """Begin the next segment without a block; its ``end()`` ends it, its ``abort()`` cuts it off."""
        return self.segment().__enter__()

    def statistics(self) -> PublisherStatistics:
        """Return the counters so far."""
        return self._target.statistics() if self._portal is None else self._do(self._target.statistics)

    def publish(self, data: bytes) -> Receipt:
        """Publish a whole segment as one chunk."""
        return self._call(self._target.publish, data)

    def publish_json(self, obj: object, *, limit: int = MESSAGE_LIMIT) -> Receipt:
        """Publish an object as a segment of JSON."""
        return self._call(self._target.publish_json, obj, limit=limit)

    def json_lines(
        self,
        *,
        segment_s: float = 2.0,
        segment_lines: int = 10_000,
        segment_bytes: int = 1 << 20,
        limit: int = MESSAGE_LIMIT,
    ) -> JsonLines:
        """Return a writer of JSON lines. Use it in a ``with`` block."""
        lines = self._target.json_lines(
            segment_s=segment_s, segment_lines=segment_lines, segment_bytes=segment_bytes, limit=limit
        )
        return JsonLines(lines, self)

    def close(self) -> tuple[int, ...]:
        """End the channel; return the seqs of the segments that the server has not confirmed."""
        return self._close(self._target.close, ())

    def detach(self) -> tuple[int, ...]:
        """Stop publishing without ending the channel; return the seqs that the server has not confirmed."""
        return self._close(self._target.detach, ())


class SegmentWriter(_Writer[publishing.SegmentWriter]):
    """A segment that the program is publishing; see :class:`tricklecast.publisher.SegmentWriter`."""

    @property
    def seq(self) -> int:
        """Its number in the channel, final once it was published."""
        return self._target.seq

    @property
    def receipt(self) -> Receipt:
        """The result of the segment."""
        return self._target.receipt

    def write(self, chunk: bytes) -> None:
        """Send a chunk. Readers get it at once."""
        self._call(self._target.write, chunk)

    def write_nowait(self, chunk: bytes) -> None:
        """Hand a chunk over without waiting for the connection to take it."""
        self._do(self._target.write_nowait, chunk)

    def end(self) -> Receipt:
        """End the segment, and wait for its receipt."""
        return self._outcome(self._target.end)

    def end_nowait(self) -> None:
        """End the segment without waiting; :meth:`settled` waits for the receipt."""
        self._do(self._target.end_nowait)

    def abort(self) -> None:
        """Cut the segment off, unless it is over."""
        with suppress(ClosedHere):  # by the publisher's end
            self._do(self._target.abort)

    def settled(self) -> Receipt:
        """Wait until it was published or lost."""
        return self._outcome(self._target.settled)

    def _outcome(self, waiting: Callable[[], Awaitable[Receipt]]) -> Receipt:
        with suppress(LocalProtocolError):
            return self._target.receipt  # it is known, also when the publisher is closed
        return self._call(waiting)


class JsonLines(_Writer[publishing.JsonLines]):
    """Publishes one line of JSON for each object; see :class:`tricklecast.publisher.JsonLines`."""

    def write(self, obj: object) -> None:
        """Write an object as a line. Readers get it at once."""
        self._call(self._target.write, obj)


class Subscriber(_Client[tricklecast.Subscriber]):
    """Yields the segments of a channel as they begin; see :class:`tricklecast.Subscriber` for arguments and errors.

    Iterate over it, or call ``next(subscriber)`` for one segment, inside its ``with`` block.
    """

    def __init__(self, url: URLs, **options: Unpack[SubscriberOptions]) -> None:
        check_options("Subscriber()", options, SubscriberOptions.__optional_keys__)
        super().__init__(tricklecast.Subscriber(url, **options))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Segment:
        """The next segment; ``StopIteration`` at the channel's end."""
        return Segment(self._next(self._target), self)

    @property
    def position(self) -> Position | None:
        """The next segment to be handed out; ``None`` while that depends on the server's head."""
        return self._target.position

    @property
    def missed_at_end(self) -> int:
        """Segments that were missed between the last one handed out and the end of the channel."""
        return self._target.missed_at_end

    def open(self) -> Self:
        """Open the subscriber without a block; :meth:`close` closes it."""
        return self.__enter__()

    def close(self) -> None:
        """Leave the segment that is being read, and close the connections, also while another thread waits."""
        self._close(self._target.close, None)

    def seek(self, start: AnyStart, *, leave: bool = False) -> None:
        """Read on elsewhere: the next segment to be handed out is the one that ``start`` names."""
        self._call(self._target.seek, start, leave=leave)

    def statistics(self) -> SubscriberStatistics:
        """Return the counters so far."""
        return self._target.statistics() if self._portal is None else self._do(self._target.statistics)

    def messages(self, *, limit: int = MESSAGE_LIMIT, on_error: OnError = "raise") -> Messages:
        """The channel's JSON documents, one per segment."""
        return Messages(self, subscribing.Messages(self._target, limit=limit, on_error=on_error))

    def lines(self, *, limit: int = MESSAGE_LIMIT, on_error: OnError = "raise") -> Messages:
        """The channel's lines of JSON, each as soon as it ends."""
        return Messages(self, subscribing.Messages(self._target, lines=True, limit=limit, on_error=on_error))


class Messages:
    """The messages of an open subscriber: made by its ``messages()`` and ``lines()``, to be iterated over.

    See :class:`tricklecast.subscriber.Messages` for the errors. After ``BadMessage``, the next call has the next one.
    """

    def __init__(self, subscriber: Subscriber, target: subscribing.Messages) -> None:
        self.subscriber = subscriber
        self._target = target

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        """The next message; ``StopIteration`` at the channel's end."""
        return self.subscriber._next(self._target)

    @property
    def position(self) -> Position | None:
        """Behind the last message: pass it, or its text, as ``start`` to go on there."""
        return self._target.position

    @property
    def skipped(self) -> int:
        """Documents, and parts of lines, that could not be used so far."""
        return self._target.skipped


class Segment(_Part):
    """A segment that the program is reading: iterate over its chunks, or call :meth:`read_some` or :meth:`read`.

    See :class:`tricklecast.subscriber.Segment` for the attributes and errors.
    """

    def __init__(self, target: subscribing.Segment, subscriber: Subscriber) -> None:
        super().__init__(subscriber)
        self._target = target
        self.seq = target.seq
        self.epoch = target.epoch
        self.life = target.life
        self.gap = target.gap
        self.restarted = target.restarted
        self.content_type = target.content_type
        self.size_at_start = target.size_at_start
        self.lag = target.lag
        self.requested_at = target.requested_at
        self.answered_at = target.answered_at

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """The next chunk, as the publisher wrote it; ``StopIteration`` at the segment's end."""
        return self._next(self._target)

    @property
    def truncated(self) -> str | None:
        """Why the segment is not whole, as the server said at its start or, at the latest, at its end."""
        return self._target.truncated

    @property
    def broken(self) -> ConnectionLost | None:
        """The connection was cut before the segment's end, and the rest cannot be had."""
        return self._target.broken

    @property
    def bytes_read(self) -> int:
        """How many bytes have been received."""
        return self._target.bytes_read

    @property
    def position(self) -> Position:
        """Where a subscription begins that reads this segment again."""
        return self._target.position

    @property
    def complete(self) -> bool:
        """Whether the segment was read to its end, and is whole."""
        return self._target.complete

    def read_some(self) -> bytes:
        """Return the bytes that are there; wait for at least one, and return ``b""`` at the end."""
        return self._call(self._target.read_some)

    def read(self, limit: int = READ_LIMIT) -> bytes:
        """Return the rest of the segment, of at most ``limit`` bytes."""
        return self._call(self._target.read, limit)

    def aclose(self) -> None:
        """Leave the segment, also while another thread reads it: that one gets ``ClosedHere``."""
        with suppress(ClosedHere):  # by the subscriber's end
            self._call(self._target.aclose)

    def stop(self) -> None:
        """Leave the segment, also while another thread reads it: there it ends, and is not complete."""
        with suppress(ClosedHere):  # by the subscriber's end
            self._call(self._target.stop)


class Channel(_Client[tricklecast.Channel]):
    """A channel as a whole; see :class:`tricklecast.Channel` for arguments and errors.

    In a ``with`` block its requests share a connection; without one, each call has a connection of its own.
    """

    def __init__(self, url: URLs, **options: Unpack[ChannelOptions]) -> None:
        super().__init__(tricklecast.Channel(url, **options))

    def create(self, content_type: str = DEFAULT_CONTENT_TYPE) -> None:
        """Create the channel, unless it exists."""
        self._ask(self._target.create, content_type)

    def head(self) -> Head:
        """Ask where the channel stands."""
        return self._ask(self._target.head)

    def end(self) -> None:
        """End the channel."""
        self._ask(self._target.end)

    def aclose(self) -> None:
        """Close the connection of the block. Without a block it does nothing."""
        self._close(self._target.aclose, None)

    def _ask(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return (_alone if self._portal is None else self._call)(function, *args, **kwargs)


def list_channels(
    url: str,
    *,
    auth: str | tuple[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
    timeout_s: float = TIMEOUT_S,
) -> Channels:
    """List the channels of a server; see :func:`tricklecast.list_channels`."""
    return _alone(tricklecast.list_channels, url, auth=auth, verify=verify, timeout_s=timeout_s)
