"""Two nodes and a real directory: claims, reads and writes at any node, takeover and hand-over."""

from __future__ import annotations

import asyncio
import math
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.forked import forked
from tests.support.local import LocalServer, local_server
from tests.support.nats import NatsServer, nats_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cluster.directory import Directory
from tricklecast.app.cluster.member import Member, url_of
from tricklecast.app.cluster.moving import Outcome
from tricklecast.app.settings import Settings
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle.errors import InvalidInput

LEASE_S = 0.5


@dataclass(frozen=True)
class NatsNode:
    """A node.

    Attributes:
        server: it. target: a client of it.
    """

    server: LocalServer
    target: Target

    @property
    def member(self) -> Member:
        """What makes it a node."""
        assert self.server.node.member is not None
        return self.server.node.member

    @property
    def directory(self) -> Directory:
        """Its view of the cluster."""
        return self.member.directory

    def run(self, coroutine: Any) -> Any:
        """Do something in its event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.server.loop).result(WITHIN_S)

    def target_url(self, channel: str) -> str:
        """The URL of a channel here."""
        return f"{self.directory.me.url}/{channel}"

    async def die(self) -> None:
        """Renew the lease no more, as a process that is killed."""
        assert self.directory._running is not None
        self.directory._running.cancel()


@contextmanager
def node(name: str, nats: NatsServer, **settings: Any) -> Iterator[NatsNode]:
    """A node of the cluster that this NATS server has the directory of."""
    options = {"channel_drain_s": 100, "cluster_lease_s": LEASE_S, "cluster_history_bytes": 256 << 20}
    with (
        local_server(node=name, cluster=nats.url, **{**options, **settings}) as server,
        server.client() as target,
    ):
        one = NatsNode(server, target)
        eventually(lambda: not one.directory.degraded, what="it is in the cluster")
        yield one


def film(one: NatsNode) -> RemoteChannel:
    """The channel, as a client of this node sees it."""
    return one.target.channel("film")


def test_channels_are_found_moved_and_taken_over(nats: NatsServer) -> None:
    """Each in one epoch, with one owner at a time, whichever node a client asks."""
    with node("a", nats) as a, node("b", nats) as b:
        film(a).publish(0, b"one")
        eventually(lambda: b.directory.place("film"))
        film(b).has(0, b"one", epoch=1).publish(1, b"two").has(1, b"two", epoch=1)
        assert film(b).next_seq() == 2
        assert (a.member.feeds.sending.sent, b.directory.owns("film")) == (1, False)

        # Handed over in its epoch: the replica at b is adopted, and a holds the channel now.
        waiting = film(a).waiting(2)
        assert a.run(a.member.moving.move("film", "b")).outcome is Outcome.MOVED
        film(b).has(0, b"one", epoch=1).publish(2, b"three").has(2, b"three", epoch=1)
        assert waiting.response().body == b"three"
        film(a).has(2, b"three", epoch=1)
        assert b.member.feeds.sending.sent == 1

        # Ended: its last owner answers, and begins the next epoch.
        film(b).end()
        eventually(lambda: a.directory.former("film"))
        assert film(a).post(3).status == 404
        film(a).has(2, b"three", epoch=1)
        assert film(a).post(0, b"new").status == 200
        film(b).has(0, b"new", epoch=2)

        # Its owner dies: the next POST takes it over, in the next epoch.
        b.run(b.die())
        eventually(lambda: film(a).post(0, b"again").status == 200, what="a has taken it over")
        film(a).has(0, b"again", epoch=3)
        assert (a.server.plane.faults, b.server.plane.faults) == (0, 0)


def test_with_a_quorum_a_channel_goes_on_in_its_epoch(nats: NatsServer) -> None:
    """Its owner dies: the next request at another node, also a read, goes on with all that was acknowledged."""
    settings = {"ack": "quorum", "cluster_name": "quorum"}
    with node("a", nats, **settings) as a, node("b", nats, **settings) as b:
        assert film(a).post(0, b"one").get("Lp-Trickle-Durability") == "quorum"
        eventually(lambda: b.directory.place("film"))
        a.run(a.die())
        eventually(lambda: film(b).get(0).status == 200 and b.directory.owns("film"), what="b goes on with it")
        film(b).has(0, b"one", epoch=1).publish(1, b"two")
        film(b).end()
        assert film(b).post(0, b"new").status == 200
        film(b).has(0, b"new", epoch=2)


def test_a_fence_without_an_owner_ends_no_channel(nats: NatsServer) -> None:
    """A node fenced the history, and then the bucket forgot that it had the channel: its former owner goes on in the
    same epoch, with all that was acknowledged."""
    settings = {"ack": "quorum", "cluster_name": "fenced"}
    with node("a", nats, **settings) as a, node("b", nats, **settings) as b:
        film(a).publish(0, b"one")
        quorum = b.member.quorum
        assert quorum is not None
        quorum._shared.confirmed = _always
        b.run(quorum._fence("film", 1))
        assert film(a).post(1, b"two").status == 503
        eventually(lambda: film(a).post(1, b"two").status == 200, what="a goes on with it")
        film(a).has(0, b"one", epoch=1).has(1, b"two", epoch=1)
        film(b).has(0, b"one", epoch=1).has(1, b"two", epoch=1)


def test_a_channel_that_the_bucket_gives_to_a_lost_node_goes_on(nats: NatsServer) -> None:
    """An older copy of the bucket names a node that is gone: the owner ends the channel here, and not its history."""
    with node("a", nats, ack="quorum", cluster_name="older") as a:
        film(a).publish(0, b"one")
        bucket = a.directory._bucket
        assert bucket is not None
        older = b'{"node": "gone", "term": 1, "epoch": 1}'
        a.run(bucket.put("channel.film", older, a.directory.channels["film"].revision))
        eventually(lambda: not a.directory.owns("film"), what="the news")
        eventually(lambda: film(a).post(1, b"two").status == 200, what="a goes on with it")
        film(a).has(0, b"one", epoch=1).has(1, b"two", epoch=1)


async def _always(channel: str, epoch: int) -> bool:
    return True


def test_an_owner_whose_lease_is_in_doubt_takes_no_byte_of_a_history(nats: NatsServer) -> None:
    """Another node may go on in the same epoch by now: the publisher is sent away, and nobody reads what it sent."""
    with node("a", nats, ack="quorum", cluster_name="doubt") as a:
        film(a).publish(0, b"one")
        a.server.inside(a.directory.lease.lost)
        refused = film(a).post(1, b"two")
        assert (refused.status, b"confirm" in refused.body) == (503, True)
        eventually(lambda: film(a).post(1, b"two").status == 200, what="a renewal")
        film(a).has(1, b"two", epoch=1)


def test_a_node_that_is_not_cut_off_answers_nobody_in_doubt(nats: NatsServer) -> None:
    """It may have stood still, and its channels may be another node's: NATS can be asked, so it has to be."""
    with node("a", nats, cluster_name="asked") as a:

        def doubt() -> tuple[str, str]:
            a.directory.lease.unsure["film"] = None
            a.directory._settled.clear()  # as after a term that is over
            try:
                return a.directory.degraded, a.member.durability.degraded
            finally:
                a.directory.lease.unsure.clear()
                a.directory._settled.set()

        decisions, publishers = a.server.inside(doubt)
        assert decisions
        assert not publishers


