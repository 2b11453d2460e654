"""What an incident says: what belongs to it, how sure it is, its peak, its trigger, what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest

from tests.analytics.support.jsonl import read_jsonl
from tests.analytics.support.rules import Scenes, rules
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.classes import WORDS, Side, StormClass
from tricklecast.analytics.rules.incidents import Confidence, Pace, Severity, found, incidents
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Line = dict[str, Any]
BEGIN = 1_760_000_400_000_000


def line(at: float, status: int = 404, **fields: Any) -> Line:
    """One GET by ``c1`` on ``film``, so many seconds after the beginning."""
    known = {"node": "n1", "kind": "exchange", "op": "read", "method": "GET", "status": status, "client": "c1"}
    more = {"channel": "film", "conn": 1, "dur_us": 200, "ts_us": BEGIN + round(at * 1e6)}
    return {name: value for name, value in (known | more | fields).items() if value is not None}


def loop(at: float, count: int, gap: float, status: int = 404, **fields: Any) -> list[Line]:
    """So many requests with the same pause between them, seconds."""
    return [line(at + turn * gap, status, **fields) for turn in range(count)]


def event(at: float, name: str, channel: str | None = None, node: str = "n1") -> Line:
    """A lifecycle event."""
    known = {"ts_us": BEGIN + round(at * 1e6), "node": node, "kind": "event", "event": name}
    return known | ({"channel": channel} if channel else {})


def viewers(count: int, seconds: int, node: str = "n1") -> list[Line]:
    """Healthy readers of another channel, one segment a second each."""
    return [
        line(turn + number / 100, 200, client=f"v{number}", channel="other", conn=100 + number, node=node, rseq=turn)
        | {"bytes_out": 10_000, "next_seq": turn + 1}
        for number in range(count)
        for turn in range(seconds)
    ]


OURS: Final = Scenes()
"""Scenes on a server of ours."""
OTHERS: Final = Scenes()
"""Those on other web servers: beside traffic of ours they would be left alone."""
STRICT: Final = Scenes(Params(slow_hits=4, generic=1))
"""Scenes that are judged by other thresholds."""


def read(connection: DuckDBPyConnection, log: Path, lines: Iterable[Line]) -> None:
    """Makes the view ``line`` of some lines, which a log has."""
    log.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in lines))
    read_jsonl(connection, [log])


def empty(at: float, count: int, gap: float, *, eos: bool = False, **fields: Any) -> list[Line]:
    """Empty answers about segment 7."""
    return loop(at, count, gap, 200, bytes_out=0, rseq=7, next_seq=8, eos=eos, reason="empty", **fields)


def herd(at: float, clients: int, waves: int, every: float, **fields: Any) -> list[Line]:
    """Clients that come to one channel at the same moment, and again."""
    return [
        line(at + wave * every + number / 300, client=f"h{number}", conn=1000 + number, **fields)
        for number in range(clients)
        for wave in range(waves)
    ]


CASCADE = OURS.scene(
    empty(10, 96, 0.03),
    [event(12.95, "channel_end", "film")],
    empty(13, 327, 0.03, eos=True),
    loop(23, 157, 0.05),
)


def test_a_cascade_is_one_incident() -> None:
    """Empty segment, end of channel, 404: one client fault, whose root is what came first."""
    (one,) = CASCADE.incidents()
    assert [(phase.storm, phase.n) for phase in one.phases] == [
        (StormClass.ZERO_BYTE_LOOP, 96),
        (StormClass.ENDED_LOOP, 327),
        (StormClass.NOT_FOUND_LOOP, 157),
    ]
    assert (one.storm, one.n, one.clients, one.channels) == (StormClass.ZERO_BYTE_LOOP, 580, ("c1",), ("film",))
    assert (one.confidence, one.trigger) == (Confidence.HIGH, None)
    assert one.ended_us == BEGIN + 12_950_000
    assert one.samples[0].ts_us == BEGIN + 10_000_000


ENDED = OURS.scene(empty(10, 200, 0.03, eos=True))
ENDED_OR_EMPTY = OURS.scene(empty(10, 200, 0.03, eos=True), blind="eos")
ENDED_SAYS_AN_EVENT = OURS.scene([event(9, "channel_end", "film")], empty(10, 200, 0.03, eos=True), blind="eos")


def test_where_the_deciding_field_is_missing_both_classes_are_named() -> None:
    """Without ``eos`` an ended channel looks like an empty segment: neither side is accused alone, unless the channel's
    end stands before it."""
    (one,), (sure,), (told,) = (each.incidents() for each in (ENDED_OR_EMPTY, ENDED, ENDED_SAYS_AN_EVENT))
    assert (one.storm, one.instead, one.confidence) == (
        StormClass.ZERO_BYTE_LOOP,
        StormClass.ENDED_LOOP,
        Confidence.LOW,
    )
    assert "either" in one.cause
    assert WORDS[StormClass.ENDED_LOOP].advice in one.fix
    assert (sure.storm, sure.instead, sure.confidence) == (StormClass.ENDED_LOOP, None, Confidence.HIGH)
    assert (told.storm, told.confidence) == (StormClass.ENDED_LOOP, Confidence.HIGH)


KEY: Final = "9c621e8a5dac51f8"
"""A client that does not say its name."""
CROWD: Final = [
    line(turn + number / 100, 200, client=KEY, conn=number, rseq=turn) | {"bytes_out": 10_000, "next_seq": turn + 1}
    for number in range(50)
    for turn in range(60)
] + [line(61 + number / 100, client=KEY, conn=number) for number in range(50)]
WITH_CONNECTIONS = OURS.scene(CROWD)
WITHOUT_CONNECTIONS = OURS.scene(CROWD, blind="conn")
ITS_LOOP = OURS.scene(CROWD, loop(70, 200, 0.1, client=KEY), blind="conn")


def test_without_connections_a_crowd_is_not_accused() -> None:
    """Fifty readers behind one key without a name get each segment once, and are told of the end: no storm."""
    assert WITH_CONNECTIONS.incidents() == WITHOUT_CONNECTIONS.incidents() == []
    assert len(ITS_LOOP.incidents()) == 1


AT_ONE_MOMENT = OURS.scene(loop(10, 200, 0.05), loop(10, 200, 0.05, client="c2", channel="news", conn=2))


def test_incidents_that_begin_at_the_same_moment_have_ids_of_their_own() -> None:
    """Two players loop on two channels of one server, from the same microsecond on."""
    one, other = AT_ONE_MOMENT.incidents()
    assert one.id != other.id


TWO_CLIENTS = OURS.scene(
    [event(9, "channel_end", "film")], loop(10, 100, 0.05), loop(10, 100, 0.05, client="c2", conn=2)
)


def test_the_peak_is_that_of_all_clients_together() -> None:
    """Two clients at 20/s make a peak of 40/s."""
    (one,) = TWO_CLIENTS.incidents()
    assert (one.n, one.peak_rps, set(one.clients)) == (200, 40.0, {"c1", "c2"})


WEB: Final[dict[str, Any]] = {"op": None, "channel": None, "conn": None}
WEB_SERVER = OTHERS.scene(
    loop(1, 900, 0.5, 401, path="/api/token", **WEB),
    loop(1, 200, 0.1, 500, path="/users/37/photo", client="c2", **WEB),
    # A scan, and somebody who looks around.
    [
        line(1 + turn * 0.1, 404, path=f"/{chr(97 + turn % 26)}{chr(97 + turn // 26)}.php", client="c3", **WEB)
        for turn in range(300)
    ],
    loop(1, 500, 0.5, 200, path="/index.html", client="c4", **WEB),
)


def test_a_loop_on_any_web_server_is_found() -> None:
    """Where no route matches: by client, path and status. Who asks for one page after the other repeats nothing."""
    assert sorted((one.storm, one.channels, one.n) for one in WEB_SERVER.incidents()) == [
        (StormClass.SERVER_ERROR_LOOP, ("GET /users/37/photo 500",), 200),
        (StormClass.WEB_LOOP, ("GET /api/token 401",), 900),
    ]


SCANNED: Final = [*viewers(3, 60), *loop(1, 200, 0.02, path="/wp-login.php", op=None, channel=None)]
LEFT_ALONE, ASKED_FOR = OURS.scene(SCANNED), STRICT.scene(SCANNED)


def test_beside_our_own_traffic_other_paths_are_left_alone() -> None:
    """A scanner that asks for one page of another server is no incident, unless it is asked for."""
    assert LEFT_ALONE.incidents() == []
    assert len(ASKED_FOR.incidents()) == 1


SERVED: Final = loop(1, 10, 1.0, 200, bytes_out=9, rseq=1, next_seq=2, client="c2")
DRIP, WAITING = OURS.scene(SERVED, loop(20, 60, 1.5)), OURS.scene(loop(20, 60, 1.5))


def test_a_channel_that_was_there_before_has_ended() -> None:
    """Without events: slow 404s for ever are a drip after other answers, and waiting before any."""
    (one,) = DRIP.incidents()
    assert one.storm is StormClass.NOT_FOUND_DRIP
    assert WAITING.incidents() == []


BEGUN: Final = {
    name: [*([event(30, "server_stop")] if name == "server_ready" else []), event(32, name), *loop(33, 100, 0.1)]
    for name in ("server_ready", "worker_restart")
}
NEVER_WAS = {name: OURS.scene(lines) for name, lines in BEGUN.items()}
WAS_BEFORE = {name: OURS.scene(SERVED[:5], lines) for name, lines in BEGUN.items()}


@pytest.mark.parametrize("begun", BEGUN)
def test_a_restart_does_not_explain_a_channel_that_never_was(begun: str) -> None:
    """404s for an unknown name have no trigger; those for a channel that was there before the restart have."""
    (typo,), (lost,) = NEVER_WAS[begun].incidents(), WAS_BEFORE[begun].incidents()
    assert typo.trigger is None
    assert (lost.storm, lost.trigger) == (StormClass.NOT_FOUND_LOOP, begun)


IN_ITS_MIDST = OURS.scene(loop(10, 200, 0.1, 500), [event(15, "server_ready"), event(12, "config")])


def test_a_trigger_comes_before_its_storm() -> None:
    """What happens in the midst of a storm did not set it off."""
    (one,) = IN_ITS_MIDST.incidents()
    assert one.trigger is None


SENT_AWAY = OURS.scene(
    [event(9.9, "drain"), event(11, "server_stop"), event(14, "server_ready")],
    herd(10, 40, 2, 0.4, status=503, reason="shutdown"),
    herd(15, 60, 4, 0.5),
)


def test_the_first_of_a_restarts_events_is_a_herds_cue() -> None:
    """Clients that come while the server drains have come because of that, also if they come again when it is back."""
    (one,) = SENT_AWAY.incidents()
    assert (one.storm, one.trigger) == (StormClass.THUNDERING_HERD, "drain")


SHORT = OURS.scene(loop(10.5, 10, 0.1, 500))


def test_the_peak_of_a_short_burst_is_not_that_of_the_clocks_seconds() -> None:
    """Ten requests in a second, five on either side of a border."""
    (one,) = SHORT.incidents()
    assert one.peak_rps == 10


HELD = OURS.scene(loop(10, 63, 1.0, 429, guard_ms=1000, dur_us=300), viewers(5, 60))


def test_holds_of_the_guard_are_no_cost() -> None:
    """Handler time is the server's own: a second of hold for each answer is none of it."""
    (one,) = HELD.incidents()
    assert one.impact.handler_us == 63 * 300


