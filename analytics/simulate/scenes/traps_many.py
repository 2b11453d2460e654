"""Look-alikes of many clients: crowds, fleets that restart politely, and people behind one address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.catalogue import Needs, Script, Set
from tricklecast.analytics.simulate.people import Client, behind_nat
from tricklecast.analytics.simulate.scene import Scene
from tricklecast.analytics.simulate.scenes.traps import polite_backoff, startup_polls
from tricklecast.trickle.records import Event


def told_once(scene: Scene, readers: int) -> None:
    """All readers of a channel are told at once that it is over, and never come again."""
    live = scene.host(readers=0, cadence=4.0)
    for client in scene.clients(readers):
        live.join(client)
    live.advance(micros(12), scene.entries)
    trap = scene.trap()
    for reader in live.readers:
        trap.take(scene.ended(12.5 + scene.rng.uniform(0, 0.2), reader.client, live.name, live.head))
    live.readers.clear()
    live.end(micros(12.5), scene.entries)


def ask_once_more(scene: Scene, readers: int) -> None:
    """All readers ask once more when the channel is forgotten."""
    trap, name = scene.trap(), scene.channel()
    scene.event(5, Event.CHANNEL_END, name, detail="deleted", next_seq=10)
    for client in scene.clients(readers):
        trap.take(scene.not_found(15 + scene.rng.uniform(0, 0.6), client, name, 10))


def jump(scene: Scene, readers: int) -> None:
    """Readers that fell out of the window are told so once, and jump."""
    trap, name = scene.trap(), scene.channel()
    for client in scene.clients(readers):
        at = 2 + scene.rng.uniform(0, 1.5)
        trap.take(scene.missing(at, client, name, 4, 300))
        scene.served(at + 0.2, client, name, 299)


def flash_crowd(scene: Scene, viewers: int) -> None:
    """Viewers that come within a second or two, all of them served."""
    trap, name = scene.trap(), scene.channel()
    for client in scene.clients(viewers):
        at = 5 + scene.rng.uniform(0, 1.5)
        for seq in (40, 41, 42):
            asked = -2 if seq == 40 else seq
            trap.take(scene.served(at, client, name, seq, seq=asked, wait_us=micros(1.2), dur_us=micros(2)))
            at += 2.0


def behind_one_address(scene: Scene, viewers: int, *, named: bool) -> None:
    """Viewers of one address, with names of their own or with one key for all, until the channel's end and after it."""
    rng, trap, name = scene.rng, scene.trap(), scene.channel()
    everybody = [scene.client(ip="198.51.100.1", named=True) for _ in range(viewers)] if named else None
    everybody = everybody or behind_nat(rng, viewers)
    segments = 30 if viewers < 100 else 8
    for client in everybody:
        for seq in range(segments):
            trap.take(scene.served(1 + seq * 2 + rng.uniform(0, 0.3), client, name, seq))
    over = 1 + segments * 2.0
    scene.event(over, Event.CHANNEL_END, name, detail="deleted", next_seq=segments)
    for client in everybody:
        trap.take(scene.ended(over + rng.uniform(0.01, 0.2), client, name, segments))
        if rng.random() < 0.5:
            trap.take(scene.not_found(over + 11 + rng.uniform(0, 0.8), client, name, segments))


def polite_restart(scene: Scene, clients: int, *, times: int = 1) -> None:
    """After a restart everybody comes back spread over some seconds, and is refused once at most."""
    trap, names = scene.trap(), [scene.channel() for _ in range(6)]
    everybody, at = scene.clients(clients), 10.0
    for _ in range(times):
        for client in everybody:
            trap.take(scene.refused(at + scene.rng.uniform(0, 1), client, names[client.conns[0] % 6]))
        up = scene.restart(at, away=4)
        for name in names:
            scene.event(up + 0.3, Event.CHANNEL_CREATE, name, epoch=1)
        for client in everybody:
            _comes_back(scene, client, names[client.conns[0] % 6], up)
        at = up + 60


def _comes_back(scene: Scene, client: Client, name: str, up: float) -> None:
    back = up + 0.4 + scene.rng.uniform(0, 9)
    if scene.rng.random() < 0.3:
        scene.missing(back, client, name, 500, 3)
        back += 0.4
    scene.served(back, client, name, 3, seq=-1)


_COMPANY: tuple[tuple[str, Callable[[Scene], None]], ...] = (
    ("told_once/thirty", partial(told_once, readers=30)),
    ("behind_one_address/named", partial(behind_one_address, viewers=50, named=True)),
    ("behind_one_address/two", partial(behind_one_address, viewers=2, named=False)),
    ("behind_one_address/fifty", partial(behind_one_address, viewers=50, named=False)),
    ("flash_crowd/hundreds", partial(flash_crowd, viewers=300)),
    ("jump/one", partial(jump, readers=1)),
    ("jump/fifty", partial(jump, readers=50)),
    ("ask_once_more/thirty", partial(ask_once_more, readers=30)),
)

_SERVER: tuple[tuple[str, Callable[[Scene], None]], ...] = (
    ("told_once/hundreds", partial(told_once, readers=250)),
    ("told_once/thousands", partial(told_once, readers=2000)),
    ("ask_once_more/hundreds", partial(ask_once_more, readers=200)),
    ("ask_once_more/thousands", partial(ask_once_more, readers=1500)),
    ("jump/hundreds", partial(jump, readers=500)),
    ("flash_crowd/thousands", partial(flash_crowd, viewers=3000)),
    ("behind_one_address/hundreds", partial(behind_one_address, viewers=500, named=False)),
    ("polite_restart/sixty", partial(polite_restart, clients=60)),
    ("polite_restart/hundreds", partial(polite_restart, clients=500)),
    ("polite_restart/again_and_again", partial(polite_restart, clients=40, times=3)),
    ("polite_backoff/thirty", partial(polite_backoff, clients=30, status=503, attempts=7)),
    ("polite_backoff/hundreds", partial(polite_backoff, clients=200, status=429, attempts=6)),
    ("startup_polls/fifty", partial(startup_polls, clients=50, lasts=120)),
)


def scripts() -> Iterator[Script]:
    """All of them."""
    for needs, traps in ((Needs.COMPANY, _COMPANY), (Needs.SERVER, _SERVER)):
        for name, play in traps:
            yield Script(name, "trap", play, Set.STANDARD, needs)
