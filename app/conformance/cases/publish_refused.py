"""Section 3: the rest of the table: segments that are closed already, and segments that are too large."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import Connection, encode_chunk
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

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
    """A repeated POST is 200 if the same `Idempotency-Key` wrote the segment to its end; nothing is stored twice."""
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


@REPEATED.case()
def same_key_of_an_empty_segment_is_200(target: Target) -> None:
    """A body that ended without a byte came to its end, too: its retry has nothing left to do."""
    channel = target.channel()
    expect.status(channel.post(0, b"", _KEY), 200)
    expect.status(channel.post(0, b"", _KEY), 200)
    expect.equal("the head", channel.next_seq(), 1)


@REPEATED.case()
def retry_goes_on_where_its_body_broke_off(target: Target) -> None:
    """A POST with the key of an unfinished segment is the same body from its start: no byte is stored twice."""
    channel = target.channel()
    first = channel.upload(0, b"abc", headers=_KEY)
    reader = channel.arrived(0, b"abc")
    first.abort()
    upload = channel.upload(0, b"ab", b"cdef", headers=_KEY).end()
    expect.header(expect.status(upload.answer(), 200), wire.SIZE, 6)
    expect.equal("the rest of the segment", reader.rest(), b"def")


@REPEATED.case()
def retry_takes_over_from_a_half_dead_connection(target: Target) -> None:
    """The earlier attempt is answered 409 at once, and bytes that still arrive on its connection are dropped."""
    channel = target.channel()
    first = channel.upload(0, b"abc", headers=_KEY)
    channel.arrived(0, b"abc")
    retry = channel.upload(0, b"abc", headers={**_KEY, wire.ATTEMPT: "2"})
    expect.refusal(first.answer(), 409)
    first.connection.try_send(encode_chunk(b"late"))
    expect.header(expect.status(retry.chunk(b"def").end().answer(), 200), wire.SIZE, 6)
    expect.segment(channel.get(0), 0, b"abcdef")


@REPEATED.case()
def overtaken_attempt_is_409(target: Target) -> None:
    """A first attempt that arrives after the second one does not take the segment back."""
    channel = target.channel()
    retry = channel.upload(0, b"abc", headers={**_KEY, wire.ATTEMPT: "2"})
    channel.arrived(0, b"abc")
    expect.refusal(channel.upload(0, b"abc", headers=_KEY).answer(), 409)
    expect.status(retry.end().answer(), 200)


@REPEATED.case()
def key_behind_which_others_wrote_is_409(target: Target) -> None:
    """Once another body's bytes follow, a retry would double its own: it is refused."""
    channel = target.channel()
    channel.upload(0, b"mine", headers=_KEY)
    channel.arrived(0, b"mine")
    theirs = channel.upload(0, b"theirs")
    channel.arrived(0, b"minetheirs")
    expect.refusal(channel.upload(0, headers=_KEY).answer(), 409)
    expect.status(theirs.end().answer(), 200)
    expect.segment(channel.get(0), 0, b"minetheirs")


@REPEATED.case()
def retry_that_ends_too_early_is_409(target: Target) -> None:
    """A body that ends before what is stored of it is not the same body, and does not complete the segment."""
    channel = target.channel()
    channel.upload(0, b"abc", headers=_KEY)
    reader = channel.arrived(0, b"abc")
    response = expect.refusal(channel.upload(0, b"ab", headers=_KEY).end().answer(), 409)
    expect.header(response, wire.SIZE, 3)
    expect.status(channel.upload(0, b"abcd", headers=_KEY).end().answer(), 200)
    expect.equal("the rest of the segment", reader.rest(), b"d")


@REPEATED.case()
def segment_closed_by_request_is_409_to_its_key(target: Target) -> None:
    """DELETE cuts a body off: its retry is not told that all of it is there."""
    channel = target.channel()
    channel.upload(0, b"abc", headers=_KEY)
    channel.arrived(0, b"abc")
    expect.status(channel.close(0), 200)
    expect.status(channel.post(0, b"abcdef", _KEY), 409)


@REPEATED.case()
def segment_closed_as_a_part_is_truncated(target: Target) -> None:
    """DELETE of a segment with `Lp-Trickle-Truncated` closes it truncated: its readers learn that it is a part."""
    channel = target.channel()
    upload, reader = channel.started(0, b"part")
    expect.status(target.ask("DELETE", channel.at(0), {wire.TRUNCATED: "dropped"}), 200)
    expect.cut_short(upload.connection, 200, 0, 4)
    reader.rest()
    expect.truncated(channel.get(0))


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
