"""Loops of single clients: every setting in which a broken client loops, in every shape that a loop takes.

A *setting* prepares a channel, and says when the storm may begin, what each request is answered, and what set it off.
A *shape* says how many clients loop, how often, and at which pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.clients import Client, Pace, behind_nat, pauses
from tricklecast.analytics.simulate.lines import POST, SECOND_US, Line, micros
from tricklecast.analytics.simulate.scene import QUIET_S, Label, Scene, Script
from tricklecast.trickle.records import Event, Reason

Answer = Callable[[float, Client, int], Line]
"""Makes the line of one request: when (seconds of the scene), whose, which of its requests (from 0)."""


@dataclass(slots=True)
class Prepared:
    """A channel on which a storm may begin.

    Attributes:
        at: when it may, seconds of the scene.
        answer: what a request gets.
        trigger: the event that sets the storm off. also: other classes that are as right.
        close: called with the storm's end, to finish the channel's life.
    """

    at: float
    answer: Answer
    trigger: str | None = None
    also: tuple[StormClass, ...] = ()
    close: Callable[[float], None] = lambda _: None


Setting = Callable[[Scene], Prepared]


def _says(scene: Scene, answer: str, name: str, **fields: Any) -> Answer:
    """Each request is answered so; fields that change are functions of its time and number."""

    def made(at: float, client: Client, turn: int) -> Line:
        known = {key: value(at, turn) if callable(value) else value for key, value in fields.items()}
        return scene.say(answer, at, client, name, **known)

    return made


# --- channels on which a client may loop, and how their life goes on --------------------------------------------------


def _quiet(scene: Scene, cadences: Sequence[float] = (4, 6), readers: int | None = None) -> tuple[LiveChannel, float]:
    """A channel that began long enough ago that its beginning is nobody's trigger; and a moment of its life."""
    readers = scene.rng.randrange(1, 3) if readers is None else readers
    live = scene.host(readers=readers, cadence=scene.rng.choice(cadences))
    at = QUIET_S + scene.rng.uniform(0, 40)
    live.advance(micros(at), scene.entries)
    return live, at


def _stopped(scene: Scene) -> tuple[LiveChannel, float]:
    """A channel whose publisher has fallen silent; it began long ago."""
    live, at = _quiet(scene, (2, 4, 6), readers=1)
    return live, at + live.cadence_us / SECOND_US


def _ended(scene: Scene, curious: float = 0.1) -> tuple[LiveChannel, float]:
    """A channel that has ended, and when."""
    live, ended = scene.host(readers=scene.rng.randrange(1, 5)), scene.rng.uniform(20, 60)
    live.advance(micros(ended), scene.entries)
    live.end(micros(ended), scene.entries, curious=curious)
    return live, max(ended, live.last_us / SECOND_US)


def _born(scene: Scene) -> tuple[LiveChannel, float]:
    """A channel that was created, and of which nothing more is heard."""
    live = scene.host(at=scene.rng.uniform(8, 30))
    return live, live.last_us / SECOND_US + scene.rng.uniform(0.3, 15)


def _goes_on(scene: Scene, live: LiveChannel, until: float) -> None:
    live.advance(micros(until + scene.rng.uniform(2, 20)), scene.entries)


def _waits(scene: Scene, live: LiveChannel, until: float) -> None:
    live.wait(micros(until + 30), scene.entries)


def _rolls_on(scene: Scene, live: LiveChannel, until: float) -> None:
    """The publisher speaks again, after the segment that is empty."""
    live.head, live.next_us = live.head + 1, micros(until)
    live.advance(micros(until + 10), scene.entries)


def _is_deleted(scene: Scene, live: LiveChannel, until: float) -> None:
    live.last_us = micros(until)
    live.end(micros(until + scene.rng.uniform(0.02, 3)), scene.entries)


def _moving(live: LiveChannel, head: int, begun: float) -> Callable[[float, int], int]:
    """The head of a channel that goes on, which it had when the storm began."""
    return lambda at, turn: max(0, head + int(micros(at - begun) / live.cadence_us))


# --- settings ---------------------------------------------------------------------------------------------------------


