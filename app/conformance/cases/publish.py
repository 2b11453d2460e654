"""Section 3: the table of answers to a publisher, for a segment that can be written and for one too far ahead."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.profiles import PATIENT
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

PUBLISH = Group("publish", "3. Publish")
AHEAD = Group("ahead", "3. Publish")

RESET = {wire.RESET: "1"}


@PUBLISH.case(profiles=("no-autocreate",))
def missing_channel_is_refused_before_the_body(target: Target) -> None:
    """Without autocreate, a POST to a missing channel is 404 `Stream not found` at once, its body unread."""
    upload = target.channel().upload(0)
    response = expect.refusal(upload.answer(), 404, "Stream not found")
    expect.closing(upload.connection, response)


@PUBLISH.case(profiles=("no-autocreate",))
def missing_channel_is_not_created(target: Target) -> None:
    """Without autocreate, a refused POST creates no channel."""
    channel = target.channel()
    expect.refusal(channel.post(0), 404, "Stream not found")
    expect.refusal(channel.get("next"), 404, "Stream not found")


@PUBLISH.case()
def body_with_bytes_is_stored(target: Target) -> None:
    """A body that ends after at least one byte is 200 with `Lp-Trickle-Seq` and `Lp-Trickle-Size`."""
    channel = target.channel()
    upload = channel.upload(0, b"four", b"five5").end()
    response = expect.status(upload.answer(), 200)
    expect.header(response, wire.SEQ, 0)
    expect.header(response, wire.SIZE, 9)
    expect.segment(channel.get(0), 0, b"fourfive5")


@PUBLISH.case()
def counted_body_is_stored(target: Target) -> None:
    """A body with Content-Length is stored like a chunked one."""
    channel = target.channel()
    response = expect.status(channel.post(0, b"counted"), 200)
    expect.header(response, wire.SEQ, 0)
    expect.header(response, wire.SIZE, 7)
    expect.segment(channel.get(0), 0, b"counted")


@PUBLISH.case()
def connection_stays_open_after_a_stored_segment(target: Target) -> None:
    """After a stored segment the connection stays open and takes the next POST, chunked or counted."""
    channel = target.channel()
    connection = channel.upload(0, b"a").end().connection
    expect.keeps_open(expect.status(connection.response(), 200))
    connection.request("POST", channel.at(1), body=b"b")
    expect.keeps_open(expect.status(connection.response(), 200))
    connection.request("POST", channel.at(2), body=b"c")
    expect.header(expect.status(connection.response(), 200), wire.SEQ, 2)


@PUBLISH.case()
def zero_byte_close_is_answered(target: Target) -> None:
    """A body that ends with 0 bytes is 200 with `Lp-Trickle-Seq` and `Connection: close`."""
    expect.zero_byte_answer(target.channel().upload(0).end().connection, 0)


@PUBLISH.case()
def zero_byte_close_advances_the_head(target: Target) -> None:
    """A body that ends with 0 bytes closes the segment empty, and the head moves past it."""
    channel = target.channel()
    channel.publish(0)
    expect.zero_byte_answer(channel.upload(1).end().connection, 1)
    expect.equal("the head", channel.next_seq(), 2)
    expect.empty(channel.get(1), 1)


@PUBLISH.case()
def counted_zero_bytes_advance_the_head(target: Target) -> None:
    """`Content-Length: 0` is a body that ends with 0 bytes."""
    channel = target.channel()
    connection = target.send("POST", channel.at(0), body=b"")
    expect.zero_byte_answer(connection, 0)
    expect.equal("the head", channel.next_seq(), 1)


@PUBLISH.case()
def no_body_at_all_advances_the_head(target: Target) -> None:
    """A POST with neither Content-Length nor Transfer-Encoding has a body of 0 bytes."""
    channel = target.channel()
    connection = target.send("POST", channel.at(0))
    expect.zero_byte_answer(connection, 0)
    expect.equal("the head", channel.next_seq(), 1)


@PUBLISH.case()
def segment_closed_before_the_first_byte(target: Target) -> None:
    """A preconnect whose segment someone else closes gets the zero-byte answer at once, its body unread."""
    channel = target.channel()
    upload = channel.preconnect(0)
    upload.connection.silent()
    expect.status(channel.close(0), 200)
    expect.no_header(expect.zero_byte_answer(upload.connection, 0), wire.CLOSED)


@PUBLISH.case()
def channel_ended_before_the_first_byte(target: Target) -> None:
    """A preconnect whose channel ends gets the zero-byte answer with `Lp-Trickle-Closed: terminated`."""
    channel = target.channel()
    upload = channel.preconnect(0)
    channel.end()
    expect.ended(expect.zero_byte_answer(upload.connection, 0))


@PUBLISH.case()
def segment_deleted_mid_body(target: Target) -> None:
    """A segment deleted mid-body answers its publisher at once: 200, Seq, Size, `Connection: close`."""
    channel = target.channel()
    upload, _ = channel.started(0, b"part")
    expect.status(channel.close(0), 200)
    expect.no_header(expect.cut_short(upload.connection, 200, 0, 4), wire.CLOSED)


@PUBLISH.case()
def segment_reset_mid_body(target: Target) -> None:
    """A segment closed by a later publisher's reset answers its own publisher like a deleted one."""
    channel = target.channel()
    upload, _ = channel.started(0, b"part")
    expect.status(channel.post(1, b"new", RESET), 200)
    expect.cut_short(upload.connection, 200, 0, 4)


