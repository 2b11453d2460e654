"""The page in a real browser: everybody can read it, on a telephone and in the dark, and nothing foreign runs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.analytics.report.sample import report_on
from tests.analytics.report.test_forms import HOSTILE
from tests.analytics.support.writer import LogWriter, write_lines
from tests.support.browser import Watched, barriers, browser, tab, tabs
from tricklecast.analytics.report.html import MAX_OPEN, as_html

__all__ = ["browser", "tab", "tabs"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page on loops by clients and on channels with hostile names."""
    folder = tmp_path_factory.mktemp("page")
    log = LogWriter("n1<b>", random.Random(1))
    for place, name in enumerate(HOSTILE):
        for step in range(60):
            log.not_found(place * 100 + step * 0.1, name, name, 1, ua=name, release=name)
    (folder / "page.html").write_text(as_html(report_on([write_lines(folder / "log.jsonl", log.lines())])))
    return (folder / "page.html").as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1400, "dark")])
def test_the_page_can_be_read(tabs: Callable[..., Watched], url: str, width: int, scheme: str) -> None:
    """The timeline comes first, in view; nothing is wider than the window, nobody is kept out (WCAG, level AA).

    The page is silent and alone.
    """
    tab = tabs(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    tab.context.on("request", lambda request: asked.append(request.url))
    page = tab.open(url)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator("main > :first-child").get_attribute("id") == "timeline"
    box = page.locator("#timeline svg.chart").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 450
    assert barriers(page) == []
    assert asked == [url]


def test_a_link_shows_its_incident(tab: Watched, url: str) -> None:
    """The first incidents are unfolded, and so is one that the address names."""
    page = tab.open(f"{url}#incident-{MAX_OPEN + 2}")
    assert page.locator("details.incident[open]").count() == MAX_OPEN + 1
    top = page.evaluate(f"document.getElementById('incident-{MAX_OPEN + 2}').getBoundingClientRect().top")
    assert -1 <= top < 900


def test_a_snippet_is_copied(tabs: Callable[..., Watched], url: str) -> None:
    """All of it, as it stands in the report, whatever names are in it."""
    page = tabs(permissions=["clipboard-read", "clipboard-write"]).open(url)
    card = page.locator("details.incident").first
    card.locator("summary", has_text="Paste against it").click()
    card.get_by_role("button", name="Copy").nth(1).click()
    card.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("import random\n")
    assert copied == card.locator("pre.paste").nth(1).text_content()


def test_on_paper(tabs: Callable[..., Watched], url: str) -> None:
    """All incidents are unfolded, and nothing is there that can only be clicked."""
    page = tabs(viewport={"width": 794, "height": 900}).open(url)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.incident:not([open])").count() == 0
    assert page.locator("details:not([open]) > summary:visible, button:visible, nav:visible").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_page_works_without_its_script(tabs: Callable[..., Watched], url: str) -> None:
    """As on the dashboard, which lets no report run anything."""
    page = tabs(java_script_enabled=False).open(url)
    assert page.locator("details.incident").count() > MAX_OPEN
    assert page.get_by_role("button").count() == 0
