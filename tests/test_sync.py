"""The blocking clients against a real server: they work like the asynchronous ones, and Ctrl-C ends them."""

from __future__ import annotations

import _thread
import atexit
import inspect
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, get_type_hints

import anyio
import httpx
import pytest

import tricklecast.media
import tricklecast.publisher
import tricklecast.subscriber
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast import Channel as AsyncChannel
from tricklecast import ChannelNotFound, ClosedHere, InvalidURL, LocalProtocolError, Position, sync
from tricklecast import Publisher as AsyncPublisher
from tricklecast import Subscriber as AsyncSubscriber
from tricklecast.subscriber import BadMessage, Message
from tricklecast.subscriber import Messages as AsyncMessages
from tricklecast.sync import Channel, JsonLines, Messages, Publisher, Segment, SegmentWriter, Subscriber


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server() as running:
        yield running


@pytest.fixture
def url(server: LocalServer, request: pytest.FixtureRequest) -> str:
    """A channel that no other test uses."""
    return f"http://127.0.0.1:{server.port}/trickle/{request.node.name}"


def test_segments_are_published_and_read(url: str) -> None:
    """Segments are whole or in chunks, and have the attributes of the asynchronous objects."""
    with Publisher(url, content_type="text/plain") as publisher:
        assert publisher.publish(b"whole").seq == 0
        with publisher.segment() as segment:
            segment.write(b"in ")
            segment.write(b"chunks")
        assert segment.receipt.seq == 1
        assert publisher.statistics().segments == 2
        with Subscriber(url, start=0) as subscriber:
            first = next(subscriber)
            assert (first.seq, first.content_type, first.read()) == (0, "text/plain", b"whole")
            assert b"".join(next(subscriber)) == b"in chunks"
            assert subscriber.position is not None
            assert subscriber.position.seq == 2
    with Subscriber(url, start=0) as subscriber:
        assert [segment.seq for segment in subscriber] == [0, 1]


def test_threads_that_share_a_publisher_lose_nothing(url: str) -> None:
    """Eight threads publish twenty documents each; each call returns when its own is confirmed."""
    with Publisher(url) as publisher:

        def work(thread: int) -> None:
            for number in range(20):
                publisher.publish_json([thread, number])

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WITHIN_S)
        assert publisher.statistics().segments == 160
    with Subscriber(url, start=0) as subscriber:
        found = sorted(tuple(message.value) for message in subscriber.messages())
    assert found == [(thread, number) for thread in range(8) for number in range(20)]


def test_messages(url: str) -> None:
    """Messages are whole segments or lines of JSON."""
    with Publisher(url) as publisher:
        publisher.publish_json({"n": 1})
        publisher.publish_json({"n": 2})
    with Subscriber(url, start=0) as subscriber:
        assert [message.value for message in subscriber.messages()] == [{"n": 1}, {"n": 2}]
    with Publisher(url) as publisher, publisher.json_lines() as out:
        out.write({"n": 1})
        out.write({"n": 2})
    with Subscriber(url, start=0) as subscriber:
        lines = subscriber.lines()
        assert next(lines).value == {"n": 1}
        kept = str(lines.position)
    with Subscriber(url, start=Position.parse(kept)) as subscriber:
        assert [message.value for message in subscriber.lines()] == [{"n": 2}]


def test_what_is_iterated_over_goes_on_after_an_error(url: str) -> None:
    """The next call has the next message; an error that lasts is raised again, and is no end."""
    with Publisher(url) as publisher:
        for document in (b"[1]", b"no", b"[2]"):
            publisher.publish(document)
    with Subscriber(url, start=0) as subscriber:
        messages = subscriber.messages()
        assert next(messages).value == [1]
        with pytest.raises(BadMessage):
            next(messages)
        assert (messages.skipped, next(messages)) == (1, Message(2, [2]))  # the error has told of it
        assert list(messages) == []
        subscriber.seek(0)
        segment = next(subscriber)
        assert (next(segment), next(segment, None)) == (b"[1]", None)
    with Subscriber(f"{url}-none") as subscriber:
        segments = iter(subscriber)
        for _ in range(2):
            with pytest.raises(ChannelNotFound):
                next(segments)


def test_a_channel_as_a_whole(url: str) -> None:
    """A channel is created, asked about and ended."""
    channel = Channel(url)
    channel.create("text/plain")
    assert (channel.head().next_seq, channel.head().ended) == (0, False)
    channel.end()
    assert channel.head().ended


