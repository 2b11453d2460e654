"""The watch finds what the report finds, tells what is new, and believes no clock of a log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, Final

import duckdb
import jsonschema
import pytest

from tests.analytics.support.rules import rules as report_rules
from tests.analytics.watch.made import NOW_US, Clock, append, line, loop, rules
from tests.support.long import mostly_long
from tricklecast.analytics.lines import find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.lines.recognise import NothingUnderstood
from tricklecast.analytics.report.build import summary
from tricklecast.analytics.report.json import as_dict
from tricklecast.analytics.report.model import Alert, schema
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import Set
from tricklecast.analytics.store.memory import Memory
from tricklecast.analytics.store.place import Folder
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch import followed, judge, rolling, window
from tricklecast.analytics.watch.alerts import AlertBody
from tricklecast.analytics.watch.deliver import Lines, as_alerts, for_people, for_programs, headline
from tricklecast.analytics.watch.judge import SLOW_S
from tricklecast.analytics.watch.outbox import Sender
from tricklecast.analytics.watch.run import Status, Watch, WatchRequest


class Watched:
    """A watch of one log, step by step, with a clock of its own."""

    def __init__(self, folder: Path, store: Store, log: Path | None = None) -> None:
        self.log = log or folder / "access.jsonl"
        if not self.log.is_dir():
            self.log.touch()
        self.clock = Clock()
        self.store = store
        request = WatchRequest((str(self.log),), earliest=True, state=folder / "state")
        self.told: list[AlertBody] = []
        self.watch = Watch(request, store, ["told"], self.clock, self.clock.wall_us)
        self.watch.judge.window.planned = rules()

    def step(self, *lines: str, after_s: float = 1.0) -> list[tuple[str, str]]:
        """Adds lines, lets time pass and gives the news: status and id."""
        if lines:
            append(self.log, list(lines))
        self.clock.now_s += after_s
        self.news = self.watch.step()[1]
        self.told += self.news
        return [(each["status"], each["incident"]["id"]) for each in self.news]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store."""
    with Store(tmp_path / "state") as store:
        yield store


@pytest.fixture
def watched(tmp_path: Path, store: Store) -> Watched:
    """A watch of an empty log."""
    return Watched(tmp_path, store)


def reported(*logs: Path) -> list[Any]:
    """The incidents of a report, which are those of rules that are planned once (rules/test_steps.py)."""
    with embedded.connect(0) as connection:
        read_lines(connection, find_logs([str(log) for log in logs]))
        return report_rules().of(connection)


def test_a_storm_is_told_by_its_tenth_request_and_again_when_it_is_over(watched: Watched) -> None:
    """It is told once, however long it lasts; and it is over when no line of it was read for its gap."""
    [(began, name)] = watched.step(*loop(10))
    assert began == "firing"
    assert watched.step(*loop(30, 0.5)) == []
    assert watched.step(after_s=4.0) == []
    assert watched.step(after_s=2.5) == [("resolved", name)]
    assert watched.news[0]["incident"]["n"] == 40
    assert watched.step(after_s=60.0) == []


def test_ids_are_those_of_the_report(watched: Watched) -> None:
    """Storms of each kind are told by their first half, and can be looked up in the report."""
    storms = [
        loop(30, 0, client="a", channel="one"),
        loop(30, 40, client="b", channel="two", status=470, seq=7, rseq=7, next_seq=90),
        loop(30, 80, client="c", channel="three", status=503, op="publish", method="POST"),
        loop(30, 120, client="d", channel="four", status=200, bytes_out=0, rseq=4, next_seq=5, conn=3),
        loop(30, 160, client="e", channel="five", **POST),
        # No name of this client fails more than once: its network does.
        [line(200 + turn / 5, client=f"s{turn}", channel="six", conn=turn, ip="192.0.2.7") for turn in range(200)],
    ]
    told: dict[str, str] = {}
    for storm in storms:
        half = len(storm) // 2
        # Not so late that a look for what is open could find it.
        [(began, _)] = watched.step(*storm[:half], after_s=0.5)
        assert began == "firing"
        told |= {each["incident"]["id"]: each["incident"]["storm"] for each in watched.news}
        watched.step(*storm[half:], after_s=0.5)
    assert told == {one.id: one.storm for one in reported(watched.log)}
    assert len(told) == len(storms)


