"""What holds for every test."""

from __future__ import annotations

import gc
import signal

from hypothesis import HealthCheck, settings

from tests.support.one_spark import pytest_xdist_make_scheduler

__all__ = ["pytest_xdist_make_scheduler"]

# The same examples on every machine, however slow it is: a red run is a change of the code.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# A shell ignores SIGINT for what it starts in the background, and nohup ignores SIGHUP; the tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Tests that look for leaks collect garbage, and need not look through all tests that were found each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At its end the interpreter takes everything apart again, since libraries name what they find left."""
    gc.unfreeze()
