"""Channels by name and epoch: created, ended, drained, forgotten, limited."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from tests.app.core.support import (
    Leaver,
    Shelf,
    Told,
    Watcher,
    check_registry,
    content,
    cost,
    grant,
    make_registry,
    owned,
    picture,
    publish,
    refusal,
)
from tests.app.core.test_copies import Bench as CopyBench
from tests.app.core.test_copies import Disk as CopyDisk
from tricklecast.app.core.copies import Copy
from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelCreated,
    ChannelEnded,
    ContentTypeNamed,
    EndReason,
    Fact,
)
from tricklecast.app.core.limits import Capacity, Limit, Limits
from tricklecast.app.core.publishers import Identity
from tricklecast.app.core.registry import Registry, Restored, Totals
from tricklecast.app.core.results import Cause, Ended, Ending, Gone, Outcome, Refusal
from tricklecast.app.core.rules import STALE_TIMES, OwnedChannel
from tricklecast.app.core.segment import Writer
from tricklecast.app.core.state import Ready, Upcoming
from tricklecast.app.core.window import Eviction
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.wire import Life


def resolve_and_attach(registry: Registry, name: str, seq: int = -1) -> Watcher:
    resolution = registry.resolve(name, seq)
    assert isinstance(resolution, Ready | Upcoming), resolution
    watcher = Watcher(resolution.segment)
    registry.attach(watcher, resolution.channel, resolution.segment)
    return watcher


# Creating.


def test_a_request_may_be_for_one_life_of_a_channel_only() -> None:
    """It goes through while that life goes on; otherwise it is told which one does, or that none does."""
    registry, _ = make_registry(channel_drain_s=1.0, tombstone_s=5.0)

    def told(epoch: int) -> tuple[Cause, int, bool] | None:
        found = registry.refuse_other_epoch("c", epoch)
        return None if found is None else (found.why, found.epoch, found.recently_ended)

    assert told(1) == (Cause.NOT_FOUND, 0, False)
    publish(registry, "c", 0)
    assert (told(1), told(2)) == (None, (Cause.EPOCH, 1, False))
    registry.end("c", 0.0)
    assert (told(1), told(2)) == ((Cause.NOT_FOUND, 1, True), (Cause.EPOCH, 1, False))
    registry.expire(1.0)
    assert (told(1), told(2)) == ((Cause.NOT_FOUND, 1, True), (Cause.EPOCH, 1, False))
    publish(registry, "c", 0, now=2.0)
    assert (told(1), told(2)) == ((Cause.EPOCH, 2, False), None)


def test_creating_is_idempotent() -> None:
    """A second creation finds the channel, and never changes a content type that it has."""
    registry, facts = make_registry()
    first = registry.create("c", "", 0.0)
    assert registry.create("c", "video/mp2t", 1.0) is first
    assert registry.create("c", "text/plain", 2.0) is first
    assert not isinstance(first, Refusal)
    assert (first.content_type, first.created_at) == ("video/mp2t", 0.0)
    assert facts == [ChannelCreated(1, 1, 0.0, "c", 1, "", ""), ContentTypeNamed(0, 2, 1.0, "c", 1, "video/mp2t")]


@pytest.mark.parametrize("content_type", ["", "video/mp2t"])
def test_a_post_creates_its_channel(content_type: str) -> None:
    """The first POST creates the channel with its content type."""
    registry, facts = make_registry()
    grant(registry, "c", 0, content_type=content_type)
    assert registry.channels["c"].content_type == content_type
    assert facts[0] == ChannelCreated(1, 1, 0.0, "c", 1, content_type, "")


def test_a_post_gives_a_channel_its_content_type_once() -> None:
    """The first one that names a type decides."""
    registry, _ = make_registry()
    for content_type in ("", "video/mp2t", "text/plain"):
        grant(registry, "c", 0, content_type=content_type)
    assert registry.channels["c"].content_type == "video/mp2t"


def test_a_refused_post_changes_no_content_type() -> None:
    """A POST that is refused, as a conflict or as too far ahead, leaves the channel's content type as it was."""
    registry, _ = make_registry()
    publish(registry, "c", 0)
    before = picture(registry)
    assert refusal(registry.reserve("c", 0, Told(), 1.0, content_type="text/plain")).why is Cause.CLOSED
    assert refusal(registry.reserve("c", 9, Told(), 1.0, content_type="text/plain")).why is Cause.AHEAD
    assert picture(registry) == before


def test_without_autocreate_a_missing_channel_is_not_found() -> None:
    """Nobody but the server's own side may then create one; into an existing one everybody may write."""
    registry, _ = make_registry(autocreate=False)
    assert registry.create("c", "", 0.0) == Refusal(Cause.NOT_FOUND)
    assert registry.reserve("c", 0, Told(), 0.0) == Refusal(Cause.NOT_FOUND)
    assert registry.channels == {}
    registry.create("c", "", 0.0, force=True)
    assert publish(registry, "c", 0).complete


@pytest.mark.parametrize("held", [1, 2])
def test_channels_are_limited(held: int) -> None:
    """At the limit no name is added; what exists goes on, and an ended one may begin anew."""
    registry, _ = make_registry(channels=2)
    for name in "ab"[:held]:
        publish(registry, name, 0)
    answer = registry.create("new", "", 0.0)
    assert isinstance(answer, Refusal) is (held == 2)
    if held == 2:
        assert answer == Refusal(Cause.LIMIT, limit=Limit.CHANNELS)
        assert registry.reserve("new", 0, Told(), 0.0) == answer
        registry.end("a", 0.0)
        assert publish(registry, "a", 0).complete
        check_registry(registry)


@pytest.mark.parametrize("first", ["_changes", "c"])
def test_the_channels_of_the_server_take_no_place(first: str) -> None:
    """A limit of one leaves room for one, whichever comes first, and gives back what was taken."""
    registry, _ = make_registry(channels=1, channel_drain_s=0)
    for name in (first, "_changes", "c"):
        assert not isinstance(registry.create(name, "", 0.0, force=True), Refusal)
    assert registry.create("d", "", 0.0, force=True) == Refusal(Cause.LIMIT, limit=Limit.CHANNELS)
    check_registry(registry)
    assert registry.end("_changes", 0.0, force=True) is None
    check_registry(registry)
    assert isinstance(registry.create("d", "", 0.0, force=True), Refusal)


def test_names_of_the_server_are_written_by_the_server_only() -> None:
    """Every write from outside is refused; reading is not."""
    registry, _ = make_registry()
    reserved = Refusal(Cause.RESERVED)
    assert registry.create("_changes", "", 0.0) == reserved
    channel = registry.create("_changes", "application/json", 0.0, force=True)
    assert registry.find("_changes") is channel
    assert registry.create("_changes", "", 0.0) == reserved
    assert registry.reserve("_changes", 0, Told(), 0.0) == reserved
    assert registry.close_segment("_changes", 0, 0.0) == reserved
    assert registry.end("_changes", 0.0) == reserved
    assert isinstance(registry.resolve("_changes", -1), Upcoming)
    assert registry.end("_changes", 0.0, force=True) is None


def test_the_server_publishes_to_its_own_channel() -> None:
    """One chunk is one complete segment; the channel is created when it is first needed."""
    registry, _ = make_registry()
    for number in range(2):
        outcome = registry.publish_own("_changes", "application/json", b"%d" % number, 0.0)
        assert outcome == Outcome(Ending.COMPLETE, 1)
    assert [content(segment) for segment in registry.channels["_changes"].segments.values()] == [b"0", b"1"]
    check_registry(registry)


def test_the_server_publishes_nothing_when_it_goes_away() -> None:
    """Its own channel is not created then; a limit of channels does not concern it."""
    registry, _ = make_registry(channels=0)
    registry.shut_down((1, 5))
    assert registry.publish_own("_changes", "", b"x", 0.0) is None
    assert registry.channels == {}
    registry.shutting_down = False
    assert registry.publish_own("_changes", "", b"x", 0.0) == Outcome(Ending.COMPLETE, 1)


