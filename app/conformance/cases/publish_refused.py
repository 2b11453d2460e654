"""Section 3: the rest of the table: segments that are closed already, and segments that are too large."""

from __future__ import annotations

from app.conformance import expect
from app.conformance.case import Group
from app.conformance.connection import Connection, encode_chunk
from app.conformance.target import Target
from trickle import wire

REPEATED = Group("repeated", "3. Publish")
TOO_LARGE = Group("too-large", "3. Publish")

_KEY = {wire.IDEMPOTENCY_KEY: "key-1"}
_LIMIT = "small-segments"


@REPEATED.case()
def closed_segment_is_409_before_the_body(target: Target) -> None:
    """A POST to a closed segment is 409 with `Lp-Trickle-Latest` at once, before any of its body."""
    channel = target.channel()
    channel.publish(0, b"first", b"second")
    response = expect.refusal(channel.upload(0).answer(), 409)
    expect.header(response, wire.LATEST, 2)


@REPEATED.case()
def closed_segment_is_not_changed(target: Target) -> None:
    """A POST that is answered 409 stores nothing."""
    channel = target.channel()
    channel.publish(0, b"first")
    expect.status(channel.post(0, b"second"), 409)
    expect.segment(channel.get(0), 0, b"first")
    expect.equal("the head", channel.next_seq(), 1)


@REPEATED.case()
def empty_segment_is_closed_too(target: Target) -> None:
    """A segment that closed empty stays so: a POST to it is 409."""
    channel = target.channel()
    expect.status(channel.post(0, b""), 200)
    expect.status(channel.post(0, b"late"), 409)
    expect.empty(channel.get(0), 0)


@REPEATED.case()
def same_key_is_200(target: Target) -> None:
    """A repeated POST is 200 if the same `Idempotency-Key` wrote the segment complete; nothing is stored twice."""
    channel = target.channel()
    expect.status(channel.post(0, b"once", _KEY), 200)
    expect.status(channel.post(0, b"once", _KEY), 200)
    expect.segment(channel.get(0), 0, b"once")
    expect.equal("the head", channel.next_seq(), 1)


@REPEATED.case()
def other_key_is_409(target: Target) -> None:
    """Another `Idempotency-Key`, or none, gets the 409."""
    channel = target.channel()
    expect.status(channel.post(0, b"mine", _KEY), 200)
    expect.status(channel.post(0, b"theirs", {wire.IDEMPOTENCY_KEY: "key-2"}), 409)
    expect.status(channel.post(0, b"theirs"), 409)
    expect.segment(channel.get(0), 0, b"mine")


@REPEATED.case(profiles=(_LIMIT,))
def same_key_of_a_truncated_segment_is_409(target: Target) -> None:
    """A key that did not write its segment complete does not turn a repetition into a success."""
    channel = target.channel()
    connection = target.open()
    connection.send(connection.render("POST", channel.at(0), {"Transfer-Encoding": "chunked", **_KEY}))
    connection.expects("POST")
    _overflow(connection, target.settings.max_segment_bytes)
    expect.status(connection.response(), 413)
    expect.status(channel.post(0, b"again", _KEY), 409)


def _overflow(connection: Connection, limit: int) -> None:
    """Send one byte more than fits; the server may stop reading whenever it knows."""
    for data in (b"l" * limit, b"!"):
        connection.try_send(encode_chunk(data))


@TOO_LARGE.case(profiles=(_LIMIT,))
def chunked_segment_is_413(target: Target) -> None:
    """A segment that grows beyond the limit is 413 with Seq and `Connection: close` while its body goes on."""
    channel = target.channel()
    upload = channel.upload(0)
    _overflow(upload.connection, target.settings.max_segment_bytes)
    response = expect.refusal(upload.answer(), 413)
    expect.header(response, wire.SEQ, 0)
    expect.closing(upload.connection, response)


@TOO_LARGE.case(profiles=(_LIMIT,))
def counted_segment_is_413(target: Target) -> None:
    """A Content-Length beyond the limit is 413 with Seq and `Connection: close`."""
    channel = target.channel()
    connection = target.open()
    size = target.settings.max_segment_bytes + 1
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": str(size)}))
    connection.expects("POST")
    connection.try_send(b"l" * size)
    response = expect.refusal(connection.response(), 413)
    expect.header(response, wire.SEQ, 0)
    expect.closing(connection, response)


@TOO_LARGE.case(profiles=(_LIMIT,))
def segment_closes_truncated(target: Target) -> None:
    """A segment that was too large closes truncated, and says so to its readers, early and late."""
    channel = target.channel()
    upload, reader = channel.started(0, b"begin")
    _overflow(upload.connection, target.settings.max_segment_bytes)
    expect.status(upload.answer(), 413)
    reader.rest()
    late = expect.status(channel.get(0), 200)
    expect.truncated(late)
    expect.true(late.body.startswith(b"begin"), "what fitted", late.body)
    expect.true(len(late.body) <= target.settings.max_segment_bytes, "no more than the limit", len(late.body))


@TOO_LARGE.case(profiles=(_LIMIT,))
def segment_of_the_limit_is_stored(target: Target) -> None:
    """A segment of exactly the limit is stored whole."""
    channel = target.channel()
    data = b"m" * target.settings.max_segment_bytes
    expect.header(expect.status(channel.post(0, data), 200), wire.SIZE, len(data))
    expect.whole(expect.segment(channel.get(0), 0, data))
