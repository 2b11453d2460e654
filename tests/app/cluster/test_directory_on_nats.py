"""The directory on a real NATS server: all that a model of it might have wrong."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.cluster.directories import Heard, claimed, make, running
from tests.support.certificates import make_certificate
from tests.support.nats import NatsServer, nats_cluster, nats_server, relay
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.directory import Claimed, Taken, Unavailable
from tricklecast.app.cluster.jetstream import NatsOptions, Unreachable
from tricklecast.app.cluster.lease import LeaseState
from tricklecast.app.cluster.view import Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shared() -> Iterator[NatsServer]:
    """A server for all tests here; see :func:`nats`."""
    with nats_server() as server:
        yield server


@pytest.fixture
async def nats(shared: NatsServer) -> NatsServer:
    """A server whose bucket has neither nodes nor channels. It is not new, so nodes need not wait for others."""
    bucket = await Bucket.open(NatsOptions((shared.url,)), "cleaner")
    for kind in ("node", "channel"):
        await bucket._client.jetstream().purge_stream("KV_trickle", subject=f"$KV.trickle.{kind}.>")
    await bucket.close()
    return shared


async def test_a_claim_is_known_everywhere(nats: NatsServer) -> None:
    """The claimer owns the channel; other nodes know where it is, and cannot claim it."""
    heard = Heard()
    a, b = make("a", nats), make("b", nats, heard)
    async with running(a, b):
        assert await a.claim("café.1") == Claimed(1)
        await until(lambda: b.place("café.1") is not None)
        there = Place("a", "http://a:2939/trickle", 1, True)
        assert (a.owns("café.1"), b.owns("café.1")) == (True, False)
        assert a.place("café.1") == b.place("café.1") == there
        assert await b.claim("café.1") == Taken(there)
        assert await a.claim("café.1") == Claimed(1)
        assert await a.confirmed("café.1", 1)
        assert not await a.confirmed("café.1", 2)
        assert not await b.confirmed("café.1", 1)
        assert heard.moves == [("café.1", there)]
        assert a.secret == b.secret != ""


async def test_a_tombstone_is_removed_after_its_time(nats: NatsServer) -> None:
    """By the server, and by each node: the name begins again."""
    a = make("a", nats, tombstone_s=1)
    async with running(a):
        await a.claim("x")
        a.ended("x", 1)
        await until(lambda: "x" not in a.channels)
        bucket = await Bucket.open(NatsOptions((nats.url,)), "test")
        while (await bucket.get("channel.x"))[1]:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)
        await bucket.close()
        assert await a.claim("x") == Claimed(1)


async def test_without_nats_channels_stay_and_decisions_wait(nats: NatsServer) -> None:
    """A server that is gone: the lease is cut off, all that was known stays, and a new connection mends all."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        await claimed(a, "x")
        await until(lambda: b.place("x") is not None)
        nats.stop(signal.SIGKILL)
        try:
            await until(lambda: a.lease.state is LeaseState.CUT_OFF and b.lease.state is LeaseState.CUT_OFF)
            assert "NATS is out of reach" in a.degraded
            assert a.owns("x")
            assert b.place("x") == Place("a", "http://a:2939/trickle", 1, True)
            assert not await a.confirmed("x", 1)
            assert isinstance(await b.claim("y"), Unavailable)
        finally:
            nats.start()
        await until(lambda: not a.degraded and not b.degraded)
        assert await a.confirmed("x", 1)
        assert b.place("x") == Place("a", "http://a:2939/trickle", 1, True)
        assert await claimed(b, "y") == 1


async def test_a_server_that_stands_still_is_noticed(nats: NatsServer) -> None:
    """Its connections stay open and bring nothing: the renewal that has no answer tells. A stop has a deadline."""
    a = make("a", nats)
    async with running(a):
        nats.freeze()
        try:
            await until(lambda: a.lease.state is LeaseState.CUT_OFF)
            assert a.counters.renewals_failed
            began = time.monotonic()
            await a.stop()
            assert time.monotonic() - began < 2 * (WITHIN_S / 60)  # 2 s, and as much for a machine that is busy
        finally:
            nats.thaw()


