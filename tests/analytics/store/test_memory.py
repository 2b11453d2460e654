"""What reports have told before, and what is muted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.analytics.report.sample import sample_incident
from tests.analytics.store.test_table import proxied
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.spark.table import Bucket
from tricklecast.analytics.store import memory as memories
from tricklecast.analytics.store.memory import Memory, mutes
from tricklecast.analytics.store.place import Folder
from tricklecast.analytics.store.store import Store, fingerprints
from tricklecast.analytics.watch.alerts import Tracker
from tricklecast.analytics.watch.outbox import Held
from tricklecast.app.cli import cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
BEGAN_US = 1_790_000_000_000_000
NOW_US = 1_800_000_000_000_000


def storm(day: int, release: str | None = "app/1", **changes: Any) -> Incident:
    """An incident of a player on some day, an hour long."""
    since_us = BEGAN_US + day * DAY_US
    fields: dict[str, Any] = {"clients": (f"player-{day}",), "channels": ("film",), "release": release}
    fields |= {"id": f"{day:012x}", "since_us": since_us, "until_us": since_us + HOUR_US}
    return replace(sample_incident(StormClass.SAME_SEGMENT_LOOP), **(fields | changes))


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "table"))


def told(place: Folder | Bucket, *now: Incident) -> list[tuple[str, int]]:
    """What a report says of its incidents, and remembers."""
    memory = Memory(place)
    history = memory.history(now)
    memory.remember(now, NOW_US)
    return [(history[one.id].state, history[one.id].times) for one in now]


def test_an_incident_is_new_again_or_regressed(place: Folder) -> None:
    """By class and families of clients and channels; a second look at the same storm is none of its own."""
    assert told(place, storm(0), storm(0, clients=("bot",), id="b")) == [("new", 1), ("new", 1)]
    assert told(place, storm(0)) == [("new", 1)]
    grown = storm(0, since_us=BEGAN_US + HOUR_US // 2, until_us=BEGAN_US + 2 * HOUR_US)
    assert told(place, grown) == [("new", 1)]
    assert told(place, storm(1), storm(2)) == [("again", 2), ("again", 3)]
    assert told(place, storm(3, "app/2")) == [("regressed", 4)]
    assert told(place, storm(4, "app/2"), storm(5, None)) == [("again", 5), ("again", 6)]
    assert told(place, storm(9, channels=("other",))) == [("new", 1)]
    # Two logs of the same minute, of which one does not name releases.
    assert told(place, storm(12, "app/2"), storm(12, None, id="c")) == [("again", 7), ("again", 7)]
    # What comes later is no history.
    assert told(place, storm(-3)) == [("new", 1)]


def test_what_is_known_is_not_written_again(place: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are made one before they are too many, the oldest rows are forgotten, a damaged file is left out."""
    told(place, storm(0))
    told(place, storm(0))
    assert len(list(place.root.glob("incidents/*"))) == 1
    monkeypatch.setattr(memories, "MAX_FILES", 3)
    monkeypatch.setattr(memories, "MAX_ROWS", 4)
    for day in range(1, 4):
        told(place, storm(day))
    assert len(list(place.root.glob("incidents/*"))) == 1
    told(place, storm(4), storm(5))
    assert [row["id"] for row in Memory(place).rows] == [f"{day:012x}" for day in (2, 3, 4, 5)]
    file = next(place.root.glob("incidents/*"))
    file.write_bytes(file.read_bytes()[:-9])
    assert Memory(place).damaged == 1
    monkeypatch.setattr(memories, "KEPT_S", -(10**9))
    assert Memory(place).rows == []


def test_a_mute_ends(place: Folder) -> None:
    """By itself, or when somebody says so; it is found by the fingerprint, the id, or the beginning of either."""
    one = storm(0, fingerprint="abc000000000")
    told(place, one, storm(1, fingerprint="abd000000000"))
    memory = Memory(place)
    assert memory.mute("abc", NOW_US + 1, NOW_US) == one.fingerprint
    assert memory.mute(one.id, NOW_US + 2, NOW_US + 1) == one.fingerprint
    assert set(memory.muted([one, storm(1)], NOW_US + 1)) == {one.id}
    assert memory.muted([one], NOW_US + 2) == {}
    assert len(list(place.root.glob("mutes/*"))) == 1
    memory.mute("abc", 0, NOW_US + 3)
    assert mutes(place, 0) == {}
    for wrong in ("ab", "abe", "ffffffffffff"):
        with pytest.raises(BadInput, match=r"there is no|begin with"):
            memory.mute(wrong, NOW_US, 0)
    assert memory.mute("ffffffffffff", NOW_US, 0, {}) == "ffffffffffff"


