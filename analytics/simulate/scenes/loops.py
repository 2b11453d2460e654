"""Loops of failing answers: every setting in every shape that a client's loop takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.catalogue import Needs, Script, Set
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.pace import Pace, Rhythm
from tricklecast.analytics.simulate.people import Client, behind_nat
from tricklecast.analytics.simulate.scene import Answer, Scene
from tricklecast.analytics.simulate.scenes import settings
from tricklecast.analytics.simulate.scenes.stalled import stalled, stalled_from_birth
from tricklecast.analytics.simulate.tally import Tally
from tricklecast.trickle.records import Reason


@dataclass(frozen=True, slots=True)
class Shape:
    """How clients loop.

    Attributes:
        name: of the shape.
        pace: their rhythm; gap_s: its scale, from and to, seconds.
        n: requests of each client, from and to.
        clients: how many of them; spread_s: their first requests come within so many seconds.
        reconnects: whether each request opens a connection.
        nat: whether healthy readers share the client's key.
        channels: on how many channels at once.
        border_s: put it across a multiple of so many seconds.
        needs: of its place.
        releases: whether the user agent is another one each time. busy: whether the client reads elsewhere meanwhile.
    """

    name: str
    pace: Pace
    gap_s: tuple[float, float]
    n: tuple[int, int]
    clients: int = 1
    spread_s: float = 0.0
    reconnects: bool = False
    nat: bool = False
    channels: int = 1
    border_s: int = 0
    needs: Needs = Needs.COMPANY
    releases: bool = False
    busy: bool = False


HOT = Shape("hot", Pace.HOT_LOOP, (0.008, 0.06), (60, 500))
FIXED = Shape("fixed", Pace.FIXED, (0.1, 0.33), (50, 160))
JITTER = Shape("jitter", Pace.FIXED_JITTER, (0.1, 0.3), (50, 160))
EXPONENTIAL = Shape("exponential", Pace.EXPONENTIAL, (0.25, 0.35), (60, 120))
EXPONENTIAL_JITTER = Shape("exponential_jitter", Pace.EXPONENTIAL_JITTER, (0.3, 0.6), (60, 140))
IRREGULAR = Shape("irregular", Pace.IRREGULAR, (0.15, 0.3), (60, 150))
TEN = Shape("ten", Pace.FIXED_JITTER, (0.1, 0.25), (40, 90), clients=10, spread_s=3)
HUNDRED = Shape("hundred", Pace.FIXED_JITTER, (0.15, 0.3), (35, 50), clients=100, spread_s=4, needs=Needs.SERVER)
RECONNECTS = Shape("reconnects", Pace.FIXED_JITTER, (0.16, 0.25), (100, 200), reconnects=True)
NAT = Shape("nat", Pace.FIXED_JITTER, (0.05, 0.25), (60, 150), nat=True)
CHANNELS = Shape("channels", Pace.FIXED_JITTER, (0.15, 0.3), (45, 70), channels=12)
MINUTE = replace(FIXED, name="over_a_minute", border_s=60)
HOUR = replace(HOT, name="over_an_hour", border_s=3600)
SECOND = replace(HOT, name="from_a_full_second", border_s=1, n=(40, 80))
LONG = Shape("long", Pace.FIXED_JITTER, (0.25, 0.33), (2000, 3000))
SLOW = Shape("slow", Pace.FIXED_JITTER, (0.9, 2.6), (50, 90))
TIMEOUT = Shape("fixed", Pace.FIXED, (1.03, 1.1), (50, 120))
"""As whoever gives up after a second."""
RELEASES = replace(JITTER, name="releases", releases=True)
BUSY = replace(JITTER, name="busy", busy=True)
TWICE = replace(FIXED, name="twice")
"""Two storms of one client on one channel, with 40 s of silence between them."""

DRIP_SECOND = Shape("each_second", Pace.FIXED_JITTER, (0.7, 1.4), (50, 120))
DRIP_FOUR = Shape("each_four_seconds", Pace.FIXED, (3.2, 4.5), (45, 80))
DRIP_TEN = Shape("each_ten_seconds", Pace.FIXED, (9.0, 10.5), (45, 90))
DRIP_CLIENTS = Shape("ten", Pace.FIXED_JITTER, (0.8, 1.6), (45, 70), clients=10, spread_s=10)
DRIP_HOUR = Shape("for_an_hour", Pace.FIXED, (2.5, 4.0), (1000, 1100), border_s=3600)

EACH = (HOT, FIXED, JITTER, EXPONENTIAL, EXPONENTIAL_JITTER, IRREGULAR)
DRIPS = (DRIP_SECOND, DRIP_FOUR, DRIP_TEN, DRIP_CLIENTS, DRIP_HOUR)

_LIMITS = settings.refused(503, Reason.limit("readers"))
_PER_IP = settings.refused(429, Reason.limit("per_ip"))

TABLE: tuple[tuple[str, str, settings.Setting, tuple[Shape, ...]], ...] = (
    ("not_found_loop", "gone", settings.gone, (*EACH, TEN, HUNDRED, RECONNECTS, NAT, MINUTE, HOUR, TWICE)),
    ("not_found_loop", "never", settings.never, (HOT, FIXED, JITTER, SECOND, RECONNECTS, CHANNELS, LONG, BUSY)),
    ("not_found_loop", "moody", settings.moody, (HOT, FIXED)),
    ("not_found_loop", "publisher", settings.publisher_gone, (HOT, JITTER)),
    ("not_found_loop", "nameless", settings.nameless, (HOT, JITTER)),
    ("not_found_drip", "gone", settings.gone, DRIPS),
    (
        "seq_behind_loop",
        "behind",
        settings.behind,
        (*EACH, SLOW, TEN, HUNDRED, RECONNECTS, NAT, HOUR, TWICE, RELEASES, BUSY),
    ),
    ("seq_ahead_sweep", "ahead", settings.ahead, (*EACH, SLOW, TEN, RECONNECTS, MINUTE)),
    ("seq_ahead_sweep", "new_life", settings.new_life, (HOT, JITTER, SLOW, TEN)),
    ("overload_client", "limit", _LIMITS, (*EACH, RECONNECTS, HOUR, LONG, RELEASES)),
    ("overload_client", "per_ip", _PER_IP, (HOT, FIXED, NAT, CHANNELS)),
    ("overload_client", "guarded", settings.guarded, (HOT, FIXED)),
    ("overload_client", "lowered_limit", settings.lowered_limit, (HOT, JITTER)),
    ("overload_client", "publisher", settings.refused_publisher, (FIXED, EXPONENTIAL)),
    ("server_error_loop", "error", settings.failing(500), (*EACH, SLOW, TEN, RECONNECTS, MINUTE)),
    ("server_error_loop", "bad_gateway", settings.failing(502), (HOT, FIXED, HUNDRED)),
    ("server_error_loop", "after_restart", settings.failing_after_restart, (HOT, JITTER, TEN)),
    ("rejected_loop", "expired", settings.rejected(401), (*EACH, SLOW, TEN, RECONNECTS, NAT, MINUTE)),
    ("rejected_loop", "forbidden", settings.rejected(403), (HOT, FIXED, HUNDRED)),
    ("rejected_loop", "publisher", settings.rejected_publisher, (FIXED, EXPONENTIAL)),
    ("rejected_loop", "other_keys", settings.other_keys, (HOT, JITTER, TEN)),
    ("abandoned_loop", "stalled", stalled(0.005), (*EACH, HOUR, TWICE)),
    ("abandoned_loop", "stalled", stalled(0.02), (TEN, HUNDRED, RECONNECTS, NAT, MINUTE, CHANNELS, BUSY)),
    ("abandoned_loop", "stalled", stalled(0.4), (SLOW,)),
    ("abandoned_loop", "after_a_second", stalled(1.0), (TIMEOUT,)),
    ("abandoned_loop", "from_birth", stalled_from_birth, (HOT, JITTER, TEN)),
)
"""Class, name of the setting, the setting, its shapes."""

SEEN_BY_ALL = (settings.failing_after_restart, settings.lowered_limit, settings.other_keys)
"""Settings whose trigger happens to the whole server: other storms on it would seem to be set off by it, too."""


def scripts() -> Iterator[Script]:
    """All of them."""
    for storm, name, setting, shapes in TABLE:
        for shape in shapes:
            needs = Needs.SERVER if setting in SEEN_BY_ALL else shape.needs
            play = partial(play_loop, storm=storm, setting=setting, shape=shape)
            yield Script(f"{storm}/{name}/{shape.name}", storm, play, Set.STANDARD, needs, shape.border_s)


def play_loop(scene: Scene, *, storm: str, setting: Callable[[Scene], settings.Place], shape: Shape) -> None:
    """One storm, from its channel's beginning to its end."""
    clients = _clients(scene, shape)
    place = setting(scene)
    tally = scene.storm(storm, place.trigger, also=place.also)
    elsewhere = _elsewhere(scene, clients[0], place.at) if shape.busy else []
    until = loop(scene, tally, clients, place.answer, shape, place.at)
    for _ in range(shape.channels - 1):
        other = setting(scene)
        until = max(until, loop(scene, tally, clients, other.answer, shape, max(place.at, other.at)))
        other.close(until)
    if shape is TWICE:
        second = scene.storm(storm, place.trigger)
        until = loop(scene, second, clients, place.answer, shape, until + 40)
    place.close(until)
    for live in elsewhere:
        live.advance(micros(until + 5), scene.entries)


