"""A channel as a whole, against a real server and against senseless responses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from tests.support.local import LocalServer, local_server
from tests.support.peers import Peer, fake_server, run
from tests.support.waiting import until
from tricklecast.trickle.client.channel import Channel, Head
from tricklecast.trickle.errors import (
    BrokenByPeer,
    ChannelNotFound,
    ConnectionLost,
    InvalidInput,
    LocalProtocolError,
    Refused,
    RemoteProtocolError,
)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server() as running:
        yield running


def url(server: LocalServer, name: str) -> str:
    return f"http://127.0.0.1:{server.port}/trickle/{name}"


def fails(step: Coroutine[Any, Any, object]) -> BrokenByPeer:
    async def main() -> BrokenByPeer:
        with pytest.raises(BrokenByPeer) as raised:
            await step
        return raised.value

    return anyio.run(main)


def test_a_channel_is_created_looked_at_and_ended(server: LocalServer) -> None:
    """Creating it again changes nothing; after its end it still tells its head."""

    async def main() -> list[Head]:
        channel = Channel(url(server, "a%20b"), headers={"Trickle-Client": "me"})
        await channel.create("video/mp2t")
        await channel.create("text/plain")
        heads = [await channel.head()]
        await channel.end()
        return [*heads, await channel.head()]

    assert anyio.run(main) == [Head(0, 1, ended=False), Head(0, 1, ended=True)]
    assert server.record(channel="a b", op="delete").client == "me"
    assert server.plane.registry.channels["a b"].content_type == "video/mp2t"


def test_a_missing_channel_is_an_error(server: LocalServer) -> None:
    """Asking for its head fails, and so does ending it."""
    missing = Channel(url(server, "missing"))
    for error in (fails(missing.head()), fails(missing.end())):
        assert isinstance(error, ChannelNotFound)
        assert str(error) == "channel not found (HTTP 404)"  # also where the protocol's status for it is 400


def test_a_refusal_is_an_error(server: LocalServer) -> None:
    """The server refuses to create a channel with a name of its own."""
    own = Channel(url(server, "_changes"))
    refusals = [fails(own.create()), fails(own.end())]
    assert [(type(error), error.status) for error in refusals] == [(Refused, 403)] * 2


@pytest.mark.parametrize("ask", [Channel.create, Channel.head, Channel.end])
def test_answers_that_make_no_sense_are_errors(ask: Callable[[Channel], Coroutine[Any, Any, object]]) -> None:
    """An odd status, and a 200 without the head, come from another program."""

    async def main() -> list[type[BrokenByPeer]]:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.answer(500 if not errors else 200)
            await peer.closed()

        errors: list[type[BrokenByPeer]] = []
        async with fake_server(script, script) as server:
            channel = Channel(f"{server.base}/c")
            for _ in range(2 if ask is Channel.head else 1):
                with pytest.raises(BrokenByPeer) as raised:
                    await ask(channel)
                errors.append(raised.type)
        return errors

    assert run(main()) == [Refused, RemoteProtocolError][: 2 if ask is Channel.head else 1]


def test_no_answer_is_an_error() -> None:
    """A server that hangs up is a lost connection."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()

        async with fake_server(script) as server:
            with pytest.raises(ConnectionLost):
                await Channel(f"{server.base}/c").head()

    run(main())


def test_a_block_keeps_the_connection() -> None:
    """Its requests share one, which its end closes; without a block each request has its own."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            with suppress(EOFError, ConnectionError):
                while True:
                    await peer.head()
                    await peer.answer(200, {"Lp-Trickle-Latest": 7})

        async with fake_server(script) as server:
            channel = Channel(f"{server.base}/c")
            async with channel:
                assert [(await channel.head()).next_seq for _ in range(3)] == [7] * 3
                assert len(server.peers) == 1
                with pytest.raises(LocalProtocolError):
                    await channel.__aenter__()
            await channel.aclose()
            await until(server.scripts[0].done)
            await channel.head()
            await channel.head()
            assert len(server.peers) == 3

    run(main())


def test_wrong_arguments_are_errors_at_once() -> None:
    """The constructor raises before anything is sent."""
    for options in ({"timeout_s": 0}, {"headers": {"Host": "x"}}):
        with pytest.raises(InvalidInput):
            Channel("http://h/c", **options)
    with pytest.raises(InvalidInput):
        anyio.run(Channel("http://h/c").create, "video/mp2t\n")
