"""The judge: what counts as found, as false, as rightly named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.score import LIMITS, Limits, score, together
from tricklecast.analytics.simulate.table import details, table
from tricklecast.analytics.simulate.truth import Storm, Trap, Truth

S = 1_000_000

STORM = Storm(
    name="seq_behind_loop/behind/hot#0",
    storm="seq_behind_loop",
    start_us=1000 * S,
    end_us=1060 * S,
    n=600,
    clients=("a",),
    channels=("film",),
    node="n1",
    release="probe/1",
    seq_lo=4,
    seq_hi=4,
    trigger="server_ready",
    backoff="fixed",
    also=("seq_ahead_sweep",),
)
TRUTH = Truth(1, "standard", 1000, (STORM,), (Trap("jump/one#0", 2000 * S, 2001 * S, ("b",), ("film",), "n1"),))


def episode(**fields: Any) -> dict[str, Any]:
    """An episode that tells the storm as it was, unless the fields say otherwise."""
    exact: dict[str, Any] = {
        "id": "1",
        "class": "seq_behind_loop",
        "start_us": 1000 * S,
        "end_us": 1060 * S,
        "n": 600,
        "clients": ["a"],
        "n_clients": 1,
        "channels": ["film"],
        "n_channels": 1,
        "node": "n1",
        "trigger": "server_ready",
        "backoff": "fixed",
    }
    return exact | fields


def judge(*episodes: dict[str, Any]) -> tuple[float, float, float, float, float]:
    """Recall, precision, class, trigger, exactness."""
    found = score({"episodes": list(episodes)}, TRUTH)
    return found.recall, found.precision, found.class_accuracy, found.trigger_accuracy, found.exactness


PERFECT = (1.0, 1.0, 1.0, 1.0, 1.0)
MISSED = (0.0, 0.0, 1.0, 1.0, 1.0)


def test_as_it_was() -> None:
    """Told once and as it was: perfect."""
    assert judge(episode()) == PERFECT


def test_nothing_told() -> None:
    """Nothing told is nothing found, and nothing made up."""
    assert judge() == (0.0, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"node": "n2"},
        {"channels": ["other"]},
        {"clients": ["b"]},
        {"start_us": 1062 * S, "end_us": 1100 * S},
        {"start_us": 900 * S, "end_us": 998 * S},
    ],
)
def test_another_place_or_time(elsewhere: dict[str, Any]) -> None:
    """An episode elsewhere is a false alarm, and the storm is missed."""
    assert judge(episode(**elsewhere)) == MISSED


@pytest.mark.parametrize(
    "as_good",
    [
        {"node": None},
        {"clients": []},
        {"clients": ["x"], "n_clients": 200},
        {"trigger": "server_start"},
        {"class": "seq_ahead_sweep"},
        {"n": 541, "start_us": 1002 * S},
    ],
)
def test_as_good(as_good: dict[str, Any]) -> None:
    """Unknown names cannot differ, a restart has one name, and small errors are none."""
    assert judge(episode(**as_good)) == PERFECT


def test_parts() -> None:
    """A storm told in parts is found once, and not exact."""
    parts = [episode(id=str(part), start_us=(1000 + 20 * part) * S, end_us=(1019 + 20 * part) * S) for part in range(3)]
    assert judge(*parts) == (1.0, 1.0, 1.0, 1.0, 0.0)


def test_too_little() -> None:
    """An episode that tells less than half of the storm does not find it; nor is it a false alarm."""
    assert judge(episode(n=299, end_us=1029 * S)) == (0.0, 1.0, 1.0, 1.0, 1.0)
    assert judge(episode(n=300, end_us=1029 * S))[0] == 1.0
    assert judge(episode(n=20, end_us=1031 * S))[0] == 1.0


def test_the_largest_part_names_it() -> None:
    """A small companion of another class, and without a trigger, changes nothing."""
    companion = episode(id="2", n=9, trigger=None, end_us=1001 * S) | {"class": "not_found_loop"}
    assert judge(companion, episode()) == PERFECT
    assert judge(companion, episode() | {"class": "not_found_loop", "trigger": None})[2:4] == (0.0, 0.0)


def test_rhythm() -> None:
    """The rhythm is compared where both sides know it."""
    assert score({"episodes": [episode(backoff="irregular")]}, TRUTH).backoff_accuracy == 0.0
    assert score({"episodes": [episode(backoff=None)]}, TRUTH).backoff_accuracy == 1.0


def test_a_trap_is_named() -> None:
    """A false alarm says which look-alike it took for a storm."""
    fooled = episode(start_us=2000 * S, end_us=2001 * S, clients=["b"])
    found = score({"episodes": [episode(), fooled, episode(node="n9")]}, TRUTH)
    assert [name for _, name in found.false_alarms] == ["jump/one#0", None]
    assert found.precision == pytest.approx(1 / 3)
    told = list(details(found))
    assert len(told) == 2
    assert "the trap jump/one#0" in told[0]


def test_scores_add_up() -> None:
    """Several logs are judged as one."""
    good, bad = score({"episodes": [episode()]}, TRUTH), score({"episodes": [episode(node="n9")]}, TRUTH)
    both = together([good, bad])
    assert (both.recall, both.precision) == (0.5, 0.5)
    assert len(both.missed) == 1


def test_limits() -> None:
    """Each of the four shares has to be reached."""
    found = score({"episodes": [episode(trigger=None)]}, TRUTH)
    assert not found.meets(LIMITS[Set.STANDARD])
    assert found.meets(Limits(1, 1, 1, 0))


def test_table() -> None:
    """The table has a row for each class, and says whether it is good enough."""
    good = table(score({"episodes": [episode()]}, TRUTH), Set.STANDARD)
    assert "seq_behind_loop" in good
    assert good.endswith("\ngood enough\n")
    bad = score({"episodes": [episode(node="n9"), episode(node="\x1b[31m")]}, TRUTH)
    assert "NOT good enough" in table(bad, Set.STANDARD)
    told = "\n".join(details(bad))
    assert "missed seq_behind_loop/behind/hot#0" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version":2}', b'{"version":1,"seed":1,"set":"grey"}'])
def test_no_truth(content: bytes, tmp_path: Path) -> None:
    """A file that is no truth is bad input, and so is none."""
    (tmp_path / "truth.json").write_bytes(content)
    with pytest.raises(BadInput):
        Truth.read(tmp_path)
    with pytest.raises(BadInput):
        Truth.read(tmp_path / "missing.json")