def test_a_second_process_of_the_same_name_ends(nats: NatsServer) -> None:
    """It says which one has the name, and what to do."""
    with node("a", nats):
        command = forked("serve", "--port", "0", "--node", "a", "--cluster", nats.url)
        ended = subprocess.run([*command, "--cluster-lease-s", "0.2"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "the node name 'a' is in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_nats_a_node_serves_its_channels_and_says_that_it_is_degraded() -> None:
    """What needs a decision gets 503; when NATS comes, it goes on."""
    with nats_server() as nats, node("a", nats) as a:
        film(a).publish(0, b"one")
        nats.stop()
        eventually(lambda: a.directory.degraded, what="it has noticed")
        film(a).publish(1, b"two").has(1, b"two", epoch=1)
        assert a.target.channel("other").post(0).status == 503
        assert b"cluster" in a.target.ask("GET", "/readyz").body
        nats.start()
        eventually(lambda: a.target.channel("other").post(0).status == 200, what="it decides again")


def test_a_node_with_a_data_directory_goes_on_with_its_channels(nats: NatsServer, tmp_path: Path) -> None:
    """In the same epoch, after a restart."""
    settings = {"data_dir": tmp_path / "data", "ack": "journal", "cluster_name": "kept"}
    with node("a", nats, **settings) as a, closing(a.server.target()) as target:  # which does not end the channel
        target.channel("film").publish(0, b"one")
    with node("a", nats, **settings) as a:
        film(a).has(0, b"one", epoch=1).publish(1, b"two").has(1, b"two", epoch=1)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"advertise_url": "http://a.example:80"}, "http://a.example:80/live"),
        ({"advertise_url": "http://a.example/x/live/"}, "http://a.example/x/live"),
        ({"host": "::1"}, "http://[::1]:7/live"),
        ({"tls_cert": "c", "tls_key": "k"}, "https://127.0.0.1:7/live"),
    ],
)
def test_the_url_of_a_node(settings: dict[str, Any], url: str) -> None:
    """Without a path it gets the base path; without one at all it is that of the listener."""
    options = Settings.model_validate({"cluster": "nats://n", "base_path": "/live", **settings})
    assert url_of(options, (options.host, 7)) == url


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"advertise_url": "http://0.0.0.0:2939"}, "advertise_url must have an address of this machine"),
        ({"advertise_url": "http://[::]:2939"}, "advertise_url must have an address of this machine"),
        ({"node": "a/b"}, "node must have no slash"),
        ({"node": "a\nb"}, "node must have no slash and no control character"),
    ],
)
def test_settings_that_no_other_node_could_use_are_refused(settings: dict[str, Any], wrong: str) -> None:
    """At the start, not by the first request that another node passes on."""
    with pytest.raises(ValidationError, match=wrong):
        Settings.model_validate({"cluster": "nats://n", **settings})


