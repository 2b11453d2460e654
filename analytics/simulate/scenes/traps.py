"""Look-alikes, which must stay silent: what healthy clients do often or have to do again, and what crowds do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tricklecast.analytics.simulate.clients import Client, behind_nat, polite
from tricklecast.analytics.simulate.lines import micros
from tricklecast.analytics.simulate.scene import Scene, Script
from tricklecast.trickle.records import Event, Op, Reason


@dataclass(frozen=True, slots=True)
class Repeated:
    """Requests of one kind, again and again.

    Attributes:
        answer, fields: as of :func:`~analytics.simulate.lines.entry`.
        count: of each client. every: from one to the next, seconds. jitter: by which that is multiplied, from and to.
        clients: how many. spread: within how many seconds they begin; apart: each begins so long after the former one.
        nat: half of the times they have one address and no names.
        steps: by how much the seq grows with each request; ``None`` for the answer's own. head: the channel's head is
            so far above it.
        served: each is served so many seconds after each request.
        channel: whether it is about one.
    """

    answer: str
    count: int
    every: float
    clients: int = 1
    spread: float = 0.0
    apart: float = 0.0
    jitter: tuple[float, float] = (1.0, 1.0)
    nat: bool = False
    steps: int | None = None
    head: int | None = None
    served: float | None = None
    channel: bool = True
    fields: dict[str, Any] = field(default_factory=dict)

    def __call__(self, scene: Scene) -> None:
        """Plays it."""
        trap, name, rng = scene.trap(), scene.channel() if self.channel else None, scene.rng
        nat = self.nat and rng.random() < 0.5
        for number, client in enumerate(behind_nat(rng, self.clients) if nat else scene.clients(self.clients)):
            at = 1 + number * self.apart + rng.uniform(0, self.spread)
            for turn in range(self.count):
                seq = None if self.steps is None else turn * self.steps
                fields = dict(self.fields)
                if seq is not None and self.head is not None:
                    fields["next_seq"] = seq + self.head
                client.attempt = turn + 1 if client.says_attempt and self.served is None else 1
                trap.lines.append(scene.say(self.answer, at, client, name, seq, **fields))
                if self.served is not None:
                    scene.say("served", at + self.served, client, name, (seq or 0) + 300)
                at += self.every * rng.uniform(*self.jitter)


_FIVE: Final = partial(Repeated, count=5, every=0.5, clients=8, apart=12, jitter=(0.95, 1.05))
"""Five attempts, and then it gives up; clients do so one after the other."""

_SOME: Final = partial(Repeated, count=40, every=90, jitter=(0.7, 1.3), served=1)
"""The same client meets the same failure now and then, all day long, and is fine in between."""


def _api(path: str, status: int, every: float, count: int, reason: Reason) -> Repeated:
    """A machine asks the control plane, and asks, and asks."""
    fields = {"op": Op.API, "path": path, "status": status, "epoch": None, "reason": reason}
    return Repeated("other", count, every, channel=False, fields=fields)


def honours(count: int, every: float) -> Repeated:
    """Refused for long, and back a little after it was told to be."""
    fields = {"status": 429, "retry_after_ms": round(every * 1000)}
    return Repeated("refused", count, every, jitter=(1.02, 1.3), fields=fields)


REPEATED: Final[dict[str, Repeated]] = {
    # Asks for -1 each time, and gets a new segment each time.
    "polls_the_next/fast": Repeated("served", 600, 0.05, steps=1, fields={"asked": -1}),
    "polls_the_next/usual": Repeated("served", 300, 0.5, steps=1, fields={"asked": -1}),
    # A wait that is given up and renewed every so many seconds, for as long as nothing comes.
    "waits_renewed/one": Repeated("abandoned", 120, 20, spread=20, steps=0, fields={"dur_us": micros(20)}),
    "waits_renewed/sixty": Repeated("abandoned", 30, 20, 60, 20, nat=True, steps=0, fields={"dur_us": micros(20)}),
    "waits_renewed/three_seconds": Repeated("abandoned", 300, 3, spread=3, steps=0, fields={"dur_us": micros(3)}),
    "waits_renewed/sixty_each_ten_seconds": Repeated(
        "abandoned", 30, 10, 60, 10, nat=True, steps=0, fields={"dur_us": micros(10)}
    ),
    "five_retries/404": _FIVE("not_found"),
    "five_retries/470": _FIVE("missing", steps=0, fields={"next_seq": 0}),
    "five_retries/503": _FIVE("refused"),
    "five_retries/500": _FIVE("failed"),
    "five_retries/at_once": _FIVE(
        "missing", every=0.015, steps=0, fields={"next_seq": 0, "op": Op.PUBLISH, "method": "POST"}
    ),
    "sporadic/404": _SOME("not_found"),
    "sporadic/470": _SOME("missing", every=60, steps=40, head=300),
    "sporadic/500": _SOME("failed"),
    "honours_retry_after/seconds": honours(200, 2.5),
    "honours_retry_after/ten_seconds": honours(60, 10.0),
    # Late readers fetch the whole window as fast as they can, each segment once.
    "catches_up/one": Repeated("served", 256, 0.024, jitter=(0.3, 1.7), steps=1, fields={"next_seq": 256}),
    "catches_up/ten": Repeated("served", 120, 0.024, 10, 20, jitter=(0.3, 1.7), steps=1, fields={"next_seq": 120}),
    "probes/healthz": _api("/healthz", 200, 1.0, 300, Reason.COMPLETE),
    "probes/readyz": _api("/readyz", 503, 5.0, 40, Reason.SHUTDOWN),
    "probes/scanner": _api("/wp-login.php", 404, 0.02, 200, Reason.NOT_FOUND),
    # A dashboard asks for a channel's head, three times a second; a monitor sends HEAD: no body, by definition.
    "asks_for_the_head": Repeated(
        "other", 300, 0.33, fields={"op": Op.NEXT, "path": "/trickle/film/next", "next_seq": 40, "bytes_out": 2}
    ),
    "heads": Repeated("other", 200, 1.0, fields={"method": "HEAD", "asked": -2, "rseq": 40, "next_seq": 41}),
    # Follows the changefeed, on which a lot is going on.
    "follows_changes": Repeated("changes", 200, 0.1, steps=1, fields={"asked": -1}),
    # Readers that fell out of the window are told so once, and jump.
    "jump/one": Repeated("missing", 1, 1, 1, 1.5, steps=4, head=300, served=0.2),
    "jump/fifty": Repeated("missing", 1, 1, 50, 1.5, steps=4, head=300, served=0.2),
    "jump/hundreds": Repeated("missing", 1, 1, 500, 1.5, steps=4, head=300, served=0.2),
    # Viewers that come within a second or two, all of them served.
    "flash_crowd/hundreds": Repeated("served", 3, 2, 300, 1.5, steps=1, fields={"dur_us": micros(2)}),
    "flash_crowd/thousands": Repeated("served", 3, 2, 3000, 1.5, steps=1, fields={"dur_us": micros(2)}),
}


def zaps(scene: Scene) -> None:
    """A viewer looks into channel after channel, and leaves each with the GET of a segment and that of the next."""
    trap, client = scene.trap(), scene.client(conns=2)
    names = [scene.channel() for _ in range(12)]
    for turn in range(60):
        at, name = 1 + turn * 0.7, names[turn % len(names)]
        scene.say("served", at, client, name, turn, asked=-2)
        for ahead in (1, 2):
            trap.lines.append(scene.say("abandoned", at + 0.05, client, name, turn + ahead, dur_us=500_000))


def all_leave(scene: Scene, channels: int) -> None:
    """Behind one address, everybody waits for the next segment when the line goes down; and comes back."""
    trap, names = scene.trap(), [scene.channel() for _ in range(channels)]
    for number, client in enumerate(behind_nat(scene.rng, 40)):
        at, name = 5 + scene.rng.uniform(0, 0.8), names[number % channels]
        scene.say("served", at - 4, client, name, 7)
        trap.lines.append(scene.say("abandoned", at, client, name, 8, dur_us=micros(7 - at)))
        scene.say("served", 9 + scene.rng.uniform(0, 2), client, name, 8)


def startup_polls(scene: Scene, clients: int, lasts: float) -> None:
    """Viewers that wait for a channel to begin, and look once a second."""
    trap, name = scene.trap(), scene.channel()
    for client in scene.clients(clients):
        at = 1 + scene.rng.uniform(0, min(30, lasts / 3))
        while at < lasts:
            trap.lines.append(scene.say("not_found", at, client, name))
            at += scene.rng.uniform(0.95, 1.15)
        scene.say("served", lasts + scene.rng.uniform(0.6, 2), client, name, 0, asked=-1)
    scene.event(lasts + 0.5, Event.CHANNEL_CREATE, name, epoch=1)


def polite_backoff(
    scene: Scene, clients: int, status: int, attempts: int, first_s: float = 1.0, cap_s: float = 30.0
) -> None:
    """Refused, and back after exponentially growing pauses with full jitter, never sooner than told."""
    told = {"status": status, "retry_after_ms": round(first_s * 1000)}
    trap, names = scene.trap(), [scene.channel() for _ in range(1 + clients // 10)]
    for number, client in enumerate(scene.clients(clients)):
        name, at = names[number % len(names)], 5 + scene.rng.uniform(0, 3)
        for turn, gap in enumerate(polite(scene.rng, first_s, cap_s, attempts)):
            client.attempt = turn + 1 if client.says_attempt else 1
            trap.lines.append(scene.say("refused", at, client, name, **told))
            at += gap
        scene.say("served", at, client, name, 9, asked=-1)


def empty_segments_roll(scene: Scene, every: float, count: int) -> None:
    """An idle publisher closes segments empty, and its readers get each of them once."""
    trap, name, readers, publisher = scene.trap(), scene.channel(), scene.clients(3), scene.client()
    for seq in range(count):
        at = 1 + seq * every
        scene.say("posted", at, publisher, name, seq, bytes_in=0, reason=Reason.EMPTY)
        for reader in readers:
            trap.lines.append(scene.say("empty", at + scene.rng.uniform(0, 0.01), reader, name, seq))


def publisher_keeps_up(scene: Scene) -> None:
    """A fast publisher on two connections: five segments a second, each published once, some a second time."""
    trap, client, name = scene.trap(), scene.client(conns=2), scene.channel()
    for seq in range(400):
        at = 1 + seq * 0.2
        trap.lines.append(scene.say("posted", at, client, name, seq))
        if seq % 40 == 7:  # the connection broke: one retry
            trap.lines.append(scene.say("posted", at + 0.1, client, name, seq, attempt=2))


def flaky_network(scene: Scene) -> None:
    """Every tenth segment is cut, and asked for again: one retry in ten requests is what a budget allows."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    for seq in range(300):
        at = 1 + seq * 1.0
        if seq % 10 == 3:
            cut = {"bytes_out": 30_000, "reason": Reason.CLIENT_GONE}
            trap.lines.append(scene.say("served", at, client, name, seq, **cut))
            at += 0.3
        attempt = 2 if seq % 10 == 3 and client.says_attempt else 1
        trap.lines.append(scene.say("served", at, client, name, seq, attempt=attempt))


