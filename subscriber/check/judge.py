"""From what was seen to what is to be said about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tricklecast.subscriber.check.findings import Finding, Limits, Rule, Verdict, worst
from tricklecast.subscriber.check.media_rules import MEDIA_RULES
from tricklecast.subscriber.check.observations import Run
from tricklecast.subscriber.check.study import Study
from tricklecast.subscriber.check.time_rules import TIME_RULES
from tricklecast.subscriber.check.timeline_rules import TIMELINE_RULES
from tricklecast.subscriber.check.transport_rules import TRANSPORT_RULES

RULES: Final = (*TRANSPORT_RULES, *MEDIA_RULES, *TIMELINE_RULES, *TIME_RULES)
"""All rules, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be said of a channel.

    Attributes:
        run: what was seen.
        limits: what it was measured against.
        findings: one per rule.
        lengths: of segments, in seconds of media, by their number in the check.
    """

    run: Run
    limits: Limits
    findings: tuple[Finding, ...]
    lengths: dict[int, float]

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst([finding.verdict for finding in self.findings])

    def finding(self, name: str) -> Finding:
        """The finding of one rule."""
        return next(finding for finding in self.findings if finding.name == name)


def judge(run: Run, limits: Limits | None = None) -> Judgement:
    """Apply every rule.

    Args:
        run: what was seen.
        limits: what is too much.
    """
    study = Study(run)
    limits = limits or Limits()
    return Judgement(run, limits, tuple(_apply(rule, study, limits) for rule in RULES), study.lengths)


def _apply(rule: Rule, study: Study, limits: Limits) -> Finding:
    found = rule.find(study, limits)
    if found.verdict in (Verdict.WARN, Verdict.FAIL):
        means, cure = found.note or rule.means, found.cure or rule.cure
    else:
        means = cure = ""
    return Finding(rule.name, rule.title, found.verdict, found.figure, means, cure, found.values, found.segments)
