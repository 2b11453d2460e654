"""Limits of one client, and quotas of one publisher, that hold over all workers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.app.workers.test_shared import alone, in_processes
from tricklecast.app.core.limits import Admission, Capacity, Client, Limit, Limits
from tricklecast.app.core.payers import Payer
from tricklecast.app.core.registry import Registry
from tricklecast.app.workers.clients import ROWS, WIDTH, SharedAdmission, Sketch, Sketches
from tricklecast.app.workers.payers import SharedPayer, SharedPayers

WORKERS = 3
LIMITS = Limits(client_connections=4, client_exchanges=3, client_requests_per_s=2.0, client_burst=5)


def test_a_client_has_its_own_places() -> None:
    """They come from a secret key, one in each row."""
    sketches = Sketches(1)
    places = sketches.places("192.0.2.1")
    assert [at // WIDTH for at in places] == list(range(ROWS))
    assert sketches.places("192.0.2.1") == places
    assert sketches.places("192.0.2.2") != places
    assert Sketches(1).places("192.0.2.1") != places
    assert [part.nbytes for part in (sketches.full_at, *sketches.connections.words)] == [2 << 20] * 2


def test_what_others_have_counts_only_at_all_places() -> None:
    """Clients that share some places do not disturb each other; those that share all count as one."""
    sketch = Sketch(2)
    sketch.add(0, (0, WIDTH, 2 * WIDTH, 3 * WIDTH), 5)
    sketch.add(1, (0, WIDTH, 2 * WIDTH, 3 * WIDTH), 2)
    assert sketch.total((0, WIDTH, 2 * WIDTH, 3 * WIDTH)) == 7
    assert sketch.total((0, WIDTH, 2 * WIDTH, 3 * WIDTH + 1)) == 0
    sketch.clear(0)
    assert sketch.total((0, WIDTH, 2 * WIDTH, 3 * WIDTH)) == 2


class OneServer(RuleBasedStateMachine):
    """Clients are admitted by three workers as by one process, whichever they come to, and whichever dies."""

    def __init__(self) -> None:
        super().__init__()
        self.sketches = Sketches(WORKERS)
        self.workers = [self.worker(number) for number in range(WORKERS)]
        self.one = Admission(LIMITS, Capacity(None))
        self.connected: list[tuple[int, Client]] = []
        self.asking: list[tuple[int, Client]] = []
        self.now = 1000.0

    def worker(self, number: int) -> SharedAdmission:
        return SharedAdmission(LIMITS, Capacity(None), self.sketches, number)

    def client(self, number: int, address: str) -> tuple[Client, Client]:
        """At this worker, and in the model; it is known for ever."""
        here, there = self.workers[number].clients, self.one.clients
        assert here is not None
        assert there is not None
        return here.hold(address), there.hold(address)

    @rule(number=st.integers(0, WORKERS - 1), address=st.sampled_from("ab"))
    def connect(self, number: int, address: str) -> None:
        here, model = self.client(number, address)
        limit = self.workers[number].connect(here)
        assert limit == self.one.connect(model)
        if limit is None:
            self.connected.append((number, here))

    @rule(at=st.integers(0, 20))
    def disconnect(self, at: int) -> None:
        if at < len(self.connected):
            number, client = self.connected.pop(at)
            self.workers[number].disconnect(client)
            self.one.disconnect(self.client(number, client.address)[1])

    @rule(number=st.integers(0, WORKERS - 1), address=st.sampled_from("ab"))
    def ask(self, number: int, address: str) -> None:
        here, model = self.client(number, address)
        limit = self.workers[number].begin(here, self.now)
        assert limit == self.one.begin(model, self.now)
        if limit is None:
            self.asking.append((number, here))

    @rule(at=st.integers(0, 20))
    def answer(self, at: int) -> None:
        if at < len(self.asking):
            number, client = self.asking.pop(at)
            self.workers[number].end(client)
            self.one.end(self.client(number, client.address)[1])

    @rule(quarters=st.integers(1, 12))
    def wait(self, quarters: int) -> None:
        self.now += quarters / 4

    @rule(number=st.integers(0, WORKERS - 1))
    def die(self, number: int) -> None:
        self.sketches.clear(number)
        for client in [client for worker, client in self.connected if worker == number]:
            self.one.disconnect(self.client(number, client.address)[1])
        for client in [client for worker, client in self.asking if worker == number]:
            self.one.end(self.client(number, client.address)[1])
        self.connected = [one for one in self.connected if one[0] != number]
        self.asking = [one for one in self.asking if one[0] != number]
        self.workers[number] = self.worker(number)

    @invariant()
    def nothing_is_left(self) -> None:
        """Each worker's part is what its clients take."""
        for address in "ab":
            at = self.sketches.places(address)[0]
            for number, part in enumerate(self.sketches.connections.words):
                assert part[at] == sum(
                    (number, address) == (worker, client.address) for worker, client in self.connected
                )


