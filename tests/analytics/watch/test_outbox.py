"""Every receiver is told at least once, in order, whatever fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Condition
from typing import Any

import httpx
import pytest
import stamina

from tests.support.waiting import WITHIN_S
from tricklecast.analytics.errors import BadInput, Busy
from tricklecast.analytics.store.store import Position, Store
from tricklecast.analytics.watch.alerts import AlertBody
from tricklecast.analytics.watch.deliver import Alertmanager, NotDelivered, Webhook
from tricklecast.analytics.watch.outbox import Sender, tell_waiting


class Told:
    """A receiver that fails as it is told to."""

    name = label = "told"
    at_once = 2
    refresh_s: float | None = None

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.keys: list[str] = []
        self.changed = Condition()

    def tell(self, alerts: Sequence[AlertBody]) -> None:
        """See :class:`Receiver`."""
        with self.changed:
            failure = self._failures.pop(0) if self._failures else None
            if failure is not None:
                raise failure
            self.keys += [each["key"] for each in alerts]
            self.changed.notify_all()

    def wait(self, n: int) -> list[str]:
        """The first keys that it was told."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.keys) >= n, WITHIN_S)
        return self.keys


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store with three alerts for one receiver."""
    with Store(tmp_path / "state") as store:
        store.post(["told"], [(key, {"key": key, "status": "firing", "incident": {"id": key}}) for key in "abc"])
        yield store


@pytest.fixture(autouse=True)
def without_pauses() -> Any:
    """Retries come at once."""
    stamina.set_testing(True, attempts=10, cap=False)
    yield
    stamina.set_testing(False)


def started(receiver: Told, store: Store) -> Sender:
    """A sender that is at work."""
    sender = Sender(receiver, store)
    sender.start()
    return sender


def test_what_was_not_taken_is_told_again(store: Store) -> None:
    """In order, and until it is taken."""
    receiver = Told(NotDelivered("HTTP 503"), NotDelivered("no route to host"))
    sender = started(receiver, store)
    assert receiver.wait(3) == ["a", "b", "c"]
    sender.close(WITHIN_S)
    assert (store.undelivered(), sender.failing) == (0, None)


def test_what_is_refused_for_good_is_given_up_and_counted(store: Store) -> None:
    """It holds up nothing that comes after it."""
    receiver = Told(NotDelivered("HTTP 400", for_good=True))
    sender = started(receiver, store)
    assert receiver.wait(1) == ["c"]
    sender.close(WITHIN_S)
    assert (sender.refused, store.undelivered()) == (2, 0)


def test_alerts_that_were_taken_come_again_only_if_that_was_not_written_down(store: Store) -> None:
    """A kill between the two tells them twice, with the same keys; a later run goes on after them."""
    receiver = Told()
    with pytest.raises(KeyboardInterrupt):
        tell_waiting(_killed(store), receiver)
    assert (receiver.keys, store.undelivered()) == (["a", "b"], 3)
    while tell_waiting(store, receiver):
        pass
    assert receiver.keys == ["a", "b", "a", "b", "c"]


def _killed(store: Store) -> Any:
    """A store whose process is killed before it is written down that something was delivered."""

    class Killed:
        waiting = store.waiting

        def delivered(self, numbers: Any) -> None:
            raise KeyboardInterrupt

    return Killed()


def test_a_transaction_is_whole_or_not_at_all(store: Store) -> None:
    """What is written before an error inside is undone."""

    def half() -> None:
        with store.transaction():
            store.put_positions([Position(1, "head", 5, "tail", False, "/log", 9)])
            store.post(["told"], [("d", {})])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert (store.positions(), store.undelivered()) == ([], 3)


def test_a_store_is_of_one_process(store: Store, tmp_path: Path) -> None:
    """A second one is refused, and so is a folder that is no folder."""
    with pytest.raises(Busy, match="in use"):
        Store(tmp_path / "state")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot use"):
        Store(tmp_path / "file")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    """It is not read as if it were ours."""
    with Store(tmp_path / "old") as store:
        store.set_fact("version", 0)
    with pytest.raises(BadInput, match="another version"):
        Store(tmp_path / "old")


def test_rows_of_another_version_are_left_out(store: Store) -> None:
    """What was counted otherwise cannot be added up."""
    store.add_rows("old", b"one")
    store.add_rows("new", b"two")
    assert list(store.rows("new")) == [b"two"]


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [(503, {"Retry-After": "7"}, (7.0, False)), (429, {}, (None, False)), (404, {}, (None, True))],
)
def test_a_webhook_says_whether_it_is_worth_another_attempt(
    status: int, headers: dict[str, str], expected: tuple[float | None, bool]
) -> None:
    """Most 4xx are final; ``Retry-After`` is a wish."""
    webhook = Webhook("http://hook", _client(lambda _: httpx.Response(status, headers=headers)))
    with pytest.raises(NotDelivered) as refusal:
        webhook.tell([{"key": "a"}])
    assert (refusal.value.after_s, refusal.value.for_good) == expected


def test_a_webhook_gets_the_key_by_which_it_knows_what_it_has(tmp_path: Path) -> None:
    """And no password of the URL is shown to people."""
    requests: list[httpx.Request] = []

    def taken(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(204)

    webhook = Webhook("http://user:secret@hook/x", _client(taken))
    webhook.tell([{"key": "a-1-firing"}])
    assert requests[0].headers["Idempotency-Key"] == "a-1-firing"
    assert webhook.label == "webhook hook"
    assert Alertmanager("http://user:secret@am/", _client(lambda _: httpx.Response(200))).label == "alertmanager am"


def _client(answer: Callable[[httpx.Request], httpx.Response]) -> Callable[[], httpx.Client]:
    return lambda: httpx.Client(transport=httpx.MockTransport(answer))
