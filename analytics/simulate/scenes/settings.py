"""Settings of a single client's storm: a channel in the state in which a broken client loops, and what it is told.

A setting prepares its channel and says when the storm may begin, what each request is answered, and what set it off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.people import Client
from tricklecast.analytics.simulate.scene import QUIET_S, Answer, Scene
from tricklecast.trickle.records import AccessRecord, Event, Op, Reason


@dataclass(slots=True)
class Place:
    """A prepared channel.

    Attributes:
        at: when the storm may begin, seconds of the scene.
        answer: what a request gets.
        trigger: the event that sets the storm off.
        live: the channel, as far as it lives.
        also: other classes that are as right.
        close: called with the storm's end, to finish the channel's life.
    """

    at: float
    answer: Answer
    trigger: str | None = None
    live: LiveChannel | None = None
    close: Callable[[float], None] = lambda _: None
    also: tuple[str, ...] = ()


Setting = Callable[[Scene], Place]


def attempt_of(client: Client, turn: int) -> int:
    """Which attempt a client says that a request is."""
    return turn + 1 if client.says_attempt else 1


def quiet_host(scene: Scene) -> tuple[LiveChannel, float]:
    """A channel that began long enough ago that its beginning is nobody's trigger."""
    live = scene.host(readers=scene.rng.randrange(1, 3), cadence=scene.rng.choice((4.0, 6.0)))
    at = QUIET_S + scene.rng.uniform(0, 40)
    live.advance(micros(at), scene.entries)
    return live, at


def _goes_on(scene: Scene, live: LiveChannel) -> Callable[[float], None]:
    return lambda until: live.advance(micros(until + scene.rng.uniform(2, 20)), scene.entries)


# --- 404 --------------------------------------------------------------------------------------------------------------


def gone(scene: Scene) -> Place:
    """The channel has ended, and the client does not believe it."""
    live = scene.host(readers=scene.rng.randrange(1, 5))
    ended = scene.rng.uniform(20, 60)
    live.advance(micros(ended), scene.entries)
    live.end(micros(ended), scene.entries)
    ended = max(ended, live.last_us / 1e6)
    name, seq, says = live.name, scene.rng.choice((live.head, live.head, -1)), scene.rng.random() < 0.7

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        told = {"eos": True, "next_seq": live.head} if says else {}
        return scene.not_found(at, client, name, seq, attempt=attempt_of(client, turn), **told)

    return Place(ended + scene.rng.uniform(0.05, 12), answer, Event.CHANNEL_END, live)


def never(scene: Scene) -> Place:
    """There never was such a channel: a mistyped name."""
    name = scene.channel()

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.not_found(at, client, name, scene.rng.choice((-1, -1, 0)), attempt=attempt_of(client, turn))

    return Place(scene.rng.uniform(1, 30), answer)