def test_a_segment_published_by_the_server_may_be_taken_over_by_nobody() -> None:
    """Its owner exists for the sake of the interface and takes no notice of anything."""
    registry, _ = make_registry(total_bytes=1)
    assert registry.publish_own("_changes", "", b"xy", 0.0) == Outcome(Ending.OVER_BUDGET, 0)
    assert registry.channels["_changes"].next_seq == 0


@pytest.mark.parametrize(("asked", "written"), [(-1, 2), (7, 7), (0, 0)])
def test_it_can_be_asked_what_a_post_would_write(asked: int, written: int) -> None:
    """A POST of -1 would get the first free seq, any other one what it asks for; asking reserves nothing."""
    registry, _ = make_registry()
    publish(registry, "c", 0)
    grant(registry, "c", 1)
    before = picture(registry)
    assert registry.would_write("c", asked) == written
    assert registry.would_write("new", asked) == max(asked, 0)
    assert picture(registry) == before


# Finding and reading.


def test_a_missing_channel_is_not_found() -> None:
    """Nothing is known of a name that never lived."""
    registry, _ = make_registry()
    missing = Refusal(Cause.NOT_FOUND)
    assert registry.find("c") == registry.resolve("c", -1) == missing
    assert registry.end("c", 0.0) == registry.close_segment("c", 0, 0.0) == missing
    assert registry.live("c") is None


def test_one_segment_is_closed() -> None:
    """A request by name reaches the live channel."""
    registry, _ = make_registry()
    writer = grant(registry, "c", 0)
    assert registry.close_segment("c", 0, 0.0) is None
    assert registry.close_segment("c", 5, 0.0) == registry.channels["c"].refuse(Cause.NO_SEGMENT, 5)
    assert writer.outcome == Outcome(Ending.CLOSED_BY_OTHER, 0)


@pytest.mark.parametrize(("present", "refused"), [(1, False), (2, False), (3, True)])
def test_readers_are_limited(present: int, refused: bool) -> None:
    """Up to the limit they come in; above it they are refused until one leaves, and nothing is created for them."""
    registry, _ = make_registry(readers=3)
    registry.create("c", "", 0.0)
    publish(registry, "d", 0)
    watchers = [resolve_and_attach(registry, "d", 0) for _ in range(present)]
    answer = registry.resolve("c", 0)
    if refused:
        assert answer == registry.channels["c"].refuse(Cause.LIMIT)._replace(limit=Limit.READERS)
        assert registry.channels["c"].segments == {}
        registry.detach(watchers[0], registry.channels["d"], watchers[0].segment)
        answer = registry.resolve("c", 0)
    assert isinstance(answer, Upcoming)


@pytest.mark.parametrize(("present", "joins", "resumes"), [(7, True, True), (8, False, True), (10, False, False)])
@pytest.mark.parametrize(
    ("limit", "name"), [("readers", Limit.READERS), ("readers_per_channel", Limit.CHANNEL_READERS)]
)
def test_the_last_fifth_of_the_readers_is_for_those_who_go_on(
    limit: str, name: Limit, present: int, joins: bool, resumes: bool
) -> None:
    """From 80 % on who counts from the head is refused; who names a seq is, once all places are taken."""
    limits: dict[str, Any] = {limit: 10}
    registry, _ = make_registry(**limits)
    publish(registry, "c", 0)
    for _ in range(present):
        resolve_and_attach(registry, "c", 0)
    refused = registry.channels["c"].refuse(Cause.LIMIT)._replace(limit=name)
    for seq in (-1, -2, -3):
        assert (registry.resolve("c", seq) != refused) is joins
    for seq in (0, 1):
        assert (registry.resolve("c", seq) != refused) is resumes


def test_who_was_refused_may_join_below_three_fifths() -> None:
    """Not as soon as one has left: the server would refuse and let in by turns."""
    registry, _ = make_registry(readers=10)
    publish(registry, "c", 0)
    channel = owned(registry, "c")
    watchers = [resolve_and_attach(registry, "c", 0) for _ in range(8)]
    for left, joins in ((7, False), (6, False), (5, True), (6, True), (7, True)):
        while registry.readers > left:
            registry.detach(watchers[-1], channel, watchers.pop().segment)
        while registry.readers < left:
            watchers.append(resolve_and_attach(registry, "c", 0))
        assert isinstance(registry.resolve("c", -1), Upcoming) is joins


def test_a_full_channel_concerns_no_other() -> None:
    """The limit of readers per channel is of each channel alone."""
    registry, _ = make_registry(readers_per_channel=1)
    publish(registry, "c", 0)
    publish(registry, "d", 0)
    resolve_and_attach(registry, "c", 0)
    assert refusal(registry.resolve("c", 0)).limit is Limit.CHANNEL_READERS
    assert isinstance(registry.resolve("d", -1), Upcoming)


@pytest.mark.parametrize(("present", "refused"), [(1, False), (2, True)])
def test_publishers_are_limited(present: int, refused: bool) -> None:
    """At the limit nobody begins, nothing is created and nothing changes; when one ends, the next may."""
    registry, _ = make_registry(publishers=2)
    writers = [grant(registry, "c", seq) for seq in range(present)]
    answer = registry.reserve("c", 2, Told(), 0.0) if refused else grant(registry, "c", 1)
    if refused:
        assert answer == Refusal(Cause.LIMIT, limit=Limit.PUBLISHERS)
        assert refusal(registry.reserve("new", 0, Told(), 0.0)).limit is Limit.PUBLISHERS
        assert refusal(registry.reserve("new", 7, Told(), 0.0)).limit is Limit.PUBLISHERS
        assert set(registry.channels) == {"c"}
        check_registry(registry)
        owned(registry, "c").finish(writers[0], [b"x"], 0.0)
        grant(registry, "c", 2)
    check_registry(registry)


def test_who_takes_over_is_not_one_more() -> None:
    """A publisher whose connection broke comes back to its segment on a full server, too; the earlier one leaves."""
    registry, _ = make_registry(publishers=1)
    first = grant(registry, "c", 0)
    grant(registry, "c", 0)
    assert first.outcome == Outcome(Ending.SUPERSEDED, 0)
    assert registry.capacities.publishers.used == 1
    check_registry(registry)


@pytest.mark.parametrize("end", ["finish", "abort", "end"])
def test_every_way_to_end_makes_room_for_a_publisher(end: str) -> None:
    """A publisher is counted until its part has ended, however it ends, and once."""
    registry, _ = make_registry(publishers=1)
    writer = grant(registry, "c", 0)
    channel = owned(registry, "c")
    match end:
        case "finish":
            channel.finish(writer, [b"x"], 0.0)
        case "abort":
            channel.abort(writer, 0.0)
        case _:
            registry.end("c", 0.0)
    channel.abort(writer, 0.0)
    assert registry.capacities.publishers.used == 0
    check_registry(registry)


def test_new_publishers_leave_the_reserve_to_running_ones() -> None:
    """From 80 % on a POST to a channel that is not there is refused, unless it resumes its numbering."""
    registry, _ = make_registry(publishers=5)
    for _ in range(4):
        grant(registry, "c", -1)
    assert [refusal(registry.reserve("new", seq, Told(), 0.0)).limit for seq in (-1, 0)] == [Limit.PUBLISHERS] * 2
    resumed = grant(registry, "new", 7)
    owned(registry, "new").abort(resumed, 0.0)
    grant(registry, "c", -1)
    assert refusal(registry.reserve("c", -1, Told(), 0.0)).limit is Limit.PUBLISHERS
    check_registry(registry)


