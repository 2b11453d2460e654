"""The judge: what counts as found, as false, as told twice, as rightly named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.simulate.score import LIMITS, Score, score
from tricklecast.analytics.simulate.truth import Planted, Set, Truth

S = 1_000_000


def planted(**fields: Any) -> Planted:
    """One client's loop of a minute, unless the fields say otherwise."""
    known: dict[str, Any] = {
        "name": "seq_behind_loop/behind/hot#0",
        "storm": "seq_behind_loop",
        "start_us": 1000 * S,
        "end_us": 1060 * S,
        "n": 600,
        "clients": ("a",),
        "channels": ("film",),
        "node": "n1",
        "trigger": "server_ready",
        "also": ("seq_ahead_sweep",),
    }
    return Planted(**known | fields)


TRAP = planted(name="jump/one#0", storm=None, start_us=2000 * S, end_us=2001 * S, clients=("b",), also=())


def incident(**fields: Any) -> dict[str, Any]:
    """An incident that tells the storm as it was, unless the fields say otherwise."""
    known: dict[str, Any] = {
        "storm": "seq_behind_loop",
        "instead": None,
        "since_us": 1000 * S,
        "until_us": 1060 * S,
        "n": 600,
        "clients": ["a"],
        "n_clients": 1,
        "named": True,
        "channels": ["film"],
        "n_channels": 1,
        "nodes": ["n1"],
        "trigger": "server_ready",
        "ended_us": None,
        "id": "whatever else there is",
    }
    return known | fields


ENDED = planted(trigger="channel_end")
OTHER = planted(name="other#0", clients=("b",), channels=("news",))
AGAIN = planted(name="again#0", storm="not_found_loop")
FLEET = planted(name="fleet#0", storm="thundering_herd", clients=("b",), channels=("news",))
LONG = planted(name="drip#0", storm="not_found_drip", start_us=0, end_us=5000 * S, n=900, also=())
BOTH = incident(clients=["a", "b"], n_clients=2, channels=["film", "news"], n_channels=2, n=1200)


def judge(*incidents: dict[str, Any], storms: tuple[Planted, ...] = (planted(),)) -> Score:
    """Judges incidents by storms, with one trap."""
    return score({"incidents": list(incidents)}, Truth(1, Set.STANDARD, 1000, storms, (TRAP,)))


