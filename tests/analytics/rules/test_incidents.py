"""What an incident says: what belongs to it, how sure it is, its peak, its trigger, what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.analytics.support.jsonl import read_jsonl
from tests.analytics.support.rules import rules
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.classes import WORDS, Side, StormClass
from tricklecast.analytics.rules.incidents import Confidence, Incident, Pace, Severity, incidents
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Line = dict[str, Any]
Find = Callable[..., list[Incident]]
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


@pytest.fixture(scope="module")
def find() -> Find:
    """Finds the incidents in some lines; columns in ``blind`` are ones that the format cannot know."""

    def found(lines: Iterable[Line], *, blind: str = "", params: Params | None = None) -> list[Incident]:
        return rules(params).incidents(lines, blind)

    return found


def read(connection: DuckDBPyConnection, log: Path, lines: Iterable[Line]) -> None:
    """Makes the view ``line`` of some lines, which a log has."""
    log.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in lines))
    read_jsonl(connection, [log])


def empty(at: float, count: int, gap: float, *, eos: bool = False, **fields: Any) -> list[Line]:
    """Empty answers about segment 7."""
    return loop(at, count, gap, 200, bytes_out=0, rseq=7, next_seq=8, eos=eos, reason="empty", **fields)


def test_a_cascade_is_one_incident(find: Find) -> None:
    """Empty segment, end of channel, 404: one client fault, whose root is what came first."""
    lines = [*empty(10, 96, 0.03), *empty(13, 327, 0.03, eos=True), *loop(23, 157, 0.05)]
    (one,) = find([*lines, event(12.95, "channel_end", "film")])
    assert [(phase.storm, phase.n) for phase in one.phases] == [
        (StormClass.ZERO_BYTE_LOOP, 96),
        (StormClass.ENDED_LOOP, 327),
        (StormClass.NOT_FOUND_LOOP, 157),
    ]
    assert (one.storm, one.n, one.clients, one.channels) == (StormClass.ZERO_BYTE_LOOP, 580, ("c1",), ("film",))
    assert (one.confidence, one.trigger) == (Confidence.HIGH, None)
    assert one.ended_us == BEGIN + 12_950_000
    assert one.samples[0].ts_us == BEGIN + 10_000_000


def test_where_the_deciding_field_is_missing_both_classes_are_named(find: Find) -> None:
    """Without ``eos`` an ended channel looks like an empty segment: neither side is accused alone."""
    (one,) = find(empty(10, 200, 0.03, eos=True), blind="eos")
    assert (one.storm, one.instead, one.confidence) == (
        StormClass.ZERO_BYTE_LOOP,
        StormClass.ENDED_LOOP,
        Confidence.LOW,
    )
    assert "either" in one.cause
    assert WORDS[StormClass.ENDED_LOOP].advice in one.fix
    (sure,) = find(empty(10, 200, 0.03, eos=True))
    assert (sure.storm, sure.instead, sure.confidence) == (StormClass.ENDED_LOOP, None, Confidence.HIGH)


def test_events_may_say_what_the_format_cannot(find: Find) -> None:
    """Without ``eos``, but with the channel's end before it, an ended loop is known to be one."""
    (one,) = find([event(9, "channel_end", "film"), *empty(10, 200, 0.03, eos=True)], blind="eos")
    assert (one.storm, one.confidence) == (StormClass.ENDED_LOOP, Confidence.HIGH)


def test_without_connections_a_crowd_is_not_accused(find: Find) -> None:
    """Fifty readers behind one key without a name get each segment once, and are told of the end: no storm."""
    crowd = [
        line(turn + number / 100, 200, client="9c621e8a5dac51f8", conn=number, rseq=turn)
        | {"bytes_out": 10_000, "next_seq": turn + 1}
        for number in range(50)
        for turn in range(60)
    ]
    over = [line(61 + number / 100, client="9c621e8a5dac51f8", conn=number) for number in range(50)]
    assert find([*crowd, *over]) == []
    assert find([*crowd, *over], blind="conn") == []
    loops = loop(70, 200, 0.1, client="9c621e8a5dac51f8")
    assert len(find([*crowd, *over, *loops], blind="conn")) == 1


def test_incidents_that_begin_at_the_same_moment_have_ids_of_their_own(find: Find) -> None:
    """Two players loop on two channels of one server, from the same microsecond on."""
    lines = [*loop(10, 200, 0.05), *loop(10, 200, 0.05, client="c2", channel="news", conn=2)]
    found = find(lines)
    assert len(found) == 2
    assert found[0].id != found[1].id


