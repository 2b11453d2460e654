"""The episodes: a table with two lines for each, its figures and its cause; the second unfolds to the evidence."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report.formats import clock, duration, moment_in, peak
from tricklecast.analytics.report_old.evidence import (
    OUTCOMES,
    RETRY_AFTER,
    blast_of,
    cost_of,
    evidence,
    rhythm_of,
)
from tricklecast.analytics.report_old.html.charts import sparkline
from tricklecast.analytics.report_old.html.markup import Child, Markup, element, joined, name, phrase, time
from tricklecast.analytics.report_old.html.tables import Column, heading
from tricklecast.analytics.report_old.verdict import steps

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.model import Episode, Report

COLUMNS: Final = (
    Column("#", "number", "Rank: the worst first"),
    Column("Severity"),
    Column("Class"),
    Column("Channel"),
    Column("Client"),
    Column("Node"),
    Column("Release"),
    Column("Start (UTC)"),
    Column("Lasted", "number"),
    Column("Requests", "number"),
    Column("Peak/s", "number", "Requests in the worst second"),
)
SIGNS: Final = {"critical": "\N{BLACK UP-POINTING TRIANGLE}", "warn": "\N{BLACK DIAMOND}"}
"""A shape for each severity, so that colour is never alone."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much of an episode is shown: a page of a thousand episodes must stay quick to open.

    Attributes:
        names: of clients and of channels, each; points: of its sparkline.
    """

    names: int
    points: int


AMPLE: Final = Room(names=100, points=300)
SCARCE: Final = Room(names=5, points=40)
FEW: Final = 150
MAX_AMPLE: Final = 10
"""All have ample room if they are few; of many, the worst."""
MAX_LINE: Final = 12
"""Of more names than this the list scrolls."""
MAX_TYPED: Final = 80
"""Characters of inputs that are still written into a command."""


def episodes_section(report: Report) -> Markup:
    """All listed episodes, ready to be sorted and filtered by the script, readable without it."""
    shown = len(report.episodes)
    more = f" The worst {shown:,} of {report.n_episodes:,} are listed." if report.n_episodes > shown else ""
    intro = "The worst first. The second line of each is its likely cause; it unfolds to the evidence and the advice."
    if len(report.episodes) > FEW:
        more += f" From number {MAX_AMPLE + 1} on, lists of names are cut at {SCARCE.names}; report.json has more."
    command = explain_command(report.inputs)
    bodies = [_body(rank, episode, report, command) for rank, episode in enumerate(report.episodes, 1)]
    head = element("thead", element("tr", [heading(column) for column in COLUMNS]))
    dated = (
        "dated" if any(_started(each.start_us, report) != clock(each.start_us) for each in report.episodes) else None
    )
    table = element("table", element("caption", "Episodes"), head, bodies, id="episode-table", class_=dated)
    return joined(element("p", intro + more), _controls(), table)


def _room(rank: int, report: Report) -> Room:
    return AMPLE if rank <= MAX_AMPLE or len(report.episodes) <= FEW else SCARCE


def explain_command(inputs: Sequence[str]) -> str:
    """The command that shows an episode's very lines, without its id; ``LOG...`` where the inputs cannot be typed."""
    short = 0 < len(inputs) <= MAX_TYPED and sum(map(len, inputs)) <= MAX_TYPED
    typed = short and all(each.isprintable() and each.isascii() and not each.startswith("-") for each in inputs)
    return f"tricklecast storms {shlex.join(inputs) if typed else 'LOG...'} --explain "


def _controls() -> Markup:
    """Filters, hidden until the script shows them: without it they would do nothing."""
    kinds = ("Severity", "Class", "Node", "Release")
    search = element("input", type="search", id="filter-text", autocomplete="off", spellcheck="false")
    return element(
        "form",
        element("label", "Contains", search),
        [element("label", kind, element("select", id=f"filter-{kind.lower()}")) for kind in kinds],
        element("button", "Clear", type="reset"),
        element("button", "Unfold all", type="button", id="unfold"),
        element("output", id="shown", role="status"),
        id="filters",
        hidden=True,
    )


def _body(rank: int, episode: Episode, report: Report, command: str) -> Markup:
    severity = episode.severity.value
    cells = (
        element("a", rank, href=f"#e-{episode.id}"),
        element("span", f"{SIGNS[severity]} {severity}", class_=f"sev {severity}"),
        episode.storm.value,
        _several(episode.channels, episode.n_channels, 28),
        _several(episode.clients, episode.n_clients, 24),
        name(episode.node, 24),
        name(episode.release, 24),
        time(episode.start_us, _started(episode.start_us, report)),
        duration(episode.duration_s),
        f"{episode.n:,}",
        peak(episode.peak_rps),
    )
    # What the script sorts by, where it cannot tell from what is written.
    values = {8: round(episode.duration_s, 3)}
    row = [element("td", cell, data_v=values.get(at)) for at, cell in enumerate(cells)]
    unfolded = element("td", _details(episode, report, command, _room(rank, report)), colspan=len(COLUMNS))
    return element("tbody", element("tr", row), element("tr", unfolded), id=f"e-{episode.id}")


def _started(us: int, report: Report) -> str:
    return moment_in(us, report.totals.first_us, report.totals.last_us)


def _several(names: Sequence[str], count: int, limit: int) -> Markup:
    if not names:
        return name(None)
    more = element("span", f" +{count - 1:,}", class_="more") if count > 1 else None
    return joined(name(names[0], limit), more)


def _details(episode: Episode, report: Report, command: str, room: Room) -> Markup:
    chart = sparkline(episode, report.params, room.points)
    advice = element("ul", [element("li", step) for step in steps(episode.why.advice)])
    facts = [(title, fact) for title, fact in _facts(episode, room) if fact]
    return element(
        "details",
        element("summary", episode.why.cause),
        chart,
        element(
            "div",
            element(
                "div",
                element("h4", "Evidence"),
                element("ul", [element("li", phrase(words)) for words in evidence(episode, report.params)]),
                element("h4", "What to do"),
                advice,
            ),
            element("dl", [(element("dt", title), element("dd", fact)) for title, fact in facts]),
            class_="pair",
        ),
        element("p", element("code", command + episode.id, class_="copy"), class_="command"),
    )


def _facts(episode: Episode, room: Room) -> list[tuple[str, Child]]:
    return [
        ("Clients", _names(episode.clients, episode.n_clients, room)),
        ("Channels", _names(episode.channels, episode.n_channels, room)),
        ("Rhythm", phrase(rhythm_of(episode)) or "cannot be told"),
        ("Retry-After", _told(RETRY_AFTER, episode.retry_after)),
        ("Outcome", _told(OUTCOMES, episode.outcome)),
        ("Cost", cost_of(episode)),
        ("Blast radius", blast_of(episode)),
    ]


def _told(words: dict[str, str], value: str | None) -> str | None:
    return None if value is None else words.get(value, value)


def _names(names: Sequence[str], count: int, room: Room) -> Child:
    if not names:
        return None
    shown = names[: room.names]
    separated = [(", " if at else None, name(each, 64)) for at, each in enumerate(shown)]
    rest = count - len(shown)
    listed = (separated, f" and {rest:,} more" if rest > 0 else None)
    return element("div", listed, class_="names", tabindex=0) if len(shown) > MAX_LINE else listed
