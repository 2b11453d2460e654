"""Section 4, rules 1 to 3: which segment a GET means, and what is answered when there is none."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

RESOLVE = Group("resolve", "4. Read, rules 1-3")
MISSING = Group("missing", "4. Read, rules 1-3")

_WINDOW = ("small-window",)


@MISSING.case()
def channel_is_404(target: Target) -> None:
    """A GET of a channel that does not exist is 404 `Stream not found`, whatever the seq, and creates none."""
    channel = target.channel()
    for seq in ("0", "-1", "-2", "next"):
        response = expect.refusal(channel.get(seq), 404, "Stream not found")
        expect.no_header(response, wire.CLOSED)


@MISSING.case(profiles=("no-drain",))
def channel_that_ended_is_404_and_says_so(target: Target) -> None:
    """A GET of a channel that ended recently and is forgotten is 404 with `Lp-Trickle-Closed: terminated`."""
    channel = target.channel()
    channel.publish(0)
    channel.end()
    expect.ended(expect.refusal(channel.get(0), 404, "Stream not found"))
    expect.ended(expect.refusal(channel.get(-1), 404, "Stream not found"))


@RESOLVE.case()
def minus_one_is_the_head(target: Target) -> None:
    """GET -1 waits for the segment that comes next."""
    channel = target.channel()
    channel.publish(0, b"a", b"b")
    reader = channel.waiting(-1)
    reader.silent()
    channel.publish(2, b"c")
    expect.segment(reader.response(), 2, b"c")


@RESOLVE.case()
def minus_one_past_an_open_segment(target: Target) -> None:
    """GET -1 while a segment is open means the one after it."""
    channel = target.channel()
    upload, _ = channel.started(0, b"open")
    reader = channel.waiting(-1)
    reader.silent()
    upload.end()
    expect.status(upload.answer(), 200)
    channel.publish(1, b"next")
    expect.segment(reader.response(), 1, b"next")


@RESOLVE.case()
def minus_two_is_the_current_segment(target: Target) -> None:
    """GET -2 means the newest segment that has begun: all of it so far, and what follows."""
    channel = target.channel()
    channel.publish(0, b"done")
    upload, _ = channel.started(1, b"so far,")
    reader = channel.read(-2)
    expect.header(expect.status(reader.head(), 200), wire.SEQ, 1)
    expect.equal("the bytes so far", reader.body(7), b"so far,")
    upload.chunk(b"on").end()
    expect.equal("the rest", reader.rest(), b"on")


@RESOLVE.case()
def minus_two_of_a_closed_segment(target: Target) -> None:
    """GET -2 between two segments gives the newest closed one at once."""
    channel = target.channel()
    channel.publish(0, b"a", b"b")
    expect.segment(channel.get(-2), 1, b"b")


@RESOLVE.case()
def minus_two_of_nothing_is_zero(target: Target) -> None:
    """GET -2 where nothing was written waits for segment 0."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(-2)
    reader.silent()
    channel.publish(0, b"zero", b"one")
    expect.segment(reader.response(), 0, b"zero")


@RESOLVE.case()
def minus_n_counts_from_the_head(target: Target) -> None:
    """GET -N means head - (N - 1)."""
    channel = target.channel()
    channel.publish(0, *(b"%d" % seq for seq in range(6)))
    expect.segment(channel.get(-3), 4, b"4")
    expect.segment(channel.get(-7), 0, b"0")


@RESOLVE.case()
def minus_n_stops_at_the_oldest(target: Target) -> None:
    """GET -N further back than anything kept means the oldest kept segment."""
    channel = target.channel()
    channel.publish(0, b"a", b"b")
    expect.segment(channel.get(-100), 0, b"a")
    expect.segment(channel.get("-" + "9" * 15), 0, b"a")


@RESOLVE.case(profiles=_WINDOW)
def minus_n_stops_at_the_oldest_kept(target: Target) -> None:
    """GET -N does not reach below the window: it means the oldest segment that is still kept."""
    channel = target.channel()
    channel.publish(0, *(b"%d" % seq for seq in range(12)))
    oldest = expect.number(expect.status(channel.get(0), 470), wire.EARLIEST)
    expect.segment(channel.get(-100), oldest, b"%d" % oldest)


@RESOLVE.case()
def kept_segments_are_served(target: Target) -> None:
    """Every segment that is kept is served at once, in any order, any number of times."""
    channel = target.channel()
    channel.publish(0, b"a", b"b", b"c")
    for seq in (2, 0, 1, 0):
        expect.segment(channel.get(seq), seq, b"abc"[seq : seq + 1])


