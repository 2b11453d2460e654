"""Limits: their defaults, what all clients share, and what one client may take."""

from __future__ import annotations

import random
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tricklecast.app.core.limits import (
    UNLIMITED,
    Admission,
    Capacities,
    Capacity,
    Client,
    Clients,
    GiB,
    Limit,
    Limits,
    MiB,
)


def test_defaults_are_the_documented_ones() -> None:
    """A server that is told nothing holds what the documentation says."""
    limits = Limits()
    assert (limits.segment_bytes, limits.total_bytes) == (64 * MiB, GiB)
    assert (limits.window_segments, limits.window_bytes, limits.window_age_s) == (256, 64 * MiB, 60.0)
    assert (limits.channels, limits.readers) == (10_000, 50_000)
    assert (limits.publisher_grace_s, limits.skip_grace_s, limits.first_byte_timeout_s) == (5.0, 2.0, None)
    assert (limits.channel_drain_s, limits.idle_timeout_s) == (10.0, 300.0)


def test_limits_do_not_change() -> None:
    """Limits are set once, when the server starts."""
    with pytest.raises(FrozenInstanceError):
        Limits().readers = 1  # type: ignore[misc]


@pytest.mark.parametrize("limit", ["client_connections", "client_exchanges", "client_requests_per_s"])
def test_clients_are_told_apart_where_each_has_a_limit(limit: str) -> None:
    """Any of the three is reason enough to know them."""
    assert not Limits().tells_clients_apart
    assert replace(Limits(), **{limit: 1}).tells_clients_apart


def filled(limit: int | None, used: int) -> Capacity:
    """A capacity of which so much is used."""
    capacity = Capacity(limit)
    for _ in range(used):
        capacity.take()
    return capacity


@pytest.mark.parametrize(
    ("used", "joins", "resumes"),
    [(0, True, True), (7, True, True), (8, False, True), (9, False, True), (10, False, False), (11, False, False)],
)
def test_up_to_where_it_lets_in_whom(used: int, joins: bool, resumes: bool) -> None:
    """New ones below 80 % of the limit, those who go on below the limit."""
    capacity = filled(10, used)
    assert (capacity.admits(join=True), capacity.admits(join=False)) == (joins, resumes)


@pytest.mark.parametrize(("used", "joins"), [(7, False), (6, False), (5, True)])
def test_new_ones_come_again_below_three_fifths(used: int, joins: bool) -> None:
    """Not at 60 %, but below."""
    capacity = filled(10, 8)
    while capacity.used > used:
        capacity.give_back()
    assert capacity.admits(join=True) is joins
    assert capacity.admits(join=False)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_small_limit_has_no_reserve(limit: int) -> None:
    """A fifth of four is less than one: all that fit may be new."""
    capacity = filled(limit, limit - 1)
    assert capacity.admits(join=True)
    capacity.take()
    assert not capacity.admits(join=False)


def test_nothing_fits_through_a_closed_gate() -> None:
    """A limit of zero lets nobody in."""
    assert Capacity(0).full
    assert not Capacity(0).admits(join=False)
    assert not Capacity(0).joinable


def test_without_a_limit_everybody_comes_in() -> None:
    """None is no limit, and no number that anybody reaches."""
    capacity = filled(None, 1000)
    assert capacity.admits(join=True)
    assert capacity.limit == UNLIMITED


def test_more_than_fit_may_be_let_in() -> None:
    """The place is full until fewer than the limit are in."""
    capacity = filled(10, 12)
    fullness = []
    for _ in range(3):
        fullness.append(capacity.full)
        capacity.give_back()
    assert (fullness, capacity.full) == ([True, True, True], False)


def test_there_is_a_gate_for_every_limit_that_all_share() -> None:
    """As wide as the limit of its name."""
    capacities = Capacities.of(Limits(readers=1, publishers=2, channels=3, connections=None))
    assert [capacity.limit for capacity in capacities] == [1, 2, 3, UNLIMITED]


