"""The episodes: a table with two lines for each, its figures and its cause; the second unfolds to the evidence."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from analytics.report.evidence import (
    OUTCOMES,
    RETRY_AFTER,
    blast_of,
    cost_of,
    evidence,
    rhythm_of,
    span_of,
)
from analytics.report.formats import date_and_time, duration
from analytics.report.html.charts import sparkline
from analytics.report.html.markup import Child, Markup, element, joined, name, phrase, time
from analytics.report.html.tables import Column, heading
from analytics.report.verdict import steps

if TYPE_CHECKING:
    from analytics.report.model import Episode, Report

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
SCARCE: Final = Room(names=10, points=90)
MAX_AMPLE: Final = 150
"""The worst episodes have ample room, the others what is left."""
MAX_INPUTS: Final = 3


def episodes_section(report: Report) -> Markup:
    """All listed episodes, ready to be sorted and filtered by the script, readable without it."""
    shown = len(report.episodes)
    more = f" The worst {shown:,} of {report.n_episodes:,} are listed." if report.n_episodes > shown else ""
    intro = "The worst first. The second line of each is its likely cause; it unfolds to the evidence and the advice."
    command = explain_command(report.inputs)
    bodies = [_body(rank, episode, report, command) for rank, episode in enumerate(report.episodes, 1)]
    head = element("thead", element("tr", [heading(column) for column in COLUMNS]))
    table = element("table", element("caption", "Episodes"), head, bodies, id="episode-table")
    return joined(element("p", intro + more), _controls(), table)


def explain_command(inputs: Sequence[str]) -> str:
    """The command that shows an episode's very lines, without its id; ``LOG...`` where the inputs cannot be typed."""
    typed = 0 < len(inputs) <= MAX_INPUTS and all(_typable(each) for each in inputs)
    return f"tricklecast storms {shlex.join(inputs) if typed else 'LOG...'} --explain "


def _typable(text: str) -> bool:
    return text.isprintable() and text.isascii() and len(text) <= 200 and not text.startswith("-")


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
    room = AMPLE if rank <= MAX_AMPLE else SCARCE
    severity = episode.severity.value
    cells = (
        element("a", rank, href=f"#e-{episode.id}", title=f"Link to episode {episode.id}"),
        element("span", f"{SIGNS[severity]} {severity}", class_=f"sev {severity}"),
        element("code", episode.storm.value),
        _several(episode.channels, episode.n_channels, 28),
        _several(episode.clients, episode.n_clients, 24),
        name(episode.node, 24),
        name(episode.release, 24),
        time(episode.start_us),
        duration(episode.duration_s),
        f"{episode.n:,}",
        f"{episode.peak_rps:,.0f}" if episode.peak_rps >= 10 else f"{episode.peak_rps:.1f}",
    )
    values = {0: rank, 7: episode.start_us, 8: episode.duration_s, 9: episode.n, 10: episode.peak_rps}
    row = [
        element("td", cell, class_="n" if column.kind == "number" else None, data_v=values.get(at))
        for at, (column, cell) in enumerate(zip(COLUMNS, cells, strict=True))
    ]
    unfolded = element("td", _details(episode, report, command, room), colspan=len(COLUMNS))
    return element("tbody", element("tr", row), element("tr", unfolded), id=f"e-{episode.id}")


def _several(names: Sequence[str], count: int, limit: int) -> Markup:
    if not names:
        return name(None)
    more = element("span", f" +{count - 1:,}", class_="more") if count > 1 else None
    return joined(name(names[0], limit), more)


def _details(episode: Episode, report: Report, command: str, room: Room) -> Markup:
    chart = sparkline(episode, report.params, room.points)
    figure = None if chart is None else element("figure", element("figcaption", _chart_title(episode)), chart)
    advice = element("ul", [element("li", step) for step in steps(episode.why.advice)])
    facts = [(title, fact) for title, fact in _facts(episode, room) if fact]
    return element(
        "details",
        element("summary", episode.why.cause),
        figure,
        element("h4", "Evidence"),
        element("ul", [element("li", phrase(words)) for words in evidence(episode, report.params)]),
        element("h4", "What to do"),
        advice,
        element("dl", [(element("dt", title), element("dd", fact)) for title, fact in facts]),
        element("p", element("code", command + episode.id, class_="copy")),
    )


def _chart_title(episode: Episode) -> str:
    return f"Requests per second, {date_and_time(episode.start_us)[:10]}, UTC"


def _facts(episode: Episode, room: Room) -> list[tuple[str, Child]]:
    return [
        ("When", (f"{span_of(episode)}, {duration(episode.duration_s)}")),
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
    listed = f"; report.json has {len(names):,}" if len(names) > len(shown) else ""
    return (separated, f" and {rest:,} more{listed}" if rest > 0 else None)
