"""How far a log can be trusted, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogGap:
    """A stretch in which a node that was busy before and after wrote nothing.

    Attributes:
        node: which; from_us, to_us: its last line before and its first line after.
    """

    node: str | None
    from_us: int
    to_us: int


@dataclass(frozen=True, slots=True)
class ClockStep:
    """A node's clock that disagrees with its own earlier lines, or with the calendar.

    Attributes:
        node: whose; at_us: about when; skew_s: by how much, seconds; positive if it is ahead.
    """

    node: str | None
    at_us: int
    skew_s: float


@dataclass(frozen=True, slots=True)
class Quality:
    """How far the log can be trusted.

    Attributes:
        lines: lines that are not blank, events included.
        unparsable: those that are no record.
        events: lifecycle events; without any, no storm has a trigger.
        dropped: events that report records lost by the server.
        anonymous: requests without a client; they cannot be told apart, and are in no episode of one client.
        missing_columns: expected fields that no line has.
        damaged_files: compressed files that end early.
        duplicates: lines that were there more than once, and were counted once; duplicate_files: files that were
            left out because another one has the same content.
        gaps: stretches without lines; clock_steps: clocks that disagree.
        coarse: the log's times are whole seconds (nginx's combined format): rhythms cannot be judged.
        notes: anything else that the reader should know, one sentence each.
    """

    lines: int
    unparsable: int
    events: int
    dropped: int
    anonymous: int
    missing_columns: tuple[str, ...] = ()
    damaged_files: tuple[str, ...] = ()
    duplicates: int = 0
    duplicate_files: tuple[str, ...] = ()
    gaps: tuple[LogGap, ...] = ()
    clock_steps: tuple[ClockStep, ...] = ()
    coarse: bool = False
    notes: tuple[str, ...] = ()

    @property
    def unparsable_share(self) -> float:
        """Unparsable lines per line, 0 to 1."""
        return self.unparsable / self.lines if self.lines else 0.0
