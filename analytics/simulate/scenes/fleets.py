"""Storms that no single client makes: retries that add up, and crowds that come back together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tricklecast.analytics.simulate.catalogue import Needs, Script, Set
from tricklecast.analytics.simulate.pace import Pace, Rhythm
from tricklecast.analytics.simulate.people import Client
from tricklecast.analytics.simulate.scene import QUIET_S, Scene
from tricklecast.analytics.simulate.tally import Tally
from tricklecast.trickle.records import AccessRecord, Event, Reason

AMPLIFICATION: Final = "overload_amplification"
HERD: Final = "thundering_herd"


@dataclass(frozen=True, slots=True)
class Overload:
    """Many clients that retry faster than they are told to.

    Attributes:
        name: of the variant.
        clients, channels: how many.
        pace, gap_s: their rhythm, and its scale from and to. Seconds.
        lasts_s: for how long they are refused, from and to. Seconds.
        trigger: what begins it.
        status: 429 or 503.
        nodes: on how many servers at once.
        decoy: a restart, which everybody had got over, precedes the trigger.
    """

    name: str
    clients: int
    pace: Pace
    gap_s: tuple[float, float]
    lasts_s: tuple[float, float] = (8, 30)
    channels: int = 4
    trigger: str | None = None
    status: int = 503
    nodes: int = 1
    decoy: bool = False


@dataclass(frozen=True, slots=True)
class Herd:
    """Clients that act on one cue and come again together.

    Attributes:
        name: of the variant.
        clients, channels: how many.
        waves_s: when they come, seconds after the cue.
        spread_s: a wave's width, seconds.
        answer: what they get: ``404``, ``470``, ``503`` or ``mixed``.
        trigger: the cue; ``None`` if the log knows of none.
    """

    name: str
    clients: int
    channels: int
    waves_s: tuple[float, ...]
    spread_s: float = 0.3
    answer: str = "404"
    trigger: str | None = Event.SERVER_READY


OVERLOADS: Final = (
    Overload("twenty_after_restart", 20, Pace.FIXED_JITTER, (0.15, 0.3), trigger=Event.SERVER_READY),
    Overload("forty_fixed_after_restart", 40, Pace.FIXED, (0.2, 0.3), trigger=Event.SERVER_READY),
    Overload("crowd", 60, Pace.FIXED_JITTER, (0.15, 0.3), channels=1, trigger=Event.CHANNEL_CREATE),
    Overload("lowered_limit", 30, Pace.FIXED_JITTER, (0.1, 0.3), trigger=Event.CONFIG, status=429),
    Overload("lowered_limit_after_restart", 30, Pace.FIXED_JITTER, (0.1, 0.3), trigger=Event.CONFIG, decoy=True),
    Overload("out_of_the_blue", 40, Pace.FIXED_JITTER, (0.15, 0.35)),
    Overload("exponential", 40, Pace.EXPONENTIAL, (0.25, 0.35), trigger=Event.SERVER_READY),
    Overload("hot", 12, Pace.HOT_LOOP, (0.03, 0.08), (5, 10), trigger=Event.CONFIG),
    Overload("hundreds", 250, Pace.FIXED_JITTER, (0.2, 0.4), (6, 12), channels=20, trigger=Event.SERVER_READY),
    Overload("for_long", 15, Pace.IRREGULAR, (0.2, 0.3), (120, 200), channels=2),
    Overload("two_servers", 25, Pace.FIXED_JITTER, (0.15, 0.3), nodes=2),
)

HERDS: Final = (
    Herd("waves", 50, 5, (1, 2, 3, 4)),
    Herd("doubling", 80, 8, (1, 2, 4, 8)),
    Herd("one_channel", 40, 1, (1, 2, 4)),
    Herd("hundreds", 400, 30, (1.5, 3, 4.5)),
    Herd("segments_missing", 60, 6, (1, 2, 3, 5), answer="470"),
    Herd("refused", 60, 6, (1, 2.5, 4, 5.5), answer="503"),
    Herd("of_all_kinds", 90, 10, (1, 2, 4, 6), answer="mixed"),
    Herd("wide_waves", 70, 5, (1, 3, 5), spread_s=0.9),
    Herd("without_a_cue", 60, 8, (1, 2, 3.5), trigger=None),
    Herd("without_a_cue_doubling", 120, 12, (1, 2, 4, 8), trigger=None),
    Herd("late", 50, 5, (20, 22, 24, 26)),
)


def scripts() -> Iterator[Script]:
    """All of them."""
    for overload in OVERLOADS:
        needs = Needs.TWO_SERVERS if overload.nodes == 2 else Needs.SERVER
        play = partial(play_overload, overload=overload)
        yield Script(f"{AMPLIFICATION}/{overload.name}", AMPLIFICATION, play, Set.STANDARD, needs)
    for herd in HERDS:
        yield Script(f"{HERD}/{herd.name}", HERD, partial(play_herd, herd=herd), Set.STANDARD, Needs.SERVER)


def play_overload(scene: Scene, *, overload: Overload) -> None:
    """Refusals from the cue on, until the server has room again."""
    rng = scene.rng
    names = [scene.channel() for _ in range(overload.channels)]
    begins = _cue(scene, overload.trigger, names[0], decoy=overload.decoy)
    rhythm, until = Rhythm(overload.pace, rng.uniform(*overload.gap_s)), begins + rng.uniform(*overload.lasts_s)
    for node in map(str, range(overload.nodes)):
        tally = scene.storm(AMPLIFICATION, overload.trigger, also=(HERD,) if overload.trigger else ())
        for turn, client in enumerate(scene.clients(overload.clients)):
            name, at = names[turn % len(names)], begins + rng.uniform(0, 1.5)
            at = _retry(scene, tally, (client, name, node), rhythm, at, until, overload.status)
            # The storm is over: a few get in, the others have given up.
            if rng.random() < 0.6:
                scene.served(at + rng.uniform(0.1, 2), client, name, 3, node=node)


def _retry(
    scene: Scene, tally: Tally, who: tuple[Client, str, str], rhythm: Rhythm, at: float, until: float, status: int
) -> float:
    client, name, node = who
    for turn, gap in enumerate(rhythm.gaps(scene.rng)):
        if at >= until:
            break
        attempt = turn + 1 if client.says_attempt else 1
        tally.take(scene.refused(at, client, name, status, attempt=attempt, node=node))
        at += gap
    return at


def _cue(scene: Scene, trigger: str | None, channel: str, *, decoy: bool = False) -> float:
    rng = scene.rng
    if decoy:
        at = scene.restart(10, away=5) + rng.uniform(60, 90)
        scene.event(at, Event.CONFIG, detail='{"max_readers":100}')
        return at + rng.uniform(0.3, 4)
    match trigger:
        case Event.SERVER_READY:
            return scene.restart(10, away=rng.uniform(3, 9)) + rng.uniform(0.2, 2)
        case Event.CONFIG:
            scene.event(10, Event.CONFIG, detail='{"max_readers":100}')
            return 10 + rng.uniform(0.3, 4)
        case Event.CHANNEL_CREATE:
            scene.event(10, Event.CHANNEL_CREATE, channel, epoch=1)
            return 10 + rng.uniform(0.5, 4)
        case _:
            return QUIET_S + rng.uniform(0, 20)


def play_herd(scene: Scene, *, herd: Herd) -> None:
    """Waves after the cue, each client once in each wave; then they are served."""
    rng = scene.rng
    names = [scene.channel() for _ in range(herd.channels)]
    begins = scene.restart(10, away=rng.uniform(3, 9)) if herd.trigger else QUIET_S
    also = (AMPLIFICATION,) if herd.answer == "503" else ()
    tally, clients = scene.storm(HERD, herd.trigger, also=also), scene.clients(herd.clients)
    for turn, wave in enumerate(herd.waves_s):
        for number, client in enumerate(clients):
            at = begins + wave + rng.uniform(0, herd.spread_s)
            attempt = turn + 1 if client.says_attempt else 1
            tally.take(_failure(scene, at, client, names[number % len(names)], herd.answer, attempt))
    for number, client in enumerate(clients):
        at = begins + herd.waves_s[-1] + rng.uniform(1, 6)
        scene.served(at, client, names[number % len(names)], 2, seq=-1)


def _failure(scene: Scene, at: float, client: Client, name: str, answer: str, attempt: int) -> AccessRecord:
    kind = scene.rng.choice(("404", "470", "503")) if answer == "mixed" else answer
    match kind:
        case "404":
            return scene.not_found(at, client, name, attempt=attempt)
        case "470":
            return scene.missing(at, client, name, 40, 0, retry_after_ms=None, attempt=attempt)
        case _:
            return scene.refused(at, client, name, 503, reason=Reason.limit("readers"), attempt=attempt)
