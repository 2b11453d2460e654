"""The checker reads the records of one schedule: is each promise kept? (docs/reference/cluster-directory.md)"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchmarks.campaign.cluster import Happened
from benchmarks.campaign.faults import BUCKET, HARMLESS, Kind
from benchmarks.campaign.load import Delete, Found, Read, Record, Write
from tricklecast.app.cluster.peers import MAX_HOPS

ANSWERS: Final = frozenset({0, 200, 400, 404, 409, 470, 503, 508})
"""A client may get these statuses. 0 is no answer, 503 and 508 mean: come back. A DELETE of nothing gets 400."""

LATE_S: Final = 0.1
"""If the clients' process was this late once, the machine had too much to do: what depends on time is not judged."""


class Violation(NamedTuple):
    """A promise that was broken: which check says so, and how."""

    check: str
    detail: str


@dataclass
class Story:
    """All that is known of one schedule.

    Attributes:
        record: of the clients. happened: what was done. lease_s: of the nodes.
        late_s: how late the clients' process was. recovered: whether each publisher wrote again after the faults.
        finals: each channel at each node, when all was healed; `None`: the nodes never agreed.
        faults: of their own, which nodes have logged.
    """

    record: Record
    happened: list[Happened]
    lease_s: float
    late_s: float
    recovered: bool
    finals: Mapping[str, list[Found] | None]
    faults: list[str] = field(default_factory=list)