CHEAP = OURS.scene(loop(10, 35, 0.55, 500), viewers(20, 60))


def test_slow_and_cheap_is_minor() -> None:
    """35 requests in 20 s cost nothing that can be measured."""
    (one,) = CHEAP.incidents()
    assert (one.severity, one.impact.measurable) == (Severity.MINOR, False)


THIRD = OURS.scene(loop(10, 600, 0.05, 500), viewers(20, 60))


def test_a_storm_that_is_most_of_the_traffic_is_worth_a_warning() -> None:
    """A third of all requests, at 20/s."""
    (one,) = THIRD.incidents()
    assert one.severity is Severity.WARN
    assert one.impact.request_share == pytest.approx(600 / 1800)


REFUSED: Final = [
    line(71 + number / 30, 503, client=f"w{number}", channel="other", conn=500 + number) for number in range(200)
]
HARMED = OURS.scene(viewers(5, 130), loop(70, 400, 0.02, 500), REFUSED)
SLOW_BESIDE = OURS.scene(SERVED, loop(20, 60, 2.0), viewers(5, 140), REFUSED)


def test_harm_to_others_is_critical() -> None:
    """Viewers of another channel are refused while it goes on, and were not before."""
    (one,) = HARMED.incidents()
    assert one.severity is Severity.CRITICAL
    assert one.impact.others_refused == 200


