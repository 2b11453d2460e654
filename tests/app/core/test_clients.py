"""The table of client addresses: who is in it, who makes room, and that it does not grow."""

from __future__ import annotations

import random

import pytest

from tricklecast.app.core.clients import Client, Clients


def visit(clients: Clients, address: str) -> Client:
    """One who comes and goes."""
    client = clients.hold(address)
    clients.release(client)
    return client


def test_an_address_is_one_client() -> None:
    """However often it comes; another one is another."""
    clients = Clients(10)
    here = clients.hold("a")
    assert clients.hold("a") is here
    assert clients.hold("b") is not here
    assert (here.holders, len(clients)) == (2, 2)


def test_who_has_gone_is_remembered() -> None:
    """What it has used up is still used up when it comes back."""
    clients = Clients(2)
    first = visit(clients, "a")
    visit(clients, "b")
    assert clients.hold("a") is first


@pytest.mark.parametrize(("limit", "remembered"), [(2, False), (3, True), (4, True)])
def test_who_went_first_makes_room(limit: int, remembered: bool) -> None:
    """One more than fit, and it is forgotten who has been gone for longest."""
    clients = Clients(limit)
    first, *_ = [visit(clients, address) for address in "abc"]
    assert len(clients) == min(limit, 3)
    assert (clients.hold("a") is first) is remembered


def test_who_comes_again_has_not_been_gone_for_long() -> None:
    """The order is that of the last visit."""
    clients = Clients(2)
    first, second = visit(clients, "a"), visit(clients, "b")
    visit(clients, "a")
    visit(clients, "c")
    assert clients.hold("a") is first
    assert visit(clients, "b") is not second


def test_who_is_here_stays() -> None:
    """If all are, new addresses share one client; when one goes, the next address has one of its own."""
    clients = Clients(2)
    a, b = clients.hold("a"), clients.hold("b")
    assert clients.hold("c") is clients.hold("d") is clients.others
    assert (clients.others.holders, len(clients)) == (2, 2)
    for _ in range(2):
        clients.release(clients.others)
    assert clients.hold("a") is a
    clients.release(b)
    assert clients.hold("c") not in (a, b, clients.others)


def test_a_million_addresses_take_no_more_room_than_fit() -> None:
    """Neither those that come and go, nor those that come when all places are taken."""
    clients, rng = Clients(1000), random.Random(1)
    stay = [clients.hold(f"stay {number}") for number in range(10)]
    for _ in range(1_000_000):
        clients.release(clients.hold(f"{rng.getrandbits(64):x}"))
    assert len(clients) == 1000
    assert [clients.hold(client.address) for client in stay] == stay
    full = Clients(10)
    for number in range(1000):
        full.hold(str(number))
    assert len(full) == 10
    assert full.others.holders == 990


def test_it_shows_what_it_has() -> None:
    """For those who look into a running server."""
    assert repr(Clients(1).hold("192.0.2.1")) == "<Client '192.0.2.1' 0 connections, 0 exchanges>"