def _elsewhere(scene: Scene, client: Client, at: float) -> list[LiveChannel]:
    """Channels that the client reads as it should, before, during and after its storm."""
    found = [scene.host(at=max(0.0, at - 20), cadence=0.5, readers=1) for _ in range(3)]
    for live in found:
        live.join(client)
    return found


def loop(scene: Scene, tally: Tally, clients: list[Client], answer: Answer, shape: Shape, at: float) -> float:
    """Requests of all clients, each with its own rhythm.

    Returns:
        when the last one came, seconds.
    """
    rng, until = scene.rng, at
    rhythm = Rhythm(shape.pace, rng.uniform(*shape.gap_s))
    tally.backoff = rhythm.label if shape.clients == 1 and shape.channels == 1 else None
    for client in clients:
        now = at + rng.uniform(0, shape.spread_s)
        for turn, gap in zip(range(rng.randint(*shape.n)), rhythm.gaps(rng), strict=False):
            if shape.releases:
                client.ua = (
                    f"player/{scene.rng.randrange(20)}.{scene.rng.randrange(10)} ({scene.rng.getrandbits(32):08x})"
                )
            tally.take(answer(now, client, turn))
            until = max(until, now)
            now += gap
    return until


def _clients(scene: Scene, shape: Shape) -> list[Client]:
    if shape.nat:
        one, *scene.company = behind_nat(scene.rng, scene.rng.randrange(5, 13))
        return [one]
    known = {"conns": 1} if shape.reconnects else {}
    found = scene.clients(shape.clients, **known)
    for client in found:
        client.reconnects = shape.reconnects
    return found