def test_the_peak_is_that_of_all_clients_together(find: Find) -> None:
    """Two clients at 20/s make a peak of 40/s."""
    lines = [*loop(10, 100, 0.05), *loop(10, 100, 0.05, client="c2", conn=2)]
    (one,) = find([*lines, event(9, "channel_end", "film")])
    assert (one.n, one.peak_rps, set(one.clients)) == (200, 40.0, {"c1", "c2"})


def test_a_loop_on_any_web_server_is_found(find: Find) -> None:
    """Where no route matches: by client, path and status. Who asks for one page after the other repeats nothing."""
    web = {"op": None, "channel": None, "conn": None}
    token = [line(1 + turn * 0.5, 401, path="/api/token", **web) for turn in range(900)]
    users = [line(1 + turn * 0.1, 500, path="/users/37/photo", client="c2", **web) for turn in range(200)]
    scan = [
        line(1 + turn * 0.1, 404, path=f"/{chr(97 + turn % 26)}{chr(97 + turn // 26)}.php", client="c3", **web)
        for turn in range(300)
    ]
    browse = [line(1 + turn * 0.5, 200, path="/index.html", client="c4", **web) for turn in range(500)]
    found = find([*token, *users, *scan, *browse])
    assert sorted((one.storm, one.channels, one.n) for one in found) == [
        (StormClass.SERVER_ERROR_LOOP, ("GET /users/37/photo 500",), 200),
        (StormClass.WEB_LOOP, ("GET /api/token 401",), 900),
    ]


def test_beside_our_own_traffic_other_paths_are_left_alone(find: Find) -> None:
    """A scanner that asks for one page of another server is no incident, unless it is asked for."""
    scanner = [line(1 + turn * 0.02, 404, path="/wp-login.php", op=None, channel=None) for turn in range(200)]
    assert find([*scanner, *viewers(3, 60)]) == []
    assert len(find([*scanner, *viewers(3, 60)], params=replace(Params(), generic=1))) == 1


def test_a_channel_that_was_there_before_has_ended(find: Find) -> None:
    """Without events: slow 404s for ever are a drip after other answers, and waiting before any."""
    served = loop(1, 10, 1.0, 200, bytes_out=9, rseq=1, next_seq=2, client="c2")
    (one,) = find([*served, *loop(20, 60, 1.5)])
    assert one.storm is StormClass.NOT_FOUND_DRIP
    assert find(loop(20, 60, 1.5)) == []


@pytest.mark.parametrize("begun", ["server_ready", "worker_restart"])
def test_a_restart_does_not_explain_a_channel_that_never_was(find: Find, begun: str) -> None:
    """404s for an unknown name have no trigger; those for a channel that was there before the restart have."""
    restart = [event(30, "server_stop")] if begun == "server_ready" else []
    restart.append(event(32, begun))
    (typo,) = find([*restart, *loop(33, 100, 0.1)])
    assert typo.trigger is None
    before = loop(5, 5, 1.0, 200, bytes_out=9, rseq=1, next_seq=2, client="c2")
    (lost,) = find([*before, *restart, *loop(33, 100, 0.1)])
    assert (lost.storm, lost.trigger) == (StormClass.NOT_FOUND_LOOP, begun)


def test_a_trigger_comes_before_its_storm(find: Find) -> None:
    """What happens in the midst of a storm did not set it off."""
    (one,) = find([*loop(10, 200, 0.1, 500), event(15, "server_ready"), event(12, "config")])
    assert one.trigger is None


def test_the_first_of_a_restarts_events_is_a_herds_cue(find: Find) -> None:
    """Clients that come while the server drains have come because of that, also if they come again when it is back."""
    events = [event(9.9, "drain"), event(11, "server_stop"), event(14, "server_ready")]
    away = herd(10, 40, 2, 0.4, status=503, reason="shutdown")
    (one,) = find([*events, *away, *herd(15, 60, 4, 0.5)])
    assert (one.storm, one.trigger) == (StormClass.THUNDERING_HERD, "drain")


def test_the_peak_of_a_short_burst_is_not_that_of_the_clocks_seconds(find: Find) -> None:
    """Ten requests in a second, five on either side of a border."""
    (one,) = find(loop(10.5, 10, 0.1, 500))
    assert one.peak_rps == 10