def test_a_slow_loop_beside_an_overload_is_minor() -> None:
    """What others are refused is not laid to a client that asks once in two seconds."""
    (one,) = SLOW_BESIDE.incidents()
    assert (one.storm, one.severity) == (StormClass.NOT_FOUND_DRIP, Severity.MINOR)


POLLED = OURS.scene(
    loop(70, 100, 0.2, 500),
    [
        line(turn * 2.0, 200, client=f"w{turn % 7}", channel="other", conn=500 + turn % 7, rseq=turn)
        | {"bytes_out": 9, "next_seq": turn + 1, "wait_us": 1_900_000}
        for turn in range(60)
    ],
)


def test_long_polls_are_no_harm() -> None:
    """A wait for the next segment says nothing about the server; only waits for segments that were there do."""
    (one,) = POLLED.incidents()
    assert one.impact.others_slowed == 0


def test_a_clock_years_ahead_changes_nothing_else(tmp_path: Path) -> None:
    """One line from the future neither hides nor makes an incident, whether or not it is known to be one."""
    lines = [*loop(10, 100, 0.1), *viewers(5, 60)]
    ahead = line(86_400 * 365 * 3, client="c9")
    usual = rules().incidents(lines)
    assert len(usual) == 1
    assert rules().incidents([*lines, ahead]) == usual
    with embedded.connect(0) as connection:
        read(connection, tmp_path / "log.jsonl", [*lines, ahead])
        assert incidents(connection, latest_us=BEGIN + 10**9) == usual