def on(
    stage: Callable[[Scene], tuple[LiveChannel, float]],
    answer: str,
    fields: Callable[[LiveChannel], dict[str, Any]],
    *,
    after: tuple[float, float] | None = None,
    trigger: Event | None = None,
    close: Callable[[Scene, LiveChannel, float], None] = lambda scene, live, until: None,
) -> Setting:
    """Each request on a channel is answered alike.

    Args:
        stage: prepares the channel. fields: of the requests; those that change are functions of time and number.
        after: the storm begins so many seconds after it may, from and to.
        close: finishes the channel's life after the storm.
    """

    def setting(scene: Scene) -> Prepared:
        live, at = stage(scene)
        says = _says(scene, answer, live.name, **fields(live))
        at += scene.rng.uniform(*after) if after else 0.0
        return Prepared(at, says, trigger, close=partial(close, scene, live))

    return setting


def ongoing(answer: str, *, at_head: bool = False, **fields: Any) -> Setting:
    """The channel is well, and goes on; each request of the client is answered with the same no.

    Args:
        at_head: the client asks for the segment that is next when the storm begins.
    """
    return on(_quiet, answer, lambda live: fields | ({"seq": live.head} if at_head else {}), close=_goes_on)


def stalled(wait_s: float, **more: Any) -> Setting:
    """The publisher stands still. The others wait; the client gives up after so many seconds, and asks again."""
    how: dict[str, Any] = {"stage": _quiet, "close": _waits} | more
    return on(answer="abandoned", fields=lambda live: {"seq": live.head, "dur_us": micros(wait_s)}, **how)


def lowered_limit(scene: Scene) -> Prepared:
    """A limit was lowered, and the client takes no notice of being refused."""
    made = ongoing("refused", status=429)(scene)
    scene.event(made.at - scene.rng.uniform(0.2, 10), Event.CONFIG, detail='{"readers_per_ip":4}')
    return replace(made, trigger=Event.CONFIG)


def after_restart(answer: str, release: str = "tricklecast/0.1.0", **fields: Any) -> Setting:
    """The server was started anew, and does not do what it did before."""

    def setting(scene: Scene) -> Prepared:
        at = scene.restart(5, away=scene.rng.uniform(2, 8), release=release) + scene.rng.uniform(0.5, 8)
        return Prepared(at, _says(scene, answer, scene.channel(), seq=-1, **fields), Event.SERVER_READY)

    return setting


def gone(scene: Scene) -> Prepared:
    """The channel has ended, and the client does not believe it."""
    live, ended = _ended(scene)
    seq, says = scene.rng.choice((live.head, live.head, -1)), scene.rng.random() < 0.7
    told = {"eos": True, "next_seq": live.head} if says else {}
    at = ended + scene.rng.uniform(0.05, 12)
    return Prepared(at, _says(scene, "not_found", live.name, seq=seq, **told), Event.CHANNEL_END)


