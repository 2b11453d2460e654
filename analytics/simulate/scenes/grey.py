"""Cases near the thresholds, on both sides.

A storm is one kind of answer, given to one client on one channel, at least 8 times at 8 per second or more, or at least
30 times. Here are 9 to 15 at 9 to 14 per second and 32 to 45 slow ones; and, as near misses, 5 to 7 fast ones and 20 to
27 slow ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.simulate.clients import Pace, behind_nat
from tricklecast.analytics.simulate.scene import QUIET_S, Scene, Script
from tricklecast.analytics.simulate.scenes import fleets, loops
from tricklecast.analytics.simulate.scenes.fleets import Herd, Overload
from tricklecast.analytics.simulate.scenes.traps import Repeated, honours, polite_backoff
from tricklecast.analytics.simulate.truth import Set
from tricklecast.trickle.records import Event

ONLY_FAST: Final = (
    "not_found_loop/gone",
    "not_found_loop/never",
    "overload_client/limit",
    "overload_client/per_ip",
    "ended_loop/over",
)
"""Loops of :data:`~analytics.simulate.scenes.loops.TABLE`; slow ones of these are judged by other rules."""

ALSO_SLOW: Final = (
    "seq_behind_loop/behind",
    "seq_ahead_sweep/ahead",
    "seq_ahead_sweep/new_life",
    "server_error_loop/error",
    "rejected_loop/expired",
    "abandoned_loop/stalled",
    "zero_byte_loop/stuck",
    "zero_byte_loop/passed",
    "same_segment_loop/same_seq",
    "repost_loop/conflict",
    "repost_loop/stored",
)

_OVERLOADS: Final = (
    Overload("six", 6, Pace.FIXED_JITTER, (0.24, 0.3), (6, 8), channels=2, trigger=Event.CONFIG),
    Overload("eight_slower", 8, Pace.FIXED_JITTER, (0.3, 0.36), (8, 10), channels=2),
)
_HERDS: Final = (
    Herd("eighteen", 18, 3, (1, 2, 4)),
    Herd("twenty_two", 22, 4, (1, 2, 3)),
    Herd("twice", 30, 5, (1, 2, 4)),
)


def scripts() -> Iterator[Script]:
    """All of them."""
    # The first setting of a name is that of the quick loops.
    settings = {name: setting for name, setting, _ in reversed(loops.TABLE)}
    for name in (*ONLY_FAST, *ALSO_SLOW):
        storm, setting = StormClass(name.partition("/")[0]), settings[name]
        for speed in ("fast_1", "fast_2", *(["slow"] if name in ALSO_SLOW else [])):
            yield _case(f"{name}/{speed}", storm, setting)
        for speed in ("fast", "slow"):
            yield _case(f"near/{name}/{speed}", None, setting)
    for speed in ("slow", "slow_2"):
        yield _case(f"not_found_drip/gone/{speed}", StormClass.NOT_FOUND_DRIP, loops.gone)
    yield from fleets.scripts(_OVERLOADS, _HERDS, Set.GREY)
    yield Script("not_found_loop/rotating_keys", StormClass.NOT_FOUND_LOOP, rotating_keys, Set.GREY)
    for name, miss, servers in _MISSES:
        yield Script(f"near/{name}", "trap", miss, Set.GREY, servers)


def _case(name: str, storm: StormClass | None, setting: loops.Setting) -> Script:
    fast = name.rpartition("/")[2].startswith("fast")
    return Script(name, storm or "trap", partial(play_case, storm=storm, setting=setting, fast=fast), Set.GREY)


def play_case(scene: Scene, *, storm: StormClass | None, setting: loops.Setting, fast: bool) -> None:
    """One case; without a class it is a near miss."""
    rng = scene.rng
    if storm:
        count, rate = (rng.randint(9, 15), rng.uniform(9, 14)) if fast else (rng.randint(32, 45), rng.uniform(0.4, 1.6))
    else:
        count, rate = (rng.randint(5, 7), rng.uniform(6, 20)) if fast else (rng.randint(20, 27), rng.uniform(0.3, 0.9))
    made = setting(scene)
    label = scene.storm(storm, made.trigger) if storm else scene.trap()
    shape = loops.Shape("case", Pace.FIXED, (1 / rate, 1 / rate), (count, count))
    made.close(loops.loop(scene, label, scene.clients(1), made.answer, shape, made.at))


def rotating_keys(scene: Scene) -> None:
    """One broken player that calls itself something else in each request, on a connection of its own each time."""
    label, name, one = scene.storm(StormClass.NOT_FOUND_LOOP), scene.channel(), scene.client(conns=1)
    one.reconnects, at = True, 5.0
    for _ in range(scene.rng.randint(300, 600)):
        one.key = f"player-{scene.rng.getrandbits(48):012x}"
        label.lines.append(scene.say("not_found", at, one, name))
        at += scene.rng.uniform(0.02, 0.08)


# --- near misses of other kinds ---------------------------------------------------------------------------------------


def dozen_behind_nat(scene: Scene) -> None:
    """A dozen readers behind one key are told of the end once each, and ask once more."""
    trap, name, rng = scene.trap(), scene.channel(), scene.rng
    scene.event(5, Event.CHANNEL_END, name, detail="deleted", next_seq=30)
    for client in behind_nat(rng, rng.randint(10, 14)):
        trap.lines.append(scene.say("ended", 5 + rng.uniform(0.01, 0.4), client, name, 30))
        trap.lines.append(scene.say("not_found", 15.2 + rng.uniform(0, 0.9), client, name, 30))


def small_herd(scene: Scene) -> None:
    """A dozen clients come back together after a restart, twice."""
    trap, names = scene.trap(), [scene.channel() for _ in range(2)]
    up = scene.restart(10, away=5)
    for turn in (1, 2):
        for number, client in enumerate(scene.clients(11)):
            at = up + turn + scene.rng.uniform(0, 0.3)
            trap.lines.append(scene.say("not_found", at, client, names[number % 2], attempt=turn))


def herd_that_tries_once(scene: Scene) -> None:
    """Eighty clients come back together after a restart, and few of them need a second attempt."""
    trap, names = scene.trap(), [scene.channel() for _ in range(6)]
    up = scene.restart(10, away=5)
    for number, client in enumerate(scene.clients(80)):
        name = names[number % 6]
        trap.lines.append(scene.say("not_found", up + 1 + scene.rng.uniform(0, 0.4), client, name))
        if number % 4 == 0:
            trap.lines.append(scene.say("not_found", up + 2 + scene.rng.uniform(0, 0.4), client, name, attempt=2))
        scene.say("served", up + 3 + scene.rng.uniform(0, 2), client, name, 0, asked=-1)


def bursts_apart(scene: Scene) -> None:
    """Six quick failures, silence, and six again, four times over: clicks of somebody who is impatient."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    for burst in range(4):
        for turn in range(6):
            at = QUIET_S + burst * 100 + turn * 0.1
            trap.lines.append(scene.say("missing", at, client, name, 11, next_seq=9))


_MISSES: Final[tuple[tuple[str, Callable[[Scene], None], int], ...]] = (
    ("dozen_behind_nat", dozen_behind_nat, 0),
    # Refused for a minute, and back every second and a half or two, as told.
    ("nearly_polite", honours(40, 1.4), 0),
    # A dozen clients with a short back-off: a few quick attempts, then longer and longer pauses.
    ("polite_but_eager", partial(polite_backoff, clients=12, status=503, attempts=9, first_s=0.5, cap_s=20.0), 1),
    # Four clients refused twice a second for some seconds: too few to be a fleet, too slow to be storms.
    ("few_refused", Repeated("refused", 7, 0.5, 4, 0.1), 0),
    ("small_herd", small_herd, 1),
    ("herd_that_tries_once", herd_that_tries_once, 1),
    ("bursts_apart", bursts_apart, 0),
)
"""Name, what is played, and how many servers it needs for itself."""
