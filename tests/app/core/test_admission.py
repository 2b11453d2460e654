"""What a client, and all of them together, may have: at each limit, one below, and one above."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tricklecast.app.core.admission import Admission
from tricklecast.app.core.capacity import Capacity
from tricklecast.app.core.clients import Client
from tricklecast.app.core.limits import Limit, Limits


def make(**limits: Any) -> Admission:
    """An admission with a capacity of its own."""
    limited = Limits(**limits)
    return Admission(limited, Capacity(limited.connections))


def client_of(admission: Admission, address: str = "a") -> Client:
    """Who comes from an address."""
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