OVERLOAD = OURS.scene(
    viewers(3, 60),
    *(
        loop(10 + number / 20, 60, 0.25, 503, client=f"c{number}", channel=f"film{number % 6}", conn=number)
        for number in range(12)
    ),
)


def test_an_overload_is_one_incident() -> None:
    """Twelve clients on six channels of one node, refused and back at once: one, without its members."""
    (one,) = OVERLOAD.incidents()
    assert (one.storm, one.n, len(one.clients), len(one.channels)) == (StormClass.OVERLOAD_AMPLIFICATION, 720, 12, 6)
    assert one.peak_rps == 48.0


THREE_NODES = OURS.scene(
    [event(10 + node * 5, "server_ready", node=f"n{node}") for node in range(3)],
    [
        line(11 + node * 5 + wave + number / 200, 404, client=f"c{node}-{number}", node=f"n{node}", conn=number)
        for node in range(3)
        for number in range(40)
        for wave in (0, 1, 2, 4)
    ],
)


def test_a_restart_of_three_nodes_is_one_incident() -> None:
    """The same cue, a few seconds apart."""
    (one,) = THREE_NODES.incidents()
    assert (one.storm, one.nodes, one.n) == (StormClass.THUNDERING_HERD, ("n0", "n1", "n2"), 480)


ENOUGH_TOGETHER = OURS.scene(empty(10, 20, 0.25, eos=True), loop(15, 20, 0.25))
NOT_ENOUGH = OURS.scene(empty(10, 10, 1.0, eos=True), loop(20, 20, 1.0))


def test_answers_that_follow_each_other_count_together() -> None:
    """Too few of each, but 40 in 10 s: the client never stopped in between, and what it was told first is the root."""
    (one,) = ENOUGH_TOGETHER.incidents()
    assert [(phase.storm, phase.n) for phase in one.phases] == [
        (StormClass.ENDED_LOOP, 20),
        (StormClass.NOT_FOUND_LOOP, 20),
    ]
    assert one.storm is StormClass.ENDED_LOOP
    assert NOT_ENOUGH.incidents() == []


BURSTS: Final = [one for turn in range(4) for one in loop(10 + turn * 9, 20, 0.05, 500)]
TOGETHER, AGAIN_LATER = OURS.scene(BURSTS), OURS.scene(BURSTS, loop(240, 20, 0.05, 500))


def test_bursts_of_one_client_are_one_incident() -> None:
    """A loop that pauses for eight seconds goes on; after three minutes it is another one."""
    (one,) = TOGETHER.incidents()
    assert one.n == 80
    assert len(AGAIN_LATER.incidents()) == 2


