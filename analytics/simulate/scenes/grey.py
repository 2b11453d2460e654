"""Cases near the thresholds, on both sides.

A storm is one kind of answer, given to one client on one channel, at least 8 times at 8 per second or more, or at least
30 times. Here are 9 to 15 at 9 to 14 per second and 32 to 45 slow ones; and, as near misses, 5 to 7 fast ones and 20 to
27 slow ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from tricklecast.analytics.simulate.catalogue import Needs, Script, Set
from tricklecast.analytics.simulate.pace import Pace, polite
from tricklecast.analytics.simulate.people import behind_nat
from tricklecast.analytics.simulate.scene import QUIET_S, Scene
from tricklecast.analytics.simulate.scenes import fleets, loops, repeats, settings
from tricklecast.analytics.simulate.scenes.fleets import Herd, Overload
from tricklecast.analytics.simulate.scenes.loops import Shape
from tricklecast.analytics.simulate.scenes.stalled import stalled
from tricklecast.trickle.records import Event, Reason

FAST: Final = Shape("fast", Pace.FIXED_JITTER, (0.0, 0.0), (0, 0))
SLOW: Final = Shape("slow", Pace.FIXED_JITTER, (0.0, 0.0), (0, 0))

KINDS: Final[tuple[tuple[str, str, settings.Setting, bool], ...]] = (
    ("not_found_loop", "gone", settings.gone, False),
    ("not_found_loop", "never", settings.never, False),
    ("seq_behind_loop", "behind", settings.behind, True),
    ("seq_ahead_sweep", "ahead", settings.ahead, True),
    ("seq_ahead_sweep", "new_life", settings.new_life, True),
    ("overload_client", "limit", settings.refused(503, Reason.limit("readers")), False),
    ("overload_client", "per_ip", settings.refused(429, Reason.limit("per_ip")), False),
    ("server_error_loop", "error", settings.failing(500), True),
    ("rejected_loop", "expired", settings.rejected(401), True),
    ("abandoned_loop", "stalled", stalled(0.04), True),
    ("zero_byte_loop", "stuck", repeats.stuck, True),
    ("zero_byte_loop", "passed", repeats.passed, True),
    ("same_segment_loop", "same_seq", repeats.same_seq, True),
    ("ended_loop", "over", repeats.over, False),
    ("repost_loop", "conflict", repeats.conflict, True),
    ("repost_loop", "stored", repeats.stored, True),
)
"""Class, name, setting, and whether it can also be slow: slow 404s and refusals are judged by other rules."""

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
    for storm, name, setting, slow in KINDS:
        for number in (1, 2):
            yield _script(f"{storm}/{name}/fast_{number}", storm, setting, fast=True)
        if slow:
            yield _script(f"{storm}/{name}/slow", storm, setting, fast=False)
        yield _script(f"near/{storm}/{name}/fast", "", setting, fast=True)
        yield _script(f"near/{storm}/{name}/slow", "", setting, fast=False)
    yield _script("not_found_drip/gone/slow", "not_found_drip", settings.gone, fast=False)
    yield _script("not_found_drip/gone/slow_2", "not_found_drip", settings.gone, fast=False)
    for overload in _OVERLOADS:
        play = partial(fleets.play_overload, overload=overload)
        name = f"{fleets.AMPLIFICATION}/{overload.name}"
        yield Script(name, fleets.AMPLIFICATION, play, Set.GREY, Needs.SERVER)
    for herd in _HERDS:
        play = partial(fleets.play_herd, herd=herd)
        yield Script(f"{fleets.HERD}/{herd.name}", fleets.HERD, play, Set.GREY, Needs.SERVER)
    yield Script("not_found_loop/rotating_keys", "not_found_loop", rotating_keys, Set.GREY)
    for name, miss, needs in _MISSES:
        yield Script(f"near/{name}", "trap", miss, Set.GREY, needs)


def _script(name: str, storm: str, setting: settings.Setting, *, fast: bool) -> Script:
    play = partial(play_case, storm=storm, setting=setting, fast=fast)
    return Script(name, storm or "trap", play, Set.GREY)


def play_case(scene: Scene, *, storm: str, setting: settings.Setting, fast: bool) -> None:
    """One case; without a class it is a near miss."""
    rng = scene.rng
    if storm:
        count, rate = (rng.randint(9, 15), rng.uniform(9, 14)) if fast else (rng.randint(32, 45), rng.uniform(0.4, 1.6))
    else:
        count, rate = (rng.randint(5, 7), rng.uniform(6, 20)) if fast else (rng.randint(20, 27), rng.uniform(0.3, 0.9))
    shape = replace(FAST if fast else SLOW, gap_s=(1 / rate, 1 / rate), n=(count, count), pace=Pace.FIXED)
    place = setting(scene)
    tally = scene.storm(storm, place.trigger) if storm else scene.trap()
    place.close(loops.loop(scene, tally, scene.clients(1), place.answer, shape, place.at))


def rotating_keys(scene: Scene) -> None:
    """One broken player that calls itself something else in each request, on a connection of its own each time."""
    storm, name, one = scene.storm("not_found_loop"), scene.channel(), scene.client(conns=1)
    one.reconnects, at = True, 5.0
    for _ in range(scene.rng.randint(300, 600)):
        one.key = f"player-{scene.rng.getrandbits(48):012x}"
        storm.take(scene.not_found(at, one, name))
        at += scene.rng.uniform(0.02, 0.08)


# --- near misses of other kinds -------------------------------------------------------------------------------------


def dozen_behind_nat(scene: Scene) -> None:
    """A dozen readers behind one key are told of the end once each, and ask once more."""
    trap, name, rng = scene.trap(), scene.channel(), scene.rng
    scene.event(5, Event.CHANNEL_END, name, detail="deleted", next_seq=30)
    for client in behind_nat(rng, rng.randint(10, 14)):
        trap.take(scene.ended(5 + rng.uniform(0.01, 0.4), client, name, 30))
        trap.take(scene.not_found(15.2 + rng.uniform(0, 0.9), client, name, 30))


def nearly_polite(scene: Scene) -> None:
    """Refused for minutes, and back every second and a half or two, as told."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    at = 1.0
    for _ in range(scene.rng.randint(25, 60)):
        trap.take(scene.refused(at, client, name, 429, retry_after_ms=1400))
        at += scene.rng.uniform(1.45, 2.1)


