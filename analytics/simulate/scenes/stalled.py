"""Settings without an answer: nothing new comes on a channel, and a client does not wait long enough for it."""

from __future__ import annotations

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.people import Client
from tricklecast.analytics.simulate.scene import Scene
from tricklecast.analytics.simulate.scenes.settings import Place, Setting, attempt_of, quiet_host
from tricklecast.trickle.records import AccessRecord, Event


def stalled(wait_s: float) -> Setting:
    """The publisher stands still. The others wait; the client gives up after so many seconds, and asks again."""

    def setting(scene: Scene) -> Place:
        return _place(scene, *quiet_host(scene), wait_s)

    return setting


def stalled_from_birth(scene: Scene) -> Place:
    """The same with a channel that was created, and of which nothing more is heard."""
    live = scene.host(at=scene.rng.uniform(8, 30))
    place = _place(scene, live, live.last_us / 1e6 + scene.rng.uniform(0.3, 15), 0.02)
    place.trigger = Event.CHANNEL_CREATE
    return place


def _place(scene: Scene, live: LiveChannel, at: float, wait_s: float) -> Place:
    def answer(at: float, client: Client, turn: int) -> AccessRecord:
        return scene.abandoned(at, client, live.name, live.head, wait_s, attempt=attempt_of(client, turn))

    return Place(at, answer, None, live, lambda until: live.wait(micros(until + 30), scene.entries))