def test_holds_of_the_guard_are_no_cost(find: Find) -> None:
    """Handler time is the server's own: a second of hold for each answer is none of it."""
    (one,) = find([*loop(10, 63, 1.0, 429, guard_ms=1000, dur_us=300), *viewers(5, 60)])
    assert one.impact.handler_us == 63 * 300


def test_slow_and_cheap_is_minor(find: Find) -> None:
    """35 requests in 20 s cost nothing that can be measured."""
    (one,) = find([*loop(10, 35, 0.55, 500), *viewers(20, 60)])
    assert (one.severity, one.impact.measurable) == (Severity.MINOR, False)


def test_a_storm_that_is_most_of_the_traffic_is_worth_a_warning(find: Find) -> None:
    """A third of all requests, at 20/s."""
    (one,) = find([*loop(10, 600, 0.05, 500), *viewers(20, 60)])
    assert one.severity is Severity.WARN
    assert one.impact.request_share == pytest.approx(600 / 1800)


def test_harm_to_others_is_critical(find: Find) -> None:
    """Viewers of another channel are refused while it goes on, and were not before."""
    refused = [
        line(71 + number / 30, 503, client=f"w{number}", channel="other", conn=500 + number) for number in range(200)
    ]
    (one,) = find([*viewers(5, 130), *loop(70, 400, 0.02, 500), *refused])
    assert one.severity is Severity.CRITICAL
    assert one.impact.others_refused == 200


def test_long_polls_are_no_harm(find: Find) -> None:
    """A wait for the next segment says nothing about the server; only waits for segments that were there do."""
    polls = [
        line(turn * 2.0, 200, client=f"w{turn % 7}", channel="other", conn=500 + turn % 7, rseq=turn)
        | {"bytes_out": 9, "next_seq": turn + 1, "wait_us": 1_900_000}
        for turn in range(60)
    ]
    (one,) = find([*polls, *loop(70, 100, 0.2, 500)])
    assert one.impact.others_slowed == 0


def test_a_clock_years_ahead_changes_nothing_else(find: Find, tmp_path: Path) -> None:
    """One line from the future neither hides nor makes an incident, whether or not it is known to be one."""
    lines = [*loop(10, 100, 0.1), *viewers(5, 60)]
    ahead = line(86_400 * 365 * 3, client="c9")
    usual = find(lines)
    assert len(usual) == 1
    assert find([*lines, ahead]) == usual
    with embedded.connect(0) as connection:
        read(connection, tmp_path / "log.jsonl", [*lines, ahead])
        assert incidents(connection, latest_us=BEGIN + 10**9) == usual


def test_an_overload_is_one_incident(find: Find) -> None:
    """Twelve clients on six channels of one node, refused and back at once: one, without its members."""
    lines = [
        one
        for number in range(12)
        for one in loop(10 + number / 20, 60, 0.25, 503, client=f"c{number}", channel=f"film{number % 6}", conn=number)
    ]
    (one,) = find([*lines, *viewers(3, 60)])
    assert (one.storm, one.n, len(one.clients), len(one.channels)) == (StormClass.OVERLOAD_AMPLIFICATION, 720, 12, 6)
    assert one.peak_rps == 48.0


def test_a_restart_of_three_nodes_is_one_incident(find: Find) -> None:
    """The same cue, a few seconds apart."""
    lines = []
    for node in range(3):
        lines += [event(10 + node * 5, "server_ready", node=f"n{node}")]
        lines += [
            line(11 + node * 5 + wave + number / 200, 404, client=f"c{node}-{number}", node=f"n{node}", conn=number)
            for number in range(40)
            for wave in (0, 1, 2, 4)
        ]
    (one,) = find(lines)
    assert (one.storm, one.nodes, one.n) == (StormClass.THUNDERING_HERD, ("n0", "n1", "n2"), 480)


def test_answers_that_follow_each_other_count_together(find: Find) -> None:
    """Too few of each, but 40 in 10 s: the client never stopped in between, and what it was told first is the root."""
    (one,) = find([*empty(10, 20, 0.25, eos=True), *loop(15, 20, 0.25)])
    assert [(phase.storm, phase.n) for phase in one.phases] == [
        (StormClass.ENDED_LOOP, 20),
        (StormClass.NOT_FOUND_LOOP, 20),
    ]
    assert one.storm is StormClass.ENDED_LOOP
    assert find([*empty(10, 10, 1.0, eos=True), *loop(20, 20, 1.0)]) == []