@RESOLVE.case()
def one_is_waited_for_before_zero(target: Target) -> None:
    """Where nothing was written a GET of 1 waits, too: subscribers preconnect one ahead."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(1)
    channel.publish(0, b"zero")
    reader.silent()
    channel.publish(1, b"one")
    expect.segment(reader.response(), 1, b"one")


@RESOLVE.case()
def preconnected_segments_are_waited_for(target: Target) -> None:
    """A segment beyond the head that a preconnect has created is waited for."""
    channel = target.channel()
    channel.publish(0)
    upload = channel.preconnect(2)
    reader = channel.waiting(2)
    reader.silent()
    channel.publish(1)
    upload.chunk(b"two").end()
    expect.segment(reader.response(), 2, b"two")


@MISSING.case()
def segment_ahead_is_470(target: Target) -> None:
    """A GET beyond the head is 470 `Entry not found` with Latest, and Seq as asked, at once."""
    channel = target.channel()
    channel.publish(0, b"a", b"b")
    expect.missing(channel.get(3), 2, 3)
    expect.missing(channel.get(1000), 2, 1000)


@MISSING.case()
def segment_ahead_of_nothing_is_470(target: Target) -> None:
    """Where nothing was written a GET of 2 or more is 470 with Latest 0."""
    channel = target.channel()
    channel.create()
    expect.missing(channel.get(2), 0, 2)


@MISSING.case()
def segment_names_the_earliest(target: Target) -> None:
    """470 says in `Lp-Trickle-Earliest` which is the oldest segment that is kept."""
    channel = target.channel()
    channel.publish(5, b"five", b"six")
    expect.header(expect.missing(channel.get(100), 7, 100), wire.EARLIEST, 5)


@MISSING.case()
def segment_below_the_head_names_the_next(target: Target) -> None:
    """470 below the head says in `Lp-Trickle-Next` which is the oldest segment after it that can be had."""
    channel = target.channel()
    channel.publish(5, b"five", b"six")
    expect.header(expect.missing(channel.get(3), 7, 3), wire.NEXT, 5)
    expect.segment(channel.get(5), 5, b"five")
    expect.no_header(expect.missing(channel.get(9), 7, 9), wire.NEXT)


@MISSING.case(profiles=_WINDOW)
def segment_that_left_the_window_is_470(target: Target) -> None:
    """A segment that has left the window is 470; the one in `Lp-Trickle-Earliest` is served, the one before is not."""
    channel = target.channel()
    channel.publish(0, *(b"%d" % seq for seq in range(12)))
    oldest = expect.number(expect.missing(channel.get(0), 12, 0), wire.EARLIEST)
    expect.segment(channel.get(oldest), oldest, b"%d" % oldest)
    expect.segment(channel.get(11), 11, b"11")
    expect.missing(channel.get(oldest - 1), 12, oldest - 1)


@MISSING.case(profiles=_WINDOW)
def window_keeps_as_many_segments_as_configured(target: Target) -> None:
    """The window holds the newest closed segments, up to its limit of count."""
    channel = target.channel()
    channel.publish(0, *(b"%d" % seq for seq in range(12)))
    kept = [seq for seq in range(12) if channel.get(seq).status == 200]
    expect.equal("the kept segments", kept, list(range(12 - target.settings.window_segments, 12)))


@MISSING.case()
def segment_says_when_to_retry(target: Target) -> None:
    """470 carries `Retry-After` in whole seconds."""
    channel = target.channel()
    channel.publish(0)
    expect.number(expect.status(channel.get(9), 470), "Retry-After")


@MISSING.case()
def retries_are_spread(target: Target) -> None:
    """The `Retry-After` of 470 has jitter: clients refused together are not told the same."""
    channel = target.channel()
    channel.publish(0)
    # Clients of different names: a server may well hold back one that asks for the same again and again.
    clients = [((wire.CLIENT, f"conformance-{number}"),) for number in range(40)]
    told = {expect.number(expect.status(channel.get(9, client), 470), "Retry-After") for client in clients}
    expect.true(len(told) > 1, "different values in 40 answers", told)


@MISSING.case()
def segment_does_not_come_into_being_by_asking(target: Target) -> None:
    """A GET that was refused leaves nothing behind: the head, and the answer to the next GET, are the same."""
    channel = target.channel()
    channel.publish(0)
    expect.missing(channel.get(5), 1, 5)
    expect.missing(channel.get(5), 1, 5)
    expect.equal("the head", channel.next_seq(), 1)
