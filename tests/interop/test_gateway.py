"""What livepeer-python-gateway does on the wire, and what it needs the answer to be.

It asks `/next` for its place, says reset with the first POST, and rolls empty segments while it has nothing to say. It
looks at the content type of the first segment, empty or not. Its connections are kept and mixed with new ones, on
which no header is sent before the first byte; a segment whose body nobody has touched is tried again at once.
"""

from __future__ import annotations

from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle import wire

RESET = {wire.RESET: "1", "Content-Type": "video/mp2t"}


def test_a_publisher_that_joins_takes_its_place_from_a_header(channel: RemoteChannel) -> None:
    """`Lp-Trickle-Latest` of `/next` is the seq to publish; the reset frees a reader that its predecessor left."""
    channel.publish(0)
    _, stuck = channel.started(1, b"left open")
    seq = channel.get("next").expect(200).number(wire.LATEST)
    upload = channel.upload(seq, b"goes on", headers=RESET)
    assert stuck.rest() == b""
    upload.end().answer().expect(200)
    channel.get(seq).segment(seq, b"goes on")


def test_without_a_channel_the_first_place_is_minus_one(target: Target) -> None:
    """`/next` is 404 then; the POST of -1 is told its seq, and the 0 that follows is refused instead of swallowed."""
    channel = target.channel()
    channel.get("next").expect(404)
    channel.post(-1, b"first", RESET).expect(200, seq=0)
    channel.post(0, b"second").expect(409, latest=1)
    channel.post(1, b"third").expect(200)
    channel.get(0).segment(0, b"first")


def test_empty_segments_keep_a_channel_in_step(channel: RemoteChannel) -> None:
    """Each roll is one answer for each reader, with the content type, and never an end or a 470."""
    reader = channel.target.open()
    for seq in range(6):
        reader.request("GET", channel.at(seq))
        channel.target.settle()
        channel.post(seq, b"" if seq % 3 else b"words").expect(200)
        answer = reader.response()
        answer.segment(seq, b"" if seq % 3 else b"words")
        answer.expect(content_type="video/mp2t")
        answer.expect(closed=None)


def test_a_connection_that_says_nothing_is_a_preconnect_all_the_same(channel: RemoteChannel) -> None:
    """Headers and the first chunk come together, after the server has waited: the segment is whole and in its place."""
    channel.publish(0)
    quiet = channel.target.open()
    reader = channel.waiting(1)
    head = quiet.render("POST", channel.at(1), [("Transfer-Encoding", "chunked")])
    quiet.send(head + b"5\r\nwords\r\n0\r\n\r\n")
    quiet.expects("POST")
    quiet.response().expect(200)
    reader.response().segment(1, b"words")


def test_a_segment_whose_connection_broke_untouched_is_taken_at_once(channel: RemoteChannel) -> None:
    """The second attempt may come before the server has noticed the end of the first; nothing is lost or doubled."""
    channel.publish(0)
    broken = channel.preconnect(1)
    reader = channel.waiting(1)
    again = channel.upload(1, b"words", headers={"Content-Type": "video/mp2t"})
    broken.abort()
    again.end().answer().expect(200)
    reader.response().segment(1, b"words")
    assert channel.next_seq() == 2


def test_a_segment_dropped_half_read_does_not_stop_the_next(channel: RemoteChannel) -> None:
    """A consumer that falls behind releases a segment in the middle, connection and all, and reads on elsewhere."""
    upload, reader = channel.started(0, b"first half, ")
    reader.abort()
    upload.chunk(b"second half").end()
    upload.answer().expect(200)
    channel.publish(1, b"next")
    channel.get(1).segment(1, b"next")
    channel.get(0).segment(0, b"first half, second half")