def test_bursts_of_one_client_are_one_incident(find: Find) -> None:
    """A loop that pauses for eight seconds goes on; after three minutes it is another one."""
    bursts = [one for turn in range(4) for one in loop(10 + turn * 9, 20, 0.05, 500)]
    (one,) = find(bursts)
    assert one.n == 80
    assert len(find([*bursts, *loop(240, 20, 0.05, 500)])) == 2


HALVES = [turn * 0.5 for turn in range(40)]
UNEVEN = Random(1)


@pytest.mark.parametrize(
    ("times", "pace", "pause_ms"),
    [
        ([turn * 0.02 for turn in range(100)], Pace.HOT_LOOP, 20),
        (HALVES, Pace.FIXED, 500),
        (list(accumulate(min(0.2 * 1.4**turn, 4) for turn in range(14))), Pace.BACKING_OFF, 2100),
        (list(accumulate([0.2, 0.9, 1.7, 0.4, 1.2] * 8)), Pace.IRREGULAR, 900),
        # Several in a second, of which the mean is known: it varies less than they do.
        (list(accumulate(UNEVEN.uniform(0.1, 0.5) for _ in range(100))), Pace.IRREGULAR, 300),
        (list(accumulate([0.2, 0.24, 0.22, 0.18, 0.26] * 12)), Pace.FIXED, 220),
        ([float(round(at)) for at in HALVES], None, None),
        (HALVES[:5], None, None),
    ],
    ids=[
        "hot loop",
        "fixed",
        "backing off",
        "irregular",
        "quick and irregular",
        "quick and fixed",
        "whole seconds",
        "too few",
    ],
)
def test_how_a_client_paces_itself(find: Find, times: list[float], pace: Pace | None, pause_ms: float | None) -> None:
    """Pauses below 0.1 s are a hot loop; what grows backs off; what the log cannot tell is not told."""
    (one,) = find([line(at + (0 if pace is None else 0.001), 500) for at in times], params=Params(slow_hits=4))
    assert one.pace is pace
    assert one.pause_ms == (None if pause_ms is None else pytest.approx(pause_ms, rel=0.2))


def test_what_the_guard_held_is_not_the_clients_pause(find: Find) -> None:
    """A client that asks again at once, and is held for 2 s each time, is a hot loop."""
    (one,) = find([line(10.001 + turn * 2, 500, guard_ms=1950, dur_us=200) for turn in range(40)])
    assert one.pace is Pace.HOT_LOOP


def test_a_client_that_changes_its_name_is_found_by_its_network(find: Find) -> None:
    """200 requests in 40 s, each under another name and from another port."""
    names = [line(10 + turn / 5, 401, client=f"s-{turn}", ip="192.0.2.7", conn=turn) for turn in range(200)]
    (one,) = find([*names, *viewers(3, 60)])
    assert (one.storm, one.named, one.clients, one.n) == (StormClass.REJECTED_LOOP, False, ("192.0.2.0/24",), 200)


def test_viewers_of_one_network_are_no_client_that_changes_its_name(find: Find) -> None:
    """300 viewers of one company learn within ten seconds that the channel is gone; others come a few times each."""
    crowd = [line(10 + turn / 30, client=f"v-{turn}", ip="192.0.2.7", conn=turn) for turn in range(300)]
    more = [line(60 + turn + turn % 7, client=f"w-{turn % 25}", ip="192.0.2.8", conn=turn % 25) for turn in range(100)]
    assert find([*crowd, *more]) == []


def herd(at: float, clients: int, waves: int, every: float, **fields: Any) -> list[Line]:
    """Clients that come to one channel at the same moment, and again."""
    return [
        line(at + wave * every + number / 300, client=f"h{number}", conn=1000 + number, **fields)
        for number in range(clients)
        for wave in range(waves)
    ]


def test_a_herd_after_a_silence_of_its_server(find: Find) -> None:
    """A log without events: a busy server says nothing for four seconds, and then all come at once, and again."""
    waves = herd(64.1, 40, 4, 0.9)
    busy = [one for one in viewers(3, 120) if not BEGIN + 60_000_000 <= one["ts_us"] < BEGIN + 64_000_000]
    (one,) = find([*busy, *waves])
    assert (one.storm, one.n, len(one.clients)) == (StormClass.THUNDERING_HERD, 160, 40)
    assert find([*viewers(3, 120), *waves]) == []