def _publishes_on(live: LiveChannel) -> dict[str, Any]:
    """Segment after segment, each four times."""
    told = {"eos": True, "next_seq": live.head, **POST}
    return {"seq": lambda at, turn: live.head + turn // 4, "attempt": lambda at, turn: 1 + turn % 4, **told}


def _counts_on(live: LiveChannel) -> dict[str, Any]:
    """One segment further each time."""
    return {"seq": lambda at, turn: live.head + 1 + turn, "next_seq": live.head, "attempt": 1}


def never(scene: Scene) -> Prepared:
    """There never was such a channel: a mistyped name."""
    name, choose = scene.channel(), scene.rng.choice
    at = scene.rng.uniform(1, 30)
    return Prepared(at, _says(scene, "not_found", name, seq=lambda at, turn: choose((-1, -1, 0))))


def nameless(scene: Scene) -> Prepared:
    """As :func:`never`, in a log that does not say who the client was."""
    made = never(scene)

    def answer(at: float, client: Client, turn: int) -> Line:
        client.key = None
        return made.answer(at, client, turn)

    return Prepared(made.at, answer)


def moody(scene: Scene) -> Prepared:
    """Three kinds of refusal in turn, and the client takes no notice of any."""
    name, at = scene.channel(), QUIET_S + scene.rng.uniform(0, 20)
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (("not_found", {}), ("missing", {"next_seq": 300}), ("refused", {}))
    three = [_says(scene, kind, name, seq=7, attempt=1, **fields) for kind, fields in kinds]
    also = (StormClass.SEQ_BEHIND_LOOP, StormClass.OVERLOAD_CLIENT)
    return Prepared(at, lambda at, client, turn: three[turn % 3](at, client, turn), also=also)


def behind(scene: Scene) -> Prepared:
    """The segment has left the window; the publisher is far ahead, and goes on."""
    live, at = _quiet(scene)
    live.head += scene.rng.randrange(300, 2000)
    seq = max(0, live.head - scene.rng.randrange(260, 400))
    says = _says(scene, "missing", live.name, seq=seq, next_seq=_moving(live, live.head, at))
    return Prepared(at, says, close=partial(_goes_on, scene, live))


def new_life(scene: Scene) -> Prepared:
    """The channel was created anew, and the client keeps the position that it had in its former life."""
    began, seq = scene.rng.uniform(8, 30), scene.rng.randrange(400, 9000)
    epoch = scene.rng.choice((1, 2))
    live = scene.host(at=began, epoch=epoch)
    created = live.last_us / SECOND_US
    if epoch == 2:  # the former life's end is in the log, too
        ended = {"epoch": 1, "next_seq": seq, "detail": "deleted"}
        scene.event(began - scene.rng.uniform(1, 7), Event.CHANNEL_END, live.name, **ended)
    at = created + scene.rng.uniform(0.3, 15)
    live.advance(micros(at), scene.entries)
    says = _says(scene, "missing", live.name, seq=seq, next_seq=_moving(live, 0, created), epoch=epoch)
    return Prepared(at, says, Event.CHANNEL_CREATE, close=partial(_goes_on, scene, live))


def rolling(scene: Scene) -> Prepared:
    """Each request asks for the current segment (-2), which is empty; every 25 s an idle publisher rolls the next."""
    live, begun = _stopped(scene)
    says = _says(scene, "empty", live.name, seq=lambda at, turn: live.head + int((at - begun) / 25), asked=-2)
    return Prepared(begun, says)


def same_seq(scene: Scene) -> Prepared:
    """The client does not count on: it asks for the same kept segment, while others follow the live edge."""
    live, at = _quiet(scene, (2, 4), readers=2)
    seq = live.head - scene.rng.randrange(1, 20)
    says = _says(scene, "served", live.name, seq=seq, next_seq=_moving(live, live.head, at))
    return Prepared(at, says, close=partial(_goes_on, scene, live))


def cycle(*lengths: int) -> Setting:
    """The head jumps back by one of these lengths, again and again: following it leads through the same segments."""

    def fields(live: LiveChannel) -> dict[str, Any]:
        length = live.rng.choice(lengths)
        return {"seq": lambda at, turn: live.head + 100 - length + turn % length, "asked": -1}

    return on(_stopped, "served", fields)


def new_head(scene: Scene) -> Prepared:
    """The channel is created anew, its head begins at 0 again, and the client is led through its first segments."""
    live = scene.host(at=scene.rng.uniform(1, 20), readers=1)
    created = live.last_us / SECOND_US
    live.advance(micros(created + 12), scene.entries)
    says = _says(scene, "served", live.name, seq=lambda at, turn: turn % 2, next_seq=2)
    return Prepared(created + scene.rng.uniform(0.5, 11), says, Event.CHANNEL_CREATE)


_END: Final = Event.CHANNEL_END

# A new release of the server breaks on what the old one could do.
new_release = after_restart("failed", release="tricklecast/0.2.0")
# The server was started with other keys, and believes no token that it believed before.
other_keys = after_restart("rejected", reason=Reason.token("signature"))
# A publisher goes on publishing into a channel that was ended.
publisher_gone = on(_ended, "not_found", _publishes_on, after=(0.05, 12), trigger=_END)
# The channel has ended and is drained: the client is told so with every answer.
over = on(partial(_ended, curious=0.0), "ended", lambda live: {"seq": live.head}, after=(0.01, 2), trigger=_END)
# The publisher stands still, and the client counts its failures as segments.
ahead = on(_quiet, "missing", _counts_on, after=(1, 4))
# The channel was created, and nothing more is heard of it.
stalled_from_birth = stalled(0.02, stage=_born, trigger=Event.CHANNEL_CREATE)
# The fault of the past: the head does not move past an empty segment, until somebody deletes the channel.
stuck = on(_stopped, "empty", lambda live: {"seq": live.head, "next_seq": live.head}, trigger=_END, close=_is_deleted)
# A naive client at a correct server: the head is past the empty segment, and the client asks for it again.
passed = on(_stopped, "empty", lambda live: {"seq": live.head}, close=_rolls_on)
# The client asks for the current segment (-2), and the publisher has fallen silent.
current = on(_stopped, "served", lambda live: {"seq": live.head - 1, "asked": -2})
# The publisher does not take 409 for an answer.
conflict = on(_stopped, "conflict", lambda live: {"seq": live.head - 1, "next_seq": live.head})
# The publisher does not see the 200: each time it sends the whole body, under the same key.
stored = on(_stopped, "posted", lambda live: {"seq": live.head})


# --- shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """How clients loop.

    Attributes:
        name: of the shape.
        pace: of their retries; gap_s: its scale, from and to, seconds.
        n: requests of each client, from and to.
        clients: how many of them; spread_s: their first requests come within so many seconds.
        reconnects: whether each request opens a connection.
        nat: whether healthy readers share the client's key.
        channels: on how many channels at once.
        border_s: put it across a multiple of so many seconds.
        servers: how many it needs for itself.
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
    servers: int = 0
    releases: bool = False
    busy: bool = False


HOT = Shape("hot", Pace.HOT_LOOP, (0.008, 0.06), (60, 500))
FIXED = Shape("fixed", Pace.FIXED, (0.1, 0.33), (50, 160))
JITTER = Shape("jitter", Pace.FIXED_JITTER, (0.1, 0.3), (50, 160))
EXPONENTIAL = Shape("exponential", Pace.EXPONENTIAL, (0.25, 0.35), (60, 120))
EXPONENTIAL_JITTER = Shape("exponential_jitter", Pace.EXPONENTIAL_JITTER, (0.3, 0.6), (60, 140))
IRREGULAR = Shape("irregular", Pace.IRREGULAR, (0.15, 0.3), (60, 150))
TEN = Shape("ten", Pace.FIXED_JITTER, (0.1, 0.25), (40, 90), clients=10, spread_s=3)
HUNDRED = Shape("hundred", Pace.FIXED_JITTER, (0.15, 0.3), (35, 50), clients=100, spread_s=4, servers=1)
RECONNECTS = Shape("reconnects", Pace.FIXED_JITTER, (0.16, 0.25), (100, 200), reconnects=True)
NAT = Shape("nat", Pace.FIXED_JITTER, (0.05, 0.25), (60, 150), nat=True)
CHANNELS = Shape("channels", Pace.FIXED_JITTER, (0.15, 0.3), (45, 70), channels=12)
MINUTE = replace(FIXED, name="over_a_minute", border_s=60)
HOUR = replace(HOT, name="over_an_hour", border_s=3600)
SECOND = replace(HOT, name="from_a_full_second", border_s=1, n=(40, 80))
LONG = Shape("long", Pace.FIXED_JITTER, (0.25, 0.33), (2000, 3000))
SLOW = Shape("slow", Pace.FIXED_JITTER, (0.9, 2.6), (50, 90))
FEW = Shape("few", Pace.FIXED, (0.04, 0.09), (100, 200))
TIMEOUT = Shape("fixed", Pace.FIXED, (1.03, 1.1), (50, 120))
"""As a client that gives up after a second."""
RELEASES = replace(JITTER, name="releases", releases=True)
BUSY = replace(JITTER, name="busy", busy=True)
TWICE = replace(FIXED, name="twice")
"""Two storms of one client on one channel, with 40 s of silence between them."""

EACH = (HOT, FIXED, JITTER, EXPONENTIAL, EXPONENTIAL_JITTER, IRREGULAR)
DRIPS = (
    Shape("each_second", Pace.FIXED_JITTER, (0.7, 1.4), (50, 120)),
    Shape("each_four_seconds", Pace.FIXED, (3.2, 4.5), (45, 80)),
    Shape("each_ten_seconds", Pace.FIXED, (9.0, 10.5), (45, 90)),
    Shape("ten", Pace.FIXED_JITTER, (0.8, 1.6), (45, 70), clients=10, spread_s=10),
    Shape("for_an_hour", Pace.FIXED, (2.5, 4.0), (1000, 1100), border_s=3600),
)

_SHED: Final[dict[str, Any]] = {"at_head": True, "reason": Reason.limit("total_bytes"), **POST}
_FORBIDDEN: Final[dict[str, Any]] = {"at_head": True, "status": 403, "reason": Reason.FORBIDDEN}

TABLE: Final[tuple[tuple[str, Setting, tuple[Shape, ...]], ...]] = (
    ("not_found_loop/gone", gone, (*EACH, TEN, HUNDRED, RECONNECTS, NAT, MINUTE, HOUR, TWICE)),
    ("not_found_loop/never", never, (HOT, FIXED, JITTER, SECOND, RECONNECTS, CHANNELS, LONG, BUSY)),
    ("not_found_loop/moody", moody, (HOT, FIXED)),
    ("not_found_loop/publisher", publisher_gone, (HOT, JITTER)),
    ("not_found_loop/nameless", nameless, (HOT, JITTER)),
    ("not_found_drip/gone", gone, DRIPS),
    ("seq_behind_loop/behind", behind, (*EACH, SLOW, TEN, HUNDRED, RECONNECTS, NAT, HOUR, TWICE, RELEASES, BUSY)),
    ("seq_ahead_sweep/ahead", ahead, (*EACH, SLOW, TEN, RECONNECTS, MINUTE)),
    ("seq_ahead_sweep/new_life", new_life, (HOT, JITTER, SLOW, TEN)),
    ("overload_client/limit", ongoing("refused"), (*EACH, RECONNECTS, HOUR, LONG, RELEASES)),
    ("overload_client/per_ip", ongoing("refused", status=429), (HOT, FIXED, NAT, CHANNELS)),
    ("overload_client/guarded", ongoing("refused", status=429, reason=Reason.GUARD, guard_ms=12), (HOT, FIXED)),
    ("overload_client/lowered_limit", lowered_limit, (HOT, JITTER)),
    ("overload_client/publisher", ongoing("refused", **_SHED), (FIXED, EXPONENTIAL)),
    ("server_error_loop/error", ongoing("failed", at_head=True), (*EACH, SLOW, TEN, RECONNECTS, MINUTE)),
    ("server_error_loop/bad_gateway", ongoing("failed", at_head=True, status=502), (HOT, FIXED, HUNDRED)),
    ("server_error_loop/after_restart", new_release, (HOT, JITTER, TEN)),
    ("rejected_loop/expired", ongoing("rejected", at_head=True), (*EACH, SLOW, TEN, RECONNECTS, NAT, MINUTE)),
    ("rejected_loop/forbidden", ongoing("rejected", **_FORBIDDEN), (HOT, FIXED, HUNDRED)),
    ("rejected_loop/publisher", ongoing("rejected", at_head=True, **POST), (FIXED, EXPONENTIAL)),
    ("rejected_loop/other_keys", other_keys, (HOT, JITTER, TEN)),
    ("abandoned_loop/stalled", stalled(0.005), (*EACH, HOUR, TWICE)),
    ("abandoned_loop/stalled", stalled(0.02), (TEN, HUNDRED, RECONNECTS, NAT, MINUTE, CHANNELS, BUSY)),
    ("abandoned_loop/stalled", stalled(0.4), (SLOW,)),
    ("abandoned_loop/after_a_second", stalled(1.0), (TIMEOUT,)),
    ("abandoned_loop/from_birth", stalled_from_birth, (HOT, JITTER, TEN)),
    ("zero_byte_loop/stuck", stuck, (*EACH, SLOW, TEN, HUNDRED, RECONNECTS, MINUTE)),
    ("zero_byte_loop/passed", passed, (HOT, JITTER, SLOW, TEN, HOUR)),
    ("zero_byte_loop/rolling", rolling, (HOT, FIXED, JITTER)),
    ("same_segment_loop/same_seq", same_seq, (*EACH, SLOW, TEN, HUNDRED, RECONNECTS, HOUR)),
    ("same_segment_loop/current", current, (HOT, FIXED, MINUTE)),
    ("same_segment_loop/cycle", cycle(2, 3, 10, 40), (HOT, FEW)),
    # So short that a loop that is neither fast nor long leads through it many times.
    ("same_segment_loop/cycle", cycle(2, 3, 5, 10), (JITTER,)),
    ("same_segment_loop/new_head", new_head, (HOT, FEW)),
    ("ended_loop/over", over, (HOT, FIXED, JITTER, EXPONENTIAL, TEN, RECONNECTS)),
    ("repost_loop/conflict", conflict, (*EACH, SLOW, RECONNECTS, HOUR)),
    ("repost_loop/stored", stored, (HOT, FIXED, MINUTE)),
)
"""Class and name of the setting, the setting, its shapes."""

SEEN_BY_ALL: Final = (new_release, lowered_limit, other_keys)
"""Settings whose trigger happens to the whole server: other storms on it would seem to be set off by it, too."""


def scripts() -> Iterator[Script]:
    """All of them."""
    for name, setting, shapes in TABLE:
        storm = StormClass(name.partition("/")[0])
        for shape in shapes:
            servers = 1 if setting in SEEN_BY_ALL else shape.servers
            play = partial(play_loop, storm=storm, setting=setting, shape=shape)
            yield Script(f"{name}/{shape.name}", storm, play, servers=servers, border_s=shape.border_s)
    yield Script("ended_loop/drained", StormClass.ENDED_LOOP, _drained)
    yield Script("repost_loop/thrice", StormClass.REPOST_LOOP, _thrice)
    yield Script("repost_loop/duel", StormClass.REPOST_LOOP, _duel)


def play_loop(scene: Scene, *, storm: StormClass, setting: Setting, shape: Shape) -> None:
    """One storm, from its channel's beginning to its end."""
    if shape.nat:
        one, *scene.company = behind_nat(scene.rng, scene.rng.randrange(5, 13))
        clients = [one]
    else:
        clients = scene.clients(shape.clients, **({"conns": 1} if shape.reconnects else {}))
    for client in clients:
        client.reconnects = shape.reconnects
    made = setting(scene)
    label = scene.storm(storm, made.trigger, made.also)
    elsewhere = _elsewhere(scene, clients[0], made.at) if shape.busy else []
    until = loop(scene, label, clients, made.answer, shape, made.at)
    for _ in range(shape.channels - 1):
        other = setting(scene)
        until = max(until, loop(scene, label, clients, other.answer, shape, max(made.at, other.at)))
        other.close(until)
    if shape is TWICE:
        second = scene.storm(storm, made.trigger)
        until = loop(scene, second, clients, made.answer, shape, until + 40)
    made.close(until)
    for live in elsewhere:
        live.advance(micros(until + 5), scene.entries)


def loop(scene: Scene, label: Label, clients: Sequence[Client], answer: Answer, shape: Shape, at: float) -> float:
    """Requests of all clients at one pace, each with its own pauses.

    Returns:
        when the last one came, seconds.
    """
    rng, until = scene.rng, at
    gap_s = rng.uniform(*shape.gap_s)
    for client in clients:
        now = at + rng.uniform(0, shape.spread_s)
        for turn, gap in zip(range(rng.randint(*shape.n)), pauses(rng, shape.pace, gap_s), strict=False):
            client.attempt = turn + 1 if client.says_attempt else 1
            if shape.releases:
                client.ua = f"player/{rng.randrange(20)}.{rng.randrange(10)} ({rng.getrandbits(32):08x})"
            label.lines.append(answer(now, client, turn))
            until = max(until, now)
            now += gap
        client.attempt = 1
    return until


def _elsewhere(scene: Scene, client: Client, at: float) -> list[LiveChannel]:
    """Channels that the client reads as it should, before, during and after its storm."""
    found = [scene.host(at=max(0.0, at - 20), cadence=0.5, readers=1) for _ in range(3)]
    for live in found:
        live.join(client)
    return found


def _drained(scene: Scene) -> None:
    """Told that it is over until the drain ends, and then 404: two classes, one behind the other."""
    told, client = over(scene), scene.client()
    first = scene.storm(StormClass.ENDED_LOOP, Event.CHANNEL_END)
    until = loop(scene, first, [client], told.answer, replace(HOT, gap_s=(0.03, 0.06), n=(160, 200)), told.at)
    name, head = first.lines[0]["channel"], first.lines[0]["seq"]
    second = scene.storm(StormClass.NOT_FOUND_LOOP, Event.CHANNEL_END)
    forgotten = _says(scene, "not_found", name, seq=head, eos=True, next_seq=head)
    loop(scene, second, [client], forgotten, replace(FIXED, gap_s=(0.05, 0.2), n=(60, 100)), until + 0.05)


def _thrice(scene: Scene) -> None:
    """Every segment is published three times, at the pace of the channel."""
    label, client, name = scene.storm(StormClass.REPOST_LOOP), scene.client(), scene.channel()
    for seq in range(scene.rng.randrange(60, 120)):
        at = 5 + seq * 2.0
        label.lines.append(scene.say("posted", at, client, name, seq))
        for attempt in (2, 3):
            how = {"attempt": attempt if client.says_attempt else 1, "next_seq": seq + 1}
            label.lines.append(
                scene.say("conflict", at + attempt * scene.rng.uniform(0.2, 0.4), client, name, seq, **how)
            )


def _duel(scene: Scene) -> None:
    """Two publishers take the same segment from each other."""
    live, at = _stopped(scene)
    how = {"reason": Reason.SUPERSEDED, "rseq": live.head, "next_seq": live.head + 1, "attempt": 1}
    says = _says(scene, "conflict", live.name, seq=live.head, **how)
    loop(scene, scene.storm(StormClass.REPOST_LOOP), scene.clients(2), says, replace(JITTER, n=(60, 120)), at)
