"""What is in the ledger is known after a kill; what is not has not been told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analytics.watch_old.made import BASE_US, news
from tricklecast.analytics.answers import Answer
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.detector import Detector
from tricklecast.analytics.watch_old.ledger import FILE, NOTHING, Ledger
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.open_storms import Kind
from tricklecast.analytics.watch_old.signals import Signal

SOURCE = {"logs": ["/var/log/access.jsonl"]}


def opened(folder: Path, limits: WatchLimits | None = None) -> Ledger:
    """The ledger of a folder, as the next process finds it."""
    return Ledger(folder, SOURCE, limits or WatchLimits())


def test_the_next_process_knows_what_this_one_did(tmp_path: Path) -> None:
    """The number of the batch, what the detector knew, and what was not delivered."""
    first = opened(tmp_path)
    first.follow("checkpoint")
    first.commit(4, {"some": "thing"}, [news("a"), news("b")], ["json", "webhook"])
    first.delivered("json", ["a-firing", "b-firing"])
    first.delivered("webhook", ["a-firing"])
    second = opened(tmp_path)
    second.follow("checkpoint")
    assert (second.batch, second.detector) == (4, {"some": "thing"})
    assert [each["key"] for each in second.waiting("webhook")] == ["b-firing"]
    assert second.waiting("json") == []


def test_the_same_news_is_told_once(tmp_path: Path) -> None:
    """A key that was told is not told again, by this process or by the next."""
    opened(tmp_path).commit(1, {}, [news("a")], ["json"])
    again = opened(tmp_path)
    assert again.commit(2, {}, [news("a"), news("a", Kind.OVER)], ["json"]) == [news("a", Kind.OVER)]
    assert [each["key"] for each in again.waiting("json")] == ["a-firing", "a-resolved"]


def test_a_new_checkpoint_counts_its_batches_anew(tmp_path: Path) -> None:
    """If Spark's part of the state was removed, its batch 0 is not taken for one that was judged before."""
    first = opened(tmp_path)
    first.follow("one")
    first.commit(7, {}, [], [])
    second = opened(tmp_path)
    second.follow("another")
    assert second.batch == NOTHING


def test_the_outbox_is_bounded(tmp_path: Path) -> None:
    """A receiver that is dead for days costs a bounded amount of disk; what it misses is counted."""
    ledger = opened(tmp_path, WatchLimits(outbox=3))
    ledger.commit(1, {}, [news(f"storm-{number}") for number in range(5)], ["webhook"])
    assert [each["key"] for each in ledger.waiting("webhook")] == [f"storm-{n}-firing" for n in (2, 3, 4)]
    assert (ledger.dropped, ledger.undelivered()) == ({"webhook": 2}, 3)


def test_what_is_firing(tmp_path: Path) -> None:
    """It is known which storms are not over, with the latest news of each."""
    ledger = opened(tmp_path)
    ledger.commit(1, {}, [news("a"), news("b"), news("b", Kind.WORSE)], [])
    ledger.commit(2, {}, [news("a", Kind.OVER)], [])
    assert [each["key"] for each in opened(tmp_path).firing()] == ["b-worse"]
    assert [each["key"] for each in ledger.firing()] == ["b-worse"]


def test_the_state_of_another_watch_is_refused(tmp_path: Path) -> None:
    """Going on with the positions of other logs would lose lines."""
    opened(tmp_path).commit(1, {}, [], [])
    with pytest.raises(BadInput, match="another watch"):
        Ledger(tmp_path, {"logs": ["/elsewhere"]}, WatchLimits())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", json.dumps({"version": 99}).encode()])
def test_a_damaged_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    """What cannot be read is said, and not written over."""
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BadInput):
        opened(tmp_path)
    assert (tmp_path / FILE).read_bytes() == content


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """It has clients' names and webhooks' addresses in it."""
    opened(tmp_path).commit(1, {}, [], [])
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("answer", [Answer.NOT_FOUND, Answer.SERVED, Answer.OVERLOAD])
def test_what_is_known_of_a_long_loop_is_kept(tmp_path: Path, answer: Answer) -> None:
    """A loop of two minutes, of which most does not change any more, goes on in the next process as in this one."""
    params, limits, second = StormParams(), WatchLimits(), 1_000_000
    detector, told = Detector(params, limits), []
    for number in range(120):
        at = BASE_US + number * second
        seen = {"seqs": 1, "seq_lo": 7, "seq_hi": 7, "seq_bits": 1, "conn_bits": 1, "first_us": at, "last_us": at}
        row = Signal(answer, "n1", "film", None, "viewer", None, None, at, at - at % (20 * second), 9, **seen)
        told += detector.fold([row], float(number))
        opened(tmp_path).commit(number, detector.as_json(), [], [])
        if number % 10 == 9:
            detector, known = Detector(params, limits), opened(tmp_path).detector
            assert known is not None
            detector.load(known, float(number))
    over = detector.tick(200.0)
    assert [change.kind for change in (*told, *over)][:1] == [Kind.BEGAN]
    assert [change.episode.n for change in over] == [120 * 9]