@pytest.mark.parametrize(("present", "joins", "resumes"), [(3, True, True), (4, False, True), (5, False, False)])
@pytest.mark.parametrize("way", ["create", "first", "next", "resume", "force"])
def test_new_channels_leave_the_reserve_to_those_that_come_back(
    way: str, present: int, joins: bool, resumes: bool
) -> None:
    """From 80 % on only who resumes its numbering, or an operator, adds a channel; at the limit nobody."""
    registry, _ = make_registry(channels=5)
    for number in range(present):
        registry.create(f"c{number}", "", 0.0, force=True)
    match way:
        case "create" | "force":
            answer: object = registry.create("new", "", 0.0, force=way == "force")
        case _:
            answer = registry.reserve("new", {"first": 0, "next": -1, "resume": 7}[way], Told(), 0.0)
    admitted = resumes if way in ("resume", "force") else joins
    assert (answer != Refusal(Cause.LIMIT, limit=Limit.CHANNELS)) is admitted
    assert ("new" in registry.channels) is admitted
    check_registry(registry)


@pytest.mark.parametrize(("connections", "joins"), [(7, True), (8, False)])
def test_nobody_joins_while_connections_are_short(connections: int, joins: bool) -> None:
    """Readers that count from the head and new channels wait; readers and publishers that go on do not."""
    registry, _ = make_registry(connections=10)
    publish(registry, "c", 0)
    for _ in range(connections):
        registry.capacities.connections.take()
    refused = Limit.CONNECTIONS
    answers = [registry.resolve("c", -1), registry.reserve("new", 0, Told(), 0.0), registry.create("other", "", 0.0)]
    assert [isinstance(answer, Refusal) and answer.limit is refused for answer in answers] == [not joins] * 3
    assert isinstance(registry.resolve("c", 0), Ready)
    grant(registry, "c", 1)
    grant(registry, "back", 7)
    assert not isinstance(registry.create("forced", "", 0.0, force=True), Refusal)


def test_readers_are_counted_over_all_epochs() -> None:
    """A reader of an ended life counts until it leaves."""
    registry, _ = make_registry()
    publish(registry, "c", 0)
    old = registry.channels["c"]
    watcher = resolve_and_attach(registry, "c", 0)
    registry.end("c", 0.0)
    publish(registry, "c", 0)
    assert (registry.readers, old.reading.used, registry.channels["c"].reading.used) == (1, 1, 0)
    check_registry(registry)
    registry.detach(watcher, old, watcher.segment)
    assert (registry.readers, old.reading.used) == (0, 0)


# The end of a channel, its drain, and the next epoch (section 5).


def test_an_ended_channel_is_readable_for_its_drain() -> None:
    """Then the name is forgotten, but it is remembered for a while that it has ended, and then not even that."""
    registry, facts = make_registry(channel_drain_s=10.0, tombstone_s=300.0)
    publish(registry, "c", 0)
    channel = owned(registry, "c")
    assert registry.end("c", 5.0) is None
    assert facts[-1] == ChannelEnded(4, 6, 5.0, "c", 1, 1, EndReason.DELETED)
    assert registry.next_deadline() == 15.0
    registry.expire(14.999)
    assert isinstance(registry.resolve("c", 0), Ready)
    assert isinstance(registry.resolve("c", -1), Ended)
    assert registry.find("c") is channel
    assert registry.live("c") is None
    registry.expire(15.0)
    forgotten = Refusal(Cause.NOT_FOUND, recently_ended=True, epoch=1, head=1)
    assert registry.resolve("c", 0) == registry.find("c") == forgotten
    assert registry.budget.used == 0
    registry.expire(300.0)
    assert registry.next_deadline() == 315.0
    registry.expire(314.999)
    assert refusal(registry.find("c")).recently_ended
    registry.expire(315.0)
    assert registry.find("c") == Refusal(Cause.NOT_FOUND)
    assert registry.next_deadline() is None


def test_a_channel_ends_once() -> None:
    """A second end is refused, and so are the segment requests of an ended channel."""
    registry, facts = make_registry()
    publish(registry, "c", 0)
    registry.end("c", 0.0)
    known = len(facts)
    ended = registry.channels["c"].refuse(Cause.NOT_FOUND)._replace(recently_ended=True)
    assert registry.end("c", 1.0) == registry.close_segment("c", 0, 1.0) == ended
    assert len(facts) == known


@pytest.mark.interpreted
def test_a_forgotten_channel_is_freed_without_the_collector() -> None:
    """No reference cycle keeps it: a server has a thousand channels a minute, and hardly ever a full collection."""
    registry, _ = make_registry(channel_drain_s=10.0, idle_timeout_s=300.0)
    gc.disable()
    try:
        publish(registry, "c", 0)
        ended = weakref.ref(registry.channels["c"])
        registry.end("c", 0.0)
        registry.expire(10.0)
        registry.expire(300.0)  # its last appointment
        assert ended() is None
    finally:
        gc.enable()


def test_without_a_drain_the_name_is_forgotten_at_once() -> None:
    """With a drain of 0 s a waiting reader still sees the channel close."""
    registry, _ = make_registry(channel_drain_s=0.0)
    publish(registry, "c", 0)
    watcher = resolve_and_attach(registry, "c")
    registry.end("c", 0.0)
    assert watcher.saw_close
    assert registry.channels == {}
    assert registry.resolve("c", 0) == Refusal(Cause.NOT_FOUND, recently_ended=True, epoch=1, head=1)
    check_registry(registry)


@pytest.mark.parametrize(
    ("seq", "reset", "begins"),
    [
        (0, False, True),
        (0, True, True),
        (7, True, True),
        (-1, True, True),
        (7, False, False),
        (1, False, False),
        (-1, False, False),
    ],
)
def test_only_a_beginning_starts_the_next_epoch_during_the_drain(seq: int, reset: bool, begins: bool) -> None:
    """Seq 0 or a reset; any other POST is a latecomer of the ended life and resurrects nothing."""
    registry, _ = make_registry()
    publish(registry, "c", 0)
    old = registry.channels["c"]
    registry.end("c", 0.0)
    answer = registry.reserve("c", seq, Told(), 1.0, reset=reset)
    if begins:
        assert (registry.channels["c"].epoch, registry.channels["c"].next_seq) == (2, 0)
    else:
        assert answer == old.refuse(Cause.ENDED, seq)._replace(recently_ended=True)
        assert registry.channels["c"] is old


def test_a_creation_starts_the_next_epoch_during_the_drain() -> None:
    """The channel lets go of the segments of its ended epoch; a reader keeps the one that it reads from."""
    registry, facts = make_registry()
    segment = publish(registry, "c", 0, b"abc")
    registry.end("c", 0.0)
    channel = registry.create("c", "text/plain", 1.0)
    assert not isinstance(channel, Refusal)
    assert (channel.epoch, channel.content_type, registry.budget.used) == (2, "text/plain", 0)
    assert facts[-1] == ChannelCreated(5, 1, 1.0, "c", 2, "text/plain", "")
    assert content(segment) == b"abc"


def test_without_autocreate_nothing_begins_during_the_drain() -> None:
    """A beginning needs the right to create, too; the latecomer hears that the channel has ended."""
    registry, _ = make_registry(autocreate=False)
    registry.create("c", "", 0.0, force=True)
    registry.end("c", 0.0)
    answer = registry.channels["c"].refuse(Cause.NOT_FOUND)._replace(recently_ended=True)
    assert registry.reserve("c", 0, Told(), 0.0) == registry.create("c", "", 0.0) == answer


