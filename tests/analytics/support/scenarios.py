"""Storms with known truth, and their look-alikes that must stay silent. Each has a node of its own, named after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tests.analytics.support.writer import LogWriter
from tricklecast.analytics.scan.rollup import BITS
from tricklecast.trickle.records import Event, Op, Reason


@dataclass(frozen=True, slots=True)
class Truth:
    """What a report must say about a scenario.

    Attributes:
        storm: the class; n: its requests; clients: how many.
        trigger: the event it followed.
    """

    storm: str
    n: int
    clients: int = 1
    trigger: str | None = None


Scenario = Callable[[LogWriter], list[Truth]]
STORMS: dict[str, Scenario] = {}
TRAPS: dict[str, Scenario] = {}


def storm(scenario: Callable[[LogWriter], list[Truth]]) -> Scenario:
    """Registers a storm."""
    STORMS[scenario.__name__] = scenario
    return scenario


def trap(scenario: Callable[[LogWriter], None]) -> Callable[[LogWriter], None]:
    """Registers a look-alike."""

    def silent(log: LogWriter) -> list[Truth]:
        scenario(log)
        return []

    TRAPS[scenario.__name__] = silent
    return scenario


@cache
def write_all(seed: int) -> tuple[list[str], dict[str, list[Truth]]]:
    """One log with every scenario, and what is true of each node in it; nobody changes it."""
    lines: list[str] = []
    truths: dict[str, list[Truth]] = {}
    for name, scenario in (STORMS | TRAPS).items():
        log = LogWriter(name, random.Random(f"{seed} {name}"))
        truths[name] = scenario(log)
        for record in log.records:
            # The same client on two nodes would be one client, and its failures there one storm.
            record.client = record.client and f"{name}/{record.client}"
        lines += log.lines()
    random.Random(seed).shuffle(lines)
    return lines, truths


def ticks(log: LogWriter, start: float, count: int, gap: float) -> list[float]:
    """Times with a little noise around a fixed gap."""
    return [start + turn * gap + log.rng.uniform(0, gap / 4) for turn in range(count)]


# --- storms -----------------------------------------------------------------------------------------------------------


@storm
def zero_byte_loop(log: LogWriter) -> list[Truth]:
    """The fault of the past: the same empty segment until the channel is deleted."""
    for at in ticks(log, 10, 300, 0.01):
        log.empty(at, "loop", "film", 7, next_seq=7)
    log.event(13.4, Event.CHANNEL_END, "film")
    return [Truth("zero_byte_loop", 300, trigger="channel_end")]


@storm
def empty_segment_again(log: LogWriter) -> list[Truth]:
    """A naive client at a correct server: asks for an empty segment again, and on after the channel's end."""
    for at in ticks(log, 10, 40, 0.01):
        log.empty(at, "naive", "film", 1, next_seq=2)
    log.event(10.41, Event.CHANNEL_END, "film")
    for at in ticks(log, 10.42, 260, 0.01):
        log.ended(at, "naive", "film", 1, next_seq=2)
    return [Truth("zero_byte_loop", 40, trigger="channel_end"), Truth("ended_loop", 260, trigger="channel_end")]


@storm
def empty_segment_of_a_new_life(log: LogWriter) -> list[Truth]:
    """The same in a channel that has begun again a moment ago: the end of its former life has nothing to do with it."""
    log.event(2.0, Event.CHANNEL_END, "film")
    log.event(8.0, Event.CHANNEL_CREATE, "film")
    for at in ticks(log, 10, 40, 0.02):
        log.empty(at, "naive", "film", 0, next_seq=1)
    return [Truth("zero_byte_loop", 40, trigger="channel_create")]


@storm
def same_segment_loop(log: LogWriter) -> list[Truth]:
    """A head that went backwards: the same bytes, hundreds of times."""
    for seq in range(20):
        log.served(1.0 * seq, "loop", "film", seq)
    for at in ticks(log, 62, 400, 0.02):
        log.served(at, "loop", "film", 19)
    return [Truth("same_segment_loop", 400)]


