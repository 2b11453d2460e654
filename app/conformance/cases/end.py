"""Section 5: the end of a channel, and its drain."""

from __future__ import annotations

import time

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import AT_ONCE_S
from tricklecast.app.conformance.profiles import PATIENT, QUICK
from tricklecast.app.conformance.target import Channel, Target
from tricklecast.app.conformance.verdicts import Failure

END = Group("end", "5. End of a channel")
DRAIN = Group("drain", "5. End of a channel")

_POLL_S = 0.1


@END.case()
def delete_is_exactly_200(target: Target) -> None:
    """`DELETE /{channel}` is exactly 200: clients in the field check for it."""
    channel = target.channel()
    channel.publish(0)
    expect.status(target.ask("DELETE", channel.path), 200)


@END.case()
def delete_of_a_missing_channel_is_400(target: Target) -> None:
    """`DELETE` of a channel that never was is 400 `Invalid stream`."""
    expect.refusal(target.ask("DELETE", target.channel().path), 400, "Invalid stream")


@END.case()
def waiting_readers_are_answered(target: Target) -> None:
    """Readers that wait are answered at once with the empty answer and `Lp-Trickle-Closed: terminated`."""
    channel = target.channel()
    channel.publish(0)
    readers = [channel.waiting(-1), channel.waiting(1)]
    channel.end()
    for reader in readers:
        expect.ended(expect.empty(reader.response(), 1))


@END.case()
def every_publisher_is_answered(target: Target) -> None:
    """Every POST in flight is answered at once with `Lp-Trickle-Closed: terminated`, mid-body or idle."""
    channel = target.channel()
    writing, _ = channel.started(0, b"part")
    idle = channel.preconnect(1)
    channel.end()
    expect.ended(expect.cut_short(writing.connection, 200, 0, 4))
    expect.ended(expect.zero_byte_answer(idle.connection, 1))


@END.case()
def readers_mid_segment_get_a_clean_end(target: Target) -> None:
    """Readers in the middle of a segment get what there is and a final chunk."""
    channel = target.channel()
    _, reader = channel.started(0, b"part")
    channel.end()
    expect.equal("the rest", reader.rest(), b"")


def _closing_first(target: Target, *, abort: bool) -> None:
    """A subscriber on -1 sees at most two requests between the preconnect's end and the channel's."""
    channel = target.channel()
    channel.publish(0)
    upload = channel.preconnect(1)
    first = channel.waiting(-1)
    if abort:
        upload.abort()
        target.settle()
        first.silent()
        channel.end()
        expect.ended(expect.empty(first.response(), 1))
        return
    upload.end()
    expect.empty(first.response(), 1)
    second = channel.waiting(-1)
    second.silent()
    channel.end()
    expect.ended(expect.empty(second.response(), 2))


@END.case()
def preconnect_may_be_closed_first(target: Target) -> None:
    """A publisher that closes its preconnect before DELETE makes a subscriber on -1 ask once more, not in a loop."""
    _closing_first(target, abort=False)


@END.case()
def preconnect_may_be_aborted_first(target: Target) -> None:
    """A publisher that aborts its preconnect before DELETE leaves a subscriber on -1 waiting until the end."""
    _closing_first(target, abort=True)


@END.case(profiles=PATIENT)
def preconnect_may_be_closed_after(target: Target) -> None:
    """A publisher that closes its preconnect after DELETE resurrects nothing: the channel stays ended."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        channel.publish(0)
        upload = channel.preconnect(1)
        channel.end()
        upload.connection.try_send(b"0\r\n\r\n")
        expect.ended(expect.status(upload.answer(), 200))
        expect.ended(expect.status(channel.get(-1), 200))


@DRAIN.case(profiles=PATIENT)
def kept_segments_stay_readable(target: Target) -> None:
    """While an ended channel drains, the segments that are kept stay readable."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        channel.publish(0, b"a", b"b")
        channel.started(2, b"part")
        channel.end()
        expect.segment(channel.get(0), 0, b"a")
        expect.segment(channel.get(1), 1, b"b")
        expect.segment(channel.get(2), 2, b"part")


@DRAIN.case(profiles=PATIENT)
def head_and_beyond_say_the_end(target: Target) -> None:
    """While an ended channel drains, a GET at or past the head is 200 with `Lp-Trickle-Closed: terminated`."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        channel.publish(0)
        channel.end()
        for seq in (-1, 1, 2, 1000):
            expect.ended(expect.status(channel.get(seq), 200))


def wait_forgotten(channel: Channel, within_s: float) -> None:
    """Ask for a kept segment until its channel is forgotten."""
    deadline = time.monotonic() + within_s
    while (response := channel.get(0)).status != 404:
        expect.status(response, 200)
        if time.monotonic() > deadline:
            raise Failure(f"404 after the drain, within {within_s:g} s", str(response))
        time.sleep(_POLL_S)


@DRAIN.case(profiles=QUICK)
def then_the_name_is_forgotten(target: Target) -> None:
    """After the drain the name is forgotten: 404."""
    channel = target.channel()
    channel.publish(0)
    channel.end()
    wait_forgotten(channel, target.settings.channel_drain_s + AT_ONCE_S)
    expect.refusal(channel.get(-1), 404, "Stream not found")
    expect.refusal(channel.get("next"), 404, "Stream not found")


@DRAIN.case(profiles=("no-drain",))
def of_zero_forgets_at_once(target: Target) -> None:
    """With a drain of 0 the name is forgotten with the DELETE."""
    channel = target.channel()
    channel.publish(0)
    channel.end()
    expect.refusal(channel.get(0), 404, "Stream not found")
    expect.refusal(channel.get("next"), 404, "Stream not found")


@DRAIN.case(profiles=("no-drain",))
def of_zero_still_answers_those_in_flight(target: Target) -> None:
    """With a drain of 0 too, those who wait or publish when the channel ends are told so."""
    channel = target.channel()
    writing, reader = channel.started(0, b"part")
    waiting = channel.waiting(1)
    channel.end()
    expect.ended(expect.cut_short(writing.connection, 200, 0, 4))
    expect.equal("the rest", reader.rest(), b"")
    expect.ended(expect.empty(waiting.response(), 1))
