"""Before and after: rate ratios with confidence intervals that know that storms come in clusters. Pure arithmetic.

A count of repeats is no Poisson variable: one storm is a thousand of them. The usual interval for a ratio of rates,
``exp(log ratio ± 1.96 sqrt(1/a + 1/b))``, would call every difference significant. Each side is therefore cut into
blocks of time, which count as independent, and the variance of its rate is taken between them: the ratio estimator of
cluster sampling (W. G. Cochran, *Sampling Techniques*, 3rd ed., ch. 6), on the logarithm. The method of batch means
wants ten to thirty such blocks (B. Schmeiser, Operations Research 30, 1982), the fewer the more alike their insides.
Quantiles are Student's, with the degrees of freedom of Welch and Satterthwaite. A storm longer than a block makes
neighbours alike and the interval too narrow; one block with everything in it makes it as wide as it should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tricklecast.analytics.report_old.figures import Comparison, RateRatio

MAX_BLOCKS: Final = 30
"""Blocks per side; see above."""

MIN_BLOCKS: Final = 5
"""With fewer, the variance between them says too little: there is no interval. Unequal blocks count as fewer,
``(sum n)^2 / sum n^2`` (L. Kish, *Survey Sampling*, 1965): where one has nearly all of it, it is as good as alone."""

_Z: Final = 1.959964
"""97.5 % of a normal distribution are below it."""

_NONE_SEEN: Final = 3.688879
"""With so many expected, nothing at all is seen in 2.5 % of cases (Poisson): ``-ln 0.025``."""


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of time of one side.

    Attributes:
        requests: in it. counts: what happened in it, by name; a storm on a border is divided.
    """

    requests: int
    counts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared.

    Attributes:
        name: what it is called. blocks: of equal length, in order; those without requests say nothing.
    """

    name: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class _Rate:
    count: float
    requests: int
    variance: float | None
    """Of the rate's logarithm."""
    degrees: float

    @property
    def rate(self) -> float:
        return self.count / self.requests

    @property
    def spread(self) -> float:
        """How many times the variance of a Poisson variable this one has."""
        return max(1.0, (self.variance or 0.0) * self.count)


def compare(by: str, before: Side, after: Side, names: Iterable[str]) -> Comparison:
    """All figures of two sides, the surest increase first.

    Args:
        by: ``release``, ``date`` or ``logs``.
        names: what to compare, of the blocks' counts.
    """
    ratios = [rate_ratio(name, before.blocks, after.blocks) for name in names]
    return Comparison(by, before.name, after.name, tuple(sorted(ratios, key=_order)))


def rate_ratio(name: str, before: Sequence[Block], after: Sequence[Block]) -> RateRatio:
    """One figure of two sides."""
    old, new = _rate(name, before), _rate(name, after)
    ratio, lo, hi = _interval(old, new)
    return RateRatio(name, round(old.count), old.requests, round(new.count), new.requests, ratio, lo, hi)


def _rate(name: str, blocks: Sequence[Block]) -> _Rate:
    used = [(block.counts.get(name, 0.0), block.requests) for block in blocks if block.requests > 0]
    count, requests = math.fsum(count for count, _ in used), sum(requests for _, requests in used)
    alike = requests**2 / sum(requests**2 for _, requests in used) if used else 0.0
    if count <= 0 or alike < MIN_BLOCKS:
        return _Rate(max(count, 0.0), requests, None, 1)
    mean, k = count / requests, len(used)
    between = k / (k - 1) * math.fsum((count - mean * requests) ** 2 for count, requests in used) / count**2
    # By chance, blocks can be more alike than independent events ever are.
    return _Rate(count, requests, max(between, 1 / count), alike - 1)


def _interval(old: _Rate, new: _Rate) -> tuple[float | None, float | None, float | None]:
    """Ratio, lower and upper end of its 95 % confidence interval."""
    if not old.requests or not new.requests or old.count == new.count == 0:
        return None, None, None
    if old.count == 0:
        lowest = _lowest(new)
        return None, None if lowest is None else lowest / (_NONE_SEEN * new.spread / old.requests), None
    if new.count == 0:
        lowest = _lowest(old)
        return 0.0, 0.0, None if lowest is None else (_NONE_SEEN * old.spread / new.requests) / lowest
    ratio = new.rate / old.rate
    if old.variance is None or new.variance is None:
        return ratio, None, None
    variance = old.variance + new.variance
    degrees = variance**2 / (old.variance**2 / old.degrees + new.variance**2 / new.degrees)
    factor = math.exp(student(degrees) * math.sqrt(variance))
    return ratio, ratio / factor, ratio * factor


def _lowest(side: _Rate) -> float | None:
    """The lower end of the confidence interval of one side's rate."""
    if side.variance is None:
        return None
    return side.rate / math.exp(student(side.degrees) * math.sqrt(side.variance))


def student(degrees: float) -> float:
    """The 97.5 % quantile of Student's distribution.

    By the expansion of Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.7.5: right to three digits
    from :data:`MIN_BLOCKS` - 1 degrees of freedom on.
    """
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + math.fsum(term / degrees**power for power, term in enumerate(terms, 1))


def _order(ratio: RateRatio) -> tuple[bool, float, str]:
    """By the increase that is sure; what has no interval comes last."""
    return ratio.lo is None, -(ratio.lo or 0.0), ratio.name