def publisher_gone(scene: Scene) -> Place:
    """A publisher that goes on publishing into a channel that was ended."""
    place = gone(scene)
    live = place.live
    assert live is not None

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        how = {"op": Op.PUBLISH, "method": "POST", "eos": True, "attempt": 1 + turn % 4}
        return scene.not_found(at, client, live.name, live.head + turn // 4, **how)

    return Place(place.at, answer, Event.CHANNEL_END, live)


def nameless(scene: Scene) -> Place:
    """As :func:`never`, in a log that does not say who the client was."""
    place = never(scene)

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        client.key = None
        return place.answer(at, client, turn)

    return Place(place.at, answer)


def moody(scene: Scene) -> Place:
    """Three kinds of refusal in turn, and the client takes no notice of any."""
    name, at = scene.channel(), QUIET_S + scene.rng.uniform(0, 20)

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        match turn % 3:
            case 0:
                return scene.not_found(at, client, name, 7)
            case 1:
                return scene.missing(at, client, name, 7, 300)
            case _:
                return scene.refused(at, client, name, 503, seq=7)

    return Place(at, answer, also=("seq_behind_loop", "overload_client"))


# --- 470 --------------------------------------------------------------------------------------------------------------


def behind(scene: Scene) -> Place:
    """The segment has left the window; the publisher is far ahead, and goes on."""
    live, at = quiet_host(scene)
    live.head += scene.rng.randrange(300, 2000)
    seq, begun, head = max(0, live.head - scene.rng.randrange(260, 400)), at, live.head

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        now = head + int((at - begun) / (live.cadence_us / 1e6))
        return scene.missing(at, client, live.name, seq, now, attempt=attempt_of(client, turn))

    return Place(at, answer, None, live, _goes_on(scene, live))


def ahead(scene: Scene) -> Place:
    """The publisher stands still, and the client counts its failures as segments."""
    live, at = quiet_host(scene)
    first = live.head + 1

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.missing(at, client, live.name, first + turn, live.head)

    return Place(at + scene.rng.uniform(1, 4), answer, None, live)


def new_life(scene: Scene) -> Place:
    """The channel was created anew, and the client keeps the position that it had in its former life."""
    began = scene.rng.uniform(8, 30)
    live = scene.host(at=began)
    created, seq = live.last_us / 1e6, scene.rng.randrange(400, 9000)
    if scene.rng.random() < 0.5:  # the former life's end is in the log, too
        scene.event(began - scene.rng.uniform(1, 7), Event.CHANNEL_END, live.name, next_seq=seq, detail="deleted")
        live.epoch = 2
    begins = created + scene.rng.uniform(0.3, 15)
    live.advance(micros(begins), scene.entries)

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        head = max(0, int((at - created) / (live.cadence_us / 1e6)))
        return scene.missing(at, client, live.name, seq, head, attempt=attempt_of(client, turn))

    return Place(begins, answer, Event.CHANNEL_CREATE, live, _goes_on(scene, live))


# --- 429, 503, 5xx, 401, 403 ------------------------------------------------------------------------------------------


def refused(status: int, reason: str) -> Setting:
    """Refused by a limit."""

    def setting(scene: Scene) -> Place:
        live, at = quiet_host(scene)

        def answer(at: float, client: Client, turn: int) -> AccessRecord:
            return scene.refused(at, client, live.name, status, reason=reason, attempt=attempt_of(client, turn))

        return Place(at, answer, None, live, _goes_on(scene, live))

    return setting


def guarded(scene: Scene) -> Place:
    """The server holds the client back, and tells it to wait; it comes again at once."""
    live, at = quiet_host(scene)

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        held = {"reason": Reason.GUARD, "guard_ms": 5 + turn % 20, "attempt": attempt_of(client, turn)}
        return scene.refused(at, client, live.name, 429, **held)

    return Place(at, answer, None, live, _goes_on(scene, live))


def lowered_limit(scene: Scene) -> Place:
    """A limit was lowered, and the client takes no notice of being refused."""
    place = refused(429, Reason.limit("per_ip"))(scene)
    scene.event(place.at - scene.rng.uniform(0.2, 10), Event.CONFIG, detail='{"readers_per_ip":4}')
    return Place(place.at, place.answer, Event.CONFIG, place.live, place.close)


def refused_publisher(scene: Scene) -> Place:
    """The server's memory is full: a publisher is refused, and sends its segment again at once."""
    place = refused(503, Reason.limit("total_bytes"))(scene)
    live = place.live
    assert live is not None

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        how = {"op": Op.PUBLISH, "method": "POST", "seq": live.head, "reason": Reason.limit("total_bytes")}
        return scene.refused(at, client, live.name, 503, attempt=attempt_of(client, turn), **how)

    return Place(place.at, answer, None, live, place.close)


def failing(status: int) -> Setting:
    """A request that breaks the server, or what stands in front of it."""

    def setting(scene: Scene) -> Place:
        live, at = quiet_host(scene)
        seq = live.head

        def answer(at: float, client: Client, turn: int) -> AccessRecord:
            return scene.failed(at, client, live.name, status, seq=seq, attempt=attempt_of(client, turn))

        return Place(at, answer, None, live, _goes_on(scene, live))

    return setting


def rejected(status: int) -> Setting:
    """A token that has expired, or never was for this channel."""

    def setting(scene: Scene) -> Place:
        live, at = quiet_host(scene)

        def answer(at: float, client: Client, turn: int) -> AccessRecord:
            return scene.rejected(at, client, live.name, status, seq=live.head, attempt=attempt_of(client, turn))

        return Place(at, answer, None, live, _goes_on(scene, live))

    return setting


def rejected_publisher(scene: Scene) -> Place:
    """A publisher whose token has expired sends its segment again at once."""
    place = rejected(401)(scene)
    live = place.live
    assert live is not None

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        how = {"op": Op.PUBLISH, "method": "POST", "seq": live.head, "attempt": attempt_of(client, turn)}
        return scene.rejected(at, client, live.name, 401, **how)

    return Place(place.at, answer, None, live, place.close)


def other_keys(scene: Scene) -> Place:
    """The server was started with other keys, and believes no token that it believed before."""
    up = scene.restart(5, away=scene.rng.uniform(2, 8))
    name = scene.channel()

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        known = {"seq": -1, "reason": Reason.token("signature"), "attempt": attempt_of(client, turn)}
        return scene.rejected(at, client, name, 401, **known)

    return Place(up + scene.rng.uniform(0.5, 8), answer, Event.SERVER_READY)


def failing_after_restart(scene: Scene) -> Place:
    """A new release of the server breaks on what the old one could do."""
    up = scene.restart(5, away=scene.rng.uniform(2, 8), release="tricklecast/0.2.0")
    name = scene.channel()

    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.failed(at, client, name, 500, seq=-1, attempt=attempt_of(client, turn))

    return Place(up + scene.rng.uniform(0.5, 8), answer, Event.SERVER_READY)
