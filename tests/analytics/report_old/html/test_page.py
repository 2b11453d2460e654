"""The page as a document: complete without a script, closed to everything else, small."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest

from tests.analytics.support.sample_report import (
    HOSTILE,
    at,
    empty_report,
    hostile_report,
    large_report,
    quiet_report,
    sample_episode,
    sample_report,
)
from tricklecast.analytics.report.formats import clock
from tricklecast.analytics.report_old.html import as_html
from tricklecast.analytics.report_old.html.episodes import AMPLE, FEW, MAX_AMPLE, SCARCE, explain_command
from tricklecast.analytics.report_old.model import Report

REPORTS = {"sample": sample_report, "quiet": quiet_report, "empty": empty_report, "hostile": hostile_report}

_GIVEN = """
html head meta title style body a header strong nav main section h1 h2 h4 p b span dl div dt dd time figure figcaption
svg g line text rect path circle ol ul li form label input select button output table caption thead tbody tr th td
details summary code bdi footer script
"""
OURS = frozenset(_GIVEN.split())
VOID = {"meta", "input", "line", "rect", "path", "circle"}


class Document(HTMLParser):
    """A page as its elements, and the text outside of style and script; complains about wrong nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, str] = {}
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element and that it is open."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element without content."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """What was opened last is closed first."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keeps text apart from style and script."""
        if self.open and self.open[-1] in ("style", "script"):
            self.raw[self.open[-1]] = self.raw.get(self.open[-1], "") + data
        else:
            self.text += data

    def attributes(self, key: str) -> list[str]:
        """All values of an attribute."""
        return [value or "" for _, attributes in self.elements for name, value in attributes.items() if name == key]


@pytest.fixture(params=REPORTS, scope="module")
def document(request: pytest.FixtureRequest) -> Document:
    """The page of each kind of report."""
    return Document(as_html(REPORTS[request.param]()))


def test_only_our_elements(document: Document) -> None:
    """Whatever the names in the log, the page consists of the elements that we make; one script, one style."""
    tags = [tag for tag, _ in document.elements]
    assert set(tags) <= OURS
    assert tags.count("script") == tags.count("style") == 1


def test_nothing_runs_and_nothing_is_fetched(document: Document) -> None:
    """No handlers, no inline styles, no addresses: links lead to places in the page, which exist, each once."""
    names = {name for _, attributes in document.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("style", "src", "action", "srcset")]
    ids = document.attributes("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in document.attributes("href")} <= set(ids)
    assert not re.search(
        r"url\(|@import|https?:|fetch\(|innerHTML|eval\(", document.raw["style"] + document.raw["script"]
    )


def test_policy(document: Document) -> None:
    """The content security policy stands before everything else and allows the page's own style and script alone."""
    metas = [attributes for tag, attributes in document.elements if tag == "meta"]
    assert metas[0] == {"charset": "utf-8"}
    assert metas[1]["http-equiv"] == "Content-Security-Policy"
    digests = {
        kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in document.raw.items()
    }
    rules = (metas[1]["content"] or "").split("; ")
    assert rules[:3] == [
        "default-src 'none'",
        f"style-src 'sha256-{digests['style']}'",
        f"script-src 'sha256-{digests['script']}'",
    ]
    assert "unsafe" not in (metas[1]["content"] or "")


def test_everybody_can_read_it(document: Document) -> None:
    """A language, a title, headings in order, tables with headings of rows and columns, drawings with a name."""
    elements = document.elements
    assert ("html", {"lang": "en"}) in elements
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in elements if tag == "th")
    drawings = [attributes for tag, attributes in elements if tag == "svg" and attributes.get("class") != "flag"]
    named = [attributes for attributes in drawings if attributes.get("role") == "img"]
    silent = [attributes for attributes in drawings if "aria-hidden" in attributes or "viewbox" in attributes]
    assert len(named) + len(silent) == len(drawings)


def test_all_is_said_without_the_script() -> None:
    """Verdict, figures, and each episode with evidence, advice, names and command are in the text of the page."""
    report = sample_report()
    text = Document(as_html(report)).text
    for part in (
        "8 retry storms, 4 of them critical; 1 still going on when the log ends.",
        "Do first: shed load",
        "21,650",
        "21.9 % of 3.5 GiB sent",
        "6,321 of 8,412 too many",
        "in the end 99.68 %",
        "and 2 more events",
        "299 hits in 3.0 s = 100/s",
        "always seq 7; the head stood at 7",
        "gave up: its clients were not served again",
        "ignored: the clients came back sooner than they were told",
        "88 healthy clients waited 912 ms",
        "viewer-199 and 241 more",
        "192.0.2.0/24",
        "The worst 3 of 47 are listed",
        "no clear change",
        "from 84.1",
        "the clock of relay-1 is 1.5 s behind",
        "logs/relay-1/access.jsonl",
    ):
        assert part in text
    for episode in report.episodes:
        assert f"--explain {episode.id}" in text
        assert episode.why.cause in text
        assert all(step in text for step in episode.why.advice.split("; "))
    for name in asdict(report.params):
        assert name in text