@storm
def same_segment_loop_on_new_connections(log: LogWriter) -> list[Truth]:
    """The same, by a client that opens a connection for every request."""
    for number, at in enumerate(ticks(log, 0, 200, 0.1)):
        log.served(at, "loop", "film", 19, conn=5000 + number)
    return [Truth("same_segment_loop", 200)]


@storm
def zero_byte_loop_behind_a_proxy(log: LogWriter) -> list[Truth]:
    """Three seconds of it, over connections that a proxy also uses for others."""
    for at in ticks(log, 10, 60, 0.05):
        log.empty(at, "loop", "film", 7, next_seq=7, conn=log.rng.randrange(60))
    return [Truth("zero_byte_loop", 60)]


@storm
def same_segment_loop_behind_a_proxy(log: LogWriter) -> list[Truth]:
    """The same bytes again and again, right after all was well: as many times as a crowd would have asked for all."""
    for seq in range(15):
        log.served(1.0 * seq, "loop", "film", seq, conn=log.rng.randrange(60), wait_us=900_000)
    for at in ticks(log, 15, 240, 0.02):
        log.served(at, "loop", "film", 14, conn=log.rng.randrange(60))
    return [Truth("same_segment_loop", 241)]


@storm
def ended_then_not_found(log: LogWriter) -> list[Truth]:
    """A naive client around a channel's end: closed answers while it drains, 404 when it is over."""
    for seq in range(10):
        log.served(1.0 * seq, "naive", "film", seq)
    log.event(10.0, Event.CHANNEL_END, "film")
    for at in ticks(log, 10.01, 180, 0.05):
        log.ended(at, "naive", "film", 10)
    for at in ticks(log, 20.0, 60, 0.05):
        log.not_found(at, "naive", "film", 10, eos=True)
    return [
        Truth("ended_loop", 180, trigger="channel_end"),
        Truth("not_found_loop", 60, trigger="channel_end"),
    ]


@storm
def not_found_loop(log: LogWriter) -> list[Truth]:
    """Five times a second, for a channel that never was."""
    for at in ticks(log, 3, 100, 0.2):
        log.not_found(at, "loop", "nothing")
    return [Truth("not_found_loop", 100)]


@storm
def not_found_loop_by_many(log: LogWriter) -> list[Truth]:
    """Ten clients of one channel that do not believe its end: one episode."""
    log.event(2.0, Event.CHANNEL_END, "film")
    for client in range(10):
        for at in ticks(log, 2.05 + client * 0.01, 60, 0.1):
            log.not_found(at, f"loop-{client}", "film", 10)
    return [Truth("not_found_loop", 600, clients=10, trigger="channel_end")]


@storm
def not_found_loop_on_new_connections(log: LogWriter) -> list[Truth]:
    """A new connection per request is no crowd if it goes on."""
    for number, at in enumerate(ticks(log, 3, 100, 0.1)):
        log.not_found(at, "loop", "nothing", conn=9000 + number)
    return [Truth("not_found_loop", 100)]


@storm
def not_found_drip(log: LogWriter) -> list[Truth]:
    """Once a second, without end, after the channel has ended."""
    log.event(5.0, Event.CHANNEL_END, "film")
    for at in ticks(log, 6, 45, 1.0):
        log.not_found(at, "drip", "film", 10)
    return [Truth("not_found_drip", 45, trigger="channel_end")]