def test_an_earlier_life_cannot_touch_the_next_one() -> None:
    """Neither its drain's end, nor its writers, nor its readers reach the new channel of the name."""
    registry, _ = make_registry(channel_drain_s=10.0)
    old_writer = grant(registry, "c", 0)
    old = registry.channels["c"]
    assert old_writer.channel is old
    watcher = resolve_and_attach(registry, "c", 0)
    registry.end("c", 0.0)
    publish(registry, "c", 0, b"new", now=1.0)
    before = [channel.statistics() for channel in registry.channels.values()]
    old.append(old_writer, [b"late"], 2.0)
    old.finish(old_writer, [b"late"], 2.0)
    old.abort(old_writer, 2.0)
    registry.detach(watcher, old, watcher.segment)
    registry.expire(20.0)
    assert [channel.statistics() for channel in registry.channels.values()] == before
    check_registry(registry)


def test_epochs_count_up_while_a_name_is_remembered() -> None:
    """A tombstone knows which life was the last one; when it is forgotten, counting starts anew."""
    registry, _ = make_registry(channel_drain_s=0.0, tombstone_s=300.0)
    for epoch in (1, 2, 3):
        assert grant(registry, "c", 0, now=float(epoch)).channel.epoch == epoch
        registry.end("c", float(epoch))
    registry.expire(303.0)
    assert grant(registry, "c", 0, now=303.0).channel.epoch == 1


@pytest.mark.parametrize(("ended", "remembered"), [(1, "a"), (2, "ab"), (3, "bc")])
def test_tombstones_are_limited(ended: int, remembered: str) -> None:
    """Of more ended channels than that the earliest is forgotten."""
    registry, _ = make_registry(channel_drain_s=0.0, tombstones=2)
    for name in "abc"[:ended]:
        publish(registry, name, 0)
        registry.end(name, 0.0)
    assert "".join(name for name in "abc" if refusal(registry.find(name)).recently_ended) == remembered
    check_registry(registry)


# Time.


def test_a_new_registry_has_nothing_to_do() -> None:
    """Without a channel there is no deadline."""
    registry, _ = make_registry()
    assert registry.next_deadline() is None
    registry.expire(1e9)


def test_an_idle_channel_ends() -> None:
    """At the timeout and not before, counted from the last byte; then it drains like any other ended one."""
    registry, facts = make_registry(idle_timeout_s=300.0)
    publish(registry, "c", 0, now=10.0)
    registry.expire(309.999)
    assert registry.live("c") is not None
    assert registry.next_deadline() == 310.0
    registry.expire(310.0)
    assert facts[-1] == ChannelEnded(4, 6, 310.0, "c", 1, 1, EndReason.IDLE)
    assert isinstance(registry.resolve("c", 0), Ready)
    registry.expire(320.0)
    assert registry.channels == {}


def test_an_idle_channel_without_a_drain_is_forgotten_at_once() -> None:
    """The sweep needs no second look."""
    registry, _ = make_registry(idle_timeout_s=300.0, channel_drain_s=0.0)
    publish(registry, "c", 0, now=10.0)
    registry.expire(310.0)
    assert registry.channels == {}


def test_bytes_of_one_long_segment_count_as_activity() -> None:
    """It is bytes that count, not segments; neither readers nor preconnects do."""
    registry, _ = make_registry(idle_timeout_s=300.0)
    writer = grant(registry, "c", 3)
    writer.channel.append(writer, [b"x"], 200.0)
    registry.expire(400.0)
    assert registry.live("c") is not None
    grant(registry, "c", 4, now=450.0)
    resolve_and_attach(registry, "c")
    registry.expire(500.0)
    assert registry.live("c") is None


def test_a_publisher_that_leaves_frees_its_place() -> None:
    """With the end of its segment; without that, its place is free some seconds after its last byte."""
    registry, _ = make_registry()
    writer = grant(registry, "c", 0, client=Identity("a"))
    writer.channel.append(writer, [b"x"], 1.0)
    assert registry.close_segment("c", 0, 1.0) is None
    assert refusal(registry.end("c", 2.0, if_idle_beside=Identity("b"))).why == Cause.OCCUPIED
    assert registry.close_segment("c", 0, 2.0, leaver=Identity("a")) is None
    assert registry.end("c", 2.0, if_idle_beside=Identity("b")) is None


def test_names_of_the_server_are_never_idle() -> None:
    """The server's own channels stay, and have nothing that is due."""
    registry, _ = make_registry(idle_timeout_s=300.0)
    registry.create("_changes", "", 0.0, force=True)
    assert registry.next_deadline() is None
    registry.expire(1e9)
    assert registry.live("_changes") is not None


def test_what_is_due_in_a_channel_is_done_in_time() -> None:
    """Graces and ages become deadlines of the registry, each done when it is due and the next one announced."""
    registry, _ = make_registry(publisher_grace_s=5.0, skip_grace_s=2.0, window_age_s=60.0)
    publish(registry, "c", 0, now=0.0)
    orphan = grant(registry, "c", 1, now=1.0)
    orphan.channel.append(orphan, [b"x"], 1.0)
    orphan.channel.abort(orphan, 1.0)
    late, newer = grant(registry, "c", 2, now=1.0), grant(registry, "c", 3, now=1.0)
    newer.channel.append(newer, [b"y"], 2.0)
    history = {}
    while (when := registry.next_deadline()) is not None and when < 100.0:
        registry.expire(when)
        check_registry(registry)
        history[when] = {seq: str(segment.state) for seq, segment in sorted(registry.channels["c"].segments.items())}
    assert history == {
        4.0: {0: "complete", 1: "open", 2: "skipped", 3: "open"},
        6.0: {0: "complete", 1: "truncated", 2: "skipped", 3: "open"},
        60.0: {1: "truncated", 2: "skipped", 3: "open"},
        66.0: {2: "skipped", 3: "open"},
    }
    assert late.outcome == Outcome(Ending.CLOSED_BY_OTHER, 0)


def test_overtaken_appointments_do_not_pile_up() -> None:
    """A forgotten channel is not kept in memory until the time at which it would have been idle."""
    registry, _ = make_registry(channel_drain_s=0.0)
    for number in range(1000):
        registry.create(f"c{number}", "", 0.0)
        registry.end(f"c{number}", 0.0)
    assert len(registry._agenda._heap) <= STALE_TIMES + 2


def test_cleaning_keeps_what_is_due() -> None:
    """When overtaken appointments are dropped, every channel is still looked at in time."""
    registry, _ = make_registry(channel_drain_s=0.0, idle_timeout_s=300.0)
    registry.create("_own", "", 0.0, force=True)
    publish(registry, "stays", 0, now=7.0)
    for number in range(200):
        registry.create(f"c{number}", "", 8.0)
        registry.end(f"c{number}", 8.0)
        check_registry(registry)
    registry.expire(307.0)
    assert registry.live("stays") is None


# Limits over all channels, and shutting down.


def test_a_full_server_evicts_from_the_largest_windows_first() -> None:
    """The oldest segments of the channel that holds most give way, and a little more than was needed is freed."""
    large, small = cost(b"x" * 3000), cost(b"x" * 100)
    registry, _ = make_registry(total_bytes=4 * large + 2 * small + 1300)
    for seq in range(4):
        publish(registry, "large", seq, b"x" * 3000)
    for seq in range(2):
        publish(registry, "small", seq, b"x" * 100)
    publish(registry, "small", 2, b"x" * 3000)
    assert sorted(registry.channels["large"].segments) == [1, 2, 3]
    assert sorted(registry.channels["small"].segments) == [0, 1, 2]
    check_registry(registry)


def test_windows_of_equal_size_give_way_in_turn() -> None:
    """Which window is the largest is asked again after each eviction, so that none is emptied for another's sake."""
    one = cost(b"x" * 1000)
    registry, _ = make_registry(total_bytes=8 * one + 100)
    for seq in range(4):
        publish(registry, "a", seq, b"x" * 1000)
        publish(registry, "b", seq, b"x" * 1000)
    publish(registry, "c", 0, b"x" * 2000)
    assert {name: len(channel.window) for name, channel in registry.channels.items()} == {"a": 3, "b": 3, "c": 1}
    assert registry.evictions() == dict.fromkeys(Eviction, 0) | {Eviction.BUDGET: 2}
    check_registry(registry)