def test_a_list_that_is_cut_is_no_end_of_the_storms() -> None:
    """Where more storms were found than are listed, tile and drawing say of which ones they speak."""
    cut = Document(as_html(replace(sample_report(), n_episodes=4321))).text
    assert "Red, and bars: the 8 storms that are listed, of 4,321." in cut
    assert "4 warn of the 8 listed" in cut
    whole = Document(as_html(sample_report())).text
    assert "Bars: the worst storms." in whole
    assert "listed, of" not in whole


def test_a_calm_page() -> None:
    """Without storms there is no table of them, and it says what was examined and that the log is whole."""
    text = Document(as_html(quiet_report())).text
    assert "No retry storms." in text
    assert "Examined: 90,000 requests to 2 nodes" in text
    assert "complete" in text
    assert "Nothing speaks against the log" in text
    assert "--explain" not in text


def test_hostile_names_are_all_there() -> None:
    """What was escaped is still to be read: somebody has to find out who that was."""
    text = Document(as_html(hostile_report())).text
    for name in HOSTILE[:5]:
        assert name[:24] in text
    assert "\\x1b[31m[red]x[/red]\\x07\\u202e" in text
    assert "a\\nb\\rc\\x00d\\ud800e" in text
    assert "n" * 300 not in text


def test_what_was_not_computed_is_not_said() -> None:
    """Without a timeline there is no section for it; only a log without requests is said to have none."""
    assert 'id="timeline"' not in as_html(sample_report(timeline=None))
    assert "The log has no requests" in as_html(empty_report())


def test_size() -> None:
    """Below 60 KB without data; a thousand episodes with a hundred names each are less than 3 MB."""
    assert len(as_html(empty_report()).encode()) < 60_000
    assert len(as_html(large_report(1000, 100)).encode()) < 3_000_000


def count_names(report: Report, rank: int) -> int:
    """How many clients are listed for the episode of that rank."""
    wanted = report.episodes[rank - 1]
    body = as_html(report).partition(f'id="e-{wanted.id}"')[2].partition("</tbody>")[0]
    return sum(f"{name}," in body or f"{name} and" in body for name in wanted.clients)


def test_names_of_many_episodes_are_cut() -> None:
    """Few episodes list all their names; of many, the worst do, and it is said where the others are."""
    assert count_names(large_report(3, 100), 3) == AMPLE.names
    many = large_report(FEW + 1, 100)
    assert count_names(many, MAX_AMPLE) == AMPLE.names
    assert count_names(many, MAX_AMPLE + 1) == SCARCE.names
    assert "From number 11 on, lists of names are cut at 5; report.json has more." in as_html(many)


def test_dates_where_they_are_needed() -> None:
    """A log of one day shows the time of each episode, a log of several the date, too."""
    episode = sample_episode()
    assert f">{clock(episode.start_us)}</time>" in as_html(sample_report())
    assert ">2025-10-10 09:18:20</time>" in as_html(
        sample_report(episodes=(sample_episode(start_us=at(1500 + 86_400), end_us=at(1600 + 86_400)),), n_episodes=1)
    )


@pytest.mark.parametrize(
    ("inputs", "command"),
    [
        (("a.jsonl", "my logs/*.gz"), "tricklecast storms a.jsonl 'my logs/*.gz' --explain "),
        (("$(reboot)", "`id`; x"), "tricklecast storms '$(reboot)' '`id`; x' --explain "),
        (("a\nb",), "tricklecast storms LOG... --explain "),
        (("--fail-on",), "tricklecast storms LOG... --explain "),
        (("n" * 81,), "tricklecast storms LOG... --explain "),
        (("a",) * 100, "tricklecast storms LOG... --explain "),
        ((), "tricklecast storms LOG... --explain "),
    ],
)
def test_the_command_can_be_pasted(inputs: tuple[str, ...], command: str) -> None:
    """File names are quoted for a shell; what cannot be typed safely is left to the reader."""
    assert explain_command(inputs) == command