@pytest.mark.parametrize(
    ("incidents", "storms", "shares", "faults"),
    [
        pytest.param([incident()], [], (1, 1, 1), [], id="as it was"),
        pytest.param([], [], (0, 1, 1), ["missed"], id="nothing told"),
        # Unknown names cannot differ, a restart has one name, either class of two will do, and small errors are none.
        pytest.param([incident(nodes=[])], [], (1, 1, 1), [], id="unknown server"),
        pytest.param([incident(nodes=["logs/access-n1"])], [], (1, 1, 1), [], id="server called after its log"),
        pytest.param([incident(clients=["192.0.2.0/24"], named=False)], [], (1, 1, 1), [], id="network"),
        pytest.param([incident(clients=["x"], n_clients=200)], [], (1, 1, 1), [], id="some of the clients"),
        pytest.param([incident(trigger="server_start")], [], (1, 1, 1), [], id="same restart"),
        pytest.param([incident(storm="seq_ahead_sweep")], [], (1, 1, 1), [], id="class that is as right"),
        pytest.param([incident(storm="x", instead="seq_behind_loop")], [], (1, 1, 1), [], id="may be it as well"),
        pytest.param([incident(n=541, since_us=1002 * S)], [], (1, 1, 1), [], id="small errors"),
        pytest.param([incident(storm="x")], [], (1, 1, 0), ["wrong class"], id="class"),
        pytest.param([incident(trigger=None)], [], (1, 1, 1), ["wrong trigger"], id="trigger"),
        pytest.param([incident(n=500)], [], (1, 1, 1), ["wrong count"], id="count"),
        # A channel that ended in the storm's course may be told as that.
        pytest.param([incident(trigger=None, ended_us=1030 * S)], [ENDED], (1, 1, 1), [], id="ended"),
        pytest.param([incident(trigger=None)], [ENDED], (1, 1, 1), ["wrong trigger"], id="end not told"),
        pytest.param([incident(until_us=1029 * S)], [], (0, 1, 1), ["missed"], id="less than half"),
        pytest.param([incident(until_us=1031 * S)], [], (1, 1, 1), [], id="more than half"),
        pytest.param(
            [incident(until_us=1030 * S), incident(since_us=1031 * S)], [], (1, 0.5, 1), ["told twice"], id="twice"
        ),
        pytest.param([incident(), incident(since_us=1055 * S)], [], (1, 1, 1), [], id="small companion"),
        pytest.param([BOTH], [planted(), OTHER], (1, 0, 1), ["mixed"], id="two clients on two channels"),
        pytest.param([incident(n=1200)], [planted(), AGAIN], (1, 1, 1), [], id="two of one client on one channel"),
        pytest.param([BOTH], [planted(), FLEET], (1, 1, 1), [], id="one of a fleet"),
        # An incident has the class of the storm that it tells, not of a long one of which it has a few requests.
        pytest.param([incident()], [LONG, planted()], (0.5, 1, 1), ["missed"], id="beside a long one"),
    ],
)
def test_a_judgement(
    incidents: list[dict[str, Any]], storms: list[Planted], shares: tuple[float, float, float], faults: list[str]
) -> None:
    """Recall, precision and root class, and what is said to be wrong."""
    found = judge(*incidents, storms=tuple(storms) or (planted(),))
    assert (found.recall, found.precision, found.root) == shares
    assert [text.partition(":")[0] for text in found.details()] == faults


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"nodes": ["n2"]},
        {"nodes": ["logs/access-n11"]},
        {"channels": ["other"]},
        {"clients": ["b"]},
        {"since_us": 1062 * S, "until_us": 1100 * S},
        {"since_us": 900 * S, "until_us": 998 * S},
    ],
)
def test_another_place_or_time(elsewhere: dict[str, Any]) -> None:
    """An incident elsewhere is a false alarm, and the storm is missed."""
    found = judge(incident(**elsewhere))
    assert (found.recall, found.precision, found.root) == (0, 0, 1)


def test_a_trap_is_named() -> None:
    """A false alarm says which look-alike it took for a storm, and shows no control characters of a log."""
    fooled = incident(since_us=2000 * S, until_us=2001 * S, clients=["b"])
    found = judge(incident(), fooled, incident(nodes=["\x1b[31m"]))
    assert [one.trap for one in found.incidents] == [None, "jump/one#0", None]
    assert found.precision == pytest.approx(1 / 3)
    assert "the look-alike jump/one#0" in str(found)
    assert "\x1b" not in str(found)


def test_scores_add_up() -> None:
    """Several logs are judged as one."""
    both = judge(incident()) + judge(incident(nodes=["n9"]))
    assert (both.recall, both.precision, both.traps) == (0.5, 0.5, 2)


def test_table() -> None:
    """The table has a row for each class, and says whether it is good enough."""
    strict = LIMITS[Set.STANDARD]
    good = list(judge(incident()).table(strict))
    assert good[1].split() == ["seq_behind_loop", "1", "1", "0"]
    assert good[-1] == "good enough"
    assert list(judge(incident(storm="not_found_loop")).table(strict))[-1] == "NOT good enough"
    assert list(judge(storms=()).table(strict))[-1] == "good enough"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"version":1}', b'{"version":2,"seed":1}', b'{"version":2,"storms":3}'],
)
def test_no_truth(content: bytes, tmp_path: Path) -> None:
    """A file that is no truth is bad input, and so is none."""
    (tmp_path / "truth.json").write_bytes(content)
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(BadInput):
            Truth.read(path)


@pytest.mark.parametrize("document", [{}, {"incidents": 3}, {"incidents": [{}]}, {"episodes": []}, []])
def test_no_report(document: Any) -> None:
    """What has no incidents is no report."""
    with pytest.raises(BadInput):
        score(document, Truth(1, Set.STANDARD, 1000, (), ()))
