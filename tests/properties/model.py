"""A registry, the publishers and readers around it, and an oracle that remembers what was published.

The oracle computes everything a second time, in the plainest way, from what the publishers were told: which bytes
were accepted for which segment, where the head is, which epoch of a name is the live one. :meth:`World.check`
compares. It shares no code with the core except the names of its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count, pairwise

from tests.app.core.support import check_registry, owned, picture
from tests.properties.room import Holder, Room
from tests.properties.twin import Twins
from tricklecast.app.core.facts import (
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    Journal,
    SegmentClosed,
    SegmentEvicted,
    SegmentOpened,
)
from tricklecast.app.core.limits import Limit, Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ahead, AlreadyStored, Cause, Ended, Ending, Gone, Outcome, Refusal
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Segment, State, Writer
from tricklecast.app.core.state import Channel, Ready, Upcoming
from tricklecast.app.core.window import Eviction


def stored_bytes(segment: Segment) -> bytes:
    """What a segment holds, decoded."""
    return b"".join(segment.payload())


def memory(frames: Sequence[int]) -> int:
    """What a segment with frames of these sizes takes: 832 bytes, and 72 beside each frame."""
    return 832 + sum(72 + size for size in frames)


def _cost(segment: Segment) -> int:
    return memory([len(frame) for frame in segment.frames])


class Injected(Exception):
    """What a faulty cursor, or a faulty owner of a writer, raises."""


class Epoch:
    """What the oracle knows of one epoch of one name.

    Attributes:
        head: one past the newest segment that was started or closed, as its publishers saw it.
        started: the same, as the journal tells it, skipped segments aside.
        published: accepted bytes by seq, in the order of their acceptance.
        bodies: by seq, the bodies that published them: who wrote (key), and how many bytes lay before.
        closed: seqs that the journal reported closed.
        active_at: when something was last published; drain_until: set once the channel has ended.
    """

    def __init__(self, name: str, number: int, content_type: str, now: float) -> None:
        self.name = name
        self.number = number
        self.content_type = content_type
        self.head = 0
        self.started = 0
        self.published: dict[int, bytes] = {}
        self.bodies: dict[int, list[tuple[str | None, int]]] = {}
        self.closed: set[int] = set()
        self.active_at = now
        self.drain_until: float | None = None

    def advance(self, seq: int) -> None:
        self.head = max(self.head, seq + 1)


@dataclass(eq=False, slots=True)
class Post:
    """A publisher's exchange.

    Attributes:
        key: of its body, if it has one; all bodies with one key and seq in one epoch are the same, byte by byte.
        attempt: which attempt at that body.
        given: bytes of it that were given to the core.
        faulty: called before it raises; ``None`` if it does not.
        answer: what the core returned to end it.
        told: what it was told because somebody else ended it.
    """

    key: str | None = None
    attempt: int = 1
    given: int = 0
    writer: Writer[OwnedChannel] | None = None
    epoch: Epoch | None = None
    answer: Outcome | None = None
    told: Outcome | None = None
    faulty: Callable[[object], None] | None = None

    def preempted(self, outcome: Outcome) -> None:
        assert self.told is None, "a writer is told once"
        assert self.answer is None, "a writer that has its answer is told nothing more"
        self.told = outcome
        if self.faulty is not None:
            self.faulty(self)
            raise Injected


class Reader:
    """A cursor that pulls like a real one: at each wake, unless its socket is full (``paused``).

    Args:
        leave: called to detach it: from within the wake that shows it the end if it ``leaves`` then, or when its
            segment's memory is needed.
        faulty: called before it raises; ``None`` if it does not.
    """

    def __init__(
        self,
        epoch: Epoch,
        channel: Channel,
        segment: Segment,
        leave: Callable[[Reader], None],
        *,
        leaves: bool,
        faulty: Callable[[object], None] | None = None,
    ) -> None:
        self.epoch = epoch
        self.channel = channel
        self.segment = segment
        self.frames_read = 0
        self.received = b""
        self.paused = False
        self.saw_close = segment.closed
        self._leave = leave
        self._leaves = leaves
        self.faulty = faulty
        self.pull()

    def wake(self) -> None:
        assert not self.saw_close, "nobody is woken after the end"
        if self.faulty is not None:
            self.faulty(self)
            raise Injected
        self.saw_close = self.segment.closed
        if not self.paused:
            self.pull()
        if self.saw_close and self._leaves:
            self._leave(self)

    def evict(self) -> None:
        assert self.segment.closed, "what is being written is never evicted"
        assert self.channel.segments.get(self.segment.seq) is not self.segment, "nor are readers of what is kept"
        self._leave(self)
        if self.faulty is not None:
            self.faulty(self)
            raise Injected

    def pull(self) -> None:
        self.received += b"".join(self.segment.payload(self.frames_read))
        self.frames_read = len(self.segment.frames)


class Crowd:
    """Those who share one limit, counted in the plainest way.

    Attributes:
        open: whether somebody new may come: from four fifths of the limit on not, until it is less than three fifths.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.count = 0
        self.open = True

    def change(self, by: int) -> None:
        self.count += by
        if self.limit is not None and 5 * self.count >= 4 * self.limit:
            self.open = False
        if self.limit is None or 5 * self.count < 3 * self.limit:
            self.open = True

    def refuses(self, *, join: bool) -> bool:
        return self.count == self.limit or (join and not self.open)