@pytest.mark.parametrize("known", [{"a" * 12: "f" * 12}, {}])
@pytest.mark.parametrize("by", ["a" * 12, "f" * 12])
@pytest.mark.parametrize("ended_by", ["a" * 12, "f" * 12])
def test_unmuting_by_either_ends_a_mute_of_a_state(
    place: Folder, known: dict[str, str], by: str, ended_by: str
) -> None:
    """Of a watch's incident; also if the watch knew it only later, and if it has forgotten it since."""
    memory, later = Memory(place), {"a" * 12: "f" * 12}
    memory.mute(by, NOW_US, 0, known)
    memory.mute(ended_by, 0, 1, {} if by == ended_by else later)
    assert mutes(place) == {}
    memory.mute("a" * 12, NOW_US, 2, later)
    assert list(mutes(place)) == ["f" * 12]
    memory.mute("a" * 12, 0, 3, {})
    assert mutes(place) == {}
    with pytest.raises(BadInput, match="no incident"):
        memory.mute("a" * 12, 0, 4, {})


def test_a_table_below_a_url_remembers(spark: SparkSession, tmp_path: Path) -> None:
    """As one on this disk does."""
    place = Bucket(f"file://{tmp_path}/table", spark)
    assert told(place, storm(0)) == [("new", 1)]
    assert told(place, storm(0), storm(1)) == [("new", 1), ("again", 2)]
    memory = Memory(place)
    assert len(memory.rows) == 2
    memory.mute(storm(0).fingerprint, NOW_US, 0)
    memory.mute(storm(0).fingerprint, 0, 1)
    assert mutes(place, 0) == {}


@pytest.mark.parametrize("name", ["f" * 12, "a" * 12])
def test_a_muted_alert_is_held_back(tmp_path: Path, name: str) -> None:
    """From the moment on in which somebody mutes it, by its fingerprint or its id, which the alert's line shows."""
    alert: Any = {"incident": {"id": "a" * 12, "fingerprint": "f" * 12}, "status": "firing"}
    with Store(tmp_path / "state") as store:
        held, tracker = Held(store), Tracker(Params(), {})
        assert held.sift([alert], NOW_US, tracker) == [alert]
        Memory(Folder(str(tmp_path / "state"))).mute(name, NOW_US + 1, NOW_US, fingerprints(store.folder))
        assert held.sift([alert], NOW_US, tracker) == []
        assert held.sift([alert], NOW_US + 1, tracker) == [alert]
        store.put_incidents([("a" * 12, alert)])
        assert fingerprints(store.folder) == {"a" * 12: "f" * 12}


def test_the_commands(tmp_path: Path) -> None:
    """A muted incident is shown last, and is no reason to fail; the report says since when it is known."""
    log, place = tmp_path / "access.log", tmp_path / "table"
    log.write_bytes(proxied(0, 300))

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(cli, ["storms", *map(str, arguments)])

    first = run(log, "--table", place, "--fail-on", "minor", "--json-file", tmp_path / "a.json")
    assert first.exit_code == 1
    assert "History: new: not seen before." in first.stdout
    incident = json.loads((tmp_path / "a.json").read_text())["incidents"][0]
    result = run("mute", incident["id"], "--until", "7d", "--table", place)
    assert (result.exit_code, result.stdout.split()[0]) == (0, incident["fingerprint"])
    second = run("--table", place, "--fail-on", "minor")
    assert second.exit_code == 0
    assert "No incidents; 1 muted." in second.stdout
    for said in ("is no longer muted", "was not muted"):
        result = run("unmute", incident["fingerprint"], "--table", place)
        assert (result.exit_code, result.stdout) == (0, f"{incident['fingerprint']} {said}\n")
    assert run("--table", place, "--fail-on", "minor").exit_code == 1
    assert run("mute", "0" * 12, "--until", "7d", "--table", place).exit_code == 3
    for wrong in (("--table", place), ("--until", "7d"), ("--until", "7d", "--table", place, "--state", place)):
        assert run("mute", incident["id"], *wrong).exit_code == 2
    for until in ("2020-01-01", "2h ago", "now", "soon", "99999999d"):
        result = run("mute", incident["id"], "--until", until, "--table", place)
        assert (result.exit_code, "write 7d, 2h or 20" in result.stderr) == (2, True), until
    with Store(tmp_path / "state"):
        pass
    for state, code in (("state", 0), ("table", 3), ("none", 3)):
        assert run("mute", "0" * 12, "--until", "7d", "--state", tmp_path / state).exit_code == code
    nowhere = run("mute", "0" * 12, "--until", "7d", "--table", tmp_path / "none")
    assert (nowhere.exit_code, "there is no table in" in nowhere.stderr) == (3, True)