HALVES: Final = [turn * 0.5 for turn in range(40)]
UNEVEN: Final = Random(1)
PACES: Final[dict[str, tuple[list[float], Pace | None, float | None]]] = {
    "hot loop": ([turn * 0.02 for turn in range(100)], Pace.HOT_LOOP, 20),
    "fixed": (HALVES, Pace.FIXED, 500),
    "backing off": (list(accumulate(min(0.2 * 1.4**turn, 4) for turn in range(14))), Pace.BACKING_OFF, 2100),
    "irregular": (list(accumulate([0.2, 0.9, 1.7, 0.4, 1.2] * 8)), Pace.IRREGULAR, 900),
    # Several in a second, of which the mean is known: it varies less than they do.
    "quick and irregular": (list(accumulate(UNEVEN.uniform(0.1, 0.5) for _ in range(100))), Pace.IRREGULAR, 300),
    "quick and fixed": (list(accumulate([0.2, 0.24, 0.22, 0.18, 0.26] * 12)), Pace.FIXED, 220),
    "whole seconds": ([float(round(at)) for at in HALVES], None, None),
    "too few": (HALVES[:5], None, None),
}
"""Times of requests, the pace, and the usual pause, ms."""
PACED = {
    name: STRICT.scene([line(at + (0 if pace is None else 0.001), 500) for at in times])
    for name, (times, pace, _) in PACES.items()
}


@pytest.mark.parametrize("name", PACES)
def test_how_a_client_paces_itself(name: str) -> None:
    """Pauses below 0.1 s are a hot loop; what grows backs off; what the log cannot tell is not told."""
    (one,), (_, pace, pause_ms) = PACED[name].incidents(), PACES[name]
    assert one.pace is pace
    assert one.pause_ms == (None if pause_ms is None else pytest.approx(pause_ms, rel=0.2))


HELD_HOT = OURS.scene(line(10.001 + turn * 2, 500, guard_ms=1950, dur_us=200) for turn in range(40))


def test_what_the_guard_held_is_not_the_clients_pause() -> None:
    """A client that asks again at once, and is held for 2 s each time, is a hot loop."""
    (one,) = HELD_HOT.incidents()
    assert one.pace is Pace.HOT_LOOP


CHANGES_ITS_NAME = OURS.scene(
    viewers(3, 60), (line(10 + turn / 5, 401, client=f"s-{turn}", ip="192.0.2.7", conn=turn) for turn in range(200))
)
ONE_NETWORK = OURS.scene(
    (line(10 + turn / 30, client=f"v-{turn}", ip="192.0.2.7", conn=turn) for turn in range(300)),
    (line(60 + turn + turn % 7, client=f"w-{turn % 25}", ip="192.0.2.8", conn=turn % 25) for turn in range(100)),
)


def test_a_client_that_changes_its_name_is_found_by_its_network() -> None:
    """200 requests in 40 s, each under another name and from another port."""
    (one,) = CHANGES_ITS_NAME.incidents()
    assert (one.storm, one.named, one.clients, one.n) == (StormClass.REJECTED_LOOP, False, ("192.0.2.0/24",), 200)


def test_viewers_of_one_network_are_no_client_that_changes_its_name() -> None:
    """300 viewers of one company learn within ten seconds that the channel is gone; others come a few times each."""
    assert ONE_NETWORK.incidents() == []


WAVES: Final = herd(64.1, 40, 4, 0.9)
AFTER_A_SILENCE = OURS.scene(
    WAVES, (one for one in viewers(3, 120) if not BEGIN + 60_000_000 <= one["ts_us"] < BEGIN + 64_000_000)
)
WITHOUT_A_SILENCE = OURS.scene(WAVES, viewers(3, 120))


def test_a_herd_after_a_silence_of_its_server() -> None:
    """A log without events: a busy server says nothing for four seconds, and then all come at once, and again."""
    (one,) = AFTER_A_SILENCE.incidents()
    assert (one.storm, one.n, len(one.clients)) == (StormClass.THUNDERING_HERD, 160, 40)
    assert WITHOUT_A_SILENCE.incidents() == []


INSISTENT = OURS.scene(herd(64.1, 40, 8, 0.5))
INSISTENT_WITHOUT_A_CUE = OURS.scene(herd(64.1, 40, 8, 0.5), [event(1, "server_ready")])