def test_errors_are_those_of_the_clients(url: str) -> None:
    """Errors of arguments, of the server, of the block, and of a use outside of it are raised."""
    with pytest.raises(InvalidURL):
        Publisher("nowhere")
    with pytest.raises(ChannelNotFound), Subscriber(url) as subscriber:
        next(iter(subscriber))
    with pytest.raises(LocalProtocolError):
        Publisher(url).publish(b"x")
    with Publisher(url) as publisher, pytest.raises(ZeroDivisionError), publisher.segment() as segment:
        segment.write(b"x" * (1 // 0))
    with pytest.raises(LocalProtocolError):
        publisher.publish(b"x")
    with pytest.raises(LocalProtocolError), publisher:
        raise AssertionError("it was entered twice")


def test_a_forked_process_cannot_use_the_clients_of_its_parent(url: str) -> None:
    """A call raises an error; the end of the child does not close the parent's connections."""
    with Publisher(url) as publisher:
        publisher.publish(b"parent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, since there are threads
            child = os.fork()
        if not child:
            signal.alarm(int(WITHIN_S))
            try:
                publisher.publish(b"child")
            except LocalProtocolError as error:
                publisher.__exit__(None, None, None)
                del publisher
                os._exit("before a fork" not in str(error))
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert publisher.publish(b"parent").seq == 1


def test_what_cannot_be_called_says_so(url: str) -> None:
    """A client that is not open, and one in its own event handler, raise instead of waiting for ever."""
    failures: list[Exception] = []

    def on_event(event: object) -> None:
        try:
            publisher.publish(b"again")
        except LocalProtocolError as error:
            failures.append(error)

    with Publisher(url, on_event=on_event) as publisher:
        publisher.publish(b"x")
    assert failures
    assert {(type(error), "its own on_event" in str(error)) for error in failures} == {(LocalProtocolError, True)}
    for too_early in (lambda: Publisher(url).publish(b"x"), Publisher(url).begin):
        with pytest.raises(LocalProtocolError, match="is not open") as caught:
            too_early()
        assert caught.type is LocalProtocolError


def test_a_closed_publisher_says_so(url: str) -> None:
    """Each call that needs the server raises `ClosedHere`. An earlier receipt stays, and so does another exception."""
    publisher = Publisher(url).open()
    with publisher.segment() as confirmed:
        confirmed.write(b"x")
    segment, never, lines = publisher.begin(), publisher.segment(), publisher.json_lines().__enter__()
    segment.write(b"x")
    lines.write(1)
    publisher.detach()
    calls: list[Callable[[], object]] = [
        lambda: publisher.publish(b"x"),
        publisher.begin,
        publisher.segment().__enter__,
        publisher.json_lines().__enter__,
        never.__enter__,
        never.settled,
        lambda: segment.write(b"x"),
        lambda: segment.write_nowait(b"x"),
        segment.end_nowait,
        segment.end,
        segment.settled,
        lambda: segment.__exit__(None, None, None),
        lambda: lines.write(1),
        lambda: lines.__exit__(None, None, None),
    ]
    for call in calls:
        with pytest.raises(ClosedHere, match="was closed"):
            call()
    segment.abort()
    assert confirmed.settled() == confirmed.end() == confirmed.receipt
    for block in (segment, lines):
        failure = ZeroDivisionError()
        block.__exit__(ZeroDivisionError, failure, None)
    publisher.close()


def test_segments_of_a_closed_subscriber_say_so(url: str) -> None:
    """Reading one raises `ClosedHere`; one that was left can be left again."""
    with Publisher(url) as publisher:
        publisher.publish(b"x")
    subscriber = Subscriber(url, start=0).open()
    segment, messages = next(subscriber), subscriber.messages()
    subscriber.close()
    calls: list[Callable[[], object]] = [
        segment.read,
        segment.read_some,
        lambda: next(segment),
        lambda: next(subscriber),
        lambda: next(messages),
        lambda: subscriber.seek(0),
    ]
    for call in calls:
        with pytest.raises(ClosedHere):
            call()
    segment.stop()
    segment.aclose()


def test_a_call_that_meets_the_end_of_the_event_loop(url: str) -> None:
    """It raises `ClosedHere`, whether it waits there or comes too late."""
    client = Channel(url)
    waits, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        waits.set()
        await anyio.sleep_forever()

    def work() -> None:
        portal = client._portal
        assert portal is not None
        with pytest.raises(ClosedHere):
            client._call(wait_for_ever)
        goes_on.wait(WITHIN_S)
        with pytest.raises(ClosedHere):
            sync._waited(portal, wait_for_ever)
        ended.set()

    thread = threading.Thread(target=work)
    client.__enter__()
    thread.start()
    assert waits.wait(WITHIN_S)
    client.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    goes_on.set()
    assert ended.wait(WITHIN_S)
    thread.join(WITHIN_S)


BLOCKING = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}

LEFT_OUT = {
    "Messages.__enter__": "they have the block of their subscriber",
    "Messages.__exit__": "they have the block of their subscriber",
    "json_messages": "subscriber.messages() does it",
    "json_lines": "subscriber.lines() does it",
    "record": "it works until its end, so that anyio.run() calls it",
    "frames": "media run in an event loop, and have threads of their own",
    "FrameReader": "media run in an event loop, and have threads of their own",
    "MediaPublisher": "media run in an event loop, and have threads of their own",
    "relay": "it works until its end, so that anyio.run() calls it",
}
"""What of the asynchronous clients :mod:`tricklecast.sync` does not have, and why."""


def _public(*found: object) -> set[str]:
    """The attributes that users know; of asynchronous iterators and blocks by the blocking names."""
    names = {BLOCKING.get(name, name) for one in found for name in dir(one)}
    return {name for name in names if not name.startswith("_") or name in BLOCKING.values()}


def _is_async(found: object) -> bool:
    """Whether it waits, or makes what does: a class with such methods, a coroutine function, or what returns one."""
    if isinstance(found, type):
        methods = [function for name, function in inspect.getmembers(found) if not name.startswith("_")]
        return bool(BLOCKING.keys() & set(dir(found))) or any(map(inspect.iscoroutinefunction, methods))
    returns = getattr(found, "__annotations__", {}).get("return", "")
    return inspect.iscoroutinefunction(found) or returns.partition("[")[0] in ("Messages", "FrameReader")


def test_each_client_has_a_blocking_twin() -> None:
    """Classes and functions; or it is left out for a reason, which the docs tell."""
    packages = (tricklecast, tricklecast.publisher, tricklecast.subscriber, tricklecast.media)
    names = {name for package in packages for name in package.__all__ if _is_async(getattr(package, name))}
    assert names >= {"Publisher", "Subscriber", "Channel", "Messages", "SegmentWriter", "list_channels", "record"}
    of_httpx = {"TrickleTransport"}
    assert names - set(sync.__all__) - of_httpx == {name for name in LEFT_OUT if "." not in name}
    page = Path(__file__).parents[1] / "docs" / "reference" / "api" / "channel.md"
    told = page.read_text(encoding="utf-8")
    assert [name for name in LEFT_OUT if "." not in name and f"`{name}" not in told] == []


def test_each_public_name_has_a_blocking_twin(url: str) -> None:
    """Attributes of objects included, `anext` as `next`. What is missing in `sync` is missing on purpose."""

    async def scenario() -> dict[type, set[str]]:
        async with AsyncPublisher(url) as out:
            await out.publish(b"x")
            async with AsyncSubscriber(url, start=0) as reader, AsyncChannel(url) as channel:
                segment = await anext(reader)
                return {
                    Publisher: _public(out),
                    SegmentWriter: _public(out.segment()),
                    JsonLines: _public(out.json_lines()),
                    Subscriber: _public(reader),
                    Messages: _public(AsyncMessages(reader)),
                    Segment: _public(segment),
                    Channel: _public(channel),
                }

    names = anyio.run(scenario)
    with Publisher(f"{url}-3") as out:
        out.publish(b"x")
        with Subscriber(f"{url}-3", start=0) as reader, Channel(f"{url}-3") as channel:
            twins = (out, out.segment(), out.json_lines(), reader, reader.messages(), next(reader), channel)
            assert {type(twin) for twin in twins} == names.keys()
            for twin in twins:
                missing = {f"{type(twin).__name__}.{name}" for name in names[type(twin)] - _public(twin)}
                assert missing - LEFT_OUT.keys() == set()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Publisher, AsyncPublisher),
        (SegmentWriter, tricklecast.publisher.SegmentWriter),
        (JsonLines, tricklecast.publisher.JsonLines),
        (Subscriber, AsyncSubscriber),
        (Segment, tricklecast.subscriber.Segment),
        (Channel, AsyncChannel),
    ],
)
def test_methods_take_what_those_of_the_twin_do(ours: type, theirs: type) -> None:
    """The same arguments, in the same order, with the same defaults."""
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if not name.startswith("_"):
            assert _arguments(getattr(ours, name)) == _arguments(method), name


