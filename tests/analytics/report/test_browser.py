"""The page in a real browser: everybody can read it, on a telephone and in the dark, and nothing foreign runs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.analytics.report.sample import report_on
from tests.analytics.report.test_forms import HOSTILE
from tests.analytics.support.writer import LogWriter, write_lines
from tests.support.browser import Page, browser, find_browser
from tricklecast.analytics.report.html import MAX_OPEN, as_html

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium, or set CHROMIUM")

LOWEST_CONTRAST = """(() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parts(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || node.nodeName === "title") continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(parts(node.closest("svg") ? style.fill : style.color)), light(behind(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.slice(0, 60)]);
  }
  return found.sort((x, y) => x[0] - y[0])[0];
})()"""


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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One browser for all tests of the module."""
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read(page: Page, url: str, width: int, scheme: str) -> None:
    """Nothing is wider than the window, every text stands out, and the page is silent and alone."""
    page.resize(width, 900)
    page.emulate(prefers_color_scheme=scheme)
    page.open(url)
    assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    contrast, text = page.run(LOWEST_CONTRAST)
    assert contrast >= 4.5, text
    assert (page.complaints(), page.requested()) == ([], [url])


def test_a_link_shows_its_incident(page: Page, url: str) -> None:
    """The first incidents are unfolded, and one below them is found by its address."""
    page.resize(1400, 900)
    page.open(f"{url}#incident-{MAX_OPEN + 2}")
    assert page.run("document.querySelectorAll('details.incident[open]').length") == MAX_OPEN
    top = page.run(f"document.getElementById('incident-{MAX_OPEN + 2}').getBoundingClientRect().top")
    assert -1 <= top < 900
