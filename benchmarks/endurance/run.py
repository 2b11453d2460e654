"""One soak: a server, a crowd, witnesses, and what is done to the server meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.endurance.crowd import Job, job_line, rate_line
from benchmarks.endurance.logs import LogAccount, read_logs
from benchmarks.endurance.subject import Subject, log_files
from benchmarks.endurance.witness import Account, Witness
from benchmarks.servers import ROOT, BenchmarkError, Cores

TERM_AT, KILL_AT = 0.45, 0.55
"""Shares of the time after which the server is told to stop, and killed. The first and the last life are long."""

STEP, CALM_S = 1.5, 10.0
"""By how much the pace of the crowd may change in the first second; and after how long by half as much, and so on."""

STEERED_S = 240.0
"""For so long, at most half of the first life, the crowd's pace is adjusted; then it stays, so that what the server
holds is always about the same. No growth is judged before."""

DELIVERIES = 600_000
"""Chunks a second, over all readers, beyond which no pace is asked for: more than a core can deliver one by one."""

LATE_S = 0.5
"""If the crowd's process is so late it has too much to do, and the pace is lowered instead."""

END_S = 30.0
"""How long the witnesses have to read what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run.

    Attributes:
        seconds: in all. busy: the share of a core that the server is to use.
        publishers, readers: the crowd, at any time; the actors live for ``life_s`` on average.
        witnesses: pairs of this project's own clients; each publishes every ``every_s`` on average.
        window_age_s: how long the server keeps segments: short, so that its memory is full soon.
        rate: chunks per second to begin with. settings: further options of ``serve``.
    """

    seconds: float
    busy: float = 0.6
    publishers: int = 8
    readers: int = 800
    life_s: float = 20.0
    witnesses: int = 4
    every_s: float = 0.1
    window_age_s: float = 5.0
    rate: float = 30.0
    seed: int = 1
    settings: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """What has come of it.

    Attributes:
        subject: the server, with its lives. accounts: of the witnesses. log: what its access log says.
        crowd: what the crowd has seen, counted. late_s: how late its process woke up at last.
        rates: the crowd's chunks per second while they were adjusted.
    """

    subject: Subject
    accounts: list[Account]
    log: LogAccount
    crowd: Counter[str]
    late_s: float = 0.0
    rates: list[float] = field(default_factory=list)


async def soak(plan: Plan, folder: Path, cores: Cores, say: Callable[[str], None]) -> Outcome:
    """Run it.

    Args:
        folder: for the access log. say: told what happens.

    Raises:
        BenchmarkError: the server does not start, or does not end.
    """
    log = folder / "access.jsonl"
    settings = ("--access-log", str(log), "--window-age-s", str(plan.window_age_s), *plan.settings)
    subject = Subject(settings, cores.server)
    crowd: Process | None = None
    try:
        await subject.start()
        witnesses = [
            Witness(f"http://127.0.0.1:{subject.port}/trickle/witness{number}", plan.every_s)
            for number in range(plan.witnesses)
        ]
        crowd = await _crowd(plan, subject.port, cores)
        outcome = Outcome(subject, [witness.account for witness in witnesses], read_logs(()), Counter())
        async with asyncio.TaskGroup() as group:
            steering = group.create_task(_steer(plan, subject, crowd, outcome, say))
            listening = group.create_task(_listen(crowd, outcome))
            for witness in witnesses:
                group.create_task(witness.publish())
            reading = [group.create_task(witness.subscribe()) for witness in witnesses]
            await _provoke(plan, subject, say)
            for witness in witnesses:
                witness.stop()
            _, late = await asyncio.wait(reading, timeout=END_S)
            for task in late:
                task.cancel()
            steering.cancel()
            assert crowd.stdin is not None
            crowd.stdin.close()
            await listening
        await subject.end(signal.SIGTERM, "SIGTERM at the end")
    except* BenchmarkError as group:
        raise group.exceptions[0] from None
    finally:
        await subject.give_up()
        if crowd is not None:
            with suppress(ProcessLookupError):
                crowd.kill()
            await crowd.wait()
    outcome.log = read_logs(log_files(log))
    return outcome


async def _crowd(plan: Plan, port: int, cores: Cores) -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.endurance.crowd", stdin=PIPE, stdout=PIPE, cwd=ROOT
    )
    if cores.load is not None:
        os.sched_setaffinity(process.pid, {cores.load})
    job = Job(
        port=port,
        seed=plan.seed,
        publishers=plan.publishers,
        readers=plan.readers,
        life_s=plan.life_s,
        rate=plan.rate,
    )
    assert process.stdin is not None
    process.stdin.write(job_line(job))
    return process


async def _steer(plan: Plan, subject: Subject, crowd: Process, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Once a second: sample the server; at first, set the crowd's pace by how busy the server is."""
    rate = plan.rate
    begun = told = time.monotonic()
    fastest = DELIVERIES * plan.publishers / plan.readers
    while True:
        await asyncio.sleep(1.0)
        if (life := subject.sample()) is None:
            continue
        busy = life.busy[-1]
        since = time.monotonic() - begun
        if since < min(STEERED_S, plan.seconds * TERM_AT / 2):
            step = 1 + (STEP - 1) / (1 + since / CALM_S)
            factor = 1 / step if outcome.late_s > LATE_S else min(max(plan.busy / max(busy, 0.01), 1 / step), step)
            rate = min(rate * factor, fastest)
            outcome.rates.append(rate)
            assert crowd.stdin is not None
            crowd.stdin.write(rate_line(rate))
        if time.monotonic() - told >= 60:
            told = time.monotonic()
            size, files = life.rss_kb[-1] / 1000, life.files[-1]
            say(f"{busy:.0%} of a core, {rate:.0f} chunks/s, {size:.1f} MB, {files:.0f} descriptors")


async def _listen(crowd: Process, outcome: Outcome) -> None:
    assert crowd.stdout is not None
    async for line in crowd.stdout:
        report = json.loads(line)
        outcome.crowd, outcome.late_s = Counter(report["seen"]), report["late_s"]


async def _provoke(plan: Plan, subject: Subject, say: Callable[[str], None]) -> None:
    """Let it run; stop and kill the server in the middle, and start it again."""
    await asyncio.sleep(plan.seconds * TERM_AT)
    await subject.end(signal.SIGTERM, "SIGTERM")
    life = subject.lives[-1]
    say(f"SIGTERM: ended after {life.took_s:.1f} s with code {life.code}")
    await subject.start()
    await asyncio.sleep(plan.seconds * (KILL_AT - TERM_AT))
    await subject.end(signal.SIGKILL, "SIGKILL")
    say("SIGKILL")
    await subject.start()
    await asyncio.sleep(plan.seconds * (1 - KILL_AT))
