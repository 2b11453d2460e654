"""Reasons that stop a report. Each carries the command's exit code, so that scripts can tell the reasons apart."""

from __future__ import annotations

from typing import ClassVar

from tricklecast.trickle.errors import TrickleError


class AnalyticsError(TrickleError):
    """No report could be made, or not one to be trusted.

    Attributes:
        exit_code: what ``tricklecast storms`` exits with.
    """

    exit_code: ClassVar[int] = 1


class BadInput(AnalyticsError):
    """There are no logs, they cannot be read, or too many of their lines cannot be parsed."""

    exit_code = 3


class SparkUnavailable(AnalyticsError):
    """Spark or Java is missing, too old, or did not start; the message says what to install."""

    exit_code = 4


class BadMaster(SparkUnavailable):
    """``--master`` is of no form that names a master, or of one that the command cannot use."""

    exit_code = 2


class SparkFailed(AnalyticsError):
    """Spark started and then failed at the job."""

    exit_code = 4


class CannotWrite(AnalyticsError):
    """A result could not be written: its folder went away, a disk is full."""

    exit_code = 2


class Busy(AnalyticsError):
    """Another run is changing the same state."""

    exit_code = 2
