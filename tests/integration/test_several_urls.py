"""Clients with a URL of each node: one that dies in the middle of a segment costs them nothing that can be kept."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.app.cluster.table import members
from tests.support.forked import forked
from tests.support.local import local_server
from tests.support.nats import nats_server
from tests.support.peers import run
from tests.support.ports import free_port
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, until
from tricklecast import Channel, sync
from tricklecast.publisher import Publisher
from tricklecast.publisher import events as told
from tricklecast.subscriber import Subscriber, events
from tricklecast.trickle import errors
from tricklecast.trickle.backoff import Backoff
from tricklecast.trickle.client import retry


def kill(server: RunningServer) -> None:
    """As a crash ends it."""
    os.kill(server.pid, signal.SIGKILL)


def test_a_publisher_and_its_readers_go_on_at_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment that was open is sent again there, from its first byte and under its number; readers have each byte
    once. The other server knows nothing of the channel, as a node that takes it over from the memory of a dead one.
    """
    monkeypatch.setattr(retry, "OUTAGE_BACKOFF", Backoff(0.05, 0.1))
    with serve() as first, serve() as second:
        urls = [f"{first.base}/cam", f"{second.base}/cam"]
        got: list[tuple[int, bytes]] = []
        broken: list[int] = []
        noted: list[events.SubscriberEvent] = []

        async def read() -> None:
            async with Subscriber(urls, start=0, on_event=noted.append) as subscriber:
                async for segment in subscriber:
                    data = b"".join([chunk async for chunk in segment])
                    if segment.broken is None:
                        got.append((segment.seq, data))
                    else:
                        broken.append(segment.seq)

        async def main() -> None:
            async with Publisher(urls) as publisher:
                await publisher.publish(b"zero")
                await publisher.publish(b"one")
                reading = asyncio.create_task(read())
                async with publisher.segment() as segment:
                    await segment.write(b"two, ")
                    await until(lambda: len(got) == 2)
                    kill(first)
                    await segment.write(b"and the rest")
                assert (segment.receipt.seq, segment.receipt.sent, segment.receipt.stored) == (2, 17, 17)
                receipts = [await publisher.publish(b"%d" % seq) for seq in (3, 4)]
                assert [receipt.seq for receipt in receipts] == [3, 4]
                assert publisher.statistics().lost == 0
                await until(lambda: len(got) >= 4)
            await reading

        run(main())
        # A reader that had begun to read segment 2 cannot go on with it, since its bytes are another server's now.
        assert [seq for seq, _ in got] in ([0, 1, 2, 3, 4], [0, 1, 3, 4])
        assert dict(got).get(2, b"two, and the rest") == b"two, and the rest"
        assert [2 for seq in broken] == broken
        assert not [event for event in noted if isinstance(event, events.Gap)]


def test_a_server_that_shuts_down_sends_its_publisher_to_another_one() -> None:
    """Its 503 asks for more patience than a live publisher has, but that is for its own successor."""
    with local_server(shutdown_restart_s=300) as first, local_server() as second:
        noted: list[told.PublisherEvent] = []

        async def main() -> None:
            urls = [f"http://127.0.0.1:{server.port}/trickle/cam" for server in (first, second)]
            async with Publisher(urls, on_event=noted.append) as publisher:
                await publisher.publish(b"zero")
                first.stop()
                seq = 0
                while "cam" not in second.plane.registry.channels:  # what has begun before may end there
                    seq += 1
                    assert (await publisher.publish(b"x")).seq == seq
                assert second.plane.registry.channels["cam"].next_seq == seq + 1

        run(main())
        assert all(event.delay_s < 5 for event in noted if isinstance(event, told.Retrying))


def test_a_publisher_goes_to_the_owner_of_its_channel() -> None:
    """If it has a URL of that node: then its bytes make no detour. A reader stays where it is."""
    with members("a", "b") as (a, b):
        a.target.channel("cam").create()

        def urls(*of: int) -> list[str]:
            return [f"http://127.0.0.1:{port}/trickle/cam" for port in of]

        async def main() -> None:
            async with Publisher(urls(b.server.port, a.server.port)) as publisher:
                for _ in range(3):
                    await publisher.publish(b"x")
                before = b.forwarding.forwarded
                for _ in range(3):
                    await publisher.publish(b"x")
                assert b.forwarding.forwarded == before
                async with Subscriber(urls(b.server.port, a.server.port), start=5) as subscriber:
                    assert await (await anext(subscriber)).read() == b"x"
                    assert b.held
                await publisher.detach()
            async with Publisher(urls(b.server.port)) as publisher:
                before = b.forwarding.forwarded
                for _ in range(3):
                    await publisher.publish(b"x")
                assert b.forwarding.forwarded >= before + 3

        run(main())


