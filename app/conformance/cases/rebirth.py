"""Section 5: new epochs of an ended name, and channels that end by themselves."""

from __future__ import annotations

import time

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.cases.end import wait_forgotten
from tricklecast.app.conformance.cases.publish import RESET
from tricklecast.app.conformance.connection import AT_ONCE_S
from tricklecast.app.conformance.profiles import PATIENT, QUICK
from tricklecast.app.conformance.target import Channel, Target
from tricklecast.app.conformance.verdicts import Skip
from tricklecast.trickle import wire

REBIRTH = Group("rebirth", "5. End of a channel")
EXPIRY = Group("expiry", "5. End of a channel")


def _reborn(target: Target, channel: Channel, seq: int) -> None:
    expect.header(expect.segment(channel.get(seq), seq, b"new"), wire.EPOCH, 2)
    expect.equal("the head", channel.next_seq(), seq + 1)


@REBIRTH.case(profiles=PATIENT)
def by_creating_the_channel(target: Target) -> None:
    """During the drain `POST /{channel}` begins a new epoch, whose head is 0 and which knows no old segment."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        channel.publish(0, b"old", b"old")
        channel.end()
        channel.create()
        expect.equal("the head", channel.next_seq(), 0)
        reader = channel.waiting(0)
        reader.silent()
        channel.publish(0, b"new")
        expect.segment(reader.response(), 0, b"new")
        _reborn(target, channel, 0)


@REBIRTH.case(profiles=PATIENT)
def by_publishing_segment_zero(target: Target) -> None:
    """During the drain a POST of seq 0 begins a new epoch."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        channel.publish(0, b"old", b"old")
        channel.end()
        channel.publish(0, b"new")
        _reborn(target, channel, 0)


@REBIRTH.case(profiles=PATIENT)
def by_a_reset(target: Target) -> None:
    """During the drain a POST with `Lp-Trickle-Reset` begins a new epoch, at any seq."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        channel.publish(0, b"old", b"old")
        channel.end()
        expect.status(channel.post(7, b"new", RESET), 200)
        _reborn(target, channel, 7)


@REBIRTH.case(profiles=PATIENT)
def not_by_a_late_comer(target: Target) -> None:
    """During the drain any other POST is a late-comer: 404 with `Lp-Trickle-Closed`, and resurrects nothing."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        channel.publish(0, b"a", b"b")
        channel.end()
        for seq in (2, 3, -1):
            expect.ended(expect.refusal(channel.post(seq, b"late"), 404))
        expect.ended(expect.status(channel.get(-1), 200))
        expect.segment(channel.get(1), 1, b"b")


@REBIRTH.case(profiles=PATIENT)
def old_publisher_cannot_write_into_the_new_epoch(target: Target) -> None:
    """A POST of the old epoch can neither write into the new one nor close its segments."""
    channel = target.channel()
    with target.within(target.settings.channel_drain_s):
        old, _ = channel.started(0, b"old,")
        channel.end()
        new, reader = channel.started(0, b"new,")
        old.connection.try_send(b"4\r\nold!\r\n0\r\n\r\n")
        expect.ended(expect.status(old.answer(), 200))
        old.connection.close()
        target.settle()
        reader.silent()
        new.chunk(b"new!").end()
        expect.header(expect.status(new.answer(), 200), wire.SIZE, 8)
        expect.equal("the rest", reader.rest(), b"new!")


@REBIRTH.case(profiles=QUICK)
def survives_the_old_drain(target: Target) -> None:
    """The end of the old epoch's drain does not take the new epoch with it."""
    channel, witness = target.channel(), target.channel()
    channel.publish(0, b"old")
    channel.end()
    channel.create()
    channel.publish(0, b"new")
    witness.publish(0)
    witness.end()
    # The witness ended later with the same drain, so the old epoch's drain is over when it is gone.
    wait_forgotten(witness, target.settings.channel_drain_s + AT_ONCE_S)
    expect.segment(channel.get(0), 0, b"new")


@EXPIRY.case(profiles=("idle",))
def idle_channel_ends(target: Target) -> None:
    """A channel without a byte for long ends by itself: those who wait are told like after a DELETE."""
    channel = target.channel()
    channel.publish(0)
    reader = channel.read(1)
    expect.ended(expect.empty(reader.response(target.settings.idle_timeout_s + AT_ONCE_S), 1))


@EXPIRY.case(profiles=("idle",))
def bytes_of_a_long_segment_keep_it_alive(target: Target) -> None:
    """The bytes of one long segment count as activity."""
    channel = target.channel()
    upload, reader = channel.started(0, b"0")
    timeout_s = target.settings.idle_timeout_s
    start = last = time.monotonic()
    while (now := time.monotonic()) < start + 2.5 * timeout_s:
        if now - last > 0.75 * timeout_s:
            raise Skip("this machine is too slow to keep a channel busy")
        last = now
        upload.chunk(b"+")
        expect.equal("the chunk", reader.body(1), b"+")
        time.sleep(timeout_s / 8)
    upload.end()
    expect.status(upload.answer(), 200)


@EXPIRY.case(profiles=("idle",))
def names_of_the_server_are_exempt(target: Target) -> None:
    """Names that begin with `_` do not expire: the changefeed outlives channels that do."""
    channel = target.channel()
    channel.publish(0)
    channel.read(1).response(target.settings.idle_timeout_s + AT_ONCE_S)
    expect.status(target.ask("GET", f"{target.base}/{wire.CHANGEFEED}/next"), 200)