def told_once(scene: Scene, readers: int) -> None:
    """All readers of a channel are told at once that it is over, and never come again."""
    live, clients = scene.host(readers=0, cadence=4.0), scene.clients(readers)
    for client in clients:
        live.join(client)
    live.advance(micros(12), scene.entries)
    trap = scene.trap()
    for client in clients:
        trap.lines.append(scene.say("ended", 12.5 + scene.rng.uniform(0, 0.2), client, live.name, live.head))
    live.readers.clear()
    live.end(micros(12.5), scene.entries)


def ask_once_more(scene: Scene, readers: int) -> None:
    """All readers ask once more when the channel is forgotten."""
    trap, name = scene.trap(), scene.channel()
    scene.event(5, Event.CHANNEL_END, name, detail="deleted", next_seq=10)
    for client in scene.clients(readers):
        trap.lines.append(scene.say("not_found", 15 + scene.rng.uniform(0, 0.6), client, name, 10))


def behind_one_address(scene: Scene, viewers: int, *, named: bool) -> None:
    """Viewers of one address, with names of their own or with one key for all, until the channel's end and after it."""
    rng, trap, name = scene.rng, scene.trap(), scene.channel()
    everybody = [scene.client(ip="198.51.100.1", named=True) for _ in range(viewers)] if named else None
    everybody = everybody or behind_nat(rng, viewers)
    segments = 30 if viewers < 100 else 8
    over = 1 + segments * 2.0
    scene.event(over, Event.CHANNEL_END, name, detail="deleted", next_seq=segments)
    for client in everybody:
        for seq in range(segments):
            trap.lines.append(scene.say("served", 1 + seq * 2 + rng.uniform(0, 0.3), client, name, seq))
        trap.lines.append(scene.say("ended", over + rng.uniform(0.01, 0.2), client, name, segments))
        if rng.random() < 0.5:
            trap.lines.append(scene.say("not_found", over + 11 + rng.uniform(0, 0.8), client, name, segments))