@given(st.integers(1, 60), st.lists(st.booleans(), max_size=200))
def test_it_keeps_the_shares_exactly(limit: int, steps: list[bool]) -> None:
    """Counted with fractions: closed to new ones from 4/5 on, until less than 3/5 is in use."""
    capacity, count, is_open = Capacity(limit), 0, True
    for comes in steps:
        if comes and capacity.admits(join=False):
            capacity.take()
            count += 1
        elif not comes and count:
            capacity.give_back()
            count -= 1
        share = Fraction(count, limit)
        is_open = share < Fraction(3, 5) if not is_open else share < Fraction(4, 5)
        admits = capacity.admits(join=True), capacity.admits(join=False)
        assert (capacity.used, capacity.full, *admits) == (count, count >= limit, is_open, count < limit)


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
    """A client that comes back finds its allowance as it left it."""
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


def test_any_number_of_addresses_takes_no_more_room_than_fits() -> None:
    """Neither those that come and go, nor those that come when all places are taken."""
    clients, rng = Clients(1000), random.Random(1)
    stay = [clients.hold(f"stay {number}") for number in range(10)]
    for _ in range(100_000):
        clients.release(clients.hold(f"{rng.getrandbits(64):x}"))
    assert len(clients) == 1000
    assert [clients.hold(client.address) for client in stay] == stay
    full = Clients(10)
    for number in range(1000):
        full.hold(str(number))
    assert len(full) == 10
    assert full.others.holders == 990


def make(**limits: Any) -> Admission:
    """An admission with a capacity of its own."""
    limited = Limits(**limits)
    return Admission(limited, Capacity(limited.connections))


def client_of(admission: Admission, address: str = "a") -> Client:
    """Return the client at an address."""
    assert admission.clients is not None
    return admission.clients.hold(address)


def test_clients_are_told_apart_only_where_they_are_limited() -> None:
    """Without a limit per client nothing is kept about them."""
    assert make().clients is None
    for limit in ("client_exchanges", "client_connections", "client_requests_per_s"):
        assert make(**{limit: 1}).clients is not None


def test_connections_are_limited() -> None:
    """Up to the limit; who was refused has taken nothing, and when one goes the next may come."""
    admission = make(connections=2)
    assert [admission.connect(None) for _ in range(4)] == [None, None, Limit.CONNECTIONS, Limit.CONNECTIONS]
    admission.disconnect(None)
    assert [admission.connect(None) for _ in range(2)] == [None, Limit.CONNECTIONS]


def test_connections_of_a_client_are_limited() -> None:
    """Each client has its own; who was refused takes no place from the others."""
    admission = make(connections=4, client_connections=2)
    one, other = client_of(admission, "a"), client_of(admission, "b")
    assert [admission.connect(one) for _ in range(3)] == [None, None, Limit.CLIENT_CONNECTIONS]
    assert [admission.connect(other) for _ in range(2)] == [None, None]
    assert admission.connect(client_of(admission, "c")) is Limit.CONNECTIONS
    admission.disconnect(one)
    assert (one.connections, admission.connect(one)) == (1, None)


def test_exchanges_of_a_client_are_limited() -> None:
    """At a time, not in total."""
    admission = make(client_exchanges=2)
    one, other = client_of(admission, "a"), client_of(admission, "b")
    assert [admission.begin(one, 0.0) for _ in range(3)] == [None, None, Limit.CLIENT_EXCHANGES]
    assert admission.begin(other, 0.0) is None
    admission.end(one)
    assert [admission.begin(one, 0.0) for _ in range(2)] == [None, Limit.CLIENT_EXCHANGES]


def test_a_burst_is_let_in_and_then_so_many_a_second() -> None:
    """A new client has the whole burst; later a request is let in as soon as its token has come."""
    admission = make(client_requests_per_s=2.0, client_burst=3)
    client = client_of(admission)

    def ask(now: float) -> list[Limit | None]:
        answers: list[Limit | None] = []
        while not answers or answers[-1] is None:
            answers.append(admission.begin(client, now))
        return answers

    refused = Limit.CLIENT_REQUESTS
    assert ask(100.0) == [None, None, None, refused]
    assert ask(100.49) == [refused]
    assert ask(100.5) == [None, refused]
    assert ask(1000.0) == [None, None, None, refused]
    assert client.exchanges == 7