async def test_a_watch_that_brings_nothing_is_begun_again(nats: NatsServer) -> None:
    """Renewals succeed, and their echoes do not come: the server has lost what delivers them, and tells nobody."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        admin = await Bucket.open(NatsOptions((nats.url,)), "admin")
        stream = admin._client.jetstream()
        before = a.counters.connections, b.counters.connections
        for consumer in await stream.consumers_info("KV_trickle"):
            await stream.delete_consumer("KV_trickle", consumer.name)
        await admin.close()
        await until(lambda: a.counters.connections > before[0] and b.counters.connections > before[1])
        await until(lambda: not a.degraded and not b.degraded)
        assert (a.counters.deposed, b.counters.deposed) == (0, 0)
        assert await claimed(a, "x") == 1
        await until(lambda: b.place("x"))


async def test_a_request_fails_with_its_connection(nats: NatsServer) -> None:
    """Nobody waits until its time is over: with the next connection it can be asked again."""
    bucket = await Bucket.open(NatsOptions((nats.url,)), "test")
    nats.freeze()
    request = asyncio.ensure_future(bucket.ask("STREAM.INFO", "KV_trickle", within_s=10 * WITHIN_S))
    await asyncio.sleep(0)
    nats.stop(signal.SIGKILL)
    nats.start()
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(Unreachable, match="closed"):
            await request
    await bucket.close()


async def test_a_bucket_that_is_there_is_left_as_it_is(nats: NatsServer) -> None:
    """The second node finds what the first one has made, and changes nothing."""
    asked = []

    class Spy(Bucket):
        async def ask(self, verb: str, *about: Any, **more: Any) -> dict[str, Any] | None:
            asked.append(verb)
            return await super().ask(verb, *about, **more)

    for _ in range(2):
        await (await Spy.open(NatsOptions((nats.url,), bucket="other"), "test")).close()
    assert asked == ["STREAM.INFO", "STREAM.CREATE", "STREAM.INFO"]


async def test_a_wrong_password_is_told(tmp_path: Path) -> None:
    """A node that NATS refuses says why, and goes on trying."""
    with nats_server("--user", "trickle", "--pass", "secret") as server:
        wrong, right = server.url.replace("//", "//trickle:wrong@"), server.url.replace("//", "//trickle:secret@")
        a = make("a", NatsOptions((wrong,)))
        assert not await a.start({}, 0.1)
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: "authorization" in a.degraded.lower())
        await a.stop()
        b = make("b", NatsOptions((right,)))
        assert await b.start({}, WITHIN_S)
        await b.stop()
    with pytest.raises(Unreachable):
        await Bucket.open(NatsOptions((right,)), "test")


async def test_tls_is_what_its_url_says(tmp_path: Path, nats: NatsServer) -> None:
    """With `tls://` the server's certificate is verified, and a server that speaks no TLS is refused."""
    make_certificate(tmp_path)
    with pytest.raises(Unreachable, match="offers no TLS"):
        await Bucket.open(NatsOptions((nats.url.replace("nats:", "tls:"),)), "test")
    with nats_server("--tls", "--tlscert", f"{tmp_path}/cert.pem", "--tlskey", f"{tmp_path}/key.pem") as server:
        url = server.url.replace("nats:", "tls:")
        with pytest.raises(Unreachable, match="certificate"):
            await Bucket.open(NatsOptions((url,)), "test")
        trusted = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        bucket = await Bucket.open(NatsOptions((url,), tls=trusted), "test")
        assert await bucket.put("channel.x", b"{}", 0)
        await bucket.close()


async def test_a_server_that_is_not_nats_is_told() -> None:
    """A wrong port in the URL is the likely cause."""

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unreachable, match="INFO"):
        await Bucket.open(NatsOptions((f"nats://127.0.0.1:{port}",)), "test")
    server.close()


