"""The fault that retry storms were once made of cannot happen.

A publisher closes its idle preconnect, which ends a segment without a byte, and ends the channel about then. A naive
subscriber on `-1` asks again as soon as it is answered, without any pause. Where the head does not move past a
zero-byte segment, that subscriber is served the same dead segment thousands of times a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.integration.conftest import Serve
from tests.support.logs import logged, matching, read_log
from tests.support.server import RunningServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

SUBSCRIBERS = 5


class NaiveSubscriber(threading.Thread):
    """Asks for `-1` again and again, at once, until the channel is over.

    Attributes:
        answers: status, seq, size of the body and Closed of every answer.
    """

    def __init__(self, channel: RemoteChannel) -> None:
        super().__init__(daemon=True)
        self._connection = channel.target.open()
        self._path = channel.at(-1)
        self.answers: list[tuple[int, str | None, int, str | None]] = []

    def run(self) -> None:
        for _ in range(1000):  # more would be a storm, which the test then reports
            self._connection.request("GET", self._path)
            response = self._connection.response(20)
            closed = response.get("Lp-Trickle-Closed")
            self.answers.append((response.status, response.get("Lp-Trickle-Seq"), len(response.body), closed))
            if closed or response.status == 404:
                return


def close_first(channel: RemoteChannel, preconnect: Callable[[], None], server: RunningServer) -> None:
    """The order of the old publishers: the preconnect ends, and some time later the channel."""
    preconnect()
    assert server.access_log is not None
    logged(server.access_log, op="publish", reason="empty", channel=channel.name)
    begun = time.monotonic()
    # The gap in which the storm raged. Nothing is waited for here: that nothing happens is the point.
    while time.monotonic() - begun < 0.3:
        assert channel.next_seq() == 2
    channel.end()


def delete_first(channel: RemoteChannel, preconnect: Callable[[], None], server: RunningServer) -> None:
    """The right order: the channel ends, then the preconnect."""
    channel.end()
    preconnect()


def at_once(channel: RemoteChannel, preconnect: Callable[[], None], server: RunningServer) -> None:
    """Both at the same moment."""
    ending = channel.target.open()
    ending.request("DELETE", channel.path)
    preconnect()
    assert ending.response().status == 200


@pytest.mark.parametrize("how", [close_first, delete_first, at_once])
@pytest.mark.parametrize("drain", ["10", "0"])
def test_a_naive_subscriber_makes_at_most_two_requests_at_the_end(
    quiet_serve: Serve, how: Callable[[RemoteChannel, Callable[[], None], RunningServer], None], drain: str
) -> None:
    """Between the zero-byte close and the channel's end there are at most two requests each, on either side counted."""
    with quiet_serve("--channel-drain-s", drain) as server, server.client() as target:
        channel, subscribers = begin(target)
        idle = channel.preconnect(1)
        how(channel, lambda: idle.connection.send(b"0\r\n\r\n"), server)
        for subscriber in subscribers:
            subscriber.join(WITHIN_S)
            assert not subscriber.is_alive()
        assert idle.answer().status == 200
        assert server.stop() == 0
    assert server.access_log is not None
    records = read_log(server.access_log)
    ends = [subscriber.answers[1:] for subscriber in subscribers]
    for answers in ends:
        assert len(answers) <= 2, answers
        status, _, _, closed = answers[-1]
        assert closed == "terminated" or status == 404
    reads = [record for record in matching(records, op="read", channel="live") if record.get("rseq") != 0]
    assert len(reads) == sum(map(len, ends)) <= 2 * SUBSCRIBERS
    assert len(matching(records, op="publish", channel="live")) == 2
    (end,) = matching(records, event="channel_end", channel="live")
    assert end["next_seq"] == (2 if how is close_first else end["next_seq"])


def begin(target: Target) -> tuple[RemoteChannel, list[NaiveSubscriber]]:
    """A channel with one segment, and subscribers that have read it and wait for the next."""
    channel = target.channel("live")
    upload = channel.upload(0)
    subscribers = [NaiveSubscriber(channel) for _ in range(SUBSCRIBERS)]
    eventually(lambda: b'"preconnected":[0]' in target.ask("GET", "/api/v1/channels/live").body)
    for subscriber in subscribers:
        subscriber.start()
    all_waiting(target)
    upload.chunk(b"media").end()
    assert upload.answer().status == 200
    eventually(lambda: all(subscriber.answers for subscriber in subscribers))
    all_waiting(target)
    return channel, subscribers


def all_waiting(target: Target) -> None:
    """Wait until every subscriber waits at the live edge."""
    eventually(lambda: b'"readers":%d,' % SUBSCRIBERS in target.ask("GET", "/api/v1/channels/live").body)


def test_a_run_of_empty_segments_is_walked_through_once(quiet_serve: Serve) -> None:
    """Each zero-byte segment costs a waiting subscriber exactly one request: the head moves past each of them."""
    count = 20
    with quiet_serve() as server, server.client() as target:
        channel, subscribers = begin(target)
        for seq in range(1, count + 1):
            assert channel.post(seq, b"").status == 200
            # Back at the live edge: whoever asks for -1 too late is served the one after, and rightly so.
            eventually(lambda: all(len(subscriber.answers) > seq for subscriber in subscribers))  # noqa: B023
            all_waiting(target)
        channel.end()
        for subscriber in subscribers:
            subscriber.join(WITHIN_S)
            seqs = [answer[1] for answer in subscriber.answers]
            assert seqs == [str(number) for number in range(count + 2)]