def _arguments(function: Callable[..., Any]) -> list[tuple[str, object, object]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(
    ("options", "twin", "missing"),
    [
        (sync.PublisherOptions, AsyncPublisher, {"transport"}),
        (sync.SubscriberOptions, AsyncSubscriber, {"transport", "client"}),
        (sync.ChannelOptions, AsyncChannel, set()),
    ],
)
def test_options_are_those_of_the_twin(options: type, twin: type, missing: set[str]) -> None:
    """With the same types; only `auth` takes nothing of httpx's. Those that are missing are refused."""
    theirs = get_type_hints(getattr(twin, "__init__"), localns={"httpx": httpx})  # noqa: B009
    ours = get_type_hints(options)
    arguments = set(inspect.signature(twin).parameters) - {"url"}
    assert arguments - set(ours) == missing
    assert {name for name in ours if ours[name] != theirs[name]} == {"auth"}
    assert ours["auth"] == str | tuple[str, str] | None
    for name in missing:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            getattr(sync, twin.__name__)("http://host/trickle/cam", **{name: None})


@pytest.mark.parametrize("kind", [Publisher, SegmentWriter, JsonLines, Subscriber, Messages, Segment, Channel])
def test_signatures_have_types_and_nothing_of_httpx(kind: type) -> None:
    """A program need not know httpx to call a method."""
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and not name.startswith("_"):
            hints = get_type_hints(function)
            assert "return" in hints
            assert set(inspect.signature(function).parameters) <= {"self", *hints}
            assert "httpx" not in repr(hints)


def test_list_channels_takes_a_token_or_a_pair() -> None:
    """And nothing of httpx."""
    assert get_type_hints(sync.list_channels)["auth"] == str | tuple[str, str] | None


def test_without_blocks(url: str) -> None:
    """Clients are opened and closed, and segments begun, ended and aborted by calls."""
    out = Publisher(url).open()
    segment = out.begin()
    segment.write(b"a")
    segment.write_nowait(b"b")
    assert segment.end().sent == 2
    cut = out.begin()
    cut.write(b"c")
    cut.abort()
    with pytest.raises(ClosedHere):
        cut.settled()
    late = out.begin()
    late.end_nowait()
    assert late.settled().seq == late.seq == 2
    assert out.detach() == ()
    assert (out.error, out.trouble, out.statistics().segments) == (None, None, 1)
    out = Publisher(url).open()
    reader = Subscriber(url, start=0).open()
    segments = iter(reader)
    first = next(segments)
    assert (first.read_some() + first.read(), first.complete, first.bytes_read) == (b"ab", True, 2)
    assert next(segments).read() == b"c"
    reader.seek(0)
    again = next(segments)
    again.stop()
    assert (again.position.seq, again.truncated, again.broken, again.read_some()) == (0, None, None, b"")
    waiting = threading.Thread(target=lambda: out.publish(b"d"))
    waiting.start()
    waiting.join(WITHIN_S)
    assert out.close() == ()
    reader.close()
    reader.close()
    with pytest.raises(LocalProtocolError):
        next(segments)


def test_a_reader_that_waits_is_closed_by_another_thread(url: str) -> None:
    """The waiting call raises `ClosedHere`, and no thread is left."""
    before = threading.active_count()
    with Publisher(url) as out:
        out.publish(b"a")  # from now on the channel is there
        reader = Subscriber(url, start="next").open()
        failures: list[Exception] = []

        def wait() -> None:
            try:
                next(iter(reader))
            except ClosedHere as error:
                failures.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: reader.statistics().requests)
        closing = [threading.Thread(target=reader.close) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in (waiting, *closing):
            thread.join(WITHIN_S)
        assert failures
    eventually(lambda: threading.active_count() == before)


def test_a_client_is_not_closed_by_its_own_event(url: str) -> None:
    """A thread cannot wait for its own end."""
    failures: list[Exception] = []

    def on_event(event: object) -> None:
        try:
            out.close()
        except LocalProtocolError as error:
            failures.append(error)

    with Publisher(url, on_event=on_event) as out:
        out.publish(b"x")
    assert failures


def test_a_channel_in_a_block(url: str) -> None:
    """Its requests share a connection; after the block it can be used as before it."""
    channel = Channel(url)
    with channel:
        channel.create()
        assert channel.head().next_seq == 0
    channel.aclose()
    channel.end()


def test_no_thread_is_left(url: str) -> None:
    """Neither a block nor a failed entry leaves a thread."""
    before = threading.active_count()
    with Publisher(url) as publisher:
        publisher.publish(b"x")
    with pytest.raises(LocalProtocolError), publisher:
        raise AssertionError("it was entered twice")
    eventually(lambda: threading.active_count() == before)


@pytest.mark.parametrize("when", ["the thread has not begun", "the thread begins", "it waits", "it opened"])
def test_ctrl_c_while_a_client_opens_leaves_no_thread(url: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it comes. The thread is over before the program goes on: one that imports changes its exit status."""
    before, begun, ended = set(threading.enumerate()), threading.Event(), threading.Event()
    run = anyio.run

    def observed(function: Callable[[], Awaitable[None]]) -> None:
        begun.set()
        run(function)
        ended.set()

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if when != "the thread has not begun":
                super().start()
            if when in ("the thread has not begun", "the thread begins"):
                raise KeyboardInterrupt

    class InterruptedFuture(Future[Any]):
        results = 0

        def result(self, timeout: float | None = None) -> Any:
            result = super().result(timeout)
            self.results += 1
            if when == "it waits" and self.results == 1:
                raise KeyboardInterrupt
            return result

    def interrupt(function: Callable[[], None]) -> None:
        if when == "it opened":
            raise KeyboardInterrupt

    monkeypatch.setattr(sync, "END_S", WITHIN_S if when != "the thread has not begun" else 0.0)
    monkeypatch.setattr(sync, "Thread", Interrupted)
    monkeypatch.setattr(sync, "Future", InterruptedFuture)
    monkeypatch.setattr(atexit, "register", interrupt)
    monkeypatch.setattr(anyio, "run", observed)
    with pytest.raises(KeyboardInterrupt):
        Channel(url).__enter__()
    assert ended.is_set() == begun.is_set() == (when != "the thread has not begun")
    eventually(lambda: set(threading.enumerate()) <= before, what="its thread is gone")


def test_a_ctrl_c_that_wakes_nobody_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes just before the main thread begins to wait does not end that wait, and is looked for."""
    monkeypatch.setattr(sync, "WAKE_S", 0.01)
    main, ended = threading.get_ident(), []

    async def work() -> None:
        await anyio.sleep(WITHIN_S)
        ended.append("by itself")

    def waits() -> bool:
        calls = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]
        return "_waited" in calls and "start_task_soon" not in calls and calls[-1] == "wait"

    def interrupt() -> None:
        eventually(waits)
        _thread.interrupt_main()  # notes the signal, but wakes nobody

    thread = threading.Thread(target=interrupt)
    with Channel(url) as client:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client._call(work)
    thread.join(WITHIN_S)
    assert not ended


def test_an_error_of_a_call_is_no_end_of_waiting(url: str) -> None:
    """A `TimeoutError` of the call itself is raised."""

    async def work() -> None:
        raise TimeoutError("its own")

    with Channel(url) as client, pytest.raises(TimeoutError, match="its own"):
        client._call(work)


def test_ctrl_c_ends_a_program_that_waits(url: str, server: LocalServer) -> None:
    """The call is cancelled, the program ends, and its connections are closed."""
    Channel(url).create()
    program = f"import tricklecast.sync as t\nwith t.Subscriber({url!r}) as s:\n    print(next(iter(s)))"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    name = url.rpartition("/")[2]
    channel = server.plane.registry.channels[name]
    eventually(lambda: channel.reading.used, what="the program waits")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == -signal.SIGINT
    assert err.strip().endswith("KeyboardInterrupt")
    eventually(lambda: not channel.reading.used, what="it is gone")


def test_a_program_that_ends_inside_a_block(url: str) -> None:
    """It ends at once, and the channel stays open for a successor."""
    program = f"from tricklecast.sync import Publisher; Publisher({url!r}).__enter__().publish(b'x')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WITHIN_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    head = Channel(url).head()
    assert (head.next_seq, head.ended) == (1, False)
