"""Publish and subscribe without ``async``, from scripts, notebooks and threads.

::

    from tricklecast.sync import Publisher, Subscriber

    with Publisher("http://127.0.0.1:2939/trickle/chat") as publisher:
        publisher.publish(b"a whole segment")

    with Subscriber("http://127.0.0.1:2939/trickle/chat", start="earliest") as subscriber:
        for segment in subscriber:
            print(segment.seq, segment.read())

The classes have the names, arguments, attributes and methods of those in :mod:`tricklecast`. Write ``with`` and ``for``
instead of ``async with`` and ``async for``, and leave ``await`` out.

Each client runs in an event loop in a thread of its own; a call is sent there and waits for its result. Ctrl-C
interrupts a call that waits, and cancels it in that thread. A program that ends inside a ``with`` block, as a notebook
may, leaves its channel open, as after an exception.

A forked process does not have its parent's threads. So the parent's clients raise an error there, and each process
opens clients of its own.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

import tricklecast
from tricklecast.publisher import Receipt
from tricklecast.subscriber import Messages
from tricklecast.trickle.client.arguments import URLs
from tricklecast.trickle.client.channel import Head

__all__ = ["Channel", "Publisher", "Segment", "SegmentWriter", "Subscriber"]


class _Blocking:
    """Stands for an asynchronous object in another thread, and has the object's attributes and methods.

    Args:
        target: the object.
        portal: calls functions in the event loop of that thread.
    """

    def __init__(self, target: Any, portal: BlockingPortal | None = None) -> None:
        self._target = target
        self._portal = portal  # None while the client is not open
        self._process = os.getpid()  # the process that has the portal's thread

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy() and pickle look for these, also before _target is set
            raise AttributeError(name)
        value = getattr(self._target, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function, or a coroutine function, in the other thread.

        Raises:
            LocalProtocolError: the client is not open (in this process), or is called from its own event loop.
        """
        if self._portal is None:
            raise tricklecast.LocalProtocolError("this client is not open: use it inside `with ... as client:`")
        if self._process != os.getpid():
            raise tricklecast.LocalProtocolError("this client was opened before a fork: open one in each process")
        try:
            future: Future[Any] = self._portal.start_task_soon(partial(function, *args, **kwargs))
        except RuntimeError as error:
            why = "this client was closed, or is called by its own on_event; that needs another thread"
            raise tricklecast.LocalProtocolError(why) from error
        try:
            return future.result()
        except BaseException:
            # A KeyboardInterrupt: the call must not go on beside the next one.
            future.cancel()
            wait([future])
            raise

    def _items(self, iterator: Any) -> Iterator[Any]:
        """Yield the items of an asynchronous iterator."""

        async def following() -> tuple[Any, ...]:
            try:
                return (await anext(iterator),)
            except StopAsyncIteration:
                return ()

        while found := self._call(following):
            yield found[0]


def _event_loop() -> tuple[Thread, BlockingPortal]:
    """Start a thread with an event loop; return it with a portal that calls functions there."""
    # Not by anyio's start_blocking_portal: that is a generator, and waits for its thread when it is collected. In a
    # forked process, which does not have the thread, that would never end.
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    def run() -> None:
        try:
            anyio.run(serve)
        except BaseException as error:  # for example, no file descriptor is left
            if started.done():
                raise
            started.set_exception(error)

    # A daemon thread: the interpreter waits for all others before it calls _left_open(), which ends this one.
    thread = Thread(target=run, name="tricklecast.sync", daemon=True)
    thread.start()
    return thread, started.result()


class _Client(_Blocking):
    """A client whose event loop runs inside the ``with`` block."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            thread, portal = _event_loop()
            stack.callback(thread.join)
            stack.push(lambda kind, *_: portal.call(portal.stop, kind is not None))
            stack.enter_context(portal.wrap_async_context_manager(self._target))
            self._portal, self._stack, self._process = portal, stack.pop_all(), os.getpid()
        # The event loop's thread stands still once the interpreter shuts down: waiting for it then would never end.
        atexit.register(self._left_open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        atexit.unregister(self._left_open)
        if self._process != os.getpid():  # a forked process: the connections are still in use by its parent
            self._portal = None
            return
        try:
            self._stack.__exit__(kind, error, trace)
        finally:
            self._portal = None

    def _left_open(self) -> None:
        """Close the client when the program ends inside the block."""
        error = SystemExit()
        with suppress(SystemExit):
            self.__exit__(SystemExit, error, None)


class Publisher(_Client):
    """Publishes the segments of one channel; see :class:`tricklecast.Publisher` for arguments and errors."""

    def __init__(self, url: URLs, **options: Any) -> None:
        super().__init__(tricklecast.Publisher(url, **options))

    def publish(self, data: bytes) -> Receipt:
        """Publish a whole segment as one chunk."""
        receipt: Receipt = self._call(self._target.publish, data)
        return receipt

    def segment(self, **options: Any) -> SegmentWriter:
        """Begin the next segment. Use it in a ``with`` block."""
        return SegmentWriter(self._target.segment(**options), self._portal)


class SegmentWriter(_Blocking):
    """A segment that the program is publishing."""

    def __enter__(self) -> Self:
        self._call(self._target.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._target.__aexit__, kind, error, trace)

    def write(self, data: bytes) -> None:
        """Send a chunk. Readers get it at once."""
        self._call(self._target.write, data)


class Subscriber(_Client):
    """Yields the segments of a channel as they begin; see :class:`tricklecast.Subscriber` for arguments and errors."""

    def __init__(self, url: URLs, **options: Any) -> None:
        super().__init__(tricklecast.Subscriber(url, **options))

    def __iter__(self) -> Iterator[Segment]:
        return (Segment(segment, self._portal) for segment in self._items(self._target))

    def messages(self, **options: Any) -> Iterator[Any]:
        """Yield the channel's JSON documents, one per segment."""
        return self._items(aiter(Messages(self._target, **options)))

    def lines(self, **options: Any) -> Iterator[Any]:
        """Yield the channel's lines of JSON, each as soon as it ends."""
        return self._items(aiter(Messages(self._target, lines=True, **options)))


class Segment(_Blocking):
    """A segment that the program is reading: iterate over its chunks, or call :meth:`read`."""

    def __iter__(self) -> Iterator[bytes]:
        return self._items(self._target)

    def read(self, *limit: int) -> bytes:
        """Return the rest of the segment."""
        return bytes(self._call(self._target.read, *limit))


class Channel:
    """A channel as a whole; see :class:`tricklecast.Channel` for arguments and errors."""

    def __init__(self, url: URLs, **options: Any) -> None:
        self._channel = tricklecast.Channel(url, **options)

    def create(self, content_type: str = "application/octet-stream") -> None:
        """Create the channel, unless it exists."""
        self._ask(self._channel.create, content_type)

    def head(self) -> Head:
        """Ask where the channel stands."""
        head: Head = self._ask(self._channel.head)
        return head

    def end(self) -> None:
        """End the channel."""
        self._ask(self._channel.end)

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        with start_blocking_portal() as portal:
            return portal.call(function, *args)