def test_clients_that_insist_are_a_herd_where_the_log_has_no_events(find: Find) -> None:
    """Forty clients ask eight times each, twice a second, whatever their cue; a log that tells cues has none."""
    waves = herd(64.1, 40, 8, 0.5)
    (one,) = find(waves)
    assert (one.storm, one.n) == (StormClass.THUNDERING_HERD, 320)
    assert find([event(1, "server_ready"), *waves]) == []


def test_clients_that_a_restart_sends_away_and_that_find_nothing_are_no_herd(find: Find) -> None:
    """One 503 by the server that goes, and one 404 by the one that comes."""
    away = herd(10, 60, 1, 1.0, status=503, reason="shutdown", retry_after_ms=2000)
    events = [event(9.9, "drain"), event(10.5, "server_stop"), event(12, "server_ready")]
    assert find([*away, *events, *herd(13, 60, 1, 1.0)]) == []
    assert len(find([*away, *events, *herd(13, 60, 4, 0.5)])) == 1


def test_a_herd_does_not_take_in_loops_on_other_channels(find: Find) -> None:
    """A client that loops on a channel of its own has a fault of its own, also while others come after a restart."""
    alone = loop(11, 100, 0.3, client="c9", channel="typo", conn=9)
    found = find([event(9, "server_ready"), *herd(10, 40, 5, 0.5), *alone])
    assert [one.storm for one in found] == [StormClass.THUNDERING_HERD, StormClass.NOT_FOUND_LOOP]
    assert (found[1].n, found[1].clients) == (100, ("c9",))


def test_two_failures_elsewhere_make_no_herd_of_a_channels_end(find: Find) -> None:
    """A herd without a cue spans channels: 200 viewers of one and one of each of two others do not."""
    others = [line(10.1 + turn, client="c9", channel=f"typo{turn % 2}", conn=9) for turn in range(2)]
    assert find([event(9, "channel_end", "film"), *herd(10, 200, 2, 1.0), *others]) == []


def test_a_server_that_goes_away_is_not_overloaded(find: Find) -> None:
    """Clients that come again while it drains are a herd."""
    events = [event(9.9, "drain"), event(15, "server_stop")]
    (one,) = find([*events, *herd(10, 40, 12, 0.35, status=503, reason="shutdown", retry_after_ms=3000)])
    assert one.storm is StormClass.THUNDERING_HERD


def test_an_empty_segment_is_asked_for_over_new_connections(find: Find) -> None:
    """A client that opens a connection for each request; a crowd behind one address has waited for the segment."""
    key = "9c621e8a5dac51f8"
    again = [one | {"conn": turn} for turn, one in enumerate(empty(10, 100, 0.04, client=key, wait_us=200))]
    (one,) = find(again)
    assert (one.storm, one.n) == (StormClass.ZERO_BYTE_LOOP, 100)
    assert find([one | {"wait_us": 900_000} for one in again]) == []


def test_loops_that_begin_with_a_herd_belong_to_it(find: Find) -> None:
    """Most give up after some seconds, and three go on for a minute: one incident."""
    goes_on = [one for number in range(3) for one in loop(16, 120, 0.5, client=f"h{number}", conn=1000 + number)]
    (one,) = find([event(9, "server_ready"), *herd(10, 40, 12, 0.5), *goes_on])
    assert (one.storm, one.n) == (StormClass.THUNDERING_HERD, 840)


def test_a_slow_loop_beside_an_overload_is_minor(find: Find) -> None:
    """What others are refused is not laid to a client that asks once in two seconds."""
    served = loop(1, 10, 1.0, 200, bytes_out=9, rseq=1, next_seq=2, client="c2")
    refused = [
        line(71 + number / 30, 503, client=f"w{number}", channel="other", conn=500 + number) for number in range(200)
    ]
    (one,) = find([*served, *loop(20, 60, 2.0), *viewers(5, 140), *refused])
    assert (one.storm, one.severity) == (StormClass.NOT_FOUND_DRIP, Severity.MINOR)


def test_a_short_burst_for_one_segment_is_found(find: Find) -> None:
    """Sixteen times in 1.5 s, and once more in the same minute."""
    again = loop(10, 16, 0.09, 200, bytes_out=9000, rseq=7, next_seq=9)
    (one,) = find([*again, line(19, 200, bytes_out=9000, rseq=7, next_seq=9)])
    assert (one.storm, one.n) == (StormClass.SAME_SEGMENT_LOOP, 17)


