"""What Go's trickle clients do on the wire, and what they need the answer to be.

Their publisher counts from 0, keeps the next POST open, and writes a segment a second time when the first attempt
failed. Their subscriber lets two goroutines ask for one segment, gives each wait up after 20 seconds, and reads on
wherever a 470 points it.
"""

from __future__ import annotations

from tests.support.local import LocalServer, local_server
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle import wire


def test_a_segment_written_again_goes_on_under_an_open_preconnect(channel: RemoteChannel) -> None:
    """The second attempt's bytes follow the first's, which is told; the preconnect of the next segment stays good."""
    first, reader = channel.started(0, b"Hello")
    ahead = channel.preconnect(1)
    again = channel.upload(0, b"Goodbye")
    answer = first.answer().expect(409)
    answer.expect(seq=0)
    again.end()
    again.answer().expect(200)
    assert reader.rest() == b"Goodbye"
    ahead.chunk(b"next").end()
    ahead.answer().expect(200)
    channel.get(1).segment(1, b"next")


def test_a_dropped_segment_may_be_closed_before_its_delete_arrives(channel: RemoteChannel) -> None:
    """`Close` of a segment ends its body and sends a DELETE elsewhere: both are 200, and its reader moves on."""
    channel.publish(0)
    upload = channel.preconnect(1)
    reader = channel.waiting(1)
    upload.end()
    upload.answer().expect(200)
    channel.close(1).expect(200)
    reader.response().segment(1, b"")
    channel.publish(2, b"goes on")
    channel.get(2).segment(2, b"goes on")


def test_a_dropped_segment_may_be_deleted_before_its_body_ends(channel: RemoteChannel) -> None:
    """The same with the DELETE first: the publisher is answered 200 at once, and its late end goes nowhere."""
    channel.publish(0)
    upload, reader = channel.started(1, b"half")
    channel.close(1).expect(200)
    upload.answer().expect(200, size=4)
    upload.connection.try_send(b"0\r\n\r\n")
    assert reader.rest() == b""
    assert channel.next_seq() == 2


def test_a_segment_asked_for_twice_at_once_is_served_twice(channel: RemoteChannel) -> None:
    """Two requests of one subscriber race for the next segment; the one it forgets, unread, holds nobody up."""
    forgotten, used = channel.waiting(0), channel.waiting(0)
    upload = channel.upload(0, b"first ", b"segment").end()
    upload.answer().expect(200)
    used.response().segment(0, b"first segment")
    channel.publish(1, b"second")
    channel.get(1).segment(1, b"second")
    forgotten.response().segment(0, b"first segment")


def test_a_wait_that_is_given_up_and_asked_again_loses_nothing(channel: RemoteChannel, server: LocalServer) -> None:
    """A segment that begins between the two requests is read from its first byte, and the old request is no error."""
    channel.publish(0)
    old = channel.waiting(1)
    old.close()
    upload = channel.upload(1, b"begun in between, ")
    new = channel.read(1)
    server.record(channel=channel.name, seq=1, op="read", status=None, reason="client_gone")
    upload.chunk(b"and ended").end()
    new.response().segment(1, b"begun in between, and ended")


def test_a_reader_that_fell_behind_is_told_once_and_then_waits() -> None:
    """470 names the head; reading there waits, however the head moves on meanwhile, and is not told again."""
    with local_server(window_segments=3) as server, server.client() as target:
        channel = target.channel()
        channel.create()
        channel.publish(0, *[b"x"] * 8)
        behind = channel.get(1).expect(470)
        latest = behind.number(wire.LATEST)
        behind.expect(seq=1)
        reader = channel.waiting(latest)
        channel.publish(latest, b"live", b"and on")
        reader.response().segment(latest, b"live")
        server.record(op="read", seq=latest, status=200)
        server.record(op="read", status=470)  # the only one


def test_the_bytes_of_an_ended_channel_are_not_lost_to_a_late_preconnect(channel: RemoteChannel) -> None:
    """A subscriber whose next GET comes after DELETE still reads the last segment, and then hears of the end."""
    channel.publish(0, b"first", b"last")
    channel.end()
    channel.get(1).segment(1, b"last")
    end = channel.get(2).expect(200)
    end.expect(closed=wire.TERMINATED)