class World:
    """The system under test and its oracle, driven by small actions.

    Args:
        limits: of the registry.
        autocreate: of the registry.
        leave_out: a kind of fact that second holders of the channels are not told.
    """

    def __init__(self, limits: Limits, *, autocreate: bool, leave_out: type[Fact] | None = None) -> None:
        self.limits = limits
        self.now = 1000.0
        journal = Journal()
        journal.subscribe(self._follow, ChannelCreated)
        self.twins = Twins(leave_out)
        self.twins.registry = self.registry = Registry(limits, autocreate=autocreate, journal=journal)
        self.registry.faults.deliver_to(self._note_fault)
        self.posts: list[Post] = []
        self.readers: list[Reader] = []
        self.departed: list[Reader] = []
        self.crowd = Crowd(limits.readers)
        self.crowds: dict[Channel, Crowd] = {}
        self.epochs: dict[tuple[str, int], Epoch] = {}
        self.newest: dict[str, Epoch] = {}
        self.raised: list[object] = []
        self.faults: list[object] = []
        self.facts = 0
        self.closings = 0
        self._expiring = False
        self._bytes = count()

    def head(self, name: str) -> int:
        """The head of the newest epoch of a name, 0 if it never lived."""
        return self.newest[name].head if name in self.newest else 0

    def live(self, name: str) -> Epoch | None:
        """The epoch of a name that has not ended."""
        epoch = self.newest.get(name)
        return None if epoch is None or epoch.drain_until is not None else epoch

    # What publishers do.

    def create(self, name: str, content_type: str, *, force: bool) -> None:
        before = self._picture()
        found = self.registry.create(name, content_type, self.now, force=force)
        if isinstance(found, Refusal):
            assert self._picture() == before, "a refused creation changes nothing"
            self._check_refusal(name, found, force=force)
            return
        epoch = self._expect_live(name)
        assert found.epoch == epoch.number, "creating finds the live channel"
        epoch.content_type = epoch.content_type or content_type

    def reserve(
        self,
        name: str,
        seq: int,
        *,
        content_type: str,
        reset: bool,
        key: str | None,
        attempt: int = 1,
        faulty: bool = False,
    ) -> None:
        before, valid, post = self._picture(), self._valid_posts(), Post(key, attempt)
        post.faulty = self.raised.append if faulty else None
        existing = set(self.registry.channels[name].segments) if name in self.registry.channels else set()
        drained = name in self.newest and self.live(name) is None and name in self.registry.channels
        answer = self.registry.reserve(
            name, seq, post, self.now, content_type=content_type, reset=reset, key=key, attempt=attempt
        )
        match answer:
            case Writer():
                assert not drained or seq == 0 or reset, "a latecomer resurrects nothing"
                epoch = self._expect_live(name)
                epoch.content_type = epoch.content_type or content_type
                self._granted(post, answer, seq, valid, anywhere=reset or answer.segment.seq in existing)
                if reset:
                    opened = [s.seq for s in self.registry.channels[name].unclosed if s.state is State.OPEN]
                    assert all(seq >= answer.segment.seq for seq in opened), "a reset closes what is open below it"
            case AlreadyStored(seq=stored):
                segment = self.registry.channels[name].segments[stored]
                assert self._picture() == before, "a retry of what is stored changes nothing"
                assert key is not None
                assert segment.state in (State.COMPLETE, State.EMPTY)
                assert self.newest[name].bodies[segment.seq][-1][0] == key, "only its last body ended a segment"
            case Refusal():
                assert self._picture() == before, "a refused reservation changes nothing"
                if answer.why is Cause.CLOSED and answer.seq in self._unclosed(name):
                    self._check_conflict(name, answer.seq, post, valid)
                else:
                    self._check_refusal(name, answer, reset=reset)

    def preconnect_many(self, name: str, n: int, *, waiting: bool) -> list[Post]:
        """Reserve so many free seqs, and have a reader wait for each; as many as the limits allow."""
        posts: list[Post] = []
        live = self.live(name)
        taken = {_granted_to(post)[0].segment.seq for post in self._valid_posts() if post.epoch is live}
        for _ in range(n):
            post = Post()
            writer = self.registry.reserve(name, -1, post, self.now)
            if not isinstance(writer, Writer):
                break
            epoch, segment = self._expect_live(name), writer.segment
            free = next(seq for seq in count(epoch.head) if seq not in taken)
            assert segment.seq == free, "a publisher that names no seq gets the first free one"
            taken.add(free)
            post.writer, post.epoch = writer, epoch
            epoch.bodies[segment.seq] = [(None, 0)]
            posts.append(post)
            self.posts.append(post)
            if waiting and not self._refused_readers(name, join=False):
                resolution = self.registry.resolve(name, segment.seq)
                assert isinstance(resolution, Upcoming)
                assert resolution.segment is segment
                self._attach(epoch, resolution.channel, segment, leaves=True)
        return posts

    def _unclosed(self, name: str) -> set[int]:
        return {segment.seq for segment in self.registry.channels[name].unclosed}

    def _check_conflict(self, name: str, seq: int, post: Post, valid: Sequence[Post]) -> None:
        """A body is kept out of an unclosed segment only where it would be doubled, or was overtaken."""
        assert post.key is not None
        bodies = self.newest[name].bodies.get(seq, [])
        rivals = [
            other for other in valid if other.epoch is self.live(name) and _granted_to(other)[0].segment.seq == seq
        ]
        overtaken = any(rival.key == post.key and rival.attempt > post.attempt for rival in rivals)
        crowded = len({key for key, _ in bodies}) > 2
        assert overtaken or crowded or post.key in [key for key, _ in bodies[:-1]]

    def reserve_own(self, name: str, seq: int) -> None:
        """The server writes to a channel of its own, whose name nobody else may write to."""
        channel = self.registry.live(name)
        if channel is not None:
            valid, post = self._valid_posts(), Post()
            answer = channel.reserve(seq, post, len(self.posts), self.now)
            if isinstance(answer, Writer):
                self._granted(post, answer, seq, valid, anywhere=True)

    def _granted(
        self, post: Post, writer: Writer[OwnedChannel], seq: int, valid: Sequence[Post], *, anywhere: bool
    ) -> None:
        epoch = self._expect_live(writer.channel.name)
        got = writer.segment.seq
        assert writer.channel.epoch == epoch.number, "only the live epoch is written to"
        assert got == seq or (seq == -1 and got >= epoch.head), "a publisher gets the seq that it asked for"
        assert got not in epoch.closed, "nothing leaves `closed`"
        assert got <= epoch.head + 1 or epoch.head == 0 or anywhere, "nobody publishes far ahead"
        size = len(epoch.published.get(got, b""))
        bodies = [body for body in epoch.bodies.get(got, []) if body[1] < size or body[0] == post.key]
        same = post.key is not None and bodies and bodies[-1][0] == post.key
        assert same or post.key is None or post.key not in dict(bodies), "no body comes back behind another one"
        epoch.bodies[got] = bodies if same else [*bodies, (post.key, size)]
        assert writer.repeated == size - epoch.bodies[got][-1][1], "a body is passed over as far as it is there"
        for other in valid:
            if other.told is not None and other.told.ending is Ending.SUPERSEDED:
                assert seq != -1, "-1 never takes a segment over"
                assert other.writer is not None
                assert other.writer.segment is writer.segment, "only the same segment is taken over"
        for other in valid:
            if other.told is not None and other.told.ending is Ending.SUPERSEDED and other.key is not None:
                assert other.key != post.key or other.attempt <= post.attempt, "no attempt overtakes a later one"
        post.writer, post.epoch = writer, epoch
        self.posts.append(post)

    def _check_refusal(self, name: str, refusal: Refusal, *, reset: bool = False, force: bool = False) -> None:
        epoch = self.live(name)
        match refusal.why:
            case Cause.ENDED:
                assert epoch is None
                assert name in self.registry.channels
                assert not reset
            case Cause.AHEAD:
                assert epoch is not None
                assert refusal.seq is not None
                assert refusal.seq > epoch.head + 1 > 1
                near = refusal.seq <= epoch.head + self.limits.overtaking_segments
                assert refusal.overtaking == near, "only what is close to the head may have overtaken others"
                assert not reset
            case Cause.CLOSED:
                assert epoch is not None
                assert refusal.seq is not None
                assert refusal.seq < epoch.head, "what is at or past the head is not closed"
            case Cause.NOT_FOUND:
                assert epoch is None
                assert not self.registry.autocreate
                assert not force
            case Cause.LIMIT if refusal.limit is Limit.PUBLISHERS:
                assert self.limits.publishers is not None
                posts = [post for post in self._valid_posts() if not _granted_to(post)[1].name.startswith("_")]
                joining = epoch is None and 5 * len(posts) >= 3 * self.limits.publishers
                assert joining or len(posts) == self.limits.publishers
            case Cause.LIMIT:
                assert (epoch, refusal.limit) == (None, Limit.CHANNELS)
                assert 5 * len(self.registry.channels) >= 3 * self.limits.channels
            case Cause.RESERVED:
                assert name.startswith("_")
                assert not force
            case Cause.SHUTDOWN:
                assert self.registry.shutting_down
            case Cause.NO_SEGMENT:
                raise AssertionError("creating and reserving never ask for an existing segment")

    def append(self, post: Post, sizes: Sequence[int]) -> None:
        writer, epoch = _granted_to(post)
        chunks, before, stale = self._chunks(post, sizes), self._picture(), writer.outcome
        room, closings = self._room(), self.closings
        fits = room.take(str(writer.channel.window.number), self._price(writer, chunks))
        new = b"".join(chunks)[writer.repeated :]
        outcome = writer.channel.append(writer, chunks, self.now)
        if stale is not None:
            self._check_stale(stale, outcome, before)
            return
        post.answer = outcome
        self._accepted(epoch, writer, new, outcome, fits=fits)
        if self.closings == closings:
            windows = {number: holder.window for number, holder in room.holders.items()}
            kept = {number: holder.window for number, holder in self._room().holders.items()}
            assert all(kept.get(number, []) == window for number, window in windows.items()), (
                "who holds most makes room, and no more than is needed"
            )

    def finish(self, post: Post, sizes: Sequence[int]) -> None:
        writer, epoch = _granted_to(post)
        chunks, before, stale = self._chunks(post, sizes), self._picture(), writer.outcome
        fits = self._room().take(str(writer.channel.window.number), self._price(writer, chunks))
        new, short = b"".join(chunks)[writer.repeated :], writer.repeated > sum(sizes)
        outcome = writer.channel.finish(writer, chunks, self.now)
        if stale is not None:
            self._check_stale(stale, outcome, before)
            return
        assert isinstance(outcome, Outcome), "the end of a body is answered"
        post.answer = outcome
        self._accepted(epoch, writer, new, outcome, fits=fits)
        assert short == (outcome.ending is Ending.NOT_THE_SAME), "a body that ends too early ends nothing"
        if outcome.ending in (Ending.COMPLETE, Ending.EMPTY):
            assert (outcome.ending is Ending.COMPLETE) == (outcome.size > 0)
            assert writer.segment.seq in epoch.closed, "an ended body closes its segment"
            epoch.advance(writer.segment.seq)

    def abort(self, post: Post, *, bulk: bool = False) -> None:
        """A publisher's connection breaks; of one among many (``bulk``) the rest of the world is not compared."""
        writer, _ = _granted_to(post)
        before, stale = None if bulk else self._picture(), writer.outcome
        writer.channel.abort(writer, self.now)
        if stale is not None:
            self._check_stale(stale, writer.outcome, before)
            return
        post.answer = writer.outcome
        assert post.answer is not None
        assert post.answer.ending is Ending.ABORTED

    def _check_stale(self, stale: Outcome, outcome: Outcome | None, before: object) -> None:
        assert outcome == stale, "a stale token is answered as it was"
        assert self._picture() == before, "a stale token changes nothing"

    def _accepted(
        self, epoch: Epoch, writer: Writer[OwnedChannel], data: bytes, outcome: Outcome | None, *, fits: bool
    ) -> None:
        """Note what must now be readable."""
        seq = writer.segment.seq
        stored = epoch.published.get(seq, b"")
        room = self.limits.segment_bytes - len(stored)
        refused = outcome is not None and outcome.ending is Ending.OVER_BUDGET
        assert refused != fits, "bytes are refused just where eviction cannot make room"
        if not refused:
            too_large = outcome is not None and outcome.ending is Ending.TOO_LARGE
            assert (len(data) > room) == too_large, "a segment holds its limit and no more"
            epoch.published[seq] = stored + data[:room]
            epoch.active_at = self.now
            if data[:room]:
                epoch.advance(seq)
        assert outcome is None or outcome.size == len(epoch.published.get(seq, b"")), "the answer counts what is stored"

    def _room(self) -> Room:
        """What is held now, as the oracle counts it; the oldest window first."""
        holders: dict[int, Holder] = {}
        for channel in self.registry.channels.values():
            holder = holders[channel.window.number] = Holder()
            holder.window = [_cost(segment) for _, segment in sorted(channel.segments.items()) if segment.closed]
            holder.open = [_cost(segment) for segment in channel.unclosed if segment.state is State.OPEN]
        for segment, window in self.registry.budget.lingering.items():
            holders.setdefault(window.number, Holder()).lingering.append(_cost(segment))
        return Room(self.limits.total_bytes, {str(number): holder for number, holder in sorted(holders.items())})

    def _price(self, writer: Writer[OwnedChannel], chunks: Sequence[bytes]) -> int:
        """What storing these chunks takes, as far as they are new and their segment may hold them."""
        room = self.limits.segment_bytes - writer.segment.size
        new, passed = [], writer.repeated
        for chunk in chunks:
            rest, passed = chunk[passed:], max(0, passed - len(chunk))
            if rest[:room]:
                new.append(rest[:room])
            room -= len(rest[:room])
        if not new:
            return 0
        frame = sum(len(f"{len(chunk):x}") + len(chunk) + 4 for chunk in new)
        first = writer.segment.state is State.WAITING
        return memory([frame]) if first else memory([frame]) - memory([])

    def close_segment(self, name: str, seq: int) -> None:
        before, epoch = self._picture(), self.live(name)
        unclosed = epoch is not None and any(s.seq == seq for s in self.registry.channels[name].unclosed)
        refusal = self.registry.close_segment(name, seq, self.now)
        if epoch is None or refusal is not None or not unclosed:
            assert self._picture() == before, "closing what is not there, or is closed, changes nothing"
            assert not unclosed or name.startswith("_")
        else:
            assert seq in epoch.closed
            epoch.advance(seq)
            epoch.bodies[seq] = [*epoch.bodies.get(seq, []), (None, 0)]

    def end(self, name: str, *, force: bool) -> None:
        before, epoch = self._picture(), self.live(name)
        if self.registry.end(name, self.now, force=force) is not None:
            assert self._picture() == before, "a refused end changes nothing"
            assert epoch is None or name.startswith("_")
        else:
            assert epoch is not None
            assert epoch.drain_until is not None, "the end of a channel is a fact"

    def mark_playlist(self, name: str, mark: str) -> None:
        """A packager marks the channel; one that has ended stays as it is."""
        channel = self.registry.channels.get(name)
        if isinstance(channel, OwnedChannel):
            before = channel.playlist
            channel.mark_playlist(mark, self.now)
            assert channel.playlist == (before if channel.ended else mark)

    # What readers do.

    def read(self, name: str, seq: int, *, attach: bool, leaves: bool, faulty: bool = False) -> None:
        before = self._picture()
        existing = set(self.registry.channels[name].segments) if name in self.registry.channels else set()
        resolution = self.registry.resolve(name, seq)
        if not isinstance(resolution, Ready | Upcoming):
            assert self._picture() == before, "a read that finds nothing changes nothing"
        if isinstance(resolution, Refusal):
            full, down = self._refused_readers(name, join=seq < 0), self.registry.shutting_down
            absent = name not in self.registry.channels
            assert {Cause.LIMIT: full, Cause.SHUTDOWN: down, Cause.NOT_FOUND: absent}[resolution.why]
            return
        assert not self._refused_readers(name, join=seq < 0), "limits of readers hold"
        epoch, channel = self.newest[name], self.registry.channels[name]
        if isinstance(resolution, Ready | Upcoming):
            assert resolution.channel is channel, "a name means its newest epoch"
        assert (channel.name, channel.epoch) == (name, epoch.number), "a name means its newest epoch"
        assert resolution.head == epoch.head, "a reader is told the head"
        found = resolution.segment.seq if isinstance(resolution, Ready | Upcoming) else resolution.seq
        assert found == self._absolute(seq, epoch.head, channel), "seqs are counted from the head"
        match resolution:
            case Ahead() | Gone():
                assert found > epoch.head if isinstance(resolution, Ahead) else found < epoch.head
                assert found not in existing
            case Ended():
                assert found >= epoch.head
                assert epoch.drain_until is not None
            case Upcoming(segment=segment):
                assert epoch.drain_until is None, "nobody waits on an ended channel"
                assert found in existing or found == epoch.head or (epoch.head, found) == (0, 1)
                if attach:
                    self._attach(epoch, channel, segment, leaves=leaves, faulty=faulty)
                else:
                    self._decline(channel, segment)
            case Ready(segment=segment):
                self._attach(epoch, channel, segment, leaves=leaves, faulty=faulty)

    def _refused_readers(self, name: str, *, join: bool) -> bool:
        crowds = [self.crowd, self._crowd(self.registry.channels[name])] if name in self.registry.channels else []
        return any(crowd.refuses(join=join) for crowd in crowds)

    def _crowd(self, channel: Channel) -> Crowd:
        return self.crowds.setdefault(channel, Crowd(self.limits.readers_per_channel))

    def _count_reader(self, channel: Channel, by: int) -> None:
        self.crowd.change(by)
        self._crowd(channel).change(by)

    def _absolute(self, seq: int, head: int, channel: Channel) -> int:
        started = [segment.seq for segment in channel.segments.values() if segment.state is not State.WAITING]
        match seq:
            case -1:
                return head
            case -2:
                return max(head - 1, 0)
            case _:
                return seq if seq >= 0 else max(head + seq + 1, min([head, *started]))

    def _decline(self, channel: Channel, segment: Segment) -> None:
        for _ in range(2):  # a second time must do no harm
            channel.release(segment)

    def _attach(self, epoch: Epoch, channel: Channel, segment: Segment, *, leaves: bool, faulty: bool = False) -> None:
        note = self.raised.append if faulty else None
        reader = Reader(epoch, channel, segment, self._leave, leaves=leaves, faulty=note)
        self._count_reader(channel, 1)
        self.registry.attach(reader, channel, segment)
        self.readers.append(reader)

    def _leave(self, reader: Reader) -> None:
        reader.pull()
        self.readers.remove(reader)
        self.departed.append(reader)
        self._count_reader(reader.channel, -1)
        self.registry.detach(reader, reader.channel, reader.segment)

    def detach(self, reader: Reader) -> None:
        self.readers.remove(reader)
        self._count_reader(reader.channel, -1)
        self.registry.detach(reader, reader.channel, reader.segment)
        assert reader not in reader.segment.cursors, "who is detached is forgotten"

    def pause(self, reader: Reader) -> None:
        reader.paused = not reader.paused
        if not reader.paused:
            reader.pull()

    # Time.

    def pass_time(self, seconds: float, *, expire: bool) -> None:
        self.now += seconds
        if expire:
            self._expiring = True
            self.registry.expire(self.now)
            self._expiring = False
            self._check_nothing_due()

    def _check_nothing_due(self) -> None:
        next_deadline = self.registry.next_deadline()
        assert next_deadline is None or next_deadline > self.now, "what is due is done"
        for name, channel in self.registry.channels.items():
            epoch = self.newest[name]
            for segment in channel.unclosed:
                deadline = owned(self.registry, name).deadline(segment)
                assert deadline is None or deadline > self.now, "no grace is overrun"
            if epoch.drain_until is not None:
                assert epoch.drain_until > self.now, "a drain ends"
            elif not name.startswith("_"):
                assert epoch.active_at + self.limits.idle_timeout_s > self.now, "an idle channel ends"

    # The oracle.

    def check(self) -> None:
        """Compare the registry with the oracle; readers that raised are detached, as a server would do."""
        assert self.faults == self.raised, "every fault is handed over, in the order in which they arose"
        for victim in dict.fromkeys(self.faults):
            if isinstance(victim, Reader) and victim in self.readers:
                self.detach(victim)
        self.faults.clear()
        self.raised.clear()
        self.twins.check()
        check_registry(self.registry)
        for name, channel in self.registry.channels.items():
            self._check_channel(self.newest[name], channel)
        for epoch in self.newest.values():
            kept = self.registry.channels.get(epoch.name)
            over = epoch.drain_until is not None and epoch.drain_until <= self.now
            assert over or kept is not None, "a channel, and its drain, are not cut short"
        for post in self.posts:
            self._check_post(post)
        for reader in self.readers:
            self._check_reader(reader)
        for reader in self.departed:
            assert reader.received == reader.epoch.published.get(reader.segment.seq, b""), "no byte is lost"
        self.departed.clear()
        assert self.registry.readers == len(self.readers)
        kept_now = {segment for channel in self.registry.channels.values() for segment in channel.segments.values()}
        read = {reader.segment for reader in self.readers if reader.segment.size}
        assert read - kept_now == set(self.registry.budget.lingering) & read, "what is read is in memory, and counted"

    def _check_channel(self, epoch: Epoch, channel: Channel) -> None:
        assert channel.epoch == epoch.number, "a name means its newest epoch"
        assert channel.next_seq == epoch.head, "the head is one past the newest started segment"
        assert channel.content_type == epoch.content_type, "a content type is set once"
        assert channel.ended == (epoch.drain_until is not None)
        newest_is_kept = not epoch.closed or max(epoch.closed) in channel.segments
        assert newest_is_kept or channel.window.evicted[Eviction.BUDGET], "the newest closed segment is kept"
        for seq, segment in channel.segments.items():
            assert segment.closed == (seq in epoch.closed), "closing is a fact"
            assert stored_bytes(segment) == epoch.published.get(seq, b""), "what was accepted is what is stored"

    def _check_post(self, post: Post) -> None:
        writer, epoch = _granted_to(post)
        assert (post.answer is not None) + (post.told is not None) == (writer.outcome is not None), "told exactly once"
        if writer.outcome is None:
            assert epoch is self.live(epoch.name), "a valid writer writes to the live epoch"
            channel = self.registry.channels[epoch.name]
            assert channel is writer.channel
            assert channel.segments.get(writer.segment.seq) is writer.segment
            assert writer.segment.writer is writer

    def _check_reader(self, reader: Reader) -> None:
        segment, epoch = reader.segment, reader.epoch
        assert reader.saw_close == segment.closed, "every reader hears of the end"
        published = epoch.published.get(segment.seq, b"")
        assert published.startswith(reader.received), "no byte is doubled or reordered"
        assert reader.paused or reader.received == published, "no byte is lost, and none is late"
        if not segment.closed:
            assert epoch is self.live(epoch.name), "no reader waits on an ended channel"
            assert reader.channel.segments.get(segment.seq) is segment, "no reader waits on a forgotten segment"
            overtaken = segment.state is State.WAITING and segment.seq < epoch.head
            assert not overtaken or owned(self.registry, epoch.name).deadline(segment) is not None, (
                "no reader waits for long on a dead segment"
            )

    def _note_fault(self, victim: object, error: Exception) -> None:
        if not isinstance(error, Injected):
            raise error  # of an assertion in the oracle
        self.faults.append(victim)

    def _follow(self, fact: Fact) -> None:
        for listener in (self._hear, self.twins.hear):
            self.registry.channels[fact.channel].follow(listener)

    def _hear(self, fact: Fact) -> None:
        self.facts += fact.indexed
        assert fact.index == (self.facts if fact.indexed else 0), "the journal has no gaps"
        if isinstance(fact, ChannelCreated):
            self._hear_created(fact)
            return
        epoch = self.epochs[fact.channel, fact.epoch]
        assert epoch.drain_until is None or isinstance(fact, SegmentEvicted), "an ended channel only loses segments"
        match fact:
            case ChannelEnded(next_seq=next_seq, reason=reason):
                epoch.drain_until = self.now + self.limits.channel_drain_s
                assert next_seq == epoch.head
                idle = epoch.active_at + self.limits.idle_timeout_s <= self.now and not epoch.name.startswith("_")
                assert (idle and self._expiring) if reason is EndReason.IDLE else not self._expiring
            case SegmentOpened(seq=seq):
                assert seq not in epoch.closed, "nothing leaves `closed`"
                epoch.started = max(epoch.started, seq + 1)
            case SegmentClosed(seq=seq, state=state):
                self.closings += 1
                assert seq not in epoch.closed, "a segment closes once"
                epoch.closed.add(seq)
                if state is not State.SKIPPED:
                    epoch.started = max(epoch.started, seq + 1)
                elif seq >= epoch.started:
                    # The one way in which time alone moves the head.
                    assert self._expiring, "only what was overtaken is skipped"
                    assert self.limits.first_byte_timeout_s is not None
                    epoch.advance(seq)

    def _hear_created(self, fact: ChannelCreated) -> None:
        before = self.newest.get(fact.channel)
        assert before is None or before.drain_until is not None, "a name has one live epoch"
        draining = before is not None and before.drain_until is not None and before.drain_until > self.now
        follows = before is not None and fact.epoch == before.number + 1
        assert follows or (fact.epoch == 1 and not draining), "epochs count up while a name is remembered"
        epoch = Epoch(fact.channel, fact.epoch, fact.content_type, self.now)
        self.epochs[fact.channel, fact.epoch] = self.newest[fact.channel] = epoch

    def _expect_live(self, name: str) -> Epoch:
        epoch = self.live(name)
        assert epoch is not None, f"{name} was created"
        return epoch

    def _valid_posts(self) -> list[Post]:
        return [post for post in self.posts if post.answer is None and post.told is None]

    def _chunks(self, post: Post, sizes: Sequence[int]) -> list[bytes]:
        """Chunks whose bytes tell their place: one that is lost, doubled or moved shows."""
        if post.key is None:
            return [bytes(next(self._bytes) % 251 for _ in range(size)) for size in sizes]
        body = bytes((sum(post.key.encode()) + at) % 251 for at in range(post.given + sum(sizes)))[post.given :]
        post.given += sum(sizes)
        ends = list(accumulate(sizes, initial=0))
        return [body[start:end] for start, end in pairwise(ends)]

    def _picture(self) -> object:
        """All that a refused request must leave as it was."""
        return picture(self.registry), [
            (
                channel.floor,
                [(_segment_picture(segment), channel.deadline(segment)) for segment in channel.segments.values()],
            )
            for channel in map(partial(owned, self.registry), self.registry.channels)
        ]


def _segment_picture(segment: Segment) -> object:
    return (
        segment.seq,
        segment.state,
        segment.size,
        segment.key,
        segment.body_at,
        segment.former_keys,
        segment.writer and segment.writer.serial,
        len(segment.cursors),
    )


def _granted_to(post: Post) -> tuple[Writer[OwnedChannel], Epoch]:
    assert post.writer is not None
    assert post.epoch is not None
    return post.writer, post.epoch