def test_the_side_follows_the_head(find: Find) -> None:
    """An empty segment that is asked for again is the server's fault, unless its head has moved on."""
    (stuck,) = find([one | {"next_seq": 7} for one in empty(10, 100, 0.03)])
    (moved,) = find(empty(10, 100, 0.03))
    (unsure,) = find(empty(10, 100, 0.03), blind="eos")
    assert (stuck.side, stuck.passed) == (Side.SERVER, False)
    assert (moved.side, moved.passed) == (Side.CLIENT, True)
    assert unsure.side is Side.EITHER


def test_two_faults_are_two_incidents(find: Find) -> None:
    """Clients that have nothing in common are told apart, on one node and at one time."""
    found = find([*loop(10, 100, 0.1), *loop(10, 100, 0.1, 500, client="c2", channel="news", conn=2)])
    assert sorted(one.storm for one in found) == [StormClass.NOT_FOUND_LOOP, StormClass.SERVER_ERROR_LOOP]


def test_an_id_stays_the_same_while_the_storm_goes_on(find: Find) -> None:
    """The live watch and the report name one storm alike."""
    (young,) = find(loop(10, 40, 0.1, 500))
    (old,) = find(loop(10, 400, 0.1, 500))
    assert young.id == old.id


def test_thresholds_are_parameters(find: Find) -> None:
    """All of a threshold's uses follow it."""
    lines = loop(10, 20, 1.0, 500)
    assert find(lines) == []
    assert len(find(lines, params=replace(Params(), slow_hits=20))) == 1


def test_a_log_without_durations_says_nothing_of_handler_time(find: Find) -> None:
    """One client in fifty is not the whole of its server's handler time because nothing is known of it."""
    loops = [one | {"dur_us": None} for one in loop(1, 400, 0.15)]
    busy = [one | {"dur_us": None} for one in viewers(300, 60)]
    (one,) = find([{name: value for name, value in each.items() if value is not None} for each in [*loops, *busy]])
    assert (one.impact.handler_share, one.impact.handler_us, one.severity) == (None, None, Severity.MINOR)


def test_every_class_has_words() -> None:
    """No storm is told without a cause and an advice."""
    assert set(WORDS) == set(StormClass)


def test_each_step_can_be_pasted_and_explained(tmp_path: Path) -> None:
    """Steps are plain files: after the prelude each runs by itself, and shows its rows of one incident."""
    with embedded.connect(0) as shell:
        read(shell, tmp_path / "log.jsonl", loop(10, 100, 0.1))
        embedded.roll_up(shell)
        embedded.reduce(shell)
        shell.execute(engine.prelude(Params()))
        for step in engine.STEPS:
            shell.execute(engine.step_sql(step))
            tables = {row[0] for row in shell.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
            assert set(engine.CONTRACTS[step]) <= tables
        number = shell.execute("SELECT incident FROM incidents").fetchall()[0][0]
        told = {table: rows for table, _, rows in engine.explain(shell, number)}
    assert len(told["candidate"]) == 10
    assert all(told[table] for table in ("buckets", "stretches", "classed", "episodes", "incidents"))


def test_a_herd_is_explained_by_its_seconds(tmp_path: Path) -> None:
    """Which seconds were crowded, and the first rows in the order of time where there are too many."""
    crowd = [line(30 + wave * 3 + n / 500, 404, client=f"c{n}", conn=n) for wave in range(3) for n in range(120)]
    with embedded.connect(0) as connection:
        read(connection, tmp_path / "log.jsonl", [event(29, "server_ready"), *crowd])
        (herd,) = incidents(connection)
        told = {table: (names, rows) for table, names, rows in engine.explain(connection, herd.number)}
    assert herd.storm is StormClass.THUNDERING_HERD
    assert [row[2] for row in told["fleet_seconds"][1]] == [BEGIN + second * 1_000_000 for second in (30, 33, 36)]
    assert len(told["fleet_spans"][1]) == len(told["fleets"][1]) == 1
    names, rows = told["candidate"]
    assert len(rows) == engine.MOST < 360
    assert [row[names.index("first_us")] for row in rows] == [one["ts_us"] for one in crowd[: engine.MOST]]
