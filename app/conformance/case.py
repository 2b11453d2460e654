"""A case: one rule of the protocol, and a function that looks whether a server keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tricklecast.app.conformance.profiles import ANY, PROFILES
from tricklecast.app.conformance.target import Target

Check = Callable[[Target], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One rule.

    Attributes:
        name: ``group/rule-in-short``.
        section: where the rule stands in docs/reference/protocol.md.
        rule: the rule in one line.
        check: raises :class:`~app.conformance.verdicts.Failure` if the server breaks it.
        profiles: the configurations in which it can be seen; the first is the best.
        alone: it fills a limit of the server, so nothing else may run beside it.
    """

    name: str
    section: str
    rule: str
    check: Check
    profiles: tuple[str, ...] = ANY
    alone: bool = False

    def unfit(self, profile: str) -> str | None:
        """Why the case cannot run against a server of that profile; ``None`` if it can."""
        if profile in self.profiles:
            return None
        best = PROFILES[self.profiles[0]]
        return f"needs a server started with {' '.join(best.flags)} (--profile {best.name})"


@dataclass(slots=True)
class Group:
    """Cases about one thing; the decorator :meth:`case` fills it.

    A case's name is made of the function's, and its rule is the function's docstring, so that neither can be
    forgotten or drift from what is checked.

    Attributes:
        name: first part of the cases' names.
        section: the protocol's section, with its title.
    """

    name: str
    section: str
    cases: list[Case] = field(default_factory=list)

    def case(self, *, profiles: tuple[str, ...] = ANY, alone: bool = False) -> Callable[[Check], Check]:
        """Add the decorated function as a case."""

        def add(check: Check) -> Check:
            rule = (check.__doc__ or "").strip()
            if not rule or "\n" in rule:
                raise ValueError(f"{check.__name__} needs its rule as a docstring of one line")
            self.add(check.__name__.replace("_", "-"), rule, check, profiles=profiles, alone=alone)
            return check

        return add

    def add(self, name: str, rule: str, check: Check, *, profiles: tuple[str, ...] = ANY, alone: bool = False) -> None:
        """Add a case with a name and rule of its own: for rules that are rows of one table."""
        self.cases.append(Case(f"{self.name}/{name}", self.section, rule, check, profiles, alone))