def test_an_advertised_url_that_is_none_names_the_setting() -> None:
    """There are several URLs among the settings."""
    options = Settings.model_validate({"cluster": "nats://n", "advertise_url": "node-1"})
    with pytest.raises(InvalidInput, match=r"^advertise_url: not the URL of a node"):
        url_of(options, ("127.0.0.1", 7))


def test_credentials_are_looked_at_before_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are sent when NATS asks for them, which may be never. A file that every user can read gets a warning."""
    file = tmp_path / "nats.creds"
    command = forked("serve", "--port", "0", "--cluster", "nats://127.0.0.1:1")
    ended = subprocess.run([*command, "--cluster-creds", str(file)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, f"tricklecast: cannot read {file}: No such file or directory\n")
    file.write_text("a secret")
    file.chmod(0o644)
    with local_server(node="a", cluster="nats://127.0.0.1:1", cluster_lease_s=0.2, cluster_creds=file):
        assert "every user of this machine can read the secret" in caplog.text


def test_a_node_whose_histories_have_no_room_is_degraded(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS refuses to reserve it: publishers get 503, and whoever looks at the node hears it. It asks again itself."""
    settings = {"ack": "quorum", "cluster_name": "roomless", "cluster_history_bytes": 1 << 50}
    with node("a", nats, **settings) as a:
        # Whenever the machine stands still for a moment, the node cannot decide either, until it has renewed its lease.
        told = b'{"status":"degraded","reasons":["storage"]}'
        eventually(lambda: a.target.ask("GET", "/readyz").body == told)
        numbers = count()
        eventually(lambda: b"Storage has failed" in film(a).post(next(numbers)).body)
        assert a.member.quorum is not None
        options = a.member.quorum.streams.options
        monkeypatch.setattr(a.member.quorum.streams, "options", replace(options, max_bytes=256 << 20))
        eventually(lambda: a.target.ask("GET", "/readyz").body == b'{"status":"ready"}')


def test_a_node_that_has_not_read_the_directory_says_that_it_does_not_know() -> None:
    """Readers ask again: after a 404 they would leave a channel that another node has."""
    with local_server(node="a", cluster="nats://127.0.0.1:1", cluster_lease_s=0.2) as server, server.client() as target:
        for answer in (target.channel("film").get(0), target.channel("film").get("next")):
            assert (answer.status, answer.get("Retry-After")) == (503, "1")
            assert b"cannot decide now" in answer.body


def test_two_nodes_with_one_url_warn(nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """Requests for the channels of the one come to the other, and go in a circle. Each node says it once."""
    with node("a", nats, cluster_name="namesakes") as a:
        with node("b", nats, cluster_name="namesakes", advertise_url=f"http://127.0.0.1:{a.server.port}"):
            eventually(lambda: caplog.text.count("give each its own --advertise-url") == 2)
            assert "node 'b' is at" in caplog.text
            assert "node 'a' is at" in caplog.text
            eventually(lambda: set(a.member._namesakes.values()) == {math.inf})
        eventually(lambda: not a.member._namesakes)
        assert caplog.text.count("give each its own --advertise-url") == 2