@dataclass
class Judgement:
    """The result for one schedule: violations, figures, and the seconds that each takeover took after a kill."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    takeovers: list[float] = field(default_factory=list)


def judge(story: Story) -> Judgement:
    """Check everything."""
    found = Judgement()
    record = story.record
    for check in (_answers, _bytes, _epochs, _deposed, _deleted, _lost, _agreed, _takeovers):
        found.violations += check(story, found)
    for one in story.happened:
        found.counts.update({f"moves, {status}": times for status, times in one.moves.items()})
    found.counts = +found.counts
    found.counts["reads"] = sum(read.answer.status == 200 for read in record.reads)
    for write in record.writes:
        if write.acknowledged:
            found.counts[f"acknowledged: {write.promise}"] += 1
    return found


def _answers(story: Story, found: Judgement) -> Iterator[Violation]:
    """A client is told to come back, or something about the channel; never of a fault, or that a node is no node."""
    record = story.record
    everything: list[Write | Read | Delete] = [*record.writes, *record.reads, *record.deletes]
    for one in everything:
        found.counts["passed on too often (508)"] += one.answer.status == 508
        if one.answer.status not in ANSWERS:
            yield Violation("answers", f"{one.channel}: {one.answer.status} {one.answer.body[:80]!r}")
    if record.hops > MAX_HOPS:
        yield Violation("loops", f"a request has passed {record.hops} nodes")


def _bytes(story: Story, found: Judgement) -> Iterator[Violation]:
    """One writer per epoch: one body per (channel, epoch, seq). And an answer is a part of one body."""
    bodies = story.record.bodies
    acknowledged: dict[tuple[str, int, int], Write] = {}
    for write in story.record.writes:
        if write.acknowledged and write.epoch is not None:
            key = write.channel, write.epoch, write.seq
            first = acknowledged.setdefault(key, write)
            if first.body != write.body:
                yield Violation("one writer", f"{key} was acknowledged as {first.body} and as {write.body}")
    acknowledged_bodies = {write.body for write in story.record.writes if write.acknowledged}
    for read in story.record.reads:
        answer, epoch, seq = read.answer, read.epoch, read.answer.number("lp-trickle-seq")
        if answer.status != 200 or not answer.body or epoch is None or seq is None:
            continue
        name = answer.body.split(b" ", 1)[0].decode()
        body = bodies.get(name, b"")
        if not body.startswith(answer.body):
            if b" " in answer.body:
                yield Violation("one answer, one body", f"{read.reader} got at {epoch}/{seq}: {answer.body[:300]!r}")
            continue
        if "@" in name and name.rpartition("@")[2] not in ("None", str(epoch)):
            yield Violation("no mixed epochs", f"{read.reader} got {name} in epoch {epoch}")
        is_whole = answer.whole and "lp-trickle-truncated" not in answer.fields
        if is_whole and len(answer.body) < len(body) and "lp-trickle-closed" not in answer.fields:
            yield Violation("whole bodies", f"{read.reader} got {len(answer.body)} of {len(body)} bytes of {name}")
        confirmed = acknowledged.get((read.channel, epoch, seq))
        if confirmed is not None and confirmed.body != name:
            detail = f"{read.reader} got {name} at {epoch}/{seq}, where {confirmed.body} is"
            if name in acknowledged_bodies or confirmed.promise != "quorum":
                yield Violation("one writer", detail)
            else:  # its owner has died, or was cut off: what the quorum has not acknowledged, nobody goes on with
                found.counts["unacknowledged, read, and replaced"] += 1


def _epochs(story: Story, found: Judgement) -> Iterator[Violation]:
    """The epochs that one reader sees at one node never go back."""
    highest: dict[str, int] = {}
    for read in story.record.reads:
        if (epoch := read.epoch) is not None:
            if epoch < highest.get(read.reader, 0):
                yield Violation("epochs go up", f"{read.reader} got {epoch} after {highest[read.reader]}")
            highest[read.reader] = max(epoch, highest.get(read.reader, 0))


def _deposed(story: Story, found: Judgement) -> Iterator[Violation]:
    """Nothing that was begun after a later epoch was confirmed is confirmed in an earlier one, but as degraded."""
    by_channel: dict[str, list[Write]] = defaultdict(list)
    for write in story.record.writes:
        if write.acknowledged and write.epoch is not None:
            by_channel[write.channel].append(write)
    for channel, writes in by_channel.items():
        for late in writes:
            before = [one for one in writes if one.answer.at < late.begun and (one.epoch or 0) > (late.epoch or 0)]
            if before and "degraded" not in late.promise:
                if _did(story, *BUCKET):
                    found.counts["two owners after the bucket was lost"] += 1
                    continue
                detail = f"{channel}: {late.body} in epoch {late.epoch} by node {late.owner}"
                ago = late.begun - before[0].answer.at
                yield Violation("deposed owners", f"{detail}, {ago:.2f} s after epoch {before[0].epoch} was confirmed")


def _deleted(story: Story, found: Judgement) -> Iterator[Violation]:
    """After a DELETE nothing is confirmed in that epoch any more, and the channel is gone."""
    for delete in story.record.deletes:
        if delete.answer.status != 200:
            continue
        for write in story.record.writes:
            is_it = write.channel == delete.channel and (write.epoch or 0) <= delete.epoch
            if write.acknowledged and is_it and write.epoch is not None and write.begun > delete.answer.at:
                yield Violation("ends are final", f"{write.body} was acknowledged in the ended epoch {delete.epoch}")
        for final in story.finals[delete.channel] or ():
            if final.epoch is not None and final.epoch <= delete.epoch:
                yield Violation("ends are final", f"{delete.channel} is in epoch {final.epoch}, which was ended")


def _lost(story: Story, found: Judgement) -> Iterator[Violation]:
    """A segment acknowledged by the quorum is there; one acknowledged in memory is lost with its epoch only."""
    kinds = Counter(one.fault.kind for one in story.happened)
    # If two nodes are restarted there may be none to go on; and if this process was late, so were leases.
    harmless = kinds.keys() <= HARMLESS and kinds[Kind.TERM] < 2 and story.late_s < LATE_S
    ended = {channel: 0 for channel in story.finals}
    for delete in story.record.deletes:
        ended[delete.channel] = max(ended[delete.channel], delete.epoch)
    for write in story.record.writes:
        finals = story.finals[write.channel]
        if not write.acknowledged or finals is None or write.epoch is None or write.epoch <= ended[write.channel]:
            continue
        final, body = finals[0], story.record.bodies[write.body]
        what = f"{write.body} ({write.promise}) at {write.channel} {write.epoch}/{write.seq}"
        if final.epoch == write.epoch:
            held = final.segments.get(write.seq, b"nothing")
            if held[: write.size] != body[: write.size]:  # it may have been cut off, and acknowledged as far as it came
                yield Violation("lost in its epoch", f"{what}: {held[:80]!r}")
        elif final.epoch is not None and final.epoch < write.epoch:
            yield Violation("epochs go up", f"{what}, but the channel is in epoch {final.epoch}")
        elif write.promise == "quorum":
            yield Violation("quorum", f"{what} is lost, the channel is in epoch {final.epoch}")
        elif harmless:
            yield Violation("harmless faults", f"{what} is lost, the channel is in epoch {final.epoch}")
        else:
            found.counts[f"lost: {write.promise}"] += 1


def _agreed(story: Story, found: Judgement) -> Iterator[Violation]:
    """When all is healed, publishers write, and every node answers the same."""
    if not story.recovered:
        yield Violation("recovery", "a publisher did not write again after the faults")
    for fault in story.faults:
        yield Violation("no faults of the server", fault)
    for channel, finals in story.finals.items():
        if finals is None:
            yield Violation("agreement", f"the nodes never agreed on {channel}")


def _takeovers(story: Story, found: Judgement) -> Iterator[Violation]:
    """After a node was killed, publishers of its channels write again; at once, if nothing else happens."""
    for one in story.happened:
        if one.fault.kind is not Kind.KILL:
            continue
        killed, limit = one.begun, story.lease_s + 1
        others = (other for other in story.happened if other is not one)
        if any(other.begun < killed + limit and other.ended > killed - 2 * story.lease_s for other in others):
            continue
        for channel in story.finals:
            writes = [write for write in story.record.writes if write.channel == channel and write.acknowledged]
            before = [write for write in writes if write.answer.at < killed]
            after = [write.answer.at for write in writes if write.begun > killed]
            if not (before and before[-1].owner == one.fault.target and after):
                continue
            took = min(after) - killed
            found.takeovers.append(took)
            if took > limit and story.late_s < LATE_S:
                yield Violation("takeover", f"{channel} could be written {took:.2f} s after its owner was killed")


def _did(story: Story, *kinds: Kind) -> bool:
    return any(one.fault.kind in kinds for one in story.happened)