def test_clients_that_insist_are_a_herd_where_the_log_has_no_events() -> None:
    """Forty clients ask eight times each, twice a second, whatever their cue; a log that tells cues has none."""
    (one,) = INSISTENT.incidents()
    assert (one.storm, one.n) == (StormClass.THUNDERING_HERD, 320)
    assert INSISTENT_WITHOUT_A_CUE.incidents() == []


RESTART: Final = [
    *herd(10, 60, 1, 1.0, status=503, reason="shutdown", retry_after_ms=2000),
    *(event(9.9, "drain"), event(10.5, "server_stop"), event(12, "server_ready")),
]
COME_ONCE, COME_AGAIN = OURS.scene(RESTART, herd(13, 60, 1, 1.0)), OURS.scene(RESTART, herd(13, 60, 4, 0.5))


def test_clients_that_a_restart_sends_away_and_that_find_nothing_are_no_herd() -> None:
    """One 503 by the server that goes, and one 404 by the one that comes."""
    assert COME_ONCE.incidents() == []
    assert len(COME_AGAIN.incidents()) == 1


BESIDE_A_HERD = OURS.scene(
    [event(9, "server_ready")],
    herd(10, 40, 5, 0.5),
    loop(11, 100, 0.3, client="c9", channel="typo", conn=9),
)


def test_a_herd_does_not_take_in_loops_on_other_channels() -> None:
    """A client that loops on a channel of its own has a fault of its own, also while others come after a restart."""
    one, other = BESIDE_A_HERD.incidents()
    assert (one.storm, other.storm) == (StormClass.THUNDERING_HERD, StormClass.NOT_FOUND_LOOP)
    assert (other.n, other.clients) == (100, ("c9",))


FAILURES_ELSEWHERE = OURS.scene(
    [event(9, "channel_end", "film")],
    herd(10, 200, 2, 1.0),
    (line(10.1 + turn, client="c9", channel=f"typo{turn % 2}", conn=9) for turn in range(2)),
)


def test_two_failures_elsewhere_make_no_herd_of_a_channels_end() -> None:
    """A herd without a cue spans channels: 200 viewers of one and one of each of two others do not."""
    assert FAILURES_ELSEWHERE.incidents() == []


GOES_AWAY = OURS.scene(
    [event(9.9, "drain"), event(15, "server_stop")],
    herd(10, 40, 12, 0.35, status=503, reason="shutdown", retry_after_ms=3000),
)


def test_a_server_that_goes_away_is_not_overloaded() -> None:
    """Clients that come again while it drains are a herd."""
    (one,) = GOES_AWAY.incidents()
    assert one.storm is StormClass.THUNDERING_HERD


NEW_CONNECTIONS: Final = [
    one | {"conn": turn} for turn, one in enumerate(empty(10, 100, 0.04, client=KEY, wait_us=200))
]
ANSWERED_AT_ONCE = OURS.scene(NEW_CONNECTIONS)
WAITED_FOR = OURS.scene(one | {"wait_us": 900_000} for one in NEW_CONNECTIONS)


def test_an_empty_segment_is_asked_for_over_new_connections() -> None:
    """A client that opens a connection for each request; a crowd behind one address has waited for the segment."""
    (one,) = ANSWERED_AT_ONCE.incidents()
    assert (one.storm, one.n) == (StormClass.ZERO_BYTE_LOOP, 100)
    assert WAITED_FOR.incidents() == []


GO_ON = OURS.scene(
    [event(9, "server_ready")],
    herd(10, 40, 12, 0.5),
    *(loop(16, 120, 0.5, client=f"h{number}", conn=1000 + number) for number in range(3)),
)


def test_loops_that_begin_with_a_herd_belong_to_it() -> None:
    """Most give up after some seconds, and three go on for a minute: one incident."""
    (one,) = GO_ON.incidents()
    assert (one.storm, one.n) == (StormClass.THUNDERING_HERD, 840)


ONE_SEGMENT = OURS.scene(
    loop(10, 16, 0.09, 200, bytes_out=9000, rseq=7, next_seq=9),
    [line(19, 200, bytes_out=9000, rseq=7, next_seq=9)],
)


def test_a_short_burst_for_one_segment_is_found() -> None:
    """Sixteen times in 1.5 s, and once more in the same minute."""
    (one,) = ONE_SEGMENT.incidents()
    assert (one.storm, one.n) == (StormClass.SAME_SEGMENT_LOOP, 17)