def test_who_is_refused_for_another_reason_uses_no_token() -> None:
    """A request that was not let in does not count."""
    admission = make(client_requests_per_s=1.0, client_burst=2, client_exchanges=1)
    client = client_of(admission)
    answers = [admission.begin(client, 0.0) for _ in range(9)]
    assert answers == [None, *[Limit.CLIENT_EXCHANGES] * 8]
    admission.end(client)
    assert admission.begin(client, 0.0) is None


@pytest.mark.parametrize(("rate", "wait_s"), [(5.0, 1), (1.0, 1), (0.9, 2), (0.1, 10)])
def test_who_asks_too_often_is_told_when_a_token_will_be_there(rate: float, wait_s: int) -> None:
    """No refused client is sent back before it can be let in; other limits have no such time."""
    admission = make(client_requests_per_s=rate)
    assert (admission.wait_s(Limit.CLIENT_REQUESTS), admission.wait_s(Limit.READERS)) == (wait_s, 1)
    assert make().wait_s(Limit.CLIENT_REQUESTS) == 1


ADDRESSES = st.sampled_from("abcd")


class AdmissionMachine(RuleBasedStateMachine):
    """Connections and requests of a few addresses in any order, beside a model of lists and counts."""

    @initialize(
        connections=st.sampled_from([None, 1, 5]),
        exchanges=st.sampled_from([None, 1, 2]),
        per_client=st.sampled_from([1, 2]),
        clients=st.sampled_from([1, 2, 9]),
    )
    def begin(self, connections: int | None, exchanges: int | None, per_client: int, clients: int) -> None:
        self.limits = Limits(
            connections=connections, client_exchanges=exchanges, client_connections=per_client, clients=clients
        )
        self.capacity = Capacity(connections)
        self.admission = Admission(self.limits, self.capacity)
        self.connected: list[Client] = []
        self.asking: list[Client] = []

    @rule(address=ADDRESSES)
    def connect(self, address: str) -> None:
        client = client_of(self.admission, address)
        full = len(self.connected) == self.limits.connections
        own = self.connected.count(client) == self.limits.client_connections
        refused = self.admission.connect(client)
        assert refused == (Limit.CONNECTIONS if full else Limit.CLIENT_CONNECTIONS if own else None)
        self.leave(client) if refused else self.connected.append(client)

    @rule(which=st.integers(0, 9))
    def disconnect(self, which: int) -> None:
        if self.connected:
            client = self.connected.pop(which % len(self.connected))
            self.admission.disconnect(client)
            self.leave(client)

    @rule(address=ADDRESSES)
    def ask(self, address: str) -> None:
        client = client_of(self.admission, address)
        own = self.asking.count(client) == self.limits.client_exchanges
        refused = self.admission.begin(client, 0.0)
        assert refused == (Limit.CLIENT_EXCHANGES if own else None)
        self.leave(client) if refused else self.asking.append(client)

    @rule(which=st.integers(0, 9))
    def answer(self, which: int) -> None:
        if self.asking:
            client = self.asking.pop(which % len(self.asking))
            self.admission.end(client)
            self.leave(client)

    def leave(self, client: Client) -> None:
        assert self.admission.clients is not None
        self.admission.clients.release(client)

    @invariant()
    def agrees_with_the_model(self) -> None:
        here = {*self.connected, *self.asking}
        clients = self.admission.clients
        assert clients is not None
        assert self.capacity.used == len(self.connected)
        assert len(clients) <= self.limits.clients
        assert len(here - {clients.others}) <= self.limits.clients
        for client in here:
            assert client.connections == self.connected.count(client)
            assert client.exchanges == self.asking.count(client)
            assert client.holders == client.connections + client.exchanges
            assert client is clients.others or client_of(self.admission, client.address) is client
            if client is not clients.others:
                clients.release(client)


def test_no_order_of_events_contradicts_the_model() -> None:
    """Nothing is let in beyond a limit, nothing refused below it, and nothing is left behind."""
    run_state_machine_as_test(
        AdmissionMachine,
        settings=settings(max_examples=60, stateful_step_count=40),
    )