@storm
def seq_behind_loop(log: LogWriter) -> list[Truth]:
    """The publisher is far ahead; the client repeats its seq."""
    for turn, at in enumerate(ticks(log, 3, 120, 0.05)):
        log.missing(at, "loop", "film", 4, head=300 + turn // 20)
    return [Truth("seq_behind_loop", 120)]


@storm
def seq_ahead_sweep(log: LogWriter) -> list[Truth]:
    """Counts errors as segments while the publisher stands still."""
    for turn, at in enumerate(ticks(log, 3, 120, 0.05)):
        log.missing(at, "sweep", "film", 12 + turn, head=10)
    return [Truth("seq_ahead_sweep", 120)]


@storm
def seq_ahead_of_a_new_life(log: LogWriter) -> list[Truth]:
    """Goes on from the position of a former epoch."""
    log.event(2.5, Event.CHANNEL_CREATE, "film")
    for at in ticks(log, 3, 80, 0.05):
        log.missing(at, "lost", "film", 500, head=0)
    return [Truth("seq_ahead_sweep", 80, trigger="channel_create")]


@storm
def repost_loop(log: LogWriter) -> list[Truth]:
    """The same segment published 60 times, between segments that are right."""
    for seq in range(10):
        log.posted(1.0 * seq, "studio", "film", seq)
    for at in ticks(log, 10.1, 60, 0.1):
        log.posted(at, "studio", "film", 10, 409, reason=Reason.CONFLICT)
    return [Truth("repost_loop", 60)]


@storm
def overload_client(log: LogWriter) -> list[Truth]:
    """Refused 20 times a second, told to wait a second."""
    for at in ticks(log, 3, 100, 0.05):
        log.refused(at, "rude", "film", 429)
    return [Truth("overload_client", 100)]


@storm
def overload_amplification(log: LogWriter) -> list[Truth]:
    """Forty clients, each refused four times a second: none is a storm of its own at once, together they are."""
    log.event(2.0, Event.SERVER_READY)
    count = 0
    for client in range(40):
        for at in ticks(log, 3 + log.rng.uniform(0, 0.2), 24, 0.25):
            log.refused(at, f"rude-{client}", f"film-{client % 4}")
            count += 1
    return [Truth("overload_amplification", count, clients=40, trigger="server_ready")]


@storm
def thundering_herd(log: LogWriter) -> list[Truth]:
    """Fifty clients reconnect after a restart, and again together after 1, 2 and 4 seconds."""
    for second in range(60):
        log.not_found(-60 + second, f"stray-{second % 7}", "stray")
    log.event(0.0, Event.SERVER_START)
    for wave in (1.0, 2.0, 4.0, 8.0):
        for client in range(50):
            log.not_found(wave + log.rng.uniform(0, 0.3), f"player-{client}", f"film-{client % 5}")
    return [Truth("thundering_herd", 200, clients=50, trigger="server_start")]


@storm
def small_herd_across_seconds(log: LogWriter) -> list[Truth]:
    """Eighteen clients, whose waves all lie across the borders of seconds."""
    log.event(0.0, Event.SERVER_START)
    for wave in (1.85, 2.85, 4.85):
        for client in range(18):
            log.not_found(wave + client * 0.0166, f"player-{client}", f"film-{client % 3}")
    return [Truth("thundering_herd", 54, clients=18, trigger="server_start")]


@storm
def herd_at_a_channels_end(log: LogWriter) -> list[Truth]:
    """Sixty viewers ask seven times each after their channel's end: none of them is a storm of its own."""
    log.event(5.0, Event.CHANNEL_END, "film")
    for client in range(60):
        for at in ticks(log, 5.1 + log.rng.uniform(0, 0.3), 7, 0.4):
            log.not_found(at, f"viewer-{client}", "film", 10)
    return [Truth("thundering_herd", 420, clients=60, trigger="channel_end")]


@storm
def server_error_loop(log: LogWriter) -> list[Truth]:
    """A request that breaks the server, ten times a second."""
    for at in ticks(log, 3, 50, 0.1):
        log.exchange(at, "loop", "film", status=500, seq=3, reason=Reason.ERROR)
    return [Truth("server_error_loop", 50)]


@storm
def rejected_loop(log: LogWriter) -> list[Truth]:
    """A reader whose token has expired asks on, ten times a second."""
    for at in ticks(log, 3, 50, 0.1):
        log.exchange(at, "loop", "film", status=401, seq=3, reason=Reason.EXPIRED)
    return [Truth("rejected_loop", 50)]


@storm
def rejected_publisher(log: LogWriter) -> list[Truth]:
    """A publisher that may not publish does not believe it: it is not the segments that repeat."""
    for at in ticks(log, 3, 50, 0.1):
        log.exchange(at, "loop", "film", op=Op.PUBLISH, method="POST", status=403, seq=3, reason=Reason.FORBIDDEN)
    return [Truth("rejected_loop", 50)]


@storm
def abandoned_loop(log: LogWriter) -> list[Truth]:
    """The publisher has stalled, and a reader gives up after a tenth of a second, each time with its connection."""
    for number, at in enumerate(ticks(log, 3, 50, 0.1)):
        log.abandoned(at, "loop", "film", 7, 0.075, conn=7000 + number)
    return [Truth("abandoned_loop", 50)]


@storm
def abandoned_each_second(log: LogWriter) -> list[Truth]:
    """Gives up after a second, in a channel's new life, while others share its key: those wait."""
    log.event(1.0, Event.CHANNEL_CREATE, "film")
    for turn in range(40):
        log.abandoned(2 + turn * 1.02, "shared", "film", 0, 1.0, seq=-1)
    for reader in range(30):
        for turn in range(4):
            log.abandoned(2 + turn * 10 + reader / 3, "shared", "film", 0, 10.0, conn=2000 + reader)
    return [Truth("abandoned_loop", 40, trigger="channel_create")]


@storm
def abandoned_loop_of_unknown_waits(log: LogWriter) -> list[Truth]:
    """Ten times a second at first, in a log that says neither after how long nor for which segment."""
    for at in (*ticks(log, 3, 30, 0.1), *ticks(log, 6, 20, 1.0)):
        log.abandoned(at, "loop", "film", None, None)
    return [Truth("abandoned_loop", 50)]


# --- look-alikes ------------------------------------------------------------------------------------------------------


@trap
def one_closed_answer_per_subscriber(log: LogWriter) -> None:
    """Two hundred subscribers learn of the channel's end at once."""
    log.event(5.0, Event.CHANNEL_END, "film")
    for client in range(200):
        log.ended(5.0 + log.rng.uniform(0, 0.2), f"viewer-{client}", "film", 10)


@trap
def polling_for_the_next(log: LogWriter) -> None:
    """A reader on -1: a new segment every time, twenty per second."""
    for seq in range(400):
        log.served(seq * 0.05, "reader", "fast", seq, seq=-1)


@trap
def waits_renewed(log: LogWriter) -> None:
    """A wait given up and renewed every 20 s, for half an hour; by 300 readers behind one key."""
    for turn in range(90):
        log.abandoned(turn * 20.0, "patient", "quiet", 5, 20.0)
    for turn in range(300):
        log.exchange(turn * 0.05, "patient", "quiet", status=200, seq=5, rseq=5, reason=Reason.CLIENT_GONE)


@trap
def long_polls(log: LogWriter) -> None:
    """Waits of three, ten and thirty seconds, renewed at once, on two connections each; and one of unknown length."""
    for seconds, turns in ((3, 200), (10, 100), (30, 50)):
        for turn in range(turns):
            for seq in (5, 6):
                log.abandoned(turn * (seconds + 0.01), f"patient-{seconds}", "quiet", seq, seconds, conn=seq)
    for turn in range(200):
        log.abandoned(turn * 3.0, "unknown", "quiet", 5, None)


@trap
def gives_up_and_backs_off(log: LogWriter) -> None:
    """A short time limit, and longer and longer pauses, for half an hour."""
    at = 0.0
    for turn in range(90):
        log.abandoned(at, "polite", "quiet", 5, 0.5)
        at += 0.5 + min(20, 0.1 * 2.0**turn)


@trap
def looks_into_many_channels(log: LogWriter) -> None:
    """A viewer leaves each channel with two GETs that wait: that of a segment, and that of the next."""
    for turn in range(60):
        for seq in (5, 6):
            log.abandoned(turn * 0.3, "zapper", f"film-{turn % 20}", seq, 0.25, conn=seq)


@trap
def all_leave_at_once(log: LogWriter) -> None:
    """Fifty viewers that share one client key wait when their line goes down; a relay that crashes leaves as many."""
    for viewer in range(50):
        log.abandoned(5 + log.rng.uniform(0, 0.9), "nat", "film", 30, 0.8, conn=viewer)
        log.abandoned(5 + log.rng.uniform(0, 0.9), "relay", f"film-{viewer}", 30, 0.8, conn=100 + viewer)


@trap
def preconnects_given_up(log: LogWriter) -> None:
    """A publisher breaks its preconnect off, and opens it again, ten times a second."""
    for at in ticks(log, 0, 100, 0.1):
        log.abandoned(at, "studio", "film", 8, 0.09, op=Op.PUBLISH, method="POST")


@trap
def one_not_found_each_at_the_end(log: LogWriter) -> None:
    """Two hundred subscribers ask once more, and learn that the channel is gone."""
    log.event(5.0, Event.CHANNEL_END, "film")
    for client in range(200):
        log.not_found(15 + log.rng.uniform(0, 0.5), f"viewer-{client}", "film", 10)


@trap
def a_few_tries_at_the_end(log: LogWriter) -> None:
    """Sixty viewers ask four times each, half a second apart, whether the channel is really gone."""
    log.event(5.0, Event.CHANNEL_END, "film")
    for client in range(60):
        for at in ticks(log, 5.1 + log.rng.uniform(0, 0.3), 4, 0.5):
            log.not_found(at, f"viewer-{client}", "film", 10)


@trap
def waiting_for_the_next_life(log: LogWriter) -> None:
    """Forty viewers ask once a second until their channel is there again."""
    log.event(5.0, Event.CHANNEL_END, "film")
    for client in range(40):
        for at in ticks(log, 5.1 + log.rng.uniform(0, 0.3), 8, 1.0):
            log.not_found(at, f"viewer-{client}", "film", 10)
        log.served(13.5, f"viewer-{client}", "film", 0)
    log.event(13.2, Event.CHANNEL_CREATE, "film")


@trap
def five_retries(log: LogWriter) -> None:
    """A client that tries five times, half a second apart, and gives up."""
    for client in range(5):
        for turn in range(5):
            log.missing(client * 3 + turn * 0.5, f"five-{client}", "film", 11, head=9)


@trap
def startup_polls(log: LogWriter) -> None:
    """A viewer waits a minute for a channel to begin, asking once a second."""
    for at in ticks(log, 0, 60, 1.0):
        log.not_found(at, "early", "soon")
    log.event(60.5, Event.CHANNEL_CREATE, "soon")
    log.served(61.0, "early", "soon", 0)


@trap
def one_missing_then_a_jump(log: LogWriter) -> None:
    """Readers that fell out of the window, and do what 470 says."""
    for client in range(50):
        log.missing(1 + client * 0.01, f"slow-{client}", "film", 4, head=300)
        log.served(1.2 + client * 0.01, f"slow-{client}", "film", 299)


@trap
def polite_backoff(log: LogWriter) -> None:
    """Thirty clients, refused, that wait 1, 2, 4, ... seconds with jitter."""
    for client in range(30):
        at = log.rng.uniform(0, 3)
        for turn in range(6):
            log.refused(at, f"polite-{client}", f"film-{client % 3}", attempt=turn + 1)
            at += 1.0 + log.rng.uniform(0, 2.0**turn)


@trap
def honours_retry_after(log: LogWriter) -> None:
    """Refused for ten minutes, and back no sooner than told."""
    for at in ticks(log, 0, 200, 3.0):
        log.refused(at, "patient", "film", 429, retry_after_ms=2500)


@trap
def monitor_of_the_current_segment(log: LogWriter) -> None:
    """A probe asks for the current segment (-2) every second, for twenty minutes: each is there for two of them."""
    for second in range(1200):
        log.served(second + log.rng.uniform(0, 0.1), "probe", "film", second // 2, seq=-2)


@trap
def player_that_seeks(log: LogWriter) -> None:
    """A viewer who goes back some seconds every now and then, and gets those segments again."""
    at, seq = 0.0, 100
    for _ in range(40):
        for turn in range(8):
            log.served(at, "viewer", "film", seq)
            at += 0.06 if turn < 3 else 1.0
            seq += 1
        seq -= 6


@trap
def flash_crowd(log: LogWriter) -> None:
    """A thousand viewers within a second, all of them served."""
    for client in range(1000):
        log.served(5 + log.rng.uniform(0, 1), f"viewer-{client}", "film", 40)


@trap
def many_behind_one_nat(log: LogWriter) -> None:
    """Fifty viewers of one address with clients' names of their own."""
    for seq in range(30):
        for client in range(50):
            log.served(seq + log.rng.uniform(0, 0.3), f"viewer-{client}", "film", seq, ip="198.51.100.1")


@trap
def nat_without_names(log: LogWriter) -> None:
    """Fifty viewers that share one client key: each has a connection of its own, at the end too."""
    for viewer in range(50):
        for seq in range(30):
            log.served(seq + log.rng.uniform(0, 0.3), "nat", "film", seq, conn=viewer)
        log.ended(30.1 + log.rng.uniform(0, 0.2), "nat", "film", 30, conn=viewer)
        log.not_found(41 + log.rng.uniform(0, 0.5), "nat", "film", 30, conn=viewer)
    log.event(30.0, Event.CHANNEL_END, "film")


@trap
def connections_that_share_a_bit(log: LogWriter) -> None:
    """Two readers without names, whose connections look like one: both wait for each segment."""
    for seq in range(100):
        for conn in (1, 1 + BITS):
            log.served(seq + log.rng.uniform(0, 0.1), "nat", "film", seq, conn=conn, wait_us=800_000)


@trap
def one_token_behind_a_proxy(log: LogWriter) -> None:
    """Forty viewers with the name of their application, over a proxy's connections; now and then a segment is empty."""
    conns = iter(range(10_000))
    for seq in range(60):
        # Each waiting request holds a connection; some of them are opened anew.
        pool = [next(conns) if log.rng.random() < 0.1 else viewer for viewer in range(20_000, 20_040)]
        for conn in pool:
            at = seq + log.rng.uniform(0, 0.4)
            if seq % 10 == 9:
                log.empty(at, "app", "film", seq, conn=conn, wait_us=700_000)
            else:
                log.served(at, "app", "film", seq, conn=conn, wait_us=700_000)


@trap
def empty_segments_roll(log: LogWriter) -> None:
    """An idle publisher closes empty segments, and its reader gets each of them once."""
    for seq in range(200):
        log.empty(seq * 0.1, "reader", "idle", seq)


@trap
def two_connections_per_reader(log: LogWriter) -> None:
    """A subscriber that preconnects uses two connections in turn, and a publisher too."""
    for seq in range(300):
        log.served(seq * 0.2, "reader", "film", seq, conn=seq % 2)
        log.posted(seq * 0.2, "studio", "film", seq, conn=10 + seq % 2)


@trap
def fast_publisher_sends_again(log: LogWriter) -> None:
    """Five segments a second; one in fifty is sent again, where one bucket of ten seconds ends and the next begins."""
    for seq in range(300):
        log.posted(seq * 0.2, "studio", "film", seq)
        if seq % 50 == 49:
            log.posted(seq * 0.2 + 0.3, "studio", "film", seq, attempt=2)


@trap
def restart_with_jitter(log: LogWriter) -> None:
    """Sixty clients come back after a restart, refused once each, spread by Retry-After."""
    log.event(0.0, Event.SERVER_START)
    for client in range(60):
        log.refused(1.0 + log.rng.uniform(0, 0.5), f"player-{client}", f"film-{client % 6}")
        log.served(2.0 + log.rng.uniform(0, 4), f"player-{client}", f"film-{client % 6}", 0)


@trap
def probing_the_control_plane(log: LogWriter) -> None:
    """A scanner collects 404s outside the channels."""
    for at in ticks(log, 0, 100, 0.02):
        log.not_found(at, "scanner", "", op=Op.API)