STUCK = OURS.scene(one | {"next_seq": 7} for one in empty(10, 100, 0.03))
MOVED = OURS.scene(empty(10, 100, 0.03))
UNSURE = OURS.scene(empty(10, 100, 0.03), blind="eos")


def test_the_side_follows_the_head() -> None:
    """An empty segment that is asked for again is the server's fault, unless its head has moved on."""
    (stuck,), (moved,), (unsure,) = STUCK.incidents(), MOVED.incidents(), UNSURE.incidents()
    assert (stuck.side, stuck.passed) == (Side.SERVER, False)
    assert (moved.side, moved.passed) == (Side.CLIENT, True)
    assert unsure.side is Side.EITHER


TWO_FAULTS = OURS.scene(loop(10, 100, 0.1), loop(10, 100, 0.1, 500, client="c2", channel="news", conn=2))


def test_two_faults_are_two_incidents() -> None:
    """Clients that have nothing in common are told apart, on one node and at one time."""
    assert sorted(one.storm for one in TWO_FAULTS.incidents()) == [
        StormClass.NOT_FOUND_LOOP,
        StormClass.SERVER_ERROR_LOOP,
    ]


USUALLY_TOO_FEW, STRICTLY_ENOUGH = OURS.scene(loop(10, 20, 1.0, 500)), STRICT.scene(loop(10, 20, 1.0, 500))


def test_thresholds_are_parameters() -> None:
    """All of a threshold's uses follow it."""
    assert USUALLY_TOO_FEW.incidents() == []
    assert len(STRICTLY_ENOUGH.incidents()) == 1


NO_DURATIONS = OURS.scene(
    {name: value for name, value in one.items() if name != "dur_us"} for one in (*loop(1, 200, 0.15), *viewers(75, 60))
)


def test_a_log_without_durations_says_nothing_of_handler_time() -> None:
    """One client in twenty is not the whole of its server's handler time because nothing is known of it."""
    (one,) = NO_DURATIONS.incidents()
    assert (one.impact.handler_share, one.impact.handler_us, one.severity) == (None, None, Severity.MINOR)


def test_every_class_has_words() -> None:
    """No storm is told without a cause and an advice."""
    assert set(WORDS) == set(StormClass)


CROWDED: Final = [
    line(30 + wave * 3 + n / 500, client=f"h{n}", channel="news", node="n2", conn=n)
    for wave in range(3)
    for n in range(120)
]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBPyConnection]:
    """A loop and a herd on two servers, and the steps pasted one by one behind the prelude."""
    with embedded.connect(0) as pasted:
        log = tmp_path_factory.mktemp("shell") / "log.jsonl"
        read(pasted, log, [*loop(10, 100, 0.1), event(29, "server_ready", node="n2"), *CROWDED])
        embedded.roll_up(pasted)
        embedded.reduce(pasted)
        pasted.execute(engine.prelude(Params()))
        for step in engine.STEPS:
            pasted.execute(engine.step_sql(step))
            tables = {row[0] for row in pasted.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
            assert set(engine.CONTRACTS[step]) <= tables
        yield pasted


def test_each_step_can_be_pasted_and_explained(shell: DuckDBPyConnection) -> None:
    """Steps are plain files: after the prelude each runs by itself, and shows its rows of one incident."""
    (one,) = (each for each in found(shell) if each.nodes == ("n1",))
    told = {table: rows for table, _, rows in engine.explain(shell, one.number)}
    assert len(told["candidate"]) == 10
    assert all(told[table] for table in ("buckets", "stretches", "classed", "episodes", "incidents"))


def test_a_herd_is_explained_by_its_seconds(shell: DuckDBPyConnection) -> None:
    """Which seconds were crowded, and the first rows in the order of time where there are too many."""
    (herd,) = (each for each in found(shell) if each.nodes == ("n2",))
    told = {table: (names, rows) for table, names, rows in engine.explain(shell, herd.number)}
    assert herd.storm is StormClass.THUNDERING_HERD
    assert [row[2] for row in told["fleet_seconds"][1]] == [BEGIN + second * 1_000_000 for second in (30, 33, 36)]
    assert len(told["fleet_spans"][1]) == len(told["fleets"][1]) == 1
    names, rows = told["candidate"]
    assert len(rows) == engine.MOST < 360
    assert [row[names.index("first_us")] for row in rows] == [one["ts_us"] for one in CROWDED[: engine.MOST]]
