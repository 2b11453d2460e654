"""What is text stays text, and nothing that could run or fetch gets into a page."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.analytics.report.formats import UNKNOWN
from tricklecast.analytics.report.plain import Name, spelled
from tricklecast.analytics.report_old.html.markup import MAX_TEXT, MAX_TITLE, element, joined, name, phrase, time
from tricklecast.analytics.report_old.html.tables import Column, table


class Seen(HTMLParser):
    """Collects what a parser makes of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.starts: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        self.starts.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Notes a text."""
        self.texts.append(data)


@given(st.text(), st.text())
def test_any_text_is_text(child: str, attribute: str) -> None:
    """A parser finds one element, with exactly the texts that were put in, invisible characters spelled out."""
    seen = Seen(element("p", child, title=attribute))
    assert seen.starts == [("p", {"title": spelled(attribute)})]
    assert "".join(seen.texts) == spelled(child)


def test_elements() -> None:
    """Children may be texts, numbers, elements and collections of them; nothing is nothing; markup is not escaped."""
    assert element("p", "a<b", 7, None, [element("b", "&"), ("c", None)]) == "<p>a&lt;b7<b>&amp;</b>c</p>"
    assert joined("<", element("i")) == "&lt;<i></i>"
    assert element("line", x1=0, stroke_width=1.5) == '<line x1="0" stroke-width="1.5"/>'


def test_attributes() -> None:
    """True has no value, False and None are left out, quotes are escaped."""
    made = element("td", class_="n", hidden=True, open=False, title=None, data_v='"')
    assert made == '<td class="n" hidden data-v="&quot;"></td>'


@pytest.mark.parametrize(
    "attributes",
    [
        {"onclick": "x()"},
        {"style": "color: red"},
        {"href": "javascript:x()"},
        {"href": "https://example.org/"},
        {"src": "data:,"},
        {"action": "/"},
        {"xlink:href": "//example.org"},
    ],
)
def test_what_could_run_is_refused(attributes: dict[str, str]) -> None:
    """A handler, a style or a link to anywhere else is a mistake that does not reach a page."""
    with pytest.raises(ValueError, match="has no place in a report"):
        element("a", **attributes)


def test_long_texts_end() -> None:
    """A text of ten megabytes does not make a page of ten megabytes."""
    assert len(element("p", "x" * 10_000_000, title="y" * 10_000_000)) < 2 * MAX_TEXT + 100


def test_names() -> None:
    """A name is cut with more of it on hover, and isolated where it could turn the direction of its neighbours."""
    assert name(None) == f'<span class="none">{UNKNOWN}</span>'
    assert name("viewer-1") == "viewer-1"
    assert name("<b>") == "&lt;b&gt;"
    assert name("שלום") == "<bdi>שלום</bdi>"
    assert name("n" * 5000, 10) == f'<bdi title="{"n" * (MAX_TITLE - 1)}…">nnnnnnnnn…</bdi>'
    assert phrase(("on ", Name("<i>"), ".")) == "on &lt;i&gt;."


def test_times() -> None:
    """A time has a form for the script; a number that is no time has none."""
    assert time(1_760_000_000_000_000) == ('<time datetime="2025-10-09T08:53:20.000Z">2025-10-09 08:53:20</time>')
    assert time(0, "then") == '<time datetime="1970-01-01T00:00:00.000Z">then</time>'
    assert time(2**63) == f"<time>{2**63} µs</time>"


def test_tables() -> None:
    """Columns and rows have headings that say so."""
    seen = Seen(table("T", (Column("a"), Column("b", "number", "what")), [("x", 1)]))
    cells = [(tag, attributes.get("scope")) for tag, attributes in seen.starts if tag in ("th", "td")]
    assert cells == [("th", "col"), ("th", "col"), ("th", "row"), ("td", None)]
    assert "T" in seen.texts
