"""Section 3: the rules below the table: who writes, in which order segments close, and what a lost publisher leaves."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.cases.publish import RESET
from tricklecast.app.conformance.connection import AT_ONCE_S
from tricklecast.app.conformance.profiles import PATIENT, QUICK
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

TAKEOVER = Group("takeover", "3. Publish")
ORDER = Group("order", "3. Publish")
LOST = Group("lost-publisher", "3. Publish")
RESETS = Group("reset", "3. Publish")
IDLE = Group("idle-publisher", "3. Publish")


@TAKEOVER.case()
def earlier_writer_is_409(target: Target) -> None:
    """A POST that takes an open segment over: the earlier is 409 with Seq, Size and `Connection: close` at once."""
    channel = target.channel()
    first, _ = channel.started(0, b"first")
    channel.upload(0)
    expect.cut_short(first.connection, 409, 0, 5)


@TAKEOVER.case()
def earlier_preconnect_is_409(target: Target) -> None:
    """A POST that takes over a segment without a byte: the earlier is 409 with Size 0."""
    channel = target.channel()
    first = channel.preconnect(0)
    channel.upload(0)
    expect.cut_short(first.connection, 409, 0, 0)


@TAKEOVER.case()
def bytes_follow_what_is_there(target: Target) -> None:
    """The bytes of the POST that took a segment over follow those that are there."""
    channel = target.channel()
    first, reader = channel.started(0, b"first,")
    second = channel.upload(0)
    expect.status(first.answer(), 409)
    second.chunk(b"second").end()
    expect.header(expect.status(second.answer(), 200), wire.SEQ, 0)
    expect.equal("the rest", reader.rest(), b"second")
    expect.whole(expect.segment(channel.get(0), 0, b"first,second"))


@TAKEOVER.case()
def late_bytes_are_dropped(target: Target) -> None:
    """Bytes that the earlier writer sends after it was taken over go nowhere."""
    channel = target.channel()
    first, _ = channel.started(0, b"first,")
    second = channel.upload(0)
    expect.status(first.answer(), 409)
    first.connection.try_send(b"4\r\nlate\r\n")
    target.settle()
    second.chunk(b"second").end()
    expect.status(second.answer(), 200)
    expect.segment(channel.get(0), 0, b"first,second")


@TAKEOVER.case()
def stale_end_closes_nothing(target: Target) -> None:
    """The end of the earlier writer's body does not close the segment under its new writer."""
    channel = target.channel()
    first, reader = channel.started(0, b"first,")
    second = channel.upload(0)
    expect.status(first.answer(), 409)
    first.connection.try_send(b"0\r\n\r\n")
    target.settle()
    reader.silent()
    second.chunk(b"second").end()
    expect.status(second.answer(), 200)
    expect.equal("the rest", reader.rest(), b"second")


@TAKEOVER.case(profiles=QUICK)
def stale_abort_closes_nothing(target: Target) -> None:
    """The earlier writer's connection breaking does not truncate the segment under its new writer."""
    channel = target.channel()
    first, reader = channel.started(0, b"first,")
    second = channel.upload(0)
    expect.status(first.answer(), 409)
    first.abort()
    target.settle()
    # Longer than the grace, where that is short enough to wait for.
    reader.silent(min(2 * target.settings.publisher_grace_s, 2.0))
    second.chunk(b"second").end()
    expect.status(second.answer(), 200)
    expect.equal("the rest", reader.rest(), b"second")


@ORDER.case()
def segments_may_overlap(target: Target) -> None:
    """An older open segment stays open for its own writer when a newer one begins, and when that one completes."""
    channel = target.channel()
    older, reader = channel.started(0, b"older,")
    newer, _ = channel.started(1, b"newer")
    older.chunk(b"goes on,")
    expect.equal("the bytes", reader.body(8), b"goes on,")
    newer.end()
    expect.status(newer.answer(), 200)
    older.chunk(b"and on").end()
    expect.header(expect.status(older.answer(), 200), wire.SIZE, 20)
    expect.equal("the rest", reader.rest(), b"and on")


