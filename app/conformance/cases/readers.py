"""Section 4, the rules about readers: any number, none in the way of another, none that lingers."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import AT_ONCE_S
from tricklecast.app.conformance.profiles import QUICK
from tricklecast.app.conformance.stream import Cut
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

READERS = Group("readers", "4. Read")


@READERS.case()
def all_get_the_same_bytes(target: Target) -> None:
    """Any number of readers get the same bytes, wherever they came in."""
    channel = target.channel()
    channel.create()
    readers = [channel.read(0) for _ in range(10)]
    upload, _ = channel.started(0, b"one,")
    readers += [channel.read(0) for _ in range(10)]
    upload.chunk(b"two,").end()
    expect.status(upload.answer(), 200)
    readers += [channel.read(0) for _ in range(5)]
    for reader in readers:
        expect.segment(reader.response(), 0, b"one,two,")


@READERS.case()
def stalled_one_does_not_slow_others(target: Target) -> None:
    """A reader that does not read slows no other reader of its segment."""
    channel = target.channel()
    upload, _stalled = channel.started(0, b"first")
    reader = channel.arrived(0, b"first")
    data = b"m" * 65_536
    for _ in range(160):
        upload.chunk(data)
        expect.equal("bytes received", len(reader.body(len(data))), len(data))


@READERS.case()
def evicted_one_does_not_take_the_part_for_the_whole(target: Target) -> None:
    """A reader too slow for the server is cut without a final chunk; a body that ends well is whole."""
    channel = target.channel()
    upload, stalled = channel.started(0, b"first")
    data = b"m" * 65_536
    for _ in range(320):
        upload.chunk(data)
    upload.end()
    expect.status(upload.answer(), 200)
    try:
        rest = len(stalled.rest())
    except Cut:
        return
    expect.equal("bytes of a body that ended well", rest, 320 * 65_536)


@READERS.case()
def gone_one_is_forgotten(target: Target) -> None:
    """Readers that wait and go away leave nothing behind: the next one waits and is served as usual."""
    channel = target.channel()
    channel.create()
    for _ in range(30):
        channel.read(0).abort()
    reader = channel.waiting(0)
    reader.silent()
    expect.equal("the head", channel.next_seq(), 0)
    channel.publish(0, b"served")
    expect.segment(reader.response(), 0, b"served")


@READERS.case()
def gone_mid_segment_disturbs_nobody(target: Target) -> None:
    """A reader that breaks off in the middle of a segment disturbs neither its publisher nor other readers."""
    channel = target.channel()
    upload, leaving = channel.started(0, b"one,")
    staying = channel.arrived(0, b"one,")
    leaving.abort()
    upload.chunk(b"two,")
    expect.equal("the bytes", staying.body(4), b"two,")
    upload.chunk(b"three").end()
    expect.header(expect.status(upload.answer(), 200), wire.SIZE, 13)
    expect.equal("the rest", staying.rest(), b"three")


@READERS.case(profiles=("few-readers",), alone=True)
def gone_one_frees_its_place(target: Target) -> None:
    """A waiting reader that disconnects is forgotten at once: its place under the limit is free."""
    channel = target.channel()
    channel.create()
    readers = [channel.waiting(0) for _ in range(target.settings.max_readers)]
    expect.refusal(channel.get(0), 503)
    readers[0].abort()
    target.settle()
    again = channel.waiting(0)
    again.silent()
    channel.publish(0, b"served")
    expect.segment(again.response(), 0, b"served")


@READERS.case(profiles=QUICK)
def truncated_segment_ends_cleanly_for_old_clients(target: Target) -> None:
    """A truncated segment ends with a final chunk like any other; the reason is in a trailer or header."""
    channel = target.channel()
    upload, reader = channel.started(0, b"part")
    upload.abort()
    reader.rest(target.settings.publisher_grace_s + AT_ONCE_S)
    expect.truncated(expect.segment(channel.get(0), 0, b"part"))