POST: Final[dict[str, Any]] = {"op": "publish", "method": "POST", "status": 409, "seq": 74, "rseq": 74}


def test_healthy_traffic_is_silent_and_never_judged(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gets each segment once costs no run of the rules."""
    monkeypatch.setattr(watched.watch.judge.window, "judge", lambda: pytest.fail("the rules were run"))
    for turn in range(10):
        served = {"status": 200, "rseq": turn, "next_seq": turn + 1, "bytes_out": 900}
        assert watched.step(*[line(turn, client=f"viewer-{each}", **served) for each in range(5)]) == []


def test_a_storm_that_comes_again_after_it_was_forgotten_has_other_keys(watched: Watched) -> None:
    """It has the same id: a receiver that knows alerts by their keys is told of it."""
    keys = []
    for turn in range(2):
        watched.step(*loop(20, 10_000.0 * turn), after_s=SLOW_S)
        keys += [each["key"] for each in watched.news]
        watched.step(after_s=10_000.0 - SLOW_S)
        keys += [each["key"] for each in watched.news]
        watched.step()
    assert len(set(keys)) == len(keys) == 4


def test_a_storm_keeps_its_id_when_its_beginning_leaves_the_window(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on; it is no news."""
    monkeypatch.setattr(window, "OPEN_S", 10.0)
    monkeypatch.setattr(window, "WINDOW_S", 10.0)
    [(_, name)] = watched.step(*loop(10))
    for turn in range(1, 4):
        assert watched.step(*loop(20, 4 * turn, 0.1), after_s=4.0) == []
    assert [each.incident.id for each in watched.watch.judge.tracker.open()] == [name]


def test_when_there_is_too_much_the_smallest_go_first(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped is counted; events and what belongs to an open incident stay."""
    monkeypatch.setattr(window, "MAX_ROWS", 20)
    event = line(0, kind="event", event="server_start", op=None, status=None, client=None, channel=None)
    watched.step(event, *loop(10))
    crowd = [line(1, client=f"client-{each}") for each in range(100)]
    watched.step(*crowd, *loop(5, 1, client="busy"), after_s=window.TIDY_US / 1e6)
    assert watched.watch.judge.window.dropped > 80
    rows = watched.watch.judge.window.rows()
    assert "event" in rows["answer"].to_pylist()
    assert {"player-1", "busy"} <= set(rows["client"].to_pylist())


def test_rows_that_do_not_fit_into_memory_are_halved(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB has a bound of its own; beyond it the rows of the fewest lines go, and are counted."""
    monkeypatch.setattr(window, "FEW_ROWS", 10)
    real = embedded.reduce

    def short_of_memory(connection: duckdb.DuckDBPyConnection) -> None:
        """Reduces up to 60 rows."""
        [(memory, rows)] = connection.sql("SELECT current_setting('memory_limit'), count(*) FROM rollup").fetchall()
        assert memory == "106.8 MiB"  # 112 million bytes
        if rows > 60:
            raise duckdb.OutOfMemoryException("too many rows")
        real(connection)

    monkeypatch.setattr(embedded, "reduce", short_of_memory)
    crowd = [line(1, client=f"client-{each}") for each in range(100)]
    assert [status for status, _ in watched.step(*crowd, *loop(20))] == ["firing"]
    assert watched.watch.judge.window.dropped == 51


def test_a_restart_goes_on_with_what_was_counted(tmp_path: Path, store: Store, watched: Watched) -> None:
    """Eight lines before a kill and two after it are a storm of ten; an open one is not told again."""
    [(_, name)] = watched.step(*loop(10, client="known", channel="news"))
    assert watched.step(*loop(6, 0.01)) == []
    again = Watched(tmp_path, store)
    told = again.step(*loop(4, 0.31))
    assert [status for status, _ in told] == ["firing"]
    assert {each.incident.id for each in again.watch.judge.tracker.open()} == {name, told[0][1]}
    assert again.news[0]["incident"]["n"] == 10


def test_nginx_lines_are_watched_as_our_own(tmp_path: Path, store: Store) -> None:
    """The format is recognised, and its storms have the ids of the report."""
    nginx = '192.0.2.1 - - [09/Oct/2025:08:53:{:02d} +0000] "GET /film/1 HTTP/1.1" 404 0 "-" "player/1"'
    watched = Watched(tmp_path, store, tmp_path / "nginx.log")
    told = watched.step(*[nginx.format(turn // 10) for turn in range(100)])
    assert told == [("firing", one.id) for one in reported(watched.log)]


def test_a_log_of_which_nothing_is_understood_is_an_error(watched: Watched) -> None:
    """Lines that look like ours, but are not, are no quiet zero."""
    with pytest.raises(NothingUnderstood, match="none of 30 lines"):
        watched.step(*['{"kind": "exchange", "ts_us": "never"}'] * 30)


def test_what_goes_on_is_told_again(watched: Watched) -> None:
    """Alertmanager forgets what it does not hear of; what is over is not told again."""
    [(_, name)] = watched.step(*loop(10))
    out = StringIO()
    receiver = Lines(out, lambda alert: str(alert["incident"]["id"]))
    Sender(receiver, watched.store)._refresh()
    assert out.getvalue() == f"{name}\n"
    assert watched.step(after_s=10.0) == [("resolved", name)]
    Sender(receiver, watched.store)._refresh()
    assert out.getvalue() == f"{name}\n"


def test_a_state_of_other_logs_is_refused(tmp_path: Path, store: Store, watched: Watched) -> None:
    """What was counted in one log says nothing about another."""
    from tricklecast.analytics.errors import BadInput

    with pytest.raises(BadInput, match="another watch"):
        Watched(tmp_path, store, tmp_path / "other.jsonl")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A day's logs of several servers, and what the report finds in them."""
    logs = tmp_path_factory.mktemp("day") / "logs"
    truth = simulate_logs(logs, 21, Set.STANDARD, sizes(lines=5_000, kind=Set.STANDARD))
    assert len(truth.storms) > 10
    return logs, sorted((one.storm, one.since_us, one.n) for one in reported(logs))


@pytest.mark.parametrize("busy", mostly_long([False, True], 2))
def test_catching_up_tells_what_the_report_finds(
    day: tuple[Path, list[Any]], tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Each storm of a day's logs of several servers once, as over, with all of its requests; on a busy machine, too."""
    monkeypatch.setattr(followed, "BATCH", 1 << 19)
    if busy:
        monkeypatch.setattr(judge, "BUSY", 0.0)
        monkeypatch.setattr(judge, "BUSY_S", 3600.0)
    logs, expected = day
    watch = Watch(WatchRequest((str(logs),), earliest=True, state=tmp_path / "state"), store, [])
    steps = [watch.step()]
    while steps[-1][0]:
        steps.append(watch.step())
    assert len(steps) > 3
    news = [each for _, alerts in steps for each in alerts]
    assert {each["status"] for each in news} == {"resolved"}
    told = sorted((each["incident"]["storm"], each["incident"]["since_us"], each["incident"]["n"]) for each in news)
    assert told == expected


def test_what_goes_on_is_told_when_the_watch_has_caught_up(tmp_path: Path, store: Store) -> None:
    """What was over long before is told as over; what was over a moment ago has begun and ended."""
    log = tmp_path / "access.jsonl"
    hour_s = -3_600.0
    for begin_s, name in ((hour_s, "early"), (-40.0, "lately"), (-2.0, "now")):
        append(log, loop(40, begin_s, client=name, channel=name))
        append(
            log, [line(begin_s + 2 + turn, client="viewer", status=200, bytes_out=9, rseq=turn) for turn in range(2)]
        )
    watched = Watched(tmp_path, store, log)
    os.utime(log, ns=(NOW_US * 1000, NOW_US * 1000))
    watched.step(after_s=1.0)
    watched.step(after_s=0.1)
    first = [(each["status"], each["incident"]["clients"][0]) for each in watched.told]
    assert first == [("resolved", "early"), ("firing", "lately"), ("resolved", "lately"), ("firing", "now")]
    [over] = [each for each in watched.told if each["incident"]["clients"][0] == "early"]
    assert headline(over).split()[1:4] == ["warn", "and", "over"]
    assert "→" in for_people(over)
    watched.step(after_s=10.0)
    assert [(each["status"], each["incident"]["clients"][0]) for each in watched.news] == [("resolved", "now")]


def test_a_muted_storm_that_was_over_before_it_was_read_is_told_to_nobody(tmp_path: Path, store: Store) -> None:
    """Nobody hears of it, and one that comes again, unmuted, is told as begun and over, as a first one is."""
    log, memory = tmp_path / "access.jsonl", Memory(Folder(str(tmp_path / "state")))

    def read(begin_s: float) -> list[AlertBody]:
        """What a watch tells that began long after a storm."""
        append(log, [*loop(40, begin_s), line(begin_s + 900, client="viewer", status=200, bytes_out=9)])
        now_s = begin_s + 3_600
        watched = Watched(tmp_path, store, log)
        os.utime(log, ns=(0, NOW_US * 1000 + round(now_s * 1e9)))
        watched.step(after_s=now_s)
        watched.step(after_s=0.1)
        return watched.told

    [first] = read(0.0)
    memory.mute(first["incident"]["fingerprint"], 2 * NOW_US, NOW_US, {})
    assert read(10_000.0) == []
    memory.mute(first["incident"]["fingerprint"], 0, NOW_US + 1, {})
    [again] = read(20_000.0)
    assert (again["status"], headline(again).split()[1:4]) == ("resolved", ["warn", "and", "over"])


def test_a_watch_that_does_not_catch_up_holds_nothing_back(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs grow faster than they are read: after a minute in which it came no closer, it tells what it finds."""
    monkeypatch.setattr(followed, "PIECE", 4_000)
    monkeypatch.setattr(followed, "BATCH", 4_000)
    log = tmp_path / "access.jsonl"
    append(log, loop(1_000, -3_600.0, 0.1))
    watched = Watched(tmp_path, store, log)
    os.utime(log, ns=(NOW_US * 1000, NOW_US * 1000))
    for _ in range(3):
        watched.step(after_s=1.0)
    assert watched.told == []
    assert [status for status, _ in watched.step(after_s=judge.PATIENCE_S + 60.0)] == ["firing"]


COPIED = '{{"time":"2025-10-09T08:53:{0:02d}+00:00","remote_addr":"192.0.2.1","request":"GET /film/1 HTTP/1.1",\
"status":404,"body_bytes_sent":0,"http_user_agent":"player/1","request_time":0.001,"request_id":"{1:032x}"}}'


def test_a_request_in_two_logs_counts_once(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever log has it first; the same id twice in one log is two requests, as in the report."""
    monkeypatch.setattr(rolling, "MAX_REQUESTS", 50)
    one, two = tmp_path / "logs/one.log", tmp_path / "logs/two.log"
    one.parent.mkdir()
    lines = [COPIED.format(turn // 10, turn // 2) for turn in range(40)]
    for log in (one, two):
        log.touch()
    watched = Watched(tmp_path, store, one.parent)
    append(one, lines[:30])
    watched.step()
    append(two, [COPIED.format(0, 1_000), *lines[:20]])
    append(one, lines[30:])
    watched.step(after_s=SLOW_S)
    append(two, lines[20:])
    watched.step(after_s=SLOW_S)
    assert (watched.watch.lines, list(watched.watch.counts.values())) == (81, [0, 40])
    assert {each["incident"]["n"] for each in watched.told[-1:]} == {one.n for one in reported(one.parent)} == {41}
    for first in range(0, 150, 50):
        append(one, [COPIED.format(50, first + turn).replace("404", "200") for turn in range(50)])
        watched.step()
    assert watched.watch.roller._kept <= 50


@pytest.mark.parametrize("name", mostly_long(["docker", "cri"], 2))
def test_logs_of_containers_are_watched(tmp_path: Path, store: Store, name: str) -> None:
    """What a container's runtime writes around a line is taken off, and pieces of one line are joined."""
    watched = Watched(tmp_path, store, tmp_path / "container.log")
    wrapped = []
    for each in [*loop(5), "listening on port 80", *loop(5, 0.25)]:
        if name == "docker":
            wrapped.append(json.dumps({"log": f"{each}\n", "stream": "stdout", "time": "2025-10-09T08:53:20Z"}))
        else:
            at = "2025-10-09T08:53:20.5Z stdout"
            wrapped += [f"{at} P {each[:20]}", f"{at} F {each[20:]}"]
    told = watched.step(*wrapped[:7]) + watched.step(*wrapped[7:])
    assert [status for status, _ in told] == ["firing"]
    assert (watched.watch.lines, watched.watch.bad) == (10, 0)


def test_logs_and_formats_are_remembered_up_to_a_bound(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more files some are not followed, which is told; statements of formats are planned anew."""
    monkeypatch.setattr(followed, "MAX_FILES", 4)
    monkeypatch.setattr(rolling, "MAX_FORMATS", 1)
    monkeypatch.setattr(rolling, "MAX_LOGS", 1)
    logs = tmp_path / "logs"
    logs.mkdir()
    watched = Watched(tmp_path, store, logs)
    for turn in range(2):
        for number in range(3):
            lines = loop(2, turn, client=f"client-{number}")
            docker = [json.dumps({"log": f"{each}\n", "stream": "stdout", "time": "x"}) for each in lines]
            append(logs / f"{number}.jsonl", lines)
            append(logs / f"{number}.log", docker)
        watched.step(after_s=2.0)
    roller = watched.watch.roller
    assert (watched.watch.lines, watched.watch.bad) == (4 * 2 * 2, 0)
    assert (len(roller._formats), len(roller._unwrappers)) == (1, 1)
    assert len(roller._unread) <= 4
    assert watched.watch.problems["*"] == "there are more than 4 files; the rest is not followed"


def test_params_decide(tmp_path: Path, store: Store) -> None:
    """The thresholds are those of the report."""
    watched = Watched(tmp_path, store)
    request = WatchRequest((str(watched.log),), earliest=True)
    strict = replace(request, params=replace(request.params, fast_hits=20, slow_hits=40))
    watched.watch = Watch(strict, store, [], watched.clock, watched.clock.wall_us)
    assert watched.step(*loop(15)) == []
    assert len(watched.step(*loop(10, 0.75))) == 1


# --- stories: what one watch tells of many storms ---------------------------------------------------------------------

LOOK_S: Final = 4
"""So often the log is read. Seconds."""

Read = tuple[float, list[str]]
STORIES: Final[dict[str, list[Read]]] = {}


def story(name: str, *parts: list[str] | Read) -> str:
    """Registers lines that come to the log of one watch beside those of other stories.

    Each has servers and clients of its own. The rules are run once for all of them, which costs as much as for one.

    Args:
        parts: lines that are read at the first look after their time; or a time, and lines that are read then.

    Returns:
        the name, by which :meth:`Played.told` knows what was told of it.
    """
    reads: list[Read] = []
    for part in parts:
        if isinstance(part, tuple):
            reads.append(part)
        else:
            reads += [((json.loads(each)["ts_us"] - NOW_US) / 1e6, [each]) for each in part]
    STORIES[name] = reads
    return name


def own(name: str, text: str) -> str:
    """A line of a story, on its own servers and by its own clients."""
    record = json.loads(text)
    return json.dumps(record | {"node": f"{name}/{record['node']}", "client": f"{name}/{record['client']}"})


@dataclass(frozen=True)
class Played:
    """A watch that has read all stories.

    Attributes:
        watch: see there. news: when each alert came, seconds after the beginning. incidents: those of the report.
    """

    watch: Watch
    news: list[tuple[int, AlertBody]]
    incidents: list[Any]

    def alerts(self, name: str) -> list[tuple[int, AlertBody]]:
        """The alerts of a story."""
        return [(at_s, each) for at_s, each in self.news if each["incident"]["nodes"][0].startswith(f"{name}/")]

    def told(self, name: str) -> list[tuple[int, str]]:
        """When they came, and their status."""
        return [(at_s, each["status"]) for at_s, each in self.alerts(name)]

    def ids(self, name: str) -> list[str]:
        """The ids of its incidents, in the order in which they were first told."""
        return list(dict.fromkeys(each["incident"]["id"] for _, each in self.alerts(name)))

    def reported(self, name: str) -> list[Any]:
        """What the report finds of it."""
        return [one for one in self.incidents if one.nodes[0].startswith(f"{name}/")]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """All stories, read by one watch."""
    folder = tmp_path_factory.mktemp("stories")
    with Store(folder / "state") as store:
        watched, news, begun_s = Watched(folder, store), [], 0
        for at_s in range(LOOK_S, 100, LOOK_S):
            lines = [
                own(name, each)
                for name, reads in STORIES.items()
                for read_s, part in reads
                if begun_s <= read_s < at_s
                for each in part
            ]
            watched.step(*lines, after_s=LOOK_S)
            news += [(at_s, each) for each in watched.news]
            begun_s = at_s
        assert watched.watch.judge.tracker.open() == []
        yield Played(watched.watch, news, reported(watched.log))


SAID_NO: Final[dict[str, Any]] = {"status": 200, "bytes_out": 0, "eos": True, "seq": 1, "rseq": 1, "next_seq": 1}
REFUSED_OTHERWISE = story(
    "otherwise",
    loop(20, **SAID_NO),
    [line(turn, eos=True, seq=1, guard_ms=950) for turn in range(1, 16)],
)


def test_a_storm_is_not_over_while_its_client_is_refused_otherwise(played: Played) -> None:
    """A client that is told "ended", and then 404 once a second, has not stopped, though few 404s are no storm yet."""
    assert played.told(REFUSED_OTHERWISE) == [(4, "firing"), (24, "resolved")]
    assert [(one.id, one.n) for one in played.reported(REFUSED_OTHERWISE)] == [(*played.ids(REFUSED_OTHERWISE), 35)]


IN_TURN = story(
    "in turn",
    loop(10, client="a"),
    loop(10, client="b"),
    [line(4.0 * turn, client="ab"[turn % 2], status=470) for turn in range(1, 6)],
)


def test_a_storm_is_over_when_none_of_its_clients_goes_on(played: Played) -> None:
    """Refusals with pauses, of several of its clients in turn, are no client that goes on."""
    assert played.told(IN_TURN) == [(4, "firing"), (16, "resolved")]


SLOWER = story("slower", loop(9, **POST), [line(turn * 0.8, **POST) for turn in range(5, 28)])


def test_a_storm_is_not_over_while_its_client_goes_on_more_slowly(played: Played) -> None:
    """Posts are counted by ten seconds, and too few of them in so long are no storm until they are thirty."""
    assert played.told(SLOWER) == [(4, "firing"), (32, "resolved")]


FIRST_IS_SLOWER = story(
    "first is slower",
    [line(at_s, client="a", **POST) for at_s in (1, 4, 8)],
    loop(10, 8, client="b", **POST),
    loop(9, 12, client="a", **POST),
    loop(5, 12, client="b", **POST),
    [line(turn, client="a", **POST) for turn in range(16, 29)],
)


def test_a_storm_keeps_its_id_when_its_first_client_goes_on_more_slowly(played: Played) -> None:
    """The rules find only the other client then, under the id that was the incident's before, and go on to do so."""
    assert sorted(played.told(FIRST_IS_SLOWER)) == [(12, "firing"), (16, "firing"), (16, "resolved"), (40, "resolved")]
    first, second = played.ids(FIRST_IS_SLOWER)
    [(_, over)] = [each for each in played.alerts(FIRST_IS_SLOWER) if each[0] == 40]
    assert (over["incident"]["id"], first != second) == (second, True)


TOGETHER = story(
    "together",
    loop(10, client="a"),
    loop(11, client="b"),
    *(loop(4 + turn % 2, 2 * turn, client="a") for turn in range(1, 4)),
    *(loop(5 - turn % 2, 2 * turn, client="b") for turn in range(1, 4)),
)


def test_a_storm_of_clients_that_begin_together_keeps_its_id(played: Played) -> None:
    """It does not matter which of them was there last, as times in whole seconds have it for many."""
    assert played.told(TOGETHER) == [(4, "firing"), (16, "resolved")]
    assert [one.id for one in played.reported(TOGETHER)] == played.ids(TOGETHER)


YEARS_S: Final = 5 * 365 * 86_400.0
A_LINE_AHEAD = story(
    "a line ahead",
    loop(10),
    (4, [line(YEARS_S), line(YEARS_S, client="other"), *loop(5, 5)]),
    loop(20, 8),
    loop(10, 12, client="next", channel="news"),
)


def test_a_line_years_ahead_silences_and_ends_nothing(played: Played) -> None:
    """A storm that goes on is not over because of it, and the next storm is told."""
    assert played.told(A_LINE_AHEAD) == [(4, "firing"), (16, "firing"), (20, "resolved"), (24, "resolved")]


WRONG = story("wrong", (0, loop(10, YEARS_S, node="edge-2", client="x", channel="news")), loop(10))


def test_a_server_whose_clock_is_wrong_is_watched_as_any_other(played: Played) -> None:
    """Its storm is told and ends like one of a server whose clock is right; that it is wrong is noted."""
    assert played.told(WRONG) == [(4, "firing"), (4, "firing"), (12, "resolved"), (12, "resolved")]
    skew_s = played.watch.judge.window.skew_s
    assert skew_s["wrong/edge-2"] == pytest.approx(YEARS_S, abs=5)
    assert "wrong/edge-1" not in skew_s
    assert {one.id for one in played.reported(WRONG)} == set(played.ids(WRONG))


def off(by_s: float) -> list[Read]:
    """A loop on a server whose clock is wrong, while a viewer asks one whose clock is right."""
    return [
        (float(turn), [line(turn, client="viewer", channel="other"), *loop(10, turn + by_s, node="edge-2")])
        for turn in range(10)
    ]


OFF: Final = {story(f"{by_s:+} s", *off(by_s)): by_s for by_s in (90, -90, -3_600)}


@pytest.mark.parametrize("name", OFF)
def test_a_clock_that_is_off_ends_nothing_and_is_told(played: Played, name: str) -> None:
    """By a minute and a half, or an hour: the storm is told while it goes on, and is over when it is."""
    assert played.told(name) == [(4, "firing"), (20, "resolved")]
    err = StringIO()
    Status(err, played.watch, quiet=True, name="x").show([])
    [said] = [each for each in err.getvalue().splitlines() if f"{name}/" in each]
    assert ("ahead by" if OFF[name] > 0 else " old when they are read") in said
    assert "may be told as two" in said
    assert "edge-2" in said


WORSE = story("worse", loop(10, 0, 0.1), loop(300, 4, 0.005), loop(300, 8, 0.005))


def test_a_storm_that_costs_more_is_told_as_worse(played: Played) -> None:
    """Severity follows what it does to the server, and rises once."""
    assert played.told(WORSE) == [(4, "firing"), (8, "worse"), (20, "resolved")]
    severities = [each["incident"]["severity"] for _, each in played.alerts(WORSE)]
    assert severities == ["warn", "critical", "critical"]


BEFORE = story("before", (4, loop(10, 3)), (8, loop(30, 0, 0.1)), (12, loop(30, 1, 0.1, client="b")))


def test_what_came_before_leaves_it_its_id(played: Played) -> None:
    """Earlier lines that turn out to belong to it are no news; another client on its channel makes it one of many."""
    assert sorted(played.told(BEFORE)) == [(8, "firing"), (16, "firing"), (16, "resolved"), (24, "resolved")]
    first, second = played.ids(BEFORE)
    assert {(each["incident"]["id"], each["into"]) for at_s, each in played.alerts(BEFORE) if at_s == 16} == {
        (first, second),
        (second, None),
    }
    assert [one.id for one in played.reported(BEFORE)] == [second]


AGAIN = story("again", *(loop(20, 40.0 * turn) for turn in range(3)))


def test_a_storm_that_comes_again_has_the_newest_id(played: Played) -> None:
    """What was told of the former one is not told again although the rules still find it, and no alert has its key."""
    times = [(begin_s + 4, begin_s + 12) for begin_s in (0, 40, 80)]
    assert played.told(AGAIN) == [each for begun, over in times for each in ((begun, "firing"), (over, "resolved"))]
    assert {each["incident"]["n"] for _, each in played.alerts(AGAIN)} == {20}
    [name] = played.ids(AGAIN)
    assert [one.id for one in played.reported(AGAIN)] == [f"{name}-3", f"{name}-2", name]
    assert len({each["key"] for _, each in played.alerts(AGAIN)}) == 6


STEERS = story("steers", loop(10, client="\x1b[31mred"))


def test_names_of_clients_cannot_steer_a_terminal(played: Played) -> None:
    """Whoever sends requests writes the log."""
    (_, news), _ = played.alerts(STEERS)
    assert headline(news).startswith("08:53:20 warn not_found_loop: steers/\\x1b[31mred asked for film 10 times in")
    assert "\x1b" not in for_people(news)


def test_alertmanager_gets_another_alert_when_a_storm_gets_worse(played: Played) -> None:
    """The severity is a label: the old alert is over at once."""
    now = datetime.fromtimestamp(NOW_US / 1e6 + 60, UTC)
    alerts = {each["status"]: as_alerts(each, now) for _, each in played.alerts(WORSE)}
    [alert] = alerts["firing"]
    assert [alert["labels"]["incident"]] == played.ids(WORSE)
    over = {
        alert["labels"]["severity"]: alert["endsAt"] <= now.isoformat(timespec="milliseconds")
        for alert in alerts["worse"]
    }
    assert over == {"critical": False, "minor": True, "warn": True}


SHAPE = story("shape", loop(30))


def test_an_alert_is_of_one_shape_with_the_report(played: Played) -> None:
    """Its incident is that of the report, word by word, and fits the schema."""
    (_, news), _ = played.alerts(SHAPE)
    alert = json.loads(for_programs(news))
    jsonschema.Draft202012Validator(schema(Alert)).validate(alert)
    [incident] = played.reported(SHAPE)
    assert alert["incident"] == json.loads(json.dumps(as_dict(summary(incident))))
