"""The blocking clients against a real server: they work like the asynchronous ones, and Ctrl-C ends them."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast import ChannelNotFound, InvalidURL, LocalProtocolError
from tricklecast.sync import Channel, Publisher, Subscriber


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
            segments = iter(subscriber)
            first = next(segments)
            assert (first.seq, first.content_type, first.read()) == (0, "text/plain", b"whole")
            assert b"".join(next(segments)) == b"in chunks"
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
    with Publisher(url) as publisher:
        publisher.publish(b'{"n": 1}\n{"n": 2}\n')
    with Subscriber(url, start=0) as subscriber:
        assert [message.value for message in subscriber.lines()] == [{"n": 1}, {"n": 2}]


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
    """A segment of a closed client, and a client in its own event handler, raise instead of waiting for ever."""
    failures: list[Exception] = []

    def on_event(event: object) -> None:
        try:
            publisher.publish(b"again")
        except LocalProtocolError as error:
            failures.append(error)

    with Publisher(url, on_event=on_event) as publisher:
        publisher.publish(b"x")
        left = publisher.segment()
    assert failures
    with pytest.raises(LocalProtocolError, match="was closed, or is called by its own on_event"), left:
        raise AssertionError("it was entered")
    assert not hasattr(copy.copy(publisher), "__reversed__")


def test_no_thread_is_left(url: str) -> None:
    """Neither a block nor a failed entry leaves a thread."""
    before = threading.active_count()
    with Publisher(url) as publisher:
        publisher.publish(b"x")
    with pytest.raises(LocalProtocolError), publisher:
        raise AssertionError("it was entered twice")
    eventually(lambda: threading.active_count() == before)


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