def test_the_newest_segments_go_in_need_only() -> None:
    """Where nothing else is left to evict, a closed segment gives way to what is being written, and no more of them
    than it takes.
    """
    one = cost(b"x" * 1000)
    registry, _ = make_registry(total_bytes=4 * one)
    for name in "abcd":
        publish(registry, name, 0, b"x" * 1000)
    publish(registry, "e", 0, b"x" * 1000)
    assert [len(channel.window) for channel in registry.channels.values()] == [0, 1, 1, 1, 1]
    assert isinstance(registry.resolve("a", 0), Gone)
    check_registry(registry)


def test_what_is_not_closed_is_never_evicted() -> None:
    """Where only open segments hold the memory, the arrival is refused."""
    registry, _ = make_registry(total_bytes=cost(b"y" * 500, b"y"))
    publish(registry, "c", 0, b"x" * 500)
    writer = grant(registry, "c", 1)
    assert writer.channel.append(writer, [b"y" * 500], 0.0) is None
    assert sorted(registry.channels["c"].segments) == [1]
    assert writer.channel.append(writer, [b"zz"], 0.0) == Outcome(Ending.OVER_BUDGET, 500)


@pytest.mark.parametrize(("size", "ending"), [(99, None), (100, None), (101, Ending.OVER_BUDGET)])
def test_the_budget_ends_just_at_its_limit(size: int, ending: Ending | None) -> None:
    """One byte below and at the limit are stored; one above is not."""
    registry, _ = make_registry(total_bytes=cost(b"x" * 100))
    writer = grant(registry, "c", 0)
    outcome = writer.channel.append(writer, [b"x" * size], 0.0)
    assert outcome == (None if ending is None else Outcome(ending, 0))
    check_registry(registry)


def test_segments_without_a_byte_are_evicted_like_others() -> None:
    """They take memory, so that even a server full of them holds its budget, and takes what comes next."""
    registry, _ = make_registry(total_bytes=4 * cost())
    for seq in range(9):
        publish(registry, "c", seq, b"")
        check_registry(registry)
    assert publish(registry, "c", 9, b"x" * 1000).complete
    check_registry(registry)


def test_who_reads_what_has_left_its_window_goes_first() -> None:
    """A slow reader keeps an evicted segment in memory; no window is made smaller for its sake."""
    one = cost(b"x" * 1000)
    registry, _ = make_registry(total_bytes=4 * one + 600, window_segments=1)
    slow = []
    for seq in range(3):
        publish(registry, "c", seq, b"x" * 1000)
        channel = owned(registry, "c")
        slow.append(Leaver(registry, channel, channel.segments[seq]))
    assert registry.budget.used == 3 * one
    publish(registry, "d", 0, b"x" * 1000)
    assert [reader.evicted for reader in slow] == [False, False, False]
    publish(registry, "e", 0, b"x" * 900)
    assert [reader.evicted for reader in slow] == [True, False, False]
    assert [len(channel.window) for channel in registry.channels.values()] == [1, 1, 1]
    check_registry(registry)


def test_who_reads_what_the_budget_evicts_is_cut_off() -> None:
    """Or nothing would be freed by it; those who read other segments stay."""
    one = cost(b"x" * 1000)
    registry, _ = make_registry(total_bytes=4 * one)
    for seq in range(4):
        publish(registry, "c", seq, b"x" * 1000)
    channel = owned(registry, "c")
    readers = [Leaver(registry, channel, channel.segments[seq]) for seq in range(4)]
    publish(registry, "d", 0, b"x" * 500)
    assert [reader.evicted for reader in readers] == [True, False, False, False]
    assert (registry.readers, channel.reading.used) == (3, 3)
    check_registry(registry)


def test_evictions_are_counted_beyond_a_channels_life() -> None:
    """The evictions of an ended channel still count in its next epoch, and after the channel is forgotten."""
    registry, _ = make_registry(window_segments=1, channel_drain_s=1.0)
    for seq in range(3):
        publish(registry, "c", seq)
    registry.end("c", 0.0)
    publish(registry, "c", 0)
    publish(registry, "c", 1)
    assert registry.evictions()[Eviction.COUNT] == 3
    registry.end("c", 0.0)
    registry.expire(1.0)
    assert registry.channels == {}
    assert registry.evictions() == dict.fromkeys(Eviction, 0) | {Eviction.COUNT: 3}


def test_nothing_new_begins_while_shutting_down() -> None:
    """No channel, no reservation and no wait; what is kept can be read and what is being written may end."""
    registry, _ = make_registry()
    publish(registry, "c", 0)
    writer = grant(registry, "c", 1)
    registry.shut_down((3, 7))
    no = Refusal(Cause.SHUTDOWN, come_back_s=(3, 7))
    before = picture(registry)
    assert registry.create("new", "", 0.0) == registry.reserve("new", 0, Told(), 0.0) == no
    assert registry.create("_own", "", 0.0, force=True) == no
    assert registry.reserve("c", 2, Told(), 0.0) == no
    assert registry.resolve("c", 1) == registry.channels["c"].refuse(Cause.SHUTDOWN, 1)._replace(come_back_s=(3, 7))
    assert picture(registry) == before
    assert registry.create("c", "", 0.0) is registry.channels["c"]
    assert isinstance(registry.resolve("c", 0), Ready)
    assert writer.channel.finish(writer, [b"x"], 0.0) == Outcome(Ending.COMPLETE, 1)
    assert refusal(registry.resolve("c", -1)).why is Cause.SHUTDOWN
    assert 2 not in registry.channels["c"].segments


def test_totals_tell_everything_apart() -> None:
    """Live and draining channels; segments kept, written, preconnected, orphaned; readers that wait."""
    registry, _ = make_registry()
    assert registry.totals() == Totals(0, 0, 0, 0, 0, 0, 0, 0)
    publish(registry, "busy", 0, b"abc")
    orphan = grant(registry, "busy", 1)
    writing = grant(registry, "busy", 2)
    for writer in (orphan, writing):
        writer.channel.append(writer, [b"x"], 0.0)
    orphan.channel.abort(orphan, 0.0)
    grant(registry, "busy", 3)
    for seq in (3, 3, 2):
        resolve_and_attach(registry, "busy", seq)
    publish(registry, "ended", 0)
    publish(registry, "ended", 1)
    registry.end("ended", 1.0)
    assert registry.totals() == Totals(
        live=1, draining=1, segments=3, writing=1, preconnected=1, orphaned=1, waiting=2, audience=2
    )


def test_faults_are_handed_over_by_every_change() -> None:
    """A journal listener that raises, and publishers that raise when they are preempted, disturb no other one."""
    faults: list[str] = []
    registry, facts = make_registry(on_fault=lambda victim, error: faults.append(str(error)), skip_grace_s=1.0)

    def hears(fact: Fact) -> None:
        raise ValueError(type(fact).__name__)

    class Raises(Told):
        def preempted(self, outcome: Outcome) -> None:
            raise ValueError(outcome.ending.name)

    registry.journal.subscribe(hears, ChannelCreated, ChannelEnded)
    first = registry.reserve("c", 0, Raises(), 0.0)
    assert isinstance(first, Writer)
    assert faults == ["ChannelCreated"]
    grant(registry, "c", 0)
    assert faults[1:] == ["SUPERSEDED"]
    for seq in (1, 2):
        assert isinstance(registry.reserve("c", seq, Raises(), 0.0), Writer)
    assert registry.close_segment("c", 1, 0.0) is None
    assert faults[2:] == ["CLOSED_BY_OTHER"]
    publish(registry, "c", 3)
    registry.expire(1.0)
    assert faults[3:] == ["CLOSED_BY_OTHER"]
    registry.end("c", 1.0)
    assert faults[4:] == ["ChannelEnded"]
    assert [fact.index for fact in facts if fact.indexed] == list(range(1, registry.journal.index + 1))
    check_registry(registry)