@ORDER.case()
def first_byte_skips_older_segments_without_a_writer(target: Target) -> None:
    """The first byte of a segment closes older ones that nobody writes: their readers get the empty answer at once."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(0)
    channel.started(1, b"b")
    response = expect.empty(reader.response(), 0)
    expect.header(response, wire.LATEST, 2)
    expect.no_header(response, wire.CLOSED)


@ORDER.case()
def what_nobody_wrote_is_told_from_what_is_empty(target: Target) -> None:
    """A skipped segment says so with its empty answer; one that its publisher ended without a byte does not."""
    channel = target.channel()
    channel.create()
    skipped = channel.waiting(0)
    channel.started(1, b"b")
    expect.truncated(expect.empty(skipped.response(), 0))
    empty = target.channel()
    empty.publish(0, b"")
    expect.whole(expect.empty(empty.get(0), 0))


@ORDER.case(profiles=PATIENT)
def overtaken_preconnect_may_begin(target: Target) -> None:
    """An overtaken preconnect keeps a grace to begin in, since two connections may overtake each other."""
    channel = target.channel()
    with target.within(target.settings.skip_grace_s):
        older = channel.preconnect(0)
        reader = channel.waiting(0)
        channel.publish(1, b"newer")
        reader.silent()
        older.chunk(b"older").end()
        expect.status(older.answer(), 200)
        expect.segment(reader.response(), 0, b"older")


@ORDER.case(profiles=QUICK)
def overtaken_preconnect_is_skipped_in_the_end(target: Target) -> None:
    """An overtaken preconnect that does not begin in its grace is skipped: reader and writer get the empty answers."""
    channel = target.channel()
    older = channel.preconnect(0)
    reader = channel.waiting(0)
    channel.publish(1, b"newer")
    within_s = target.settings.skip_grace_s + AT_ONCE_S
    expect.empty(reader.response(within_s), 0)
    expect.zero_byte_answer(older.connection, 0)


@LOST.case(profiles=PATIENT)
def may_resume(target: Target) -> None:
    """A publisher that breaks off mid-body leaves its segment open for a grace, in which it resumes by a new POST."""
    channel = target.channel()
    first, reader = channel.started(0, b"before,")
    with target.within(target.settings.publisher_grace_s):
        first.abort()
        target.settle()
        reader.silent()
        second = channel.upload(0, b"after").end()
        expect.status(second.answer(), 200)
    expect.equal("the rest", reader.rest(), b"after")
    expect.whole(expect.segment(channel.get(0), 0, b"before,after"))


@LOST.case(profiles=QUICK)
def leaves_a_truncated_segment(target: Target) -> None:
    """When the grace ends the segment closes truncated: its readers get what there is, a clean end and the reason."""
    channel = target.channel()
    upload = channel.upload(0, b"part")
    reader = channel.read(0)
    response = expect.status(reader.head(), 200)
    expect.equal("the bytes so far", reader.body(4), b"part")
    upload.abort()
    expect.equal("the rest", reader.rest(target.settings.publisher_grace_s + AT_ONCE_S), b"")
    expect.truncated(response)
    expect.truncated(expect.segment(channel.get(0), 0, b"part"))


@LOST.case(profiles=PATIENT)
def is_overtaken_by_a_later_segment(target: Target) -> None:
    """The segment of a lost publisher closes truncated as soon as a later segment completes."""
    channel = target.channel()
    upload, reader = channel.started(0, b"part")
    upload.abort()
    target.settle()
    channel.publish(1, b"later")
    expect.equal("the rest", reader.rest(), b"")
    expect.truncated(expect.segment(channel.get(0), 0, b"part"))


@LOST.case(profiles=QUICK)
def counted_body_cut_short_is_not_complete(target: Target) -> None:
    """A body that ends before its Content-Length is a lost publisher, not a complete segment."""
    channel = target.channel()
    connection = target.open()
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "10"}) + b"half")
    reader = channel.arrived(0, b"half")
    connection.close()
    expect.equal("the rest", reader.rest(target.settings.publisher_grace_s + AT_ONCE_S), b"")
    expect.truncated(expect.segment(channel.get(0), 0, b"half"))


@RESETS.case()
def closes_lower_open_segments(target: Target) -> None:
    """`Lp-Trickle-Reset` closes all lower open segments: their readers get what there is and a clean end."""
    channel = target.channel()
    _, reader_0 = channel.started(0, b"zero")
    _, reader_1 = channel.started(1, b"one")
    expect.status(channel.post(2, b"two", RESET), 200)
    expect.equal("the rest", reader_0.rest() + reader_1.rest(), b"")
    expect.segment(channel.get(2), 2, b"two")


@RESETS.case()
def never_lowers_the_head(target: Target) -> None:
    """`Lp-Trickle-Reset` on a seq below the head does not bring the head back, nor closed segments to life."""
    channel = target.channel()
    channel.publish(0, b"a", b"b", b"c")
    expect.status(channel.post(0, b"again", RESET), 409)
    expect.equal("the head", channel.next_seq(), 3)
    expect.segment(channel.get(0), 0, b"a")


@RESETS.case()
def without_a_value_closes_nothing(target: Target) -> None:
    """`Lp-Trickle-Reset` without a value leaves lower open segments open."""
    channel = target.channel()
    upload, reader = channel.started(0, b"open,")
    expect.status(channel.post(1, b"next", {wire.RESET: ""}), 200)
    upload.chunk(b"still").end()
    expect.status(upload.answer(), 200)
    expect.equal("the rest", reader.rest(), b"still")


@IDLE.case(profiles=QUICK)
def hears_100_continue(target: Target) -> None:
    """While a preconnect is idle the server writes an interim `100 Continue` again and again."""
    upload = target.channel().upload(0)
    within_s = target.settings.interim_interval_s + AT_ONCE_S
    for _ in range(2):
        expect.equal("the interim status", upload.connection.interim(within_s).status, 100)
    upload.chunk(b"x").end()
    expect.header(expect.status(upload.answer(), 200), wire.SIZE, 1)


@IDLE.case()
def is_not_timed_out(target: Target) -> None:
    """A preconnect waits as long as it likes: no final answer comes before its body, an end or a takeover."""
    upload = target.channel().preconnect(0)
    upload.connection.silent()
    upload.chunk(b"late").end()
    expect.header(expect.status(upload.answer(), 200), wire.SIZE, 4)


@IDLE.case()
def is_never_slowed_by_a_reader(target: Target) -> None:
    """A publisher is never slowed down because a reader does not read."""
    channel = target.channel()
    upload, _stalled = channel.started(0, b"first")
    data = b"m" * 65_536
    for _ in range(320):
        upload.chunk(data)
    upload.end()
    expect.header(expect.status(upload.answer(), 200), wire.SIZE, 5 + 320 * 65_536)