@PUBLISH.case()
def channel_ended_mid_body(target: Target) -> None:
    """A channel that ends mid-body answers its publisher at once, with `Lp-Trickle-Closed: terminated` too."""
    channel = target.channel()
    upload, _ = channel.started(0, b"part")
    channel.end()
    expect.ended(expect.cut_short(upload.connection, 200, 0, 4))


@PUBLISH.case()
def minus_one_is_never_shared(target: Target) -> None:
    """Two concurrent `POST -1` get different seqs: a seq is reserved when the request comes, not at its first byte."""
    channel = target.channel()
    channel.create()
    uploads = [channel.upload(-1), channel.upload(-1)]
    target.settle()
    for upload in uploads:
        upload.chunk(b"x").end()
    answers = [expect.status(upload.answer(), 200) for upload in uploads]
    expect.equal("the seqs", {expect.number(answer, wire.SEQ) for answer in answers}, {0, 1})


@AHEAD.case()
def far_ahead_is_470_before_the_body(target: Target) -> None:
    """A seq beyond head + 1 is 470 with Latest, Seq and `Connection: close` at once, its body unread."""
    channel = target.channel()
    channel.publish(0)
    upload = channel.upload(3)
    response = expect.refusal(upload.answer(), 470)
    expect.header(response, wire.LATEST, 1)
    expect.header(response, wire.SEQ, 3)
    expect.closing(upload.connection, response)


@AHEAD.case()
def refused_seq_changes_nothing(target: Target) -> None:
    """After a 470 the head is what it was, and the seq does not exist."""
    channel = target.channel()
    channel.publish(0)
    expect.status(channel.post(3), 470)
    expect.equal("the head", channel.next_seq(), 1)
    expect.missing(channel.get(3), 1, 3)


@AHEAD.case()
def one_ahead_is_accepted(target: Target) -> None:
    """A seq of head + 1 is accepted: publishers preconnect one ahead."""
    channel = target.channel()
    channel.publish(0)
    upload = channel.preconnect(2)
    upload.connection.silent()
    channel.publish(1)
    upload.chunk(b"two").end()
    expect.header(expect.status(upload.answer(), 200), wire.SEQ, 2)
    expect.segment(channel.get(2), 2, b"two")


@AHEAD.case()
def new_channel_starts_anywhere(target: Target) -> None:
    """Where nothing was ever written any seq is accepted: a publisher resumes its numbering."""
    channel = target.channel()
    channel.create()
    channel.publish(700, b"resumed")
    expect.equal("the head", channel.next_seq(), 701)
    expect.segment(channel.get(700), 700, b"resumed")


@AHEAD.case()
def reset_jumps_ahead(target: Target) -> None:
    """With `Lp-Trickle-Reset` any seq from the head on is accepted."""
    channel = target.channel()
    channel.publish(0)
    expect.status(channel.post(50, b"jumped", RESET), 200)
    expect.equal("the head", channel.next_seq(), 51)
    expect.segment(channel.get(50), 50, b"jumped")


@AHEAD.case()
def empty_reset_is_none(target: Target) -> None:
    """`Lp-Trickle-Reset` without a value is no reset: a seq beyond head + 1 is 470."""
    channel = target.channel()
    channel.publish(0)
    expect.status(channel.post(50, b"x", {wire.RESET: ""}), 470)


@PUBLISH.case(profiles=PATIENT)
def aborted_preconnect_changes_nothing(target: Target) -> None:
    """A preconnect that breaks off leaves the head where it was and the segment to the next publisher."""
    channel = target.channel()
    channel.create()
    channel.preconnect(0).abort()
    target.settle()
    expect.equal("the head", channel.next_seq(), 0)
    reader = channel.waiting(0)
    reader.silent()
    channel.publish(0, b"second try")
    expect.segment(reader.response(), 0, b"second try")
