"""What holds for every test."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache

import httpx
import httpx._config
import httpx._transports.default
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from tests.support.compiled import needs_interpreter
from tests.support.one_spark import pytest_collection_modifyitems, pytest_xdist_make_scheduler
from tests.support.waiting import WITHIN_S

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

# The same examples on every machine, however slow it is: a red run is a change of the code.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# A client of httpx reads the certificates of all authorities, which takes 20 ms: one reading is enough for all clients.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)  # type: ignore[attr-defined]

# It gives up after 5 s without an answer, which a busy machine may take.
for part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, WITHIN_S)

# A shell ignores SIGINT for what it starts in the background, and nohup ignores SIGHUP; the tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that is found while tests are collected is garbage: to look for it takes a third of the time.

    Hypothesis makes a generator of numbers, and warns if the garbage collector does not see what refers to it. Behind
    the collection it would not, since Python 3.14: the freezing below hides the dictionary that will.
    """
    if sys.version_info >= (3, 14):
        given(none())(lambda nothing: None)()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where the hot path is compiled (`scripts/compile`), some tests cannot do to it what they do."""
    if item.get_closest_marker("interpreted"):
        needs_interpreter()


def pytest_runtest_teardown() -> None:
    """The encoder SVT-AV1 gives the thread that opens it the highest priority of real time, where it may (as root).

    What this process starts would inherit that, and leave no processor to others.
    """
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def pytest_collection_finish() -> None:
    """Tests that look for leaks collect garbage, and need not look through all tests that were found each time.

    The interpreter itself looks for garbage as often as in a server, and not at every 700 objects.

    Only at its end the interpreter takes everything apart again, since libraries name what they find left: not when a
    server ends that a test has run in this process.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    atexit.register(gc.unfreeze)
    gc.unfreeze = _keep_frozen


def _keep_frozen() -> None:
    """Instead of ``gc.unfreeze``: each collection behind it would look through all tests, and take half a second."""