def test_a_deadline_is_told_exactly() -> None:
    """The registry names the time when the next thing happens, the short grace for an overtaken POST included."""
    registry, _ = make_registry(overtaking_grace_s=0.2)
    registry.create("c", "", 10.0)
    watcher = resolve_and_attach(registry, "c", 0)
    publish(registry, "c", 1, now=10.0)
    assert registry.next_deadline() == 10.2
    registry.expire(10.199)
    assert not watcher.saw_close
    registry.expire(10.2)
    assert watcher.saw_close


# Faults of the server.


@pytest.mark.parametrize("name", ["c", "_own"])
def test_a_channel_that_is_dropped_is_gone(name: str) -> None:
    """Its readers are cut off, its place is free, and a listener hears that it ended; a second drop does nothing."""
    registry, facts = make_registry()
    channel = registry.create(name, "", 0.0, force=True)
    found = registry.resolve(name, -1)
    assert isinstance(channel, OwnedChannel)
    assert isinstance(found, Upcoming)
    reader = Leaver(registry, channel, found.segment)
    registry.drop(channel)
    registry.drop(channel)
    assert reader.evicted
    assert (registry.channels, registry.capacities.channels.used) == ({}, 0)
    assert facts[1:] == [ChannelEnded(2, 2, 0.0, name, 1, 0, EndReason.FAULT)]


def test_the_memory_of_a_channel_that_is_dropped_is_free() -> None:
    """A dropped channel gives its window's bytes back to the budget."""
    registry, _ = make_registry()
    publish(registry, "c", 0)
    assert registry.budget.used
    registry.drop(owned(registry, "c"))
    assert registry.budget.used == 0


def test_a_channel_that_is_dropped_does_not_end_again() -> None:
    """A writer of it writes on, and neither its idle time nor its drain touches the next life of its name."""
    registry, facts = make_registry(idle_timeout_s=10.0, channel_drain_s=5.0)
    writer = grant(registry, "c", 0)
    channel = owned(registry, "c")
    registry.drop(channel)
    assert channel.ended
    assert channel.finish(writer, (b"x",), 1.0).ending is Ending.COMPLETE
    registry.expire(11.0)
    publish(registry, "c", 0, now=11.0)
    registry.expire(16.0)
    assert registry.live("c") is not None
    assert [fact.reason for fact in facts if isinstance(fact, ChannelEnded)] == [EndReason.FAULT]


def test_the_receiver_of_faults_can_be_set_later() -> None:
    """The data plane, which receives them, is made after the registry."""
    told: list[object] = []
    registry, _ = make_registry()
    registry.faults.deliver_to(lambda party, error: told.append(party))
    writer = grant(registry, "c", 0)
    watcher = resolve_and_attach(registry, "c", 0)
    watcher.wake = _raise  # type: ignore[method-assign]
    writer.channel.append(writer, (b"x",), 1.0)
    registry.expire(2.0)
    assert told == [watcher]


def _raise() -> None:
    raise RuntimeError


class Disk:
    """Storage: what the core asks of it, and what it is told."""

    def __init__(self, epochs: dict[str, int] | None = None) -> None:
        self.refuses = False
        self.failed: str | None = None
        self.begun: list[tuple[str, int]] = []
        self._epochs = epochs or {}

    def begin(self, channel: OwnedChannel | Copy) -> Shelf:
        self.begun.append((channel.name, channel.epoch))
        return Shelf()

    def promote(self, name: str, epoch: int) -> None:
        assert self.begun[-1] == (name, epoch - 1)

    def last_epoch(self, name: str) -> int:
        return self._epochs.get(name, 0)


def test_storage_knows_each_channel_and_its_last_epoch() -> None:
    """A name goes on behind the last epoch that storage knows; the server's own channels are none of its business."""
    disk = Disk({"a": 6})
    registry, _ = make_registry(storage=disk)
    assert [publish(registry, name, 0) and registry.channels[name].epoch for name in ("a", "b")] == [7, 1]
    registry.create("_own", "", 0.0, force=True)
    assert disk.begun == [("a", 7), ("b", 1)]
    assert registry.channels["_own"].retained is None
    assert isinstance(registry.channels["a"].retained, Shelf)


def test_while_storage_refuses_nothing_is_published() -> None:
    """Neither a new channel nor a segment of a live one; readers go on."""
    disk = Disk()
    registry, _ = make_registry(storage=disk)
    publish(registry, "a", 0)
    disk.refuses = True
    assert refusal(registry.reserve("a", 1, Told(), 0.0)).why is Cause.STORAGE
    assert refusal(registry.create("b", "", 0.0)).why is Cause.STORAGE
    assert isinstance(registry.resolve("a", 0), Ready)
    assert isinstance(registry.create("_own", "", 0.0, force=True), OwnedChannel)


def test_a_channel_that_is_restored_goes_on_at_its_head() -> None:
    """A POST below the head is a conflict; the channel counts against the limit and idles from then on."""
    registry, facts = make_registry(channels=2, idle_timeout_s=100)
    channel = registry.restore(Restored("a", 3, "video/mp2t", 7, created_at=940.0), 1000.0)
    assert (channel.epoch, channel.next_seq, channel.content_type, channel.created_at) == (3, 7, "video/mp2t", 940.0)
    assert refusal(registry.reserve("a", 6, Told(), 1000.0)).why is Cause.CLOSED
    assert publish(registry, "a", -1, now=1000.0).seq == 7
    assert registry.capacities.channels.used == 1
    assert not [fact for fact in facts if isinstance(fact, ChannelCreated)]
    registry.expire(1101.0)
    assert channel.ended
    check_registry(registry)


def test_an_ended_channel_is_restored_for_the_rest_of_its_drain() -> None:
    """Then its name is free, and its epoch is remembered."""
    registry, _ = make_registry(channel_drain_s=10)
    registry.restore(Restored("a", 3, "", 7, created_at=940.0, drain_s=4.0), 1000.0)
    assert isinstance(registry.resolve("a", 7), Ended)
    registry.expire(1004.0)
    assert refusal(registry.resolve("a", 7)).epoch == 3
    registry.remember_ended("b", 5, 9, until=1010.0)
    found = refusal(registry.resolve("b", 0))
    assert (found.epoch, found.head, found.recently_ended) == (5, 9, True)
    publish(registry, "b", 0, now=1005.0)
    assert registry.channels["b"].epoch == 6


def test_a_live_channel_is_not_ended_beside_its_publisher() -> None:
    """A client that asks not to disturb others ends a channel only if nobody else publishes to it."""
    registry, _ = make_registry()
    grant(registry, "c", 0, client=Identity("a"))
    refused = refusal(registry.end("c", 2.0, if_idle_beside=Identity("b")))
    assert (refused.why, refused.occupied) == (Cause.OCCUPIED, (Identity("a"), 2.0, None))
    assert registry.live("c") is not None
    assert registry.end("c", 2.0, if_idle_beside=Identity("a")) is None


# Channels of other servers.


def test_a_channel_of_another_server_is_held() -> None:
    """Readers read it, nobody here publishes to it or ends it, and it takes no channel's place: its owner counts it."""
    registry, _ = make_registry(channels=1, channel_drain_s=10.0, idle_timeout_s=5.0)
    held = registry.replicate("c", 3, 0.0)
    held.apply(BodyBegun(0, 1, 0.0, "c", 3, 0, None, 0))
    assert isinstance(registry.resolve("c", 0), Upcoming)
    answers = (
        registry.create("c", "", 0.0),
        registry.reserve("c", 0, Told(), 0.0),
        registry.end("c", 0.0),
        registry.close_segment("c", 0, 0.0),
    )
    assert [refusal(answer).why for answer in answers] == [Cause.REPLICA] * 4
    assert registry.live("c") is None
    assert (registry.capacities.channels.used, registry.totals().live, registry.totals().waiting) == (0, 0, 0)
    registry.let_drain(held)
    assert registry.next_deadline() is None
    held.abandon(20.0)
    registry.let_drain(held)
    registry.expire(29.0)
    assert registry.channels == {"c": held}
    assert registry.totals().draining == 0
    registry.expire(30.0)
    assert (registry.channels, registry.capacities.channels.used) == ({}, 0)


