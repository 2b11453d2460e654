"""Schedules, one after the other, each against a cluster that goes on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.campaign.checker import Judgement, Story, Violation, judge
from benchmarks.campaign.cluster import Cluster, dice_of, running
from benchmarks.campaign.faults import Fault, Kind, draw
from benchmarks.campaign.load import EXCHANGE_S, Found, Load, look
from benchmarks.servers import BenchmarkError

BEGIN_S: Final = 20.0
HEAL_S: Final = 20.0
"""After the last fault, publishers write again and nodes agree within this time; NATS may need most of it, to elect."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run.

    Attributes:
        schedules: their numbers. seed: of all. seconds: of each. ack: ``memory`` or ``quorum``.
        lease_s: of the nodes. servers: of NATS, 1 or 3. kinds: faults that are drawn.
        renewed: after this number of schedules the cluster is another one. root: the checkout that is tested.
    """

    schedules: range
    seed: int
    seconds: float = 4.0
    ack: str = "memory"
    lease_s: float = 0.4
    servers: int = 1
    kinds: tuple[Kind, ...] = tuple(Kind)
    renewed: int = 25
    root: Path

    @property
    def settings(self) -> tuple[str, ...]:
        """Options of ``serve``."""
        return (
            *("--ack", self.ack, "--cluster-lease-s", str(self.lease_s), "--storm-guard", "off"),
            *("--window-segments", "10000", "--window-age-s", "600", "--channel-drain-s", "0.5"),
            *("--publisher-grace-s", "1", "--shutdown-drain-s", "0.2", "--shutdown-deadline-s", "1"),
            *("--cluster-history-bytes", str(1 << 29)),
        )


@dataclass
class Outcome:
    """What has come of it.

    Attributes:
        schedules: how many. faults: how often each was done. violations: with the schedule's number.
    """

    schedules: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    takeovers: list[float] = field(default_factory=list)
    violations: list[tuple[int, Violation]] = field(default_factory=list)


async def campaign(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Run it.

    Args:
        folder: for logs. say: told what happens.

    Raises:
        BenchmarkError: a node or NATS does not start, or does not end.
    """
    outcome = Outcome()
    numbers = list(plan.schedules)
    while numbers:
        now, numbers = numbers[: plan.renewed], numbers[plan.renewed :]
        own = folder / f"from-{now[0]}"
        own.mkdir(parents=True)
        async with running(own, plan.root, plan.servers, plan.settings, say) as cluster:
            for number in now:
                faults = draw(plan.seed, number, plan.seconds, plan.lease_s, plan.kinds)
                judgement = await one(plan, number, faults, cluster)
                outcome.schedules += 1
                outcome.faults.update(fault.kind.value for fault in faults)
                outcome.counts += judgement.counts
                outcome.takeovers += judgement.takeovers
                outcome.violations += [(number, violation) for violation in judgement.violations]
                lost = sum(times for name, times in judgement.counts.items() if name.startswith("lost"))
                say(f"{number}: {'; '.join(map(str, faults))} | {len(judgement.violations)} violations, {lost} lost")
                for violation in judgement.violations[:5]:
                    say(f"   VIOLATION {violation.check}: {violation.detail}")
                if any(violation.check in ("agreement", "recovery") for violation in judgement.violations):
                    break  # this cluster is of no use any more
            numbers = [left for left in now if left > number] + numbers
    return outcome


async def one(plan: Plan, number: int, schedule: tuple[Fault, ...], cluster: Cluster) -> Judgement:
    """Run one schedule."""
    dice = dice_of(plan.seed, number)
    names = [f"s{number}-{kind}" for kind in ("film-0", "film-1", "rivals-0", "rivals-1")]
    cluster.happened = []
    for node in cluster.nodes:
        node.hops = 0
    load = Load(cluster, tuple(names[:2]), tuple(names[2:]), dice)
    try:
        if not await load.published(0.0, BEGIN_S):
            raise BenchmarkError(f"schedule {number}: nothing could be published before the first fault")
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                group.create_task(_later(fault.at, cluster, fault, load.channels))
            if dice.random() < 0.5:
                group.create_task(_delete(dice.uniform(0, plan.seconds), load, dice.choice(names), dice.randrange(3)))
            group.create_task(asyncio.sleep(plan.seconds))
        healed = time.monotonic()
        await cluster.heal()
        recovered = await load.published(time.monotonic(), HEAL_S)
    finally:
        await load.end()
    load.record.hops = max(node.hops for node in cluster.nodes)
    finals = {name: await _agree(cluster, name) for name in names}
    faults = [fault for node in cluster.nodes for fault in node.faults()]
    story = Story(load.record, cluster.happened, plan.lease_s, load.late_s, recovered, finals, faults)
    judgement = judge(story)
    judgement.counts["seconds"] = round(time.monotonic() - begun)
    judgement.counts["seconds to heal"] = round(time.monotonic() - healed)
    for name in names:
        await load.delete(name, 0)
    return judgement


async def _later(at: float, cluster: Cluster, fault: Fault, channels: tuple[str, ...]) -> None:
    await asyncio.sleep(at)
    await cluster.inflict(fault, channels)


async def _delete(at: float, load: Load, channel: str, node: int) -> None:
    await asyncio.sleep(at)
    await load.delete(channel, node)


async def _agree(cluster: Cluster, channel: str) -> list[Found] | None:
    """The channel as all nodes have it, as soon as they agree; ``None``: they do not."""
    ports = [node.for_clients.port for node in cluster.nodes]
    deadline = time.monotonic() + HEAL_S
    while time.monotonic() < deadline:
        heads = await asyncio.gather(*(look(port, channel, at_segments=False) for port in ports))
        if None not in heads and all(head == heads[0] for head in heads):
            finals = await asyncio.gather(*(look(port, channel, at_segments=True) for port in ports))
            if all(final is not None and final == finals[0] for final in finals):
                return [final for final in finals if final is not None]
        await asyncio.sleep(EXCHANGE_S / 10)
    return None
