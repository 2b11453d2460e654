"""Look-alikes of single clients: what a healthy client does often, or has to do again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tricklecast.analytics.simulate.catalogue import Needs, Script, Set
from tricklecast.analytics.simulate.pace import polite
from tricklecast.analytics.simulate.people import behind_nat
from tricklecast.analytics.simulate.scene import Scene
from tricklecast.trickle.records import Event, Op, Reason


def polls_the_next(scene: Scene, every: float, count: int) -> None:
    """Asks for -1 each time, and gets a new segment each time."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    for seq in range(count):
        trap.take(scene.served(1 + seq * every, client, name, seq, seq=-1))


def waits_renewed(scene: Scene, clients: int, turns: int, every: float = 20.0) -> None:
    """A wait that is given up and renewed every so many seconds, for as long as nothing comes."""
    trap, name = scene.trap(), scene.channel()
    everybody = behind_nat(scene.rng, clients) if scene.rng.random() < 0.5 else scene.clients(clients)
    for client in everybody:
        first = scene.rng.uniform(0, every)
        for turn in range(turns):
            trap.take(scene.abandoned(first + turn * every, client, name, 5, every))


def zaps(scene: Scene) -> None:
    """A viewer looks into channel after channel, and leaves each with the GET of a segment and that of the next."""
    trap, client = scene.trap(), scene.client(conns=2)
    names = [scene.channel() for _ in range(12)]
    for turn in range(60):
        at, name = 1 + turn * 0.7, names[turn % len(names)]
        scene.served(at, client, name, turn, seq=-2)
        for ahead in (1, 2):
            trap.take(scene.abandoned(at + 0.05, client, name, turn + ahead, 0.5))


def all_leave(scene: Scene, channels: int) -> None:
    """Behind one address, everybody waits for the next segment when the line goes down; and comes back."""
    trap, names = scene.trap(), [scene.channel() for _ in range(channels)]
    for number, client in enumerate(behind_nat(scene.rng, 40)):
        at, name = 5 + scene.rng.uniform(0, 0.8), names[number % channels]
        scene.served(at - 4, client, name, 7)
        trap.take(scene.abandoned(at, client, name, 8, 7 - at))
        scene.served(9 + scene.rng.uniform(0, 2), client, name, 8)


def five_retries(scene: Scene, answer: str, gap: float) -> None:
    """Five attempts, and then it gives up; clients do so one after the other."""
    trap, name = scene.trap(), scene.channel()
    for number in range(8):
        client = scene.client()
        for turn in range(5):
            at = 1 + number * 12 + turn * gap * scene.rng.uniform(0.95, 1.05)
            how = {"attempt": turn + 1 if client.says_attempt else 1}
            match answer:
                case "404":
                    trap.take(scene.not_found(at, client, name, **how))
                case "470":
                    trap.take(scene.missing(at, client, name, 11, 9, **how))
                case "post":
                    trap.take(scene.missing(at, client, name, 11, 9, op=Op.PUBLISH, method="POST", **how))
                case "503":
                    trap.take(scene.refused(at, client, name, **how))
                case _:
                    trap.take(scene.failed(at, client, name, **how))


def startup_polls(scene: Scene, clients: int, lasts: float) -> None:
    """Viewers that wait for a channel to begin, and look once a second."""
    trap, name = scene.trap(), scene.channel()
    for client in scene.clients(clients):
        at = 1 + scene.rng.uniform(0, min(30, lasts / 3))
        while at < lasts:
            trap.take(scene.not_found(at, client, name))
            at += scene.rng.uniform(0.95, 1.15)
        scene.served(lasts + scene.rng.uniform(0.6, 2), client, name, 0, seq=-1)
    scene.event(lasts + 0.5, Event.CHANNEL_CREATE, name, epoch=1)


