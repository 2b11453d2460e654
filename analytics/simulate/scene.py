"""A scene: some minutes of a channel or a server in which a storm, or its look-alike, happens. Times are in seconds.

A scene knows neither when nor on which server it will be shown. Its own time begins at 0, its servers are numbers in
the place of names, and :mod:`analytics.simulate.plan` moves it to its place in the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.simulate import lines
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.clients import Client, make_client
from tricklecast.analytics.simulate.lines import Line, TimedLine, micros, when
from tricklecast.analytics.simulate.truth import Planted, Set
from tricklecast.trickle.records import Event

QUIET_S: Final = 150.0
"""So long before a storm without a trigger nothing happens that could be taken for one. Seconds."""

_WORDS: Final = ("cam", "studio", "gate", "film", "match", "stage", "relay", "lobby", "kitchen", "news", "match")


@dataclass(slots=True)
class Label:
    """The lines of a storm or a trap, from which the truth about it is counted.

    Attributes:
        storm: the class; ``None`` for a trap. trigger, also: as of :class:`~analytics.simulate.truth.Planted`.
    """

    storm: StormClass | None = None
    trigger: str | None = None
    also: tuple[StormClass, ...] = ()
    lines: list[Line] = field(default_factory=list)

    @property
    def node(self) -> int:
        """The number of its server in the scene."""
        return int(self.lines[0]["node"])

    @property
    def span_us(self) -> tuple[int, int]:
        """Its first and its last arrival in the scene's time, microseconds."""
        arrivals = [line["ts_us"] for line in self.lines]
        return min(arrivals), max(arrivals)

    def planted(self, name: str, shift_us: int, nodes: Sequence[str]) -> Planted:
        """What is true of it at its place in the log."""
        start, end = (shift_us + at for at in self.span_us)
        clients, channels = (
            tuple(dict.fromkeys(line[of] for line in self.lines if of in line)) for of in ("client", "channel")
        )
        n, node = len(self.lines), nodes[self.node]
        return Planted(name, self.storm, start, end, n, clients, channels, node, self.trigger, self.also)


@dataclass(slots=True)
class Scene:
    """What a script writes into.

    Attributes:
        rng: the only source of chance.
        entries: its lines. labels: its storms and traps.
        company: readers that every channel of the scene gets besides its own.
        outages: numbers of servers that are away, with from when to when in seconds.
    """

    rng: random.Random
    entries: list[TimedLine] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    company: list[Client] = field(default_factory=list)
    outages: list[tuple[int, float, float]] = field(default_factory=list)

    def storm(self, storm: StormClass, trigger: str | None = None, also: tuple[StormClass, ...] = ()) -> Label:
        """A storm begins; its lines are to be added."""
        self.labels.append(Label(storm, trigger, also))
        return self.labels[-1]

    def trap(self) -> Label:
        """A look-alike begins; its lines are to be added."""
        self.labels.append(Label())
        return self.labels[-1]

    def channel(self) -> str:
        """A name for a channel."""
        return f"{self.rng.choice(_WORDS)}-{self.rng.getrandbits(36):09x}"

    def client(self, **known: Any) -> Client:
        """A client; see :func:`~analytics.simulate.clients.make_client`."""
        return make_client(self.rng, **known)

    def clients(self, count: int, **known: Any) -> list[Client]:
        """So many clients, mostly of one release."""
        if self.rng.random() < 0.7:
            known.setdefault("ua", self.client().ua)
        return [self.client(**known) for _ in range(count)]

    def host(
        self, *, at: float = 0.0, cadence: float | None = None, readers: int | None = None, epoch: int = 1
    ) -> LiveChannel:
        """A channel with a publisher and some readers, created at a moment of the scene."""
        rng = self.rng
        every = micros(cadence or rng.choice((2.0, 4.0, 4.0, 6.0)))
        publisher = self.client(named=rng.random() < 0.7)
        live = LiveChannel(rng, "0", self.channel(), publisher, every, micros(at) + every, epoch, mishaps=0.0)
        own = [self.client() for _ in range(rng.randrange(1, 4) if readers is None else readers)]
        for client in (*own, *self.company):
            live.join(client)
        live.create(self.entries)
        return live

    def say(
        self, answer: str, at: float, client: Client, channel: str | None, seq: int | None = None, **fields: Any
    ) -> Line:
        """One request with its answer; see :func:`~analytics.simulate.lines.entry`."""
        wait = int(self.rng.lognormvariate(6.0, 0.7))
        known: dict[str, Any] = {"node": "0", "wait_us": wait, "dur_us": wait + 15}
        if answer == "served":
            known["dur_us"] += 1500 + self.rng.randrange(4000)
        elif answer == "refused":
            known["retry_after_ms"] = 1000 + self.rng.randrange(1000)
        elif answer == "abandoned":
            del known["wait_us"]
        made = lines.entry(client, micros(at), answer, channel=channel, seq=seq, **known | fields)
        self.entries.append(made)
        return made[1]

    def event(self, at: float, event: Event, channel: str | None = None, **more: Any) -> None:
        """Something happens to a channel or a server."""
        self.entries.append(lines.event(micros(at), event, "0", channel, **more))

    def restart(self, at: float, *, away: float, release: str = "tricklecast/0.1.0") -> float:
        """The first server is drained, stopped, and started again.

        Returns:
            when it is ready, seconds.
        """
        up = at + away
        self.event(at, Event.DRAIN)
        self.event(at + min(2.0, away / 2), Event.SERVER_STOP)
        self.event(up - 0.05, Event.SERVER_START, release=release)
        self.event(up - 0.04, Event.CONFIG, detail="{}")
        self.event(up, Event.SERVER_READY)
        self.outages.append((0, at, up))
        return up


@dataclass(frozen=True, slots=True)
class Script:
    """How to plant something.

    Attributes:
        name: what it is called in the truth; kind: its class, or ``trap``.
        play: writes it into a scene.
        set: where it belongs.
        servers: how many servers it needs for itself, since what it does is seen on all of them; 0: other scenes may
            go on at the same time.
        border_s: put the middle of its first storm on a multiple of so many seconds; for 1 its beginning; 0: anywhere.
    """

    name: str
    kind: str
    play: Callable[[Scene], None]
    set: Set = Set.STANDARD
    servers: int = 0
    border_s: int = 0

    def scene(self, seed: int, number: int) -> Scene:
        """The scene of that number: the same for the same seed, whatever else is in the log."""
        scene = Scene(random.Random(f"{seed}/{self.name}/{number}"))
        self.play(scene)
        scene.entries.sort(key=when)
        scene.labels = [label for label in scene.labels if label.lines]
        return scene
