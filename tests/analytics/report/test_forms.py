"""Terminal, page, JSON and Prometheus: they say the same, and nothing in a log can harm their readers."""

from __future__ import annotations

import html
import io
import json
import random
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.cells import cell_len
from rich.console import Console

from tests.analytics.report.sample import report_on
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.report import model, text, words
from tricklecast.analytics.report.html import MAX_CARDS, MAX_ROWS, as_html
from tricklecast.analytics.report.json import as_dict, as_json
from tricklecast.analytics.report.model import Rate, Report, Words
from tricklecast.analytics.report.prometheus import PREFIX, as_prometheus
from tricklecast.analytics.rules.incidents import Severity
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import Set

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7*7 }}{% raw %}",
    "\x1b[31mred\x1b]8;;http://evil\x07",
    "\u202egnp.exe\u2066\ufeff",
    "a\r\nb\tc\x00d",
    "[bold]markup[/bold]",
    "' onload='x",
    "x" * 5_000,
    "\N{COMBINING ACUTE ACCENT}" * 50,
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """On a simulated fleet with a few dozen storms."""
    folder = tmp_path_factory.mktemp("log")
    simulate_logs(folder / "log", 5, Set.STANDARD, sizes(lines=20_000))
    return report_on(sorted((folder / "log").rglob("*.jsonl")))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Loops by clients and on channels with names that want to be more than names."""
    log = LogWriter("n1<b>", random.Random(1))
    for place, name in enumerate(HOSTILE):
        for step in range(60):
            log.not_found(place * 100 + step * 0.1, name, name, 1, ua=name, release=name)
    return report_on([write_lines(tmp_path_factory.mktemp("hostile") / "log.jsonl", log.lines())])


def printed(report: Report, width: int = text.WIDTH) -> str:
    out = io.StringIO()
    text.print_report(report, Console(file=out, width=width, markup=False, emoji=False, highlight=False))
    return out.getvalue()


def squeezed(shown: str) -> str:
    """Without white space, which each form breaks in its own places."""
    return re.sub(r"\s+", "", shown)


def visible(page: str) -> str:
    """The text of a page."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", body))


def test_all_forms_say_the_same(report: Report) -> None:
    """Verdict, figures, every sentence on every incident, caveats: in terminal, page and JSON alike."""
    rates = (Rate("Failures", "hour", 2.0, 1.0, 2.0, "Failures: 1 before and 2 here"),)
    report = replace(report, baseline=rates, verdict=replace(report.verdict, warning="Do not trust this report."))
    sentences = [report.verdict.headline, report.verdict.examined, "Do not trust this report.", rates[0].words]
    sentences += [part for tile in report.tiles for part in (tile.name, tile.value, tile.note)]
    for entry in report.incidents[: text.MAX_INCIDENTS]:
        sentences += [getattr(entry.words, field.name) for field in fields(Words) if field.name != "who"]
        sentences += [f"INCIDENT {entry.number}", entry.id, entry.severity]
    for entry in report.incidents[text.MAX_INCIDENTS : text.MAX_INCIDENTS + text.MAX_SHORT]:
        sentences += [entry.words.happened, entry.id]
    sentences += report.quality.caveats
    assert len(report.incidents) > 10
    document = json.loads(as_json(report))
    told = json.dumps(document, ensure_ascii=False)
    forms = {"terminal": squeezed(printed(report)), "page": squeezed(visible(as_html(report)))}
    for name, form in forms.items():
        assert [one for one in sentences if squeezed(one) not in form] == [], name
    assert [one for one in sentences if one not in told and not one.startswith("INCIDENT")] == []
    assert [one["number"] for one in document["incidents"]] == list(range(1, len(report.incidents) + 1))


def test_incidents_come_first(report: Report) -> None:
    """In the terminal then the timeline, figures, clients, and the log; the page shows timeline and figures above."""
    for form, parts in (
        (printed(report), ["INCIDENT 1", "Timeline", "Amplification", "Who sent", "The log"]),
        (visible(as_html(report)), [report.verdict.headline, "Amplification", "INCIDENT 1 ", "Who sent", "Made by"]),
    ):
        places = [form.index(part) for part in parts]
        assert places == sorted(places)