NODE = """
import asyncio, sys, time
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.directory import Claimed, Directory, NodeFacts
from tests.app.cluster.directories import Heard

async def main(url):
    a = Directory(lambda: Bucket.open(NatsOptions((url,)), "a"), NodeFacts("a", "http://a"), Heard(), lease_s=0.7)
    await a.start({})
    while not isinstance(await a.claim("x"), Claimed):
        await asyncio.sleep(0.05)
    while True:
        now = time.monotonic()
        sure = a.lease.fresh and a.owns("x")
        print(now, sure, await a.confirmed("x", 1), flush=True)
        await asyncio.sleep(0.01)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_process_that_stood_still_refuses_before_it_does_harm(nats: NatsServer) -> None:
    """Stopped for longer than a lease, and continued: it is not sure of its channel from its first instruction on."""
    b = make("b", nats, lease_s=0.7)
    command = [sys.executable, "-c", NODE, nats.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it is quick
    assert process.stdout is not None
    lines = asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())

    reading = loop.run_in_executor(None, read)
    try:
        async with running(b):
            while not (await lines.get()).endswith("True True"):
                pass
            await until(lambda: b.place("x"))
            os.kill(process.pid, signal.SIGSTOP)
            assert await claimed(b, "x") == 2
            taken_at = time.monotonic()
            os.kill(process.pid, signal.SIGCONT)
            afterwards = 0
            while afterwards < 50:
                at, *answers = (await lines.get()).split()
                if float(at) > taken_at:
                    afterwards += 1
                    assert answers == ["False", "False"]
    finally:
        process.kill()
        process.wait()
        await reading
        process.stdout.close()


@pytest.mark.long
async def test_a_cluster_loses_its_leader() -> None:
    """Three servers: the bucket has three replicas. The one that leads it is killed, and nothing is lost."""
    with nats_cluster() as servers:
        options = NatsOptions(tuple(server.url for server in servers))
        a, b = make("a", options, lease_s=2.0), make("b", options, lease_s=2.0)
        async with running(a, b):
            await claimed(a, "x")
            admin = await Bucket.open(options, "admin")
            info = await admin.ask("STREAM.INFO", "KV_trickle")
            assert info is not None
            assert info["config"]["num_replicas"] == 3
            await admin.close()
            leader = eventually(lambda: [server for server in servers if server.leads("KV_trickle")])[0]
            leader.stop(signal.SIGKILL)
            renewals = a.counters.renewals, b.counters.renewals
            await until(lambda: a.counters.renewals > renewals[0] + 2 and b.counters.renewals > renewals[1] + 2)
            await until(lambda: not a.degraded and not b.degraded and a.lease.fresh)
            assert await a.confirmed("x", 1)
            assert await claimed(b, "y") == 1
            await until(lambda: a.place("y"))


async def test_a_server_that_is_too_old_is_told(nats: NatsServer) -> None:
    """The one before the oldest that keeps what a node has written."""
    version = f'"version":"{nats.version}"'.encode()
    async with relay(nats.port) as way:
        way.names[version] = b'"version":"2.11.1"'.ljust(len(version))
        with pytest.raises(Unreachable, match=r"127.0.0.1 has NATS 2\.11\.1: 2\.11\.2 or newer is needed"):
            await Bucket.open(NatsOptions((way.url,)), "test")
        way.names[version] = b'"version":"2.11.2"'.ljust(len(version))
        await (await Bucket.open(NatsOptions((way.url,)), "test")).close()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-js=false",), r"JetStream does not answer: was NATS started with it \(-js\)"),
        (("--user", "u", "--pass", "p"), "it refuses this node .*check user and password in --cluster"),
    ],
)
async def test_a_server_that_is_of_no_use_is_told_apart(arguments: tuple[str, ...], told: str) -> None:
    """By what is to be done. NATS may close the connection before its refusal is read: then the next one tells it."""
    said: list[str] = []
    with nats_server(*arguments) as server:
        while len(said) < 5 and not any(re.search(told, one) for one in said):
            with pytest.raises(Unreachable) as refused:
                await Bucket.open(NatsOptions((server.url,)), "test")
            said.append(str(refused.value))
    assert re.search(told, said[-1]), said


async def test_a_server_that_is_not_there_or_silent_is_told_in_words() -> None:
    """Not by the name of an exception."""
    with pytest.raises(Unreachable, match=r"^Connect"):
        await Bucket.open(NatsOptions(("nats://127.0.0.1:1",)), "test")
    with nats_server() as server:
        server.freeze()
        with pytest.raises(Unreachable, match=r"^no answer in time$"):
            await Bucket.open(NatsOptions((server.url,)), "test")


async def test_the_log_says_when_nats_is_lost_and_when_it_is_back(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the servers, without their passwords; a start that is well is no news."""
    options = NatsOptions(("nats://user:s3cret@10.0.0.1:4222", "tls://10.0.0.2:4222/"))
    a = make("a", nats, servers=options.named)
    async with running(a):
        assert not caplog.records
        nats.stop(signal.SIGKILL)
        try:
            await until(lambda: "the lease of node 'a' is cut off: NATS is out of reach" in caplog.text)
            assert "this node goes on asking 10.0.0.1:4222, 10.0.0.2:4222" in caplog.text
        finally:
            nats.start()
        await until(lambda: "node 'a' has renewed its lease: all is well again" in caplog.text)
