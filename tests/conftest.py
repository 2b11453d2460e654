"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support.two_sparks import pytest_xdist_make_scheduler

__all__ = ["pytest_xdist_make_scheduler"]

# The same examples on every machine, however slow it is: a red run is a change of the code.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