def test_workers_admit_a_client_as_one_process() -> None:
    """Connections, requests at a time, and requests per second."""
    run_state_machine_as_test(OneServer, settings=settings(max_examples=15, stateful_step_count=40, deadline=None))


def test_a_connection_that_a_client_may_not_have_takes_no_place() -> None:
    """Neither of the server nor of the client."""
    sketches, connections = Sketches(2), Capacity(5)
    here, there = (SharedAdmission(LIMITS, connections, sketches, worker) for worker in range(2))
    assert here.clients is not None
    assert there.clients is not None
    for _ in range(4):
        assert there.connect(there.clients.hold("a")) is None
    client = here.clients.hold("a")
    assert here.connect(client) is Limit.CLIENT_CONNECTIONS
    assert (connections.used, client.connections) == (4, 0)
    assert here.connect(here.clients.hold("b")) is None
    assert here.connect(here.clients.hold("c")) is Limit.CONNECTIONS


def test_connections_of_proxies_are_no_client() -> None:
    """They count for the server alone."""
    admission = SharedAdmission(LIMITS, Capacity(1), Sketches(2), 0)
    assert admission.connect(None) is None
    assert admission.connect(None) is Limit.CONNECTIONS
    admission.disconnect(None)
    assert admission.connect(None) is None


def test_racing_workers_lose_a_token_each_at_most_for_each_request() -> None:
    """Processes that ask at the same time admit the burst, and hardly more than that."""
    alone(race_for_tokens)


def race_for_tokens() -> None:
    workers, burst = 3, 200
    limits = Limits(client_requests_per_s=0.001, client_burst=burst)
    sketches = Sketches(workers)

    def work(number: int) -> None:
        admission = SharedAdmission(limits, Capacity(None), sketches, number)
        assert admission.clients is not None
        client = admission.clients.hold("a")
        while admission.begin(client, 1000.0) is None:
            pass

    assert in_processes(workers, work) == [0] * workers
    admitted = sum(part[sketches.places("a")[0]] for part in sketches.exchanges.words)
    assert burst <= admitted <= workers * burst


# Publishers.

QUOTA = 1600


def payers(count: int = 2) -> list[SharedPayers]:
    sketches = Sketches(count)
    return [SharedPayers(QUOTA, sketches, worker) for worker in range(count)]


def take(payer: Payer | None, size: int) -> bool:
    """Store bytes for a publisher, as a channel does; whether its quota allows it."""
    assert payer is not None
    if payer.open + size > payer.quota and not payer.extends(size):
        return False
    payer.open += size
    return True


def test_a_publisher_may_take_its_quota_at_one_worker() -> None:
    """All of it, at once or bit by bit, and no byte more."""
    for size in (1, 100, QUOTA):
        payer = payers()[0].of("a")
        assert all(take(payer, size) for _ in range(QUOTA // size))
        assert not take(payer, 1)


def test_a_quota_holds_over_all_workers() -> None:
    """A publisher at several workers has a sixteenth more at most; another publisher has its own."""
    first, second = payers()
    here, there = first.of("a"), second.of("a")
    while take(here, 10) | take(there, 10):
        pass
    assert here is not None
    assert there is not None
    assert QUOTA <= here.open + there.open <= QUOTA * 17 // 16
    assert take(second.of("b"), QUOTA)


def test_what_a_publisher_has_ended_is_free_for_it_elsewhere() -> None:
    """With the next tick of the worker; a publisher that takes nothing is forgotten."""
    first, second = payers()
    here, there = first.of("a"), second.of("a")
    assert here is not None
    assert there is not None
    assert take(here, QUOTA)
    assert not take(there, QUOTA // 2)
    here.open = 300
    first.tick()
    assert isinstance(here, SharedPayer)
    assert here.quota == 350
    assert take(there, QUOTA // 2)
    here.open = 0
    first.tick()
    first.tick()
    assert here.quota == 50
    first.of("b")
    del here
    assert len(first) == 1


def test_without_a_quota_there_are_no_payers() -> None:
    """Nothing is shared, and a tick finds nothing."""
    none = SharedPayers(None, Sketches(2), 0)
    assert none.of("a") is None
    none.tick()


def test_a_registry_counts_with_the_payers_of_the_server() -> None:
    """Also while there is none yet."""
    shared, _ = payers()
    assert Registry(Limits(), autocreate=True, payers=shared).payers is shared