def test_when_no_node_answers_the_error_names_all() -> None:
    """Of each client; and a publisher that loses all of them asks no more often than one that has a single server."""
    nodes = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    urls = ",".join(f"{node}/trickle/cam" for node in nodes)
    names = "".join(f"(?=.*{node})" for node in nodes)

    async def subscribe() -> None:
        async for _ in Subscriber(urls):
            pytest.fail("nothing is there")

    async def publish() -> None:
        async with Publisher(urls):
            pytest.fail("nothing is there")

    for client in (subscribe, publish, Channel(urls).head):
        with pytest.raises(errors.ConnectionLost, match=names):
            run(client())
    with pytest.raises(errors.ConnectionLost, match=names), sync.Publisher(urls):
        pytest.fail("nothing is there")
    retries: list[told.Retrying] = []

    def note(event: told.PublisherEvent) -> None:
        if isinstance(event, told.Retrying):
            retries.append(event)

    async def lose_all() -> None:
        with serve() as server:
            async with Publisher([f"{server.base}/cam", *urls.split(",")], outage_s=0.3, on_event=note) as publisher:
                await publisher.publish(b"zero")
                kill(server)
                await publisher.publish(b"one")

    with pytest.raises(errors.ConnectionLost, match=names):
        run(lose_all())
    rounds = [event for event in retries if event.delay_s]
    assert 1 <= len(rounds) <= 20
    assert len(retries) <= 3 * len(rounds) + 3


def test_commands_take_several_urls(tmp_path: Path) -> None:
    """With commas between them: they go on past a node that is not there, say so, and hide what is secret."""

    def tricklecast(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(forked(*arguments), input=stdin, capture_output=True, timeout=WITHIN_S, check=False)

    with serve() as server:
        dead = f"http://me:secret@127.0.0.1:{free_port()}"
        urls = f"{dead}/cam,{server.base.replace('://', '://me:secret@')}/cam"
        done = tricklecast("publish", urls, "-", "--raw", "--by", "line", stdin=b"one\ntwo\n")
        said = done.stderr.decode()
        assert (done.returncode, "cannot connect to http://***@" in said, "secret" in said) == (0, True, False)
        done = tricklecast("subscribe", urls, "--start", "earliest", "--json")
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0
        assert [event["seq"] for event in told if event["event"] == "segment"] == [0, 1]
        assert b"secret" not in done.stdout + done.stderr
        for command in (("check", urls), ("subscribe", f"{urls},http://127.0.0.1/mic"), ("publish", f"{urls},x", "-")):
            done = tricklecast(*command)
            assert (done.returncode, b"secret" in done.stderr) == (2, False), command


@pytest.mark.parametrize("ack", ["memory", pytest.param("quorum", marks=pytest.mark.long)])
def test_a_node_of_a_cluster_that_owns_the_channel_is_killed(ack: str) -> None:
    """In the middle of a segment: publisher and readers go on at another node, without a setting. With a quorum the
    channel has the same epoch there, otherwise the next one.
    """
    with nats_server() as nats, ExitStack() as stack:
        options = ("--cluster", nats.url, "--ack", ack, "--cluster-lease-s", "0.5", "--cluster-history-bytes", "64MiB")
        nodes = [stack.enter_context(serve("--node", name, *options)) for name in "ab"]
        urls = [f"{node.base}/cam" for node in nodes]
        got: dict[int, bytes] = {}
        noted: list[events.SubscriberEvent] = []

        async def read() -> None:
            async with Subscriber(urls[::-1], start=0, on_event=noted.append) as subscriber:
                async for segment in subscriber:
                    data = b"".join([chunk async for chunk in segment])
                    if segment.broken is None:
                        got[segment.seq] = data

        async def main() -> None:
            async with Publisher(urls) as publisher:
                await publisher.publish(b"zero")
                await publisher.publish(b"one")
                reading = asyncio.create_task(read())
                async with publisher.segment() as segment:
                    await segment.write(b"two, ")
                    await until(lambda: len(got) == 2)
                    kill(nodes[0])
                    await segment.write(b"and the rest")
                assert (segment.receipt.seq, segment.receipt.stored) == (2, 17)
                assert [(await publisher.publish(b"x")).seq for _ in range(2)] == [3, 4]
                assert publisher.statistics().lost == 0
                await until(lambda: 4 in got)
                head = await Channel(urls).head()
                assert (head.next_seq, head.epoch) == (5, 1 if ack == "quorum" else 2)
            await reading

        run(main())
        assert got.pop(2, b"two, and the rest") == b"two, and the rest"
        assert got == {0: b"zero", 1: b"one", 3: b"x", 4: b"x"}
        assert not [event for event in noted if isinstance(event, events.Gap)]