def polite_restart(scene: Scene, clients: int, times: int = 1) -> None:
    """After a restart everybody comes back spread over some seconds, and is refused once at most."""
    trap, names, rng = scene.trap(), [scene.channel() for _ in range(6)], scene.rng
    everybody, at = [(client, rng.choice(names)) for client in scene.clients(clients)], 10.0
    for _ in range(times):
        for client, name in everybody:
            trap.lines.append(scene.say("refused", at + rng.uniform(0, 1), client, name))
        up = scene.restart(at, away=4)
        for name in names:
            scene.event(up + 0.3, Event.CHANNEL_CREATE, name, epoch=1)
        for client, name in everybody:
            _comes_back(scene, client, name, up + 0.4 + rng.uniform(0, 9))
        at = up + 60


def _comes_back(scene: Scene, client: Client, name: str, at: float) -> None:
    if scene.rng.random() < 0.3:
        scene.say("missing", at, client, name, 500, next_seq=3)
        at += 0.4
    scene.say("served", at, client, name, 3, asked=-1)


Trap = tuple[str, Callable[[Scene], None]]

_SMALL: Final[tuple[Trap, ...]] = (
    ("zaps", zaps),
    ("all_leave/one_channel", partial(all_leave, channels=1)),
    ("all_leave/four_channels", partial(all_leave, channels=4)),
    ("startup_polls/one", partial(startup_polls, clients=1, lasts=300)),
    ("polite_backoff/one", partial(polite_backoff, clients=1, status=503, attempts=12)),
    ("empty_segments_roll/slow", partial(empty_segments_roll, every=25, count=40)),
    ("empty_segments_roll/fast", partial(empty_segments_roll, every=0.1, count=200)),
    ("publisher_keeps_up", publisher_keeps_up),
    ("flaky_network", flaky_network),
    ("told_once/thirty", partial(told_once, readers=30)),
    ("behind_one_address/named", partial(behind_one_address, viewers=50, named=True)),
    ("behind_one_address/two", partial(behind_one_address, viewers=2, named=False)),
    ("behind_one_address/fifty", partial(behind_one_address, viewers=50, named=False)),
    ("ask_once_more/thirty", partial(ask_once_more, readers=30)),
)

