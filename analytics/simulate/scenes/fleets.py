"""Storms that no single client makes: retries that add up, and crowds that come back together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.simulate.clients import Pace, pauses
from tricklecast.analytics.simulate.scene import QUIET_S, Scene, Script
from tricklecast.analytics.simulate.truth import Set
from tricklecast.trickle.records import Event

AMPLIFICATION: Final = StormClass.OVERLOAD_AMPLIFICATION
HERD: Final = StormClass.THUNDERING_HERD


@dataclass(frozen=True, slots=True)
class Overload:
    """Many clients that retry faster than they are told to.

    Attributes:
        name: of the variant. clients, channels: how many.
        pace, gap_s: of their retries, and its scale from and to. Seconds.
        lasts_s: for how long they are refused, from and to. Seconds.
        trigger: what begins it. status: 429 or 503. nodes: on how many servers at once.
        decoy: a restart, which everybody had got over, precedes the trigger.
    """

    name: str
    clients: int
    pace: Pace
    gap_s: tuple[float, float]
    lasts_s: tuple[float, float] = (8, 30)
    channels: int = 4
    trigger: Event | None = None
    status: int = 503
    nodes: int = 1
    decoy: bool = False


@dataclass(frozen=True, slots=True)
class Herd:
    """Clients that act on one cue and come again together.

    Attributes:
        name: of the variant. clients, channels: how many.
        waves_s: when they come, seconds after the cue. spread_s: a wave's width, seconds.
        answers: what they get, one of these each time.
        trigger: the cue; ``None`` if the log knows of none.
    """

    name: str
    clients: int
    channels: int
    waves_s: tuple[float, ...]
    spread_s: float = 0.3
    answers: tuple[str, ...] = ("not_found",)
    trigger: Event | None = Event.SERVER_READY


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
    Herd("segments_missing", 60, 6, (1, 2, 3, 5), answers=("missing",)),
    Herd("refused", 60, 6, (1, 2.5, 4, 5.5), answers=("refused",)),
    Herd("of_all_kinds", 90, 10, (1, 2, 4, 6), answers=("not_found", "missing", "refused")),
    Herd("wide_waves", 70, 5, (1, 3, 5), spread_s=0.9),
    Herd("without_a_cue", 60, 8, (1, 2, 3.5), trigger=None),
    Herd("without_a_cue_doubling", 120, 12, (1, 2, 4, 8), trigger=None),
    Herd("late", 50, 5, (20, 22, 24, 26)),
)

_ASKED: Final = {"not_found": {}, "missing": {"seq": 40, "next_seq": 0, "retry_after_ms": None}, "refused": {}}


def scripts(
    overloads: tuple[Overload, ...] = OVERLOADS, herds: tuple[Herd, ...] = HERDS, kind: Set = Set.STANDARD
) -> Iterator[Script]:
    """All of them, for a set."""
    for overload in overloads:
        play = partial(play_overload, overload=overload)
        yield Script(f"{AMPLIFICATION}/{overload.name}", AMPLIFICATION, play, kind, overload.nodes)
    for herd in herds:
        yield Script(f"{HERD}/{herd.name}", HERD, partial(play_herd, herd=herd), kind, 1)


def play_overload(scene: Scene, *, overload: Overload) -> None:
    """Refusals from the cue on, until the server has room again."""
    rng = scene.rng
    names = [scene.channel() for _ in range(overload.channels)]
    begins = _cue(scene, overload, names[0])
    gap_s, until = rng.uniform(*overload.gap_s), begins + rng.uniform(*overload.lasts_s)
    for node in map(str, range(overload.nodes)):
        label = scene.storm(AMPLIFICATION, overload.trigger, (HERD,) if overload.trigger else ())
        for number, client in enumerate(scene.clients(overload.clients)):
            name, at = names[number % len(names)], begins + rng.uniform(0, 1.5)
            for turn, gap in enumerate(pauses(rng, overload.pace, gap_s)):
                if at >= until:
                    break
                client.attempt = turn + 1 if client.says_attempt else 1
                label.lines.append(scene.say("refused", at, client, name, status=overload.status, node=node))
                at += gap
            # The storm is over: a few get in, the others have given up.
            if rng.random() < 0.6:
                scene.say("served", at + rng.uniform(0.1, 2), client, name, 3, node=node)


def _cue(scene: Scene, overload: Overload, channel: str) -> float:
    """What begins it; when the first ones may be refused, seconds."""
    rng, at = scene.rng, 10.0
    if overload.decoy:
        at = scene.restart(10, away=5) + rng.uniform(60, 90)
    match overload.trigger:
        case Event.SERVER_READY:
            return scene.restart(at, away=rng.uniform(3, 9)) + rng.uniform(0.2, 2)
        case Event.CONFIG:
            scene.event(at, Event.CONFIG, detail='{"max_readers":100}')
        case Event.CHANNEL_CREATE:
            scene.event(at, Event.CHANNEL_CREATE, channel, epoch=1)
        case _:
            return QUIET_S + rng.uniform(0, 20)
    return at + rng.uniform(0.4, 4)


def play_herd(scene: Scene, *, herd: Herd) -> None:
    """Waves after the cue, each client once in each wave; then they are served."""
    rng = scene.rng
    names = [scene.channel() for _ in range(herd.channels)]
    begins = scene.restart(10, away=rng.uniform(3, 9)) if herd.trigger else QUIET_S
    also = (AMPLIFICATION,) if herd.answers == ("refused",) else ()
    label, clients = scene.storm(HERD, herd.trigger, also), scene.clients(herd.clients)
    for turn, wave in enumerate(herd.waves_s):
        for number, client in enumerate(clients):
            client.attempt = turn + 1 if client.says_attempt else 1
            at, answer = begins + wave + rng.uniform(0, herd.spread_s), rng.choice(herd.answers)
            label.lines.append(scene.say(answer, at, client, names[number % len(names)], **_ASKED[answer]))
    for number, client in enumerate(clients):
        at = begins + herd.waves_s[-1] + rng.uniform(1, 6)
        scene.say("served", at, client, names[number % len(names)], 2, asked=-1)