def polite_but_eager(scene: Scene) -> None:
    """A dozen clients with a short back-off: a few quick attempts, then longer and longer pauses."""
    trap, name = scene.trap(), scene.channel()
    for client in scene.clients(12):
        at = 5 + scene.rng.uniform(0, 4)
        for gap in polite(scene.rng, 0.5, 20.0, 9):
            trap.take(scene.refused(at, client, name, retry_after_ms=500))
            at += gap


def few_refused(scene: Scene) -> None:
    """Four clients refused twice a second for some seconds: too few to be a fleet, too slow to be storms."""
    trap, name = scene.trap(), scene.channel()
    for client in scene.clients(4):
        for turn in range(7):
            trap.take(scene.refused(10 + turn * 0.5 + scene.rng.uniform(0, 0.1), client, name))


def small_herd(scene: Scene) -> None:
    """A dozen clients come back together after a restart, twice."""
    trap, names = scene.trap(), [scene.channel() for _ in range(2)]
    up = scene.restart(10, away=5)
    for turn in (1.0, 2.0):
        for number, client in enumerate(scene.clients(11)):
            at = up + turn + scene.rng.uniform(0, 0.3)
            trap.take(scene.not_found(at, client, names[number % 2], attempt=1 + int(turn > 1)))


def herd_that_tries_once(scene: Scene) -> None:
    """Eighty clients come back together after a restart, and few of them need a second attempt."""
    trap, names = scene.trap(), [scene.channel() for _ in range(6)]
    up = scene.restart(10, away=5)
    for number, client in enumerate(scene.clients(80)):
        trap.take(scene.not_found(up + 1 + scene.rng.uniform(0, 0.4), client, names[number % 6]))
        if number % 4 == 0:
            trap.take(scene.not_found(up + 2 + scene.rng.uniform(0, 0.4), client, names[number % 6], attempt=2))
        scene.served(up + 3 + scene.rng.uniform(0, 2), client, names[number % 6], 0, seq=-1)


def bursts_apart(scene: Scene) -> None:
    """Six quick failures, silence, and six again, five times over: five clicks of somebody who is impatient."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    for burst in range(4):
        for turn in range(6):
            trap.take(scene.missing(QUIET_S + burst * 100 + turn * 0.1, client, name, 11, 9))


_MISSES: Final[tuple[tuple[str, Callable[[Scene], None], Needs], ...]] = (
    ("dozen_behind_nat", dozen_behind_nat, Needs.COMPANY),
    ("nearly_polite", nearly_polite, Needs.COMPANY),
    ("polite_but_eager", polite_but_eager, Needs.SERVER),
    ("few_refused", few_refused, Needs.COMPANY),
    ("small_herd", small_herd, Needs.SERVER),
    ("herd_that_tries_once", herd_that_tries_once, Needs.SERVER),
    ("bursts_apart", bursts_apart, Needs.COMPANY),
)