def polite_backoff(scene: Scene, clients: int, status: int, attempts: int) -> None:
    """Refused, and back after exponentially growing pauses with full jitter, never sooner than told."""
    trap, names = scene.trap(), [scene.channel() for _ in range(1 + clients // 10)]
    for number, client in enumerate(scene.clients(clients)):
        at = 5 + scene.rng.uniform(0, 3)
        for turn, gap in enumerate(polite(scene.rng, 1.0, 30.0, attempts)):
            how = {"attempt": turn + 1 if client.says_attempt else 1, "retry_after_ms": 1000}
            trap.take(scene.refused(at, client, names[number % len(names)], status, **how))
            at += gap
        scene.served(at, client, names[number % len(names)], 9, seq=-1)


def honours_retry_after(scene: Scene, told_ms: int, count: int) -> None:
    """Refused for long, and back a little after it was told to be."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    at = 1.0
    for _ in range(count):
        trap.take(scene.refused(at, client, name, 429, retry_after_ms=told_ms))
        at += told_ms / 1000 * scene.rng.uniform(1.02, 1.3)


def empty_segments_roll(scene: Scene, every: float, count: int) -> None:
    """An idle publisher closes segments empty, and its readers get each of them once."""
    trap, name, readers, publisher = scene.trap(), scene.channel(), scene.clients(3), scene.client()
    for seq in range(count):
        at = 1 + seq * every
        scene.posted(at, publisher, name, seq, bytes_in=0, reason=Reason.EMPTY)
        for reader in readers:
            trap.take(scene.empty(at + scene.rng.uniform(0, 0.01), reader, name, seq))


def catches_up(scene: Scene, readers: int, count: int) -> None:
    """Late readers fetch the whole window as fast as they can, each segment once."""
    trap, name = scene.trap(), scene.channel()
    for reader in scene.clients(readers):
        at = 1 + scene.rng.uniform(0, 20)
        for seq in range(100, 100 + count):
            trap.take(scene.served(at, reader, name, seq, next_seq=100 + count))
            at += scene.rng.uniform(0.008, 0.04)


def sporadic(scene: Scene, answer: str, count: int, every: float) -> None:
    """The same client meets the same failure now and then, all day long, and is fine in between."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    at = 1.0
    for turn in range(count):
        match answer:
            case "404":
                trap.take(scene.not_found(at, client, name))
            case "500":
                trap.take(scene.failed(at, client, name))
            case _:
                trap.take(scene.missing(at, client, name, turn * 40, turn * 40 + 300))
        scene.served(at + 1, client, name, 300 + turn * 40)
        at += every * scene.rng.uniform(0.7, 1.3)


def publisher_keeps_up(scene: Scene) -> None:
    """A fast publisher on two connections: five segments a second, each published once, some a second time."""
    trap, client, name = scene.trap(), scene.client(conns=2), scene.channel()
    for seq in range(400):
        at = 1 + seq * 0.2
        trap.take(scene.posted(at, client, name, seq))
        if seq % 40 == 7:  # the connection broke: one retry
            trap.take(scene.posted(at + 0.1, client, name, seq, attempt=2))


def probes(scene: Scene, path: str, status: int, every: float, count: int) -> None:
    """A machine asks the control plane, and asks, and asks."""
    trap, client = scene.trap(), scene.client(ua="kube-probe/1.31", named=False)
    reason = Reason.COMPLETE if status == 200 else (Reason.NOT_FOUND if status == 404 else Reason.SHUTDOWN)
    how = {"op": Op.API, "path": path, "status": status, "seq": None, "epoch": None, "reason": reason}
    for turn in range(count):
        trap.take(scene.exchange(1 + turn * every, client, None, **how))


def heads(scene: Scene) -> None:
    """A monitor sends HEAD once a second: no body, by definition."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    for turn in range(200):
        how = {"method": "HEAD", "seq": -2, "rseq": 40, "next_seq": 41, "reason": Reason.COMPLETE}
        trap.take(scene.exchange(1 + turn * 1.0, client, name, status=200, **how))


def follows_changes(scene: Scene) -> None:
    """Follows the changefeed, on which a lot is going on."""
    trap, client = scene.trap(), scene.client()
    for seq in range(200):
        how = {"op": Op.CHANGES, "path": "/trickle/_changes/-1", "seq": -1, "rseq": seq, "next_seq": seq + 1}
        trap.take(scene.exchange(1 + seq * 0.1, client, "_changes", status=200, bytes_out=60, **how))


def flaky_network(scene: Scene) -> None:
    """Every tenth segment is cut, and asked for again: one retry in ten requests is what a budget allows."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    for seq in range(300):
        at = 1 + seq * 1.0
        if seq % 10 == 3:
            trap.take(scene.served(at, client, name, seq, bytes_out=30_000, reason=Reason.CLIENT_GONE))
            at += 0.3
        trap.take(scene.served(at, client, name, seq, attempt=2 if seq % 10 == 3 and client.says_attempt else 1))


def asks_for_the_head(scene: Scene) -> None:
    """A dashboard asks for a channel's head, three times a second."""
    trap, client, name = scene.trap(), scene.client(), scene.channel()
    for turn in range(300):
        how = {"op": Op.NEXT, "path": f"/trickle/{name}/next", "seq": None, "next_seq": turn // 6, "bytes_out": 2}
        trap.take(scene.exchange(1 + turn * 0.33, client, name, status=200, reason=Reason.COMPLETE, **how))


_TRAPS: tuple[tuple[str, Callable[[Scene], None]], ...] = (
    ("polls_the_next/fast", partial(polls_the_next, every=0.05, count=600)),
    ("polls_the_next/usual", partial(polls_the_next, every=0.5, count=300)),
    ("waits_renewed/one", partial(waits_renewed, clients=1, turns=120)),
    ("waits_renewed/sixty", partial(waits_renewed, clients=60, turns=30)),
    ("waits_renewed/three_seconds", partial(waits_renewed, clients=1, turns=300, every=3.0)),
    ("waits_renewed/sixty_each_ten_seconds", partial(waits_renewed, clients=60, turns=30, every=10.0)),
    ("zaps", zaps),
    ("all_leave/one_channel", partial(all_leave, channels=1)),
    ("all_leave/four_channels", partial(all_leave, channels=4)),
    *((f"five_retries/{answer}", partial(five_retries, answer=answer, gap=0.5)) for answer in ("404", "470", "503")),
    ("five_retries/500", partial(five_retries, answer="500", gap=0.5)),
    ("five_retries/at_once", partial(five_retries, answer="post", gap=0.015)),
    ("startup_polls/one", partial(startup_polls, clients=1, lasts=300)),
    ("polite_backoff/one", partial(polite_backoff, clients=1, status=503, attempts=12)),
    ("honours_retry_after/seconds", partial(honours_retry_after, told_ms=2500, count=200)),
    ("honours_retry_after/ten_seconds", partial(honours_retry_after, told_ms=10_000, count=60)),
    ("empty_segments_roll/slow", partial(empty_segments_roll, every=25, count=40)),
    ("empty_segments_roll/fast", partial(empty_segments_roll, every=0.1, count=200)),
    ("catches_up/one", partial(catches_up, readers=1, count=256)),
    ("catches_up/ten", partial(catches_up, readers=10, count=120)),
    ("sporadic/404", partial(sporadic, answer="404", count=40, every=90)),
    ("sporadic/470", partial(sporadic, answer="470", count=40, every=60)),
    ("sporadic/500", partial(sporadic, answer="500", count=40, every=90)),
    ("publisher_keeps_up", publisher_keeps_up),
    ("probes/healthz", partial(probes, path="/healthz", status=200, every=1.0, count=300)),
    ("probes/readyz", partial(probes, path="/readyz", status=503, every=5.0, count=40)),
    ("probes/scanner", partial(probes, path="/wp-login.php", status=404, every=0.02, count=200)),
    ("asks_for_the_head", asks_for_the_head),
    ("heads", heads),
    ("follows_changes", follows_changes),
    ("flaky_network", flaky_network),
)


def scripts() -> Iterator[Script]:
    """All of them."""
    for name, play in _TRAPS:
        yield Script(name, "trap", play, Set.STANDARD, Needs.COMPANY)
