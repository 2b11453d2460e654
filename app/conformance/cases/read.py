"""Section 4, rules 4 to 7: what a reader receives, and when."""

from __future__ import annotations

from functools import partial

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.http1 import Framing
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

READ = Group("read", "4. Read, rules 4-7")
EMPTY = Group("empty", "4. Read, rules 4-7")


@READ.case()
def no_byte_before_first_body_byte(target: Target) -> None:
    """Not even headers come before the first byte of the segment: clients preconnect the next when they see them."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(0)
    upload = channel.preconnect(0)
    reader.silent()
    upload.chunk(b"now")
    response = expect.status(reader.head(), 200)
    # A head that was written early could not have known this.
    expect.header(response, wire.SIZE, 3)


@READ.case()
def no_byte_before_an_empty_close(target: Target) -> None:
    """Not even headers come before the close of a segment that stays empty."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(0)
    upload = channel.preconnect(0)
    reader.silent()
    upload.end()
    expect.empty(reader.response(), 0)


@READ.case()
def has_the_channels_content_type(target: Target) -> None:
    """A segment has the channel's Content-Type."""
    channel = target.channel()
    channel.create(mime="application/x-trickle-test")
    channel.publish(0)
    expect.header(channel.get(0), "Content-Type", "application/x-trickle-test")


@READ.case()
def has_a_content_type_of_any_channel(target: Target) -> None:
    """A segment of a channel that was created without a media type has some Content-Type."""
    channel = target.channel()
    channel.create()
    channel.publish(0)
    expect.true(bool(channel.get(0).get("Content-Type")), "a Content-Type", channel.get(0))


@READ.case()
def has_the_resolved_seq(target: Target) -> None:
    """`Lp-Trickle-Seq` is the seq that was found, not the one that was asked for."""
    channel = target.channel()
    channel.publish(0, b"a", b"b")
    expect.header(channel.get(-2), wire.SEQ, 1)


@READ.case()
def has_the_head(target: Target) -> None:
    """`Lp-Trickle-Latest` is the head."""
    channel = target.channel()
    channel.publish(0, b"a", b"b", b"c")
    expect.header(channel.get(0), wire.LATEST, 3)


@READ.case()
def has_the_head_as_it_was_when_asked(target: Target) -> None:
    """`Lp-Trickle-Latest` of a reader that waited is the head as it was when its request came."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(1)
    channel.publish(0, b"zero", b"one")
    response = expect.segment(reader.response(), 1, b"one")
    expect.header(response, wire.LATEST, 0)


@READ.case()
def leaves_the_head_out_where_it_is_the_seq(target: Target) -> None:
    """`Lp-Trickle-Latest` is left out when it equals the seq."""
    channel = target.channel()
    channel.publish(0)
    reader = channel.waiting(-1)
    channel.publish(1, b"b")
    expect.no_header(expect.segment(reader.response(), 1, b"b"), wire.LATEST)


@READ.case()
def has_the_size_of_a_closed_segment(target: Target) -> None:
    """`Lp-Trickle-Size` of a closed segment is its size."""
    channel = target.channel()
    channel.publish(0, b"12345")
    expect.header(channel.get(0), wire.SIZE, 5)


@READ.case()
def has_the_size_so_far_of_an_open_segment(target: Target) -> None:
    """`Lp-Trickle-Size` of an open segment is how many bytes are available now."""
    channel = target.channel()
    channel.started(0, b"123", b"45")
    expect.header(channel.read(0).head(), wire.SIZE, 5)


@READ.case()
def has_the_epoch(target: Target) -> None:
    """`Lp-Trickle-Epoch` says which life of the name this is."""
    channel = target.channel()
    channel.started(0, b"a")
    expect.number(channel.read(0).head(), wire.EPOCH)


@READ.case()
def late_reader_gets_everything_from_the_beginning(target: Target) -> None:
    """A reader that comes while a segment is open gets all there is at once, then the rest as it comes."""
    channel = target.channel()
    upload, _ = channel.started(0, b"one,", b"two,", b"three,")
    late = channel.arrived(0, b"one,two,three,")
    upload.chunk(b"four").end()
    expect.equal("the rest", late.rest(), b"four")


@READ.case()
def chunks_come_while_the_segment_is_open(target: Target) -> None:
    """Each published chunk reaches the reader before the next is published."""
    channel = target.channel()
    upload, reader = channel.started(0, b"begin")
    for number in range(20):
        upload.chunk(b"%02d" % number)
        expect.equal("the chunk", reader.body(2), b"%02d" % number)
    upload.end()
    expect.equal("the rest", reader.rest(), b"")


def _unsplit(target: Target, size: int) -> None:
    channel = target.channel()
    upload, reader = channel.started(0, b"begin")
    for letter in b"ab":
        upload.chunk(bytes([letter]) * size)
        got = reader.chunk() or b""
        expect.equal("the size of the chunk", len(got), size)
        expect.equal("the chunk", got, bytes([letter]) * size)


for _size in (1, 4096, 32_768):
    READ.add(
        f"chunk-of-{_size}-bytes-is-not-split",
        f"A published chunk of {_size} bytes comes as one chunk: control clients read just one.",
        partial(_unsplit, size=_size),
    )


@READ.case()
def first_chunk_is_not_split(target: Target) -> None:
    """A message published as one chunk comes as one chunk to the reader that waited for it."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(0)
    message = b'{"keys": [' + b"1," * 10_000 + b"1]}"
    upload = channel.upload(0, message)
    response = expect.status(reader.head(), 200)
    expect.equal("the framing", response.framed, Framing.CHUNKED)
    expect.equal("the first chunk", reader.chunk(), message)
    upload.end()
    expect.equal("the rest", reader.rest(), b"")