def test_a_page_is_small(report: Report) -> None:
    """A dozen incidents have all that is known of them, the others a line each; ten thousand are quick to open."""
    one = report.incidents[-1]
    many = replace(report, incidents=tuple(replace(one, number=number) for number in range(1, 10_001)))
    sizes = [len(as_html(each).encode()) for each in (replace(report, incidents=report.incidents[:1]), report, many)]
    assert sizes[0] < 40_000
    assert sizes[1] < 150_000
    assert sizes[2] < 2_500_000
    page = as_html(many)
    assert page.count('<details class="incident') == MAX_CARDS
    assert page.count('<tr id="incident-') == MAX_ROWS - MAX_CARDS


def test_the_worst_incident_has_a_heat_map(report: Report) -> None:
    """By client and time, in steps that fit the page."""
    (one,) = [each for each in report.incidents if each.heat]
    assert one.heat is not None
    assert one.number <= 5
    assert set(one.heat.clients) <= set(one.clients) or one.n_clients > len(one.clients)
    assert 2 <= len(one.heat.clients) <= 20
    assert all(len(counts) <= 61 for counts in one.heat.counts)
    totals = [sum(counts) for counts in one.heat.counts]
    assert sum(totals) > 0
    assert "Requests by client and time" in visible(as_html(report))


def test_the_verdict_counts_incidents(report: Report) -> None:
    """By severity, the worst first; and the exit code follows from them."""
    count = {severity: sum(one.severity is severity for one in report.incidents) for severity in Severity}
    parts = [f"{count[severity]} {severity}" for severity in model.SEVERITIES if count[severity]]
    assert report.verdict.headline.startswith(f"{len(report.incidents)} incidents: {', '.join(parts)}")
    assert report.verdict.severity is report.incidents[0].severity
    assert report.fails(Severity.MINOR)


def test_the_muted_stand_last_and_count_for_nothing(report: Report) -> None:
    """They are told in a section of their own; verdict, exit code and gauges are about the others."""
    lift, history = words.lift("node", "n1", 0.9, 0.1), words.history("again", 1_760_000_000_000_000, 2)
    entries = [replace(one, muted="until 2026-01-01", lifts=(lift,), history=history) for one in report.incidents]
    entries[-1] = replace(entries[-1], muted=None)
    told = words.verdict(entries, report.figures, report.quality)
    some = replace(report, incidents=tuple(entries), verdict=told)
    assert told.headline.startswith(f"1 incident: {entries[-1].severity}")
    assert told.headline.endswith(f"; {len(entries) - 1} muted.")
    assert some.fails(Severity.MINOR)
    assert not replace(some, incidents=tuple(entries[:-1])).fails(Severity.MINOR)
    for form in (squeezed(printed(some)), squeezed(visible(as_html(some)))):
        assert form.index(entries[-1].id) < form.index(entries[0].id)
        assert all(squeezed(one) in form for one in ("until 2026-01-01", lift.words, history.words))
    assert f"{PREFIX}muted_incidents {len(entries) - 1}.0" in as_prometheus(some)


def test_figures_fit_together(report: Report) -> None:
    """What is wasted is part of what is in incidents, and this of all; curves and offenders add up."""
    figures = report.figures
    assert 0 < figures.wasted_requests <= figures.in_incidents <= figures.requests
    assert figures.in_incidents == pytest.approx(sum(one.n for one in report.incidents), abs=len(report.incidents))
    assert figures.amplification == pytest.approx(figures.requests / (figures.requests - figures.wasted_requests))
    assert report.timeline is not None
    assert sum(report.timeline.requests) == figures.requests
    assert sum(report.timeline.failures) == figures.failures
    for one in report.incidents:
        # Steps of fractions are rounded.
        assert sum(one.curve.counts) == pytest.approx(one.n, abs=len(one.curve.counts) + 1)
        assert len(one.curve.counts) <= 121
    for kind in ("client", "release"):
        shares = [one.share for one in figures.offenders if one.kind == kind]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 1.0001


@pytest.mark.parametrize("width", [text.WIDTH, 100])
def test_the_terminal_s_width_is_kept(report: Report, hostile: Report, width: int) -> None:
    """80 columns are enough; no line is longer, or ends in blanks."""
    for one in (report, hostile):
        lines = printed(one, width).splitlines()
        assert max(map(cell_len, lines)) <= width
        assert [line for line in lines if line != line.rstrip()] == []


