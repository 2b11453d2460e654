"""What pytrickle does on the wire, and what it needs the answer to be.

Each of its segments has a connection of its own (`Connection: close`) and does not wait for the answer to the one
before. It cancels what is under way instead of ending it, and never sends DELETE. Its subscriber waits for at most
30 seconds, retries a 470 five times without a pause, and of a control message reads one piece.
"""

from __future__ import annotations

from tests.app.data_plane.support import later
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.data_plane.deadlines import HALF_CLOSED_S
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle import wire

ALONE = {"Connection": "close", "Content-Type": "video/mp2t"}


def test_every_segment_has_its_own_connection(channel: RemoteChannel) -> None:
    """The connection ends with the answer, which is the whole of it; the reader's too."""
    for seq in range(3):
        upload = channel.upload(seq, b"segment ", b"%d" % seq, headers=ALONE).end()
        upload.connection.last(200)
        reader = channel.read(seq, ALONE)
        reader.response().segment(seq, b"segment %d" % seq)
        reader.closed()


def test_the_second_segment_may_come_before_the_first(channel: RemoteChannel) -> None:
    """Where nothing was written yet, both are kept under their numbers, and a subscriber that comes reads both."""
    channel.post(1, b"second", ALONE).expect(200)
    channel.post(0, b"first", ALONE).expect(200)
    channel.get(0).segment(0, b"first")
    channel.get(1).segment(1, b"second")
    assert channel.next_seq() == 2


def test_a_publisher_that_cancels_everything_leaves_a_channel_to_go_on_with(channel: RemoteChannel) -> None:
    """Its readers wait through the cancelled preconnect and get what the next publisher writes under that number."""
    channel.publish(0)
    cancelled = channel.preconnect(1)
    reader = channel.waiting(1)
    cancelled.connection.close()
    channel.target.settle()
    reader.silent()
    channel.post(1, b"by somebody else").expect(200)
    reader.response().segment(1, b"by somebody else")


def test_a_segment_cancelled_in_the_middle_ends_for_its_readers() -> None:
    """Nobody sends a DELETE or goes on with it: after the grace, readers get a clean end and the reason."""
    with local_server(publisher_grace_s=0.1) as server, server.client() as target:
        channel = target.channel()
        channel.create()
        upload, reader = channel.started(0, b"half of it")
        upload.connection.close()
        assert reader.rest() == b""
        channel.get(0).truncated()


def test_an_immediate_retry_of_a_refused_segment_is_the_last_one() -> None:
    """The 470 names a seq that can be had: the second of the five attempts succeeds, without any pause."""
    with local_server(window_segments=2) as server, server.client() as target:
        channel = target.channel()
        channel.create()
        channel.publish(0, *[b"x"] * 6)
        connection = target.open()
        connection.request("GET", channel.at(0))
        latest = connection.response().expect(470).number(wire.LATEST)
        connection.request("GET", channel.at(latest))
        target.settle()
        connection.silent()
        channel.publish(latest, b"the next one")
        connection.response().segment(latest, b"the next one")


def test_a_wait_that_times_out_again_and_again_is_no_harm(channel: RemoteChannel, server: LocalServer) -> None:
    """Five waits are cut on the client's side; the sixth gets the segment, and no reader is left over."""
    channel.publish(0)
    for _ in range(5):
        channel.waiting(1).close()
    reader = channel.waiting(1)
    eventually(lambda: len(server.plane.timeouts.half_closed) == 5, what="their ends have arrived")
    later(server, HALF_CLOSED_S)
    channel.publish(1, b"at last")
    reader.response().segment(1, b"at last")

    def given_up() -> int:
        records = [record for record in list(server.records) if record.channel == channel.name]
        return sum(record.reason == "client_gone" for record in records)

    eventually(lambda: given_up() == 5, what="five waits that were given up")


def test_a_control_message_comes_in_one_piece(channel: RemoteChannel, target: Target) -> None:
    """The first piece is the whole message; the connection is then closed without reading on, and the next works."""
    for seq, message in enumerate([b'{"prompt": "one"}', b'{"prompt": "' + b"x" * 30_000 + b'"}']):
        reader = channel.waiting(seq)
        upload = channel.upload(seq, message, headers=ALONE)
        reader.head().expect(200)
        assert reader.chunk() == message
        reader.close()
        upload.end()
        upload.answer().expect(200)
    assert channel.next_seq() == 2
