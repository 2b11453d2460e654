"""One run of ``tricklecast storms watch``, from a checked request to its end."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import SparkFailed
from tricklecast.analytics.spark import failures_as_one_line, one_line, spark_session
from tricklecast.analytics.watch_old.courier import Courier
from tricklecast.analytics.watch_old.judge import Found, Judge
from tricklecast.analytics.watch_old.ledger import Ledger
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.reading import read_health
from tricklecast.analytics.watch_old.receivers import Alertmanager, Lines, Receiver, Webhook, for_people, for_programs
from tricklecast.analytics.watch_old.request import WatchRequest
from tricklecast.analytics.watch_old.state import carried_over, only_spark, state_folder
from tricklecast.analytics.watch_old.status import Status
from tricklecast.trickle import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S: Final = 0.25
"""How often it is looked whether a storm is over, and how the source is doing. Seconds."""

HEALTH: Final = "source.json"
"""Where the source says how it is doing, in the state's folder."""

CHECKPOINT: Final = "spark"
"""Spark's own part of the state, in the same folder."""

FAREWELL_S: Final = 3.0
"""How long receivers are waited for at the end. Seconds."""


def run(request: WatchRequest) -> Found:
    """Watches until it is interrupted.

    Returns:
        what was found.

    Raises:
        BadInput: the state is not to be used. SparkUnavailable, SparkFailed: as they say.
    """
    limits = WatchLimits()
    with ExitStack() as held:
        folder = held.enter_context(state_folder(request.state))
        ledger = Ledger(folder, request.source, limits)
        status = Status(sys.stderr, quiet=request.quiet)
        stop = held.enter_context(_interruptible())
        status.say("starting Spark")
        # Batches are small: Java's optimising compiler takes twice the time of all of them before it saves any.
        spark = held.enter_context(
            spark_session(request.master, small=True, verbose=request.verbose, conf=request.conf)
        )
        local = Lines("json" if request.json else "terminal", sys.stdout, for_programs if request.json else for_people)
        couriers = [Courier(receiver, ledger) for receiver in _remote(request)]
        judge = Judge(ledger, request.params, limits, local, couriers)
        held.enter_context(failures_as_one_line())
        held.enter_context(only_spark(spark, folder))
        query = start_query(spark, request, folder, judge, limits)
        held.callback(query.stop)
        for courier in couriers:
            courier.start()
        try:
            _watch(request, query, judge, status, folder, stop)
        finally:
            for courier in couriers:
                courier.close(FAREWELL_S)
            status.end(judge.found, ledger)
        return judge.found


def start_query(
    spark: SparkSession, request: WatchRequest, folder: Path, judge: Judge, limits: WatchLimits
) -> StreamingQuery:
    """Starts the stream of a request.

    Args:
        folder: its state; judge: gets what each batch changed.
    """
    from tricklecast.analytics.watch_old.query import start, state_schema  # brings pyspark along
    from tricklecast.analytics.watch_old.stream import read_stream

    (folder / HEALTH).unlink(missing_ok=True)  # what the source of an earlier run said
    # A session of its own has settings of its own.
    own = spark.newSession()
    since = carried_over(folder / CHECKPOINT, f"tricklecast {__version__}, Spark {spark.version}, {state_schema(own)}")
    blocks = read_stream(own, request.source, folder / HEALTH, earliest=request.earliest, since=since)
    query = start(own, blocks, judge.batch, folder / CHECKPOINT, limits)
    # Until there is its number, no batch has been judged: the first is one without lines.
    judge.follow(str(query.id))
    return query


def _watch(
    request: WatchRequest,
    query: StreamingQuery,
    judge: Judge,
    status: Status,
    folder: Path,
    stop: threading.Event,
) -> None:
    ends = float("inf") if request.for_s is None else time.monotonic() + request.for_s
    while not stop.wait(min(LOOK_S, max(0.0, ends - time.monotonic()))) and time.monotonic() < ends:
        if not query.isActive:
            judge.check()
            raise SparkFailed(f"Spark failed: {one_line(str(query.exception()))} (-v shows all of it)")
        health = read_health(folder / HEALTH)
        if health is not None and health.lag_bytes == 0 and not query.status["isDataAvailable"]:
            judge.idle()
        status.show(health, judge)
    judge.check()


def _remote(request: WatchRequest) -> list[Receiver]:
    webhooks: list[Receiver] = [Webhook(url) for url in request.webhooks]
    return [*webhooks, *(Alertmanager(url) for url in request.alertmanagers)]


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C and SIGTERM."""
    stop = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()

    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