def test_a_channel_counts_where_it_is_owned() -> None:
    """Also where one of the name is owned after another one was held, or the other way round."""
    registry, _ = make_registry(channels=1, channel_drain_s=10.0)
    used = registry.capacities.channels
    registry.replicate("c", 1, 0.0).abandon(0.0)
    assert used.used == 0
    registry.create("c", "", 0.0)
    assert used.used == 1
    registry.end("c", 1.0)
    registry.replicate("c", 3, 2.0)
    assert used.used == 0


def test_who_may_follow_a_channel() -> None:
    """Its feed is sent where it is owned and lives, to as many as may read it; each of them counts as a reader."""
    registry, _ = make_registry(readers=1)
    registry.replicate("theirs", 1, 0.0)
    for name in ("mine", "over"):
        registry.create(name, "", 0.0)
    registry.end("over", 0.0)
    channel = registry.followed("mine")
    assert channel is registry.channels["mine"]
    copy = registry.replicate("copy", 1, 0.0, copied=True)
    answers = [refusal(registry.followed(name)) for name in ("theirs", "over", "other", "copy")]
    assert [answer.why for answer in answers] == [Cause.REPLICA, Cause.ENDED, Cause.NOT_FOUND, Cause.MIRROR]
    copy.go_live(1, 0, (), 0.0)
    assert registry.followed("copy") is copy
    registry.feed_begun(channel)
    assert (refusal(registry.followed("mine")).limit, registry.readers, channel.readers) == (Limit.READERS, 1, 1)
    registry.feed_over(channel)
    assert (registry.followed("mine"), registry.readers, channel.readers) == (channel, 0, 0)
    registry.shut_down((7, 9))
    assert refusal(registry.followed("mine")).come_back_s == (7, 9)


def test_a_held_channel_is_let_go_where_it_may_go_on_elsewhere() -> None:
    """No reader is told that it has ended, and nothing of it is left; what has taken its place stays."""
    registry, _ = make_registry()
    held = registry.replicate("c", 1, 0.0)
    registry.let_go(held)
    assert registry.channels == {}
    second = registry.replicate("c", 1, 0.0)
    registry.let_go(held)
    assert registry.channels == {"c": second}


def test_a_channel_begins_only_where_it_is_owned() -> None:
    """Another one is neither made nor said not to be there: another worker has it."""
    registry = Registry(Limits(), autocreate=True, owns=lambda name: name == "mine")
    assert isinstance(registry.create("mine", "", 0.0), OwnedChannel)
    assert refusal(registry.create("theirs", "", 0.0)).why is Cause.REPLICA
    assert refusal(registry.reserve("theirs", 0, Told(), 0.0)).why is Cause.REPLICA
    assert refusal(registry.resolve("theirs", 0)).why is Cause.REPLICA
    assert refusal(registry.resolve("mine2", 0)).why is Cause.REPLICA


def test_the_epoch_of_a_channel_may_be_decided_elsewhere() -> None:
    """Until it is, and is another one than before, no channel begins; the server's own channels have none of it."""
    decided: dict[str, int] = {}
    registry = Registry(Limits(channel_drain_s=0.0), autocreate=True, epochs=decided.get)
    assert refusal(registry.create("c", "", 0.0)).why is Cause.REPLICA
    assert registry.last_epoch("c") == 0
    decided["c"] = 7
    publish(registry, "c", 0)
    assert registry.last_epoch("c") == owned(registry, "c").epoch == 7
    registry.end("c", 0.0)
    assert registry.last_epoch("c") == 7
    assert refusal(registry.create("c", "", 0.0)).why is Cause.REPLICA
    decided["c"] = 9
    publish(registry, "c", 0)
    assert owned(registry, "c").epoch == 9
    registry.create("_own", "", 0.0, force=True)
    assert owned(registry, "_own").epoch == 1


def test_readers_of_a_channel_may_be_counted_with_those_elsewhere() -> None:
    """Of one that is owned, and of one that is held."""
    made = {name: Capacity(0) for name in ("owned", "held")}
    registry = Registry(Limits(), autocreate=True, reading=lambda name: made[name])
    assert isinstance(registry.create("owned", "", 0.0), OwnedChannel)
    registry.replicate("held", 1, 0.0)
    for name in made:
        assert refusal(registry.resolve(name, 0)).limit is Limit.CHANNEL_READERS


def test_a_held_channel_is_looked_at_for_its_drain_only() -> None:
    """Its owner says when it is idle, and which segments it evicts."""
    registry, _ = make_registry(idle_timeout_s=5.0, window_age_s=1.0)
    held = registry.replicate("c", 1, 0.0)
    registry._schedule(held, 1.0)
    registry.expire(100.0)
    assert registry.channels == {"c": held}


def test_a_new_life_of_a_held_channel_takes_the_place_of_the_former() -> None:
    """Only the newest is there."""
    registry, _ = make_registry()
    registry.replicate("c", 1, 0.0).abandon(1.0)
    second = registry.replicate("c", 2, 1.0)
    assert (registry.channels, registry.capacities.channels.used) == ({"c": second}, 0)


def test_a_channel_that_has_not_ended_is_not_replaced() -> None:
    """Its readers and writers would be lost; and one that was replaced buries nothing at its drain."""
    registry, _ = make_registry(channel_drain_s=10.0)
    first = registry.replicate("c", 1, 0.0)
    with pytest.raises(LocalProtocolError, match="is here, and has not ended"):
        registry.replicate("c", 2, 0.0)
    first.abandon(0.0)
    second = registry.replicate("c", 2, 0.0)
    registry.let_drain(first)
    registry.expire(100.0)
    assert registry.channels == {"c": second}


def test_a_channel_that_goes_on_elsewhere_is_given_up() -> None:
    """Its place is free, the server hears of it, and its followers do not: they follow the other server."""
    registry, facts = make_registry(channels=1, channel_drain_s=10.0)
    ends: list[Fact] = []
    registry.journal.subscribe(ends.append, ChannelEnded)
    publish(registry, "c", 0)
    grant(registry, "c", 1)
    channel, heard = owned(registry, "c"), len(facts)
    registry.give_up(channel, 5.0)
    check_registry(registry)
    assert (registry.channels, registry.budget.used, registry.capacities.channels.used) == ({}, 0, 0)
    assert [(one.epoch, one.at) for one in ends] == [(1, 5.0)]
    assert len(facts) == heard
    with pytest.raises(LocalProtocolError, match="no channel of this server that goes on"):
        registry.give_up(channel, 5.0)
    registry.replicate("c", 1, 6.0)
    registry.give_up(registry.adopt(registry.replicate("_own", 1, 6.0), 6.0), 7.0)
    assert registry.capacities.channels.used == 0