@READ.case()
def large_segment_is_whole(target: Target) -> None:
    """A segment of 8 MiB comes through unchanged, live and from the window."""
    channel = target.channel()
    channel.create()
    live = channel.waiting(0)
    data = b"".join(b"%08d" % number for number in range(1 << 20))
    upload = channel.upload(0)
    for start in range(0, len(data), 1 << 18):
        upload.chunk(data[start : start + (1 << 18)])
    upload.end()
    expect.status(upload.answer(), 200)
    expect.true(live.response().body == data, "the published bytes", "other bytes live")
    expect.true(channel.get(0).body == data, "the published bytes", "other bytes from the window")


@READ.case()
def complete_segment_is_not_called_truncated(target: Target) -> None:
    """A complete segment carries no `Lp-Trickle-Truncated`, live or kept."""
    channel = target.channel()
    upload = channel.upload(0, b"all")
    reader = channel.read(0)
    response = expect.status(reader.head(), 200)
    upload.end()
    expect.equal("the body", reader.rest(), b"all")
    expect.whole(response)
    expect.whole(expect.segment(channel.get(0), 0, b"all"))


@EMPTY.case()
def segment_is_200_without_a_body(target: Target) -> None:
    """A segment closed without bytes is 200 with `Content-Length: 0`, Content-Type, Seq and the head of now."""
    channel = target.channel()
    channel.create(mime="video/mp2t")
    expect.status(channel.post(0, b""), 200)
    response = expect.empty(channel.get(0), 0)
    expect.header(response, "Content-Type", "video/mp2t")
    expect.header(response, wire.LATEST, 1)


@EMPTY.case()
def waiting_reader_is_answered_at_once(target: Target) -> None:
    """A reader that waits for a segment gets the empty answer the moment it closes without a byte."""
    channel = target.channel()
    channel.publish(0)
    reader = channel.waiting(1)
    expect.status(channel.post(1, b""), 200)
    expect.header(expect.empty(reader.response(), 1), wire.LATEST, 2)


@EMPTY.case()
def is_not_the_end_of_the_channel(target: Target) -> None:
    """An empty segment of a living channel says nothing of an end, and the channel goes on behind it."""
    channel = target.channel()
    for seq in range(3):
        expect.status(channel.post(seq, b""), 200)
        expect.no_header(expect.empty(channel.get(seq), seq), wire.CLOSED)
    channel.publish(3, b"goes on")
    expect.segment(channel.get(3), 3, b"goes on")


@EMPTY.case()
def of_an_ended_channel_says_so(target: Target) -> None:
    """A reader that waits when the channel ends gets the empty answer with `Lp-Trickle-Closed: terminated`."""
    channel = target.channel()
    channel.publish(0)
    reader = channel.waiting(1)
    channel.end()
    expect.ended(expect.empty(reader.response(), 1))