def test_colours_are_for_terminals_only(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets plain text, one line for each sentence and bars of 80 columns; ``COLUMNS`` says otherwise."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    out = io.StringIO()
    text.print_report(report, text.console(out))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert "\x1b" not in out.getvalue()
    for entry in report.incidents[: text.MAX_INCIDENTS]:
        assert {f"{entry.words.happened}.", f"Cause: {entry.words.cause}.", f"Fix: {entry.words.fix}."} <= set(lines)
    assert max(len(line) for line in lines if line.startswith("requests  ")) <= text.WIDTH
    monkeypatch.setenv("COLUMNS", "70")
    assert text.console(io.StringIO()).width == 70


def test_a_crowd_has_a_heat_map_though_each_client_sent_few(tmp_path: Path) -> None:
    """Of its busiest clients; none of them is a storm by itself."""
    log = LogWriter("n1", random.Random(1))
    for turn in range(6):
        for client in range(60):
            again = turn == 5 and client == 7
            for n in range(2 if again else 1):
                log.exchange(
                    100 + turn + n * 0.1, f"c{client:02}", f"film-{client % 5}", status=503, reason="limit:readers"
                )
    (one,) = report_on([write_lines(tmp_path / "log.jsonl", log.lines())]).incidents
    assert one.heat is not None
    assert (one.n_clients, len(one.heat.clients), one.heat.clients[0]) == (60, 20, "c07")
    assert one.heat.counts[0] == (1, 1, 1, 1, 1, 2)


def test_hostile_names_are_spelled_out_in_the_terminal(hostile: Report) -> None:
    """No escape sequence, no change of direction, nothing invisible, no markup reaches the terminal."""
    shown = printed(hostile)
    assert [char for char in shown if not char.isprintable() and char != "\n"] == []
    assert "\\x1b[31mred" in shown
    assert len(hostile.incidents) >= len(HOSTILE) - 1


def test_hostile_names_stay_text_in_the_page(hostile: Report) -> None:
    """The page has no element, attribute or script that is not its own, and loads nothing."""
    page = as_html(hostile)
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7*7 }}" in page
    assert [char for char in page if not char.isprintable() and char != "\n"] == []
    attributes = {name for tag in re.findall(r"<[a-zA-Z][^>]*>", page) for name in re.findall(r"\s([\w:-]+)=", tag)}
    assert [name for name in attributes if name.startswith("on") or name in ("src", "style", "action")] == []
    assert [link for link in re.findall(r'href="([^"]*)"', page) if not link.startswith("#")] == []
    assert "default-src 'none'" in html.unescape(page)


def test_the_page_is_dark_where_the_reader_wants_it(report: Report) -> None:
    """By a style of its own, that the policy names, as it names the script."""
    page = as_html(report)
    assert "prefers-color-scheme: dark" in page
    assert re.search("style-src 'sha256-[^']*'; script-src 'sha256-[^']*';", html.unescape(page))


@pytest.mark.parametrize("which", ["report", "hostile"])
def test_json_fits_its_schema(which: str, request: pytest.FixtureRequest) -> None:
    """The schema is generated from the classes, and forbids what they do not have."""
    one: Report = request.getfixturevalue(which)
    document: dict[str, Any] = json.loads(as_json(one))
    assert document == json.loads(json.dumps(as_dict(one)))
    jsonschema.Draft202012Validator(model.schema()).validate(document)
    assert as_json(one).isascii()


def test_prometheus_has_every_class(report: Report) -> None:
    """Classes and severities are there with zero, too; no name of the log is a label."""
    families = {one.name: one for one in text_string_to_metric_families(as_prometheus(report))}
    incidents = families[f"{PREFIX}incidents"].samples
    assert sum(one.value for one in incidents) == len(report.incidents)
    assert {frozenset(one.labels) for one in incidents} == {frozenset({"class", "severity"})}
    assert families[f"{PREFIX}requests"].samples[0].value == report.figures.requests


def test_an_empty_log(tmp_path: Path) -> None:
    """No incident, no traffic, and every form can say so."""
    empty = tmp_path / "log.jsonl"
    empty.write_text("")
    report = report_on([empty])
    assert report.verdict.headline == "No requests to judge."
    assert "No requests to judge." in printed(report)
    assert "No requests to judge." in as_html(report)
    assert json.loads(as_json(report))["timeline"] is None
    assert f"{PREFIX}amplification_ratio 1.0" in as_prometheus(report)
