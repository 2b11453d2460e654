"""Loops of answers that say yes: the same segment read, found empty, or published, again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.catalogue import Needs, Script, Set
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.people import Client
from tricklecast.analytics.simulate.scene import QUIET_S, Scene
from tricklecast.analytics.simulate.scenes import loops
from tricklecast.analytics.simulate.scenes.loops import (
    EACH,
    FIXED,
    HOT,
    HOUR,
    HUNDRED,
    JITTER,
    MINUTE,
    RECONNECTS,
    SLOW,
    TEN,
)
from tricklecast.analytics.simulate.scenes.settings import Place
from tricklecast.trickle.records import AccessRecord, Event, Reason

FEW = replace(FIXED, name="few", n=(100, 200), gap_s=(0.04, 0.09))


def _stopped(scene: Scene) -> tuple[LiveChannel, float]:
    """A channel whose publisher has fallen silent; it began long ago."""
    live = scene.host(cadence=scene.rng.choice((2.0, 4.0, 6.0)), readers=1)
    at = QUIET_S + scene.rng.uniform(0, 30)
    live.advance(micros(at), scene.entries)
    return live, at + live.cadence_us / 1e6


def stuck(scene: Scene) -> Place:
    """The fault of the past: the head does not move past an empty segment, until somebody deletes the channel."""
    live, at = _stopped(scene)
    seq = live.head

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.empty(at, client, live.name, seq, next_seq=seq)

    def close(until: float) -> None:
        live.last_us = micros(until)
        live.end(micros(until + scene.rng.uniform(0.02, 3)), scene.entries)

    return Place(at, answer, Event.CHANNEL_END, live, close)


def passed(scene: Scene) -> Place:
    """A naive client at a correct server: the head is past the empty segment, and the client asks for it again."""
    live, at = _stopped(scene)
    seq = live.head
    live.head += 1

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.empty(at, client, live.name, seq)

    def close(until: float) -> None:
        live.next_us = micros(until)
        live.advance(micros(until + 10), scene.entries)

    return Place(at, answer, None, live, close)


def rolling(scene: Scene) -> Place:
    """Each request asks for the current segment (-2), which is empty; every 25 s an idle publisher rolls the next."""
    live, at = _stopped(scene)
    first, begun = live.head, at

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.empty(at, client, live.name, first + int((at - begun) / 25), seq=-2)

    return Place(at, answer, None, live)


def same_seq(scene: Scene) -> Place:
    """The client does not count on: it asks for the same kept segment, while others follow the live edge."""
    live = scene.host(readers=2, cadence=scene.rng.choice((2.0, 4.0)))
    at = QUIET_S + scene.rng.uniform(0, 30)
    live.advance(micros(at), scene.entries)
    seq, begun, head = live.head - scene.rng.randrange(1, 20), at, live.head

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        now = head + int((at - begun) / (live.cadence_us / 1e6))
        return scene.served(at, client, live.name, seq, next_seq=now)

    return Place(at, answer, None, live, lambda until: live.advance(micros(until + 5), scene.entries))


def current(scene: Scene) -> Place:
    """The client asks for the current segment (-2), and the publisher has fallen silent."""
    live, at = _stopped(scene)
    seq = live.head - 1

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.served(at, client, live.name, seq, seq=-2)

    return Place(at, answer, None, live)


def cycle(scene: Scene, lengths: Sequence[int] = (2, 3, 10, 40)) -> Place:
    """The head jumps back, again and again: following it leads through the same segments."""
    live, at = _stopped(scene)
    length = scene.rng.choice(lengths)
    live.head += 100
    first = live.head - length

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        seq = first + turn % length
        return scene.served(at, client, live.name, seq, seq=-1)

    return Place(at, answer, None, live)


def short_cycle(scene: Scene) -> Place:
    """The same, so short that a loop that is neither fast nor long leads through it many times."""
    return cycle(scene, (2, 3, 5, 10))


def new_head(scene: Scene) -> Place:
    """The channel is created anew, its head begins at 0 again, and the client is led through its first segments."""
    live = scene.host(at=scene.rng.uniform(1, 20), readers=1)
    created = live.last_us / 1e6
    live.advance(micros(created + 12), scene.entries)

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.served(at, client, live.name, turn % 2, next_seq=2)

    return Place(created + scene.rng.uniform(0.5, 11), answer, Event.CHANNEL_CREATE, live)


def over(scene: Scene) -> Place:
    """The channel has ended and is drained: the client is told so with every answer."""
    live = scene.host()
    ended = scene.rng.uniform(20, 60)
    live.advance(micros(ended), scene.entries)
    live.end(micros(ended), scene.entries, curious=0.0)
    ended = max(ended, live.last_us / 1e6)

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.ended(at, client, live.name, live.head)

    return Place(ended + scene.rng.uniform(0.01, 2), answer, Event.CHANNEL_END, live)


def conflict(scene: Scene) -> Place:
    """The publisher does not take 409 for an answer."""
    live, at = _stopped(scene)
    seq = live.head - 1

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        attempt = turn + 2 if client.says_attempt else 1
        return scene.posted(at, client, live.name, seq, 409, attempt=attempt)

    return Place(at, answer, None, live)


def stored(scene: Scene) -> Place:
    """The publisher does not see the 200: each time it sends the whole body, under the same key."""
    live, at = _stopped(scene)
    seq = live.head

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.posted(at, client, live.name, seq, attempt=turn + 1 if client.says_attempt else 1)

    return Place(at, answer, None, live)


def _drained(scene: Scene) -> None:
    """Told that it is over until the drain ends, and then 404: two storms, one behind the other."""
    place = over(scene)
    assert place.live is not None
    name, head, client = place.live.name, place.live.head, scene.client()
    first = scene.storm("ended_loop", Event.CHANNEL_END)
    until = loops.loop(scene, first, [client], place.answer, replace(HOT, gap_s=(0.03, 0.06), n=(160, 200)), place.at)

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.not_found(at, client, name, head, eos=True)

    second = scene.storm("not_found_loop", Event.CHANNEL_END)
    loops.loop(scene, second, [client], answer, replace(FIXED, gap_s=(0.05, 0.2), n=(60, 100)), until + 0.05)


def _thrice(scene: Scene) -> None:
    """Every segment is published three times, at the pace of the channel."""
    tally, client, name = scene.storm("repost_loop"), scene.client(), scene.channel()
    for seq in range(scene.rng.randrange(60, 120)):
        at = 5 + seq * 2.0
        tally.take(scene.posted(at, client, name, seq))
        for attempt in (2, 3):
            how = {"attempt": attempt if client.says_attempt else 1}
            tally.take(scene.posted(at + attempt * scene.rng.uniform(0.2, 0.4), client, name, seq, 409, **how))


def _duel(scene: Scene) -> None:
    """Two publishers take the same segment from each other."""
    live, at = _stopped(scene)
    tally = scene.storm("repost_loop")

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.posted(at, client, live.name, live.head, 409, reason=Reason.SUPERSEDED, rseq=live.head)

    loops.loop(scene, tally, scene.clients(2), answer, replace(JITTER, n=(60, 120)), at)


TABLE: tuple[tuple[str, str, Callable[[Scene], Place], tuple[loops.Shape, ...]], ...] = (
    ("zero_byte_loop", "stuck", stuck, (*EACH, SLOW, TEN, HUNDRED, RECONNECTS, MINUTE)),
    ("zero_byte_loop", "passed", passed, (HOT, JITTER, SLOW, TEN, HOUR)),
    ("zero_byte_loop", "rolling", rolling, (HOT, FIXED, JITTER)),
    ("same_segment_loop", "same_seq", same_seq, (*EACH, SLOW, TEN, HUNDRED, RECONNECTS, HOUR)),
    ("same_segment_loop", "current", current, (HOT, FIXED, MINUTE)),
    ("same_segment_loop", "cycle", cycle, (HOT, FEW)),
    ("same_segment_loop", "cycle", short_cycle, (JITTER,)),
    ("same_segment_loop", "new_head", new_head, (HOT, FEW)),
    ("ended_loop", "over", over, (HOT, FIXED, JITTER, loops.EXPONENTIAL, TEN, RECONNECTS)),
    ("repost_loop", "conflict", conflict, (*EACH, SLOW, RECONNECTS, HOUR)),
    ("repost_loop", "stored", stored, (HOT, FIXED, MINUTE)),
)

_OTHERS: tuple[tuple[str, str, Callable[[Scene], None]], ...] = (
    ("ended_loop", "drained", _drained),
    ("repost_loop", "thrice", _thrice),
    ("repost_loop", "duel", _duel),
)


def scripts() -> Iterator[Script]:
    """All of them."""
    for storm, name, setting, shapes in TABLE:
        for shape in shapes:
            play = partial(loops.play_loop, storm=storm, setting=setting, shape=shape)
            yield Script(f"{storm}/{name}/{shape.name}", storm, play, Set.STANDARD, shape.needs, shape.border_s)
    for storm, name, script in _OTHERS:
        yield Script(f"{storm}/{name}", storm, script, Set.STANDARD, Needs.COMPANY)