def test_a_channel_moves_to_another_server_and_back() -> None:
    """Its readers stay in their segments, and its window with them; it counts where it is owned."""
    registry, facts = make_registry(channels=1)
    ends: list[Fact] = []
    registry.journal.subscribe(ends.append, ChannelEnded)
    publish(registry, "c", 0)
    channel, found = owned(registry, "c"), registry.resolve("c", 1)
    assert isinstance(found, Upcoming)
    reader = Watcher(found.segment)
    registry.attach(reader, channel, found.segment)
    heard = len(facts)
    held = registry.disown(channel, 5.0)
    assert (registry.live("c"), registry.channels["c"], registry.capacities.channels.used) == (None, held, 0)
    assert [(one.epoch, one.at) for one in ends] == [(1, 5.0)]
    assert len(facts) == heard, "the other server tells those who follow it"
    assert (held.segments[1], held.reading.used, held.next_seq) == (found.segment, 1, 1)
    heir = registry.adopt(held, 6.0)
    check_registry(registry)
    publish(registry, "c", 1)
    assert (heir.epoch, found.segment.closed, registry.capacities.channels.used) == (1, True, 1)
    registry.detach(reader, heir, found.segment)
    mine = registry.adopt(registry.replicate("_own", 1, 6.0), 6.0)
    registry.disown(mine, 7.0)
    assert registry.capacities.channels.used == 1, "the server's own never count"


def test_only_a_channel_whose_segments_are_whole_moves_with_its_readers() -> None:
    """Not one to which somebody writes, or that has ended, or that another server owns."""
    registry, _ = make_registry()
    publish(registry, "ended", 0)
    ended = owned(registry, "ended")
    registry.end("ended", 0.0)
    writer = grant(registry, "c", 0)
    for channel in (ended, writer.channel):
        with pytest.raises(LocalProtocolError, match="no channel of this server that may move"):
            registry.disown(channel, 0.0)
    writer.channel.append(writer, [b"x"], 0.0)
    writer.channel.abort(writer, 0.0)
    with pytest.raises(LocalProtocolError, match="no channel of this server that may move"):
        registry.disown(writer.channel, 0.0)
    registry.close_segment("c", 0, 0.0)
    registry.disown(writer.channel, 0.0)
    with pytest.raises(LocalProtocolError, match="no channel of this server that may move"):
        registry.disown(writer.channel, 0.0)


def test_a_held_channel_is_adopted() -> None:
    """It goes on in its epoch, counts and is stored here, and the server hears of it."""
    disk = Disk({"c": 2})
    registry, facts = make_registry(storage=disk, channels=1, channel_drain_s=0.0, idle_timeout_s=50.0)
    publish(registry, "c", 0)
    registry.end("c", 0.0)
    index = registry.journal.index
    held = registry.replicate("c", 5, 0.0)
    held.apply(ChannelCreated(0, 1, 3.0, "c", 5, "video/mp4", "a.5"))
    held.apply(BodyBegun(0, 2, 4.0, "c", 5, 0, None, 0))
    heir = registry.adopt(held, 10.0)
    check_registry(registry)
    assert (registry.live("c"), heir.epoch, heir.content_type, heir.life) == (heir, 5, "video/mp4", Life("a.5"))
    assert facts[-2:] == [
        ChannelCreated(index + 1, 3, 3.0, "c", 5, "video/mp4", "a.5"),
        BodyLeft(0, 4, 10.0, "c", 5, 0),
    ]
    assert disk.begun == [("c", 3), ("c", 5)]
    assert isinstance(heir.retained, Shelf)
    registry.expire(53.0)
    assert registry.live("c") is None, "it is idle from now on as any other"
    publish(registry, "c", 0, now=53.0)
    assert owned(registry, "c").epoch == 6


def test_a_channel_of_the_servers_own_is_adopted_beside_the_others() -> None:
    """It takes no channel's place, and is not stored."""
    registry, _ = make_registry(storage=Disk(), channels=1)
    registry.adopt(registry.replicate("_own", 1, 0.0), 0.0)
    check_registry(registry)
    assert (registry.capacities.channels.used, registry.channels["_own"].retained) == (0, None)


def test_only_a_channel_of_another_server_that_goes_on_is_adopted() -> None:
    """Not one that is owned here, has ended, or was let go."""
    registry, _ = make_registry()
    publish(registry, "mine", 0)
    ended, gone = registry.replicate("ended", 1, 0.0), registry.replicate("gone", 1, 0.0)
    ended.abandon(0.0)
    registry.let_go(gone)
    for channel in (registry.channels["mine"], ended, gone):
        with pytest.raises(LocalProtocolError, match="no channel of another server that goes on here"):
            registry.adopt(channel, 0.0)


def test_memory_is_given_to_other_workers() -> None:
    """The oldest segments go, and what fails meanwhile is told at the end."""
    registry, _ = make_registry()
    for seq in range(3):
        publish(registry, "c", seq)
    told: list[object] = []
    registry.faults.deliver_to(lambda victim, error: told.append(victim))
    registry.faults.note("a listener", ValueError())
    registry.give(1, asks=0, short=False)
    assert len(owned(registry, "c").window) == 2
    assert len(told) == 1


# Copies of another server's channels, and names that are read-only.


def test_a_copy_whose_owner_was_away_since_a_restart_is_promoted() -> None:
    """Nobody knows its numbering any more: it has the name of this start of the server."""
    registry = Registry(Limits(), autocreate=True, instance="now", storage=CopyDisk())
    restored = registry.restore(Restored("c", 3, "", 2, 1.0, copied=True), 100.0)
    assert isinstance(restored, Copy)
    restored.life = Life("")
    assert registry.promote(restored, 1.0).life == Life("now.4")


def test_a_copy_goes_on_under_a_name_of_this_server() -> None:
    """Its owner may go on, too, where it was: publishers that name no numbering must not give two of them one name."""
    registry = Registry(Limits(), autocreate=True, instance="now")
    restored = registry.restore(Restored("c", 3, "", 2, 1.0, lives=(("a", 0),), copied=True), 100.0)
    assert isinstance(restored, Copy)
    owned = registry.promote(restored, 1.0)
    assert owned.life == Life("a")
    publish(registry, "c", 2)
    assert (owned.life, owned.lives) == (Life("now.4", 2), (("a", 0), ("now.4", 2)))


def test_a_copy_of_which_nothing_has_come_is_promoted() -> None:
    """Storage has never heard of it, and hears of it now."""
    disk = CopyDisk()
    bench = CopyBench(disk=disk)
    bench.registry.promote(bench.copy, 0.0)
    assert (disk.begun, disk.promoted) == ([("c", 4)], [])
    with pytest.raises(LocalProtocolError, match="no copy that can be promoted"):
        bench.registry.promote(bench.copy, 1.0)


def test_an_ended_channel_is_forgotten_at_once() -> None:
    """With its epoch: the name begins anew. One that lives stays."""
    bench = CopyBench()
    bench.registry.forget("c")
    assert bench.registry.last_epoch("c") == 3
    for _ in range(2):
        bench.registry.end_copy(bench.copy, 0.0, EndReason.MOVED)
    bench.registry.forget("c")
    assert (bench.registry.last_epoch("c"), bench.registry.capacities.channels.used) == (0, 0)


def test_names_may_be_read_only() -> None:
    """All that would change them is refused with the reason; other names and the server's own are not."""
    registry = Registry(Limits(), autocreate=True)
    publish(registry, "mine", 0)
    registry.read_only = lambda name: "not here" if name in ("mine", "new", "_own") else ""
    answers = [
        registry.create("mine", "", 0.0),
        registry.create("new", "", 0.0, force=True),
        registry.reserve("mine", 1, Told(), 0.0),
        registry.end("mine", 0.0),
        registry.close_segment("mine", 0, 0.0),
    ]
    assert [(refusal(one).why, refusal(one).detail) for one in answers] == [(Cause.MIRROR, "not here")] * 5
    assert (refusal(answers[0]).head, refusal(answers[0]).epoch, refusal(answers[1]).epoch) == (1, 1, 0)
    registry.create("_own", "", 0.0, force=True)
    publish(registry, "other", 0)
    assert registry.close_segment("other", 0, 0.0) is None
    assert registry.end("other", 0.0) is None
    assert registry.end("mine", 0.0, force=True) is None
