"""Runs cases, many at a time because many only wait, and keeps what they found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tricklecast.app.conformance.case import Case
from tricklecast.app.conformance.profiles import PROFILES, Settings
from tricklecast.app.conformance.target import Address, Target
from tricklecast.app.conformance.verdicts import Failure, Skip


class Outcome(StrEnum):
    """How a case ended."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Result:
    """What one case found.

    Attributes:
        case: which.
        outcome: passed, failed or skipped.
        duration_s: how long it took, in seconds.
        reason: why it was skipped.
        expected, got: for a failure: what the rule asks for, and what came.
        transcript: for a failure: what went over the connections, shortened.
    """

    case: Case
    outcome: Outcome
    duration_s: float = 0.0
    reason: str = ""
    expected: str = ""
    got: str = ""
    transcript: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        del found["case"]
        return {"name": self.case.name, "section": self.case.section, "rule": self.case.rule, **found}


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs cases against one server.

    Attributes:
        address: where the server is.
        profile: name of the configuration that it was started with.
        settings: the settings that deadlines depend on; by default those of the profile.
    """

    address: Address
    profile: str = "default"
    settings: Settings | None = None

    def run(self, cases: Sequence[Case], jobs: int = 16) -> Iterator[Result]:
        """Run cases and give their results in the same order, each as soon as those before it are there.

        Args:
            cases: what to run; those that must be alone come after the others have ended.
            jobs: how many at a time.
        """
        together = [case for case in cases if not case.alone]
        with ThreadPoolExecutor(jobs, thread_name_prefix="conformance") as pool:
            try:
                yield from pool.map(self.run_case, together)
            finally:
                # A caller that stops early must not wait for what has not begun.
                pool.shutdown(wait=True, cancel_futures=True)
        for case in cases:
            if case.alone:
                yield self.run_case(case)

    def run_case(self, case: Case) -> Result:
        """Run one case."""
        if reason := case.unfit(self.profile):
            return Result(case, Outcome.SKIP, reason=reason)
        target = Target(self.address, self.settings or PROFILES[self.profile].settings)
        start = time.monotonic()
        try:
            case.check(target)
        except Skip as skip:
            return Result(case, Outcome.SKIP, time.monotonic() - start, reason=str(skip))
        except Failure as failure:
            return self._failed(case, target, start, failure.expected, failure.got)
        except (OSError, ValueError) as error:
            return self._failed(case, target, start, "an answer that makes sense", f"{type(error).__name__}: {error}")
        finally:
            target.cleanup()
        return Result(case, Outcome.PASS, time.monotonic() - start)

    @staticmethod
    def _failed(case: Case, target: Target, start: float, expected: str, got: str) -> Result:
        transcript = target.transcript.lines
        return Result(case, Outcome.FAIL, time.monotonic() - start, expected=expected, got=got, transcript=transcript)