_LARGE: Final[tuple[Trap, ...]] = (
    ("told_once/hundreds", partial(told_once, readers=250)),
    ("told_once/thousands", partial(told_once, readers=2000)),
    ("ask_once_more/hundreds", partial(ask_once_more, readers=200)),
    ("ask_once_more/thousands", partial(ask_once_more, readers=1500)),
    ("behind_one_address/hundreds", partial(behind_one_address, viewers=500, named=False)),
    ("polite_restart/sixty", partial(polite_restart, clients=60)),
    ("polite_restart/hundreds", partial(polite_restart, clients=500)),
    ("polite_restart/again_and_again", partial(polite_restart, clients=40, times=3)),
    ("polite_backoff/thirty", partial(polite_backoff, clients=30, status=503, attempts=7)),
    ("polite_backoff/hundreds", partial(polite_backoff, clients=200, status=429, attempts=6)),
    ("startup_polls/fifty", partial(startup_polls, clients=50, lasts=120)),
)
"""Those that are seen on a whole server."""


def scripts() -> Iterator[Script]:
    """All of them."""
    large = dict(_LARGE) | {name: play for name, play in REPEATED.items() if play.clients > 300}
    everything: list[Trap] = [*REPEATED.items(), *_SMALL, *_LARGE]
    for name, play in everything:
        yield Script(name, "trap", play, servers=1 if name in large else 0)
