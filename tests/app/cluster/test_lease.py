"""The lease of a node: its three states, and each way from one to another."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import VirtualLoop
from tricklecast.app.cluster.lease import Lease, LeaseState, answered, boottime


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    return Lease(2.0, clock)


def test_a_lease_begins_cut_off(lease: Lease) -> None:
    """Before the first renewal nothing is certain, and NATS has not been reached."""
    assert lease.state is LeaseState.CUT_OFF
    assert not lease.fresh


def test_a_renewal_counts_from_when_it_was_sent(lease: Lease, clock: Clock) -> None:
    """Others count from when they see it, which is later: so this node stops first, by a fifth of the time."""
    lease.renewed(clock.now - 0.5)
    clock.now += 1.09
    assert lease.fresh
    assert lease.state is LeaseState.LEASED
    clock.now += 0.02
    assert not lease.fresh


def test_a_process_that_stood_still_is_in_doubt(lease: Lease, clock: Clock) -> None:
    """Nothing says that NATS is out of reach: a renewal may tell."""
    lease.renewed(clock.now)
    clock.now += 10
    assert lease.state is LeaseState.DOUBTFUL


def test_without_nats_a_lease_counts_to_its_end(lease: Lease, clock: Clock) -> None:
    """Nobody can have taken the channels before."""
    lease.renewed(clock.now)
    lease.cut_off()
    assert lease.fresh
    clock.now += 1.7
    assert lease.state is LeaseState.CUT_OFF


def test_nats_goes_while_in_doubt(lease: Lease, clock: Clock) -> None:
    """The renewal that was to tell has no answer."""
    lease.renewed(clock.now)
    clock.now += 10
    lease.cut_off()
    assert lease.state is LeaseState.CUT_OFF


def test_nats_comes_back(lease: Lease, clock: Clock) -> None:
    """A renewal ends being cut off, and being in doubt."""
    lease.renewed(clock.now)
    lease.cut_off()
    clock.now += 10
    lease.renewed(clock.now)
    assert lease.state is LeaseState.LEASED
    clock.now += 10
    lease.renewed(clock.now)
    assert lease.state is LeaseState.LEASED


def test_a_lease_that_others_have_ended_counts_no_more(lease: Lease, clock: Clock) -> None:
    """Whatever its time was."""
    lease.renewed(clock.now)
    lease.lost()
    assert not lease.fresh
    assert lease.state is LeaseState.DOUBTFUL


def test_a_held_lease_is_valid_and_not_fresh(lease: Lease, clock: Clock) -> None:
    """While a channel of the node may be somebody else's, each one has to be asked for."""
    lease.renewed(clock.now)
    lease.unsure["x"] = None
    assert lease.valid
    assert not lease.fresh
    lease.unsure.clear()
    assert lease.fresh


@pytest.mark.anyio
async def test_doubt_is_ended_by_a_renewal(lease: Lease, clock: Clock) -> None:
    """Who asks in doubt waits for the renewal that is asked for."""
    lease.renewed(clock.now)
    clock.now += 10
    asking = asyncio.ensure_future(lease.confirmed())
    await lease.wanted.wait()
    lease.renewed(clock.now)
    assert await asking


@pytest.mark.anyio
async def test_doubt_is_ended_by_the_loss_of_nats(lease: Lease, clock: Clock) -> None:
    """Who asks in doubt is not kept waiting for what cannot come."""
    lease.renewed(clock.now)
    clock.now += 10
    asking = asyncio.ensure_future(lease.confirmed())
    await lease.wanted.wait()
    lease.cut_off()
    assert not await asking


@pytest.mark.anyio
async def test_without_nats_nobody_waits(lease: Lease) -> None:
    """There is nothing to wait for."""
    assert not await lease.confirmed()


def test_an_answer_is_awaited_for_a_while_only() -> None:
    """An answer that does not come is given up after the time; one in time is taken."""

    async def wait() -> float:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        assert not await answered(answer, 1.0)
        given_up_at = loop.time()
        loop.call_later(0.9, answer.set_result, None)
        assert await answered(answer, 1.0)
        return given_up_at

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(wait()) == pytest.approx(1.0, abs=0.01)


def test_a_process_that_stood_still_reads_its_answers_first() -> None:
    """Its timers are over when it goes on, and the answer is in the socket: it is still taken."""

    async def wait() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        answer: asyncio.Future[None] = loop.create_future()

        def stand_still() -> None:
            loop._now += 3600
            loop.call_soon(loop.call_soon, loop.call_soon, answer.set_result, None)

        loop.call_later(0.1, stand_still)
        return await answered(answer, 1.0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(wait())


def test_the_clock_goes_on() -> None:
    """The lease's clock never goes back."""
    assert boottime() <= boottime()
