"""The page in a real browser: nothing foreign runs, it sorts, filters and unfolds, and everybody can read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.analytics.support.sample_report import (
    HOSTILE,
    empty_report,
    hostile_report,
    large_report,
    quiet_report,
    sample_report,
)
from tests.support.browser import Page, browser, find_browser
from tricklecast.analytics.report_old.html import as_html

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium, or set CHROMIUM")

REPORTS = {
    "sample": sample_report,
    "quiet": quiet_report,
    "empty": empty_report,
    "hostile": hostile_report,
}

ROWS = "[...document.querySelectorAll('#episode-table tbody')].filter((body) => !body.hidden)"
LOWEST_CONTRAST = """(() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      if (node.localName === "svg") continue;
      const colour = parts(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    const drawn = node.closest("svg");
    // Inside a drawing a flag or a bar has its own ground; titles are not drawn.
    if (!texts.currentNode.data.trim() || ["SCRIPT", "STYLE", "title"].includes(node.nodeName)) continue;
    const style = getComputedStyle(node);
    const shape = drawn && node.parentElement.querySelector("rect");
    const ground = shape ? parts(getComputedStyle(shape).fill) : behind(node);
    const [a, b] = [light(parts(drawn ? style.fill : style.color)), light(ground)];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.slice(0, 60)]);
  }
  return found.sort((x, y) => x[0] - y[0])[0];
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of each report."""
    folder = tmp_path_factory.mktemp("pages")
    for name, make in (REPORTS | {"large": large_report}).items():
        (folder / f"{name}.html").write_text(as_html(make()), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One browser for all tests of the module."""
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(started: Page) -> Page:
    """The browser with a window of usual size and no preferences."""
    started.resize(1360, 900)
    started.emulate()
    return started


def show(page: Page, pages: Path, name: str, state: str = "") -> None:
    """Opens the page of a report, with a state in its address."""
    page.open(f"{pages.as_uri()}/{name}.html{state}")


def shown(page: Page) -> list[str]:
    """The ranks of the episodes that are shown, in their order."""
    ranks: list[str] = page.run(f"{ROWS}.map((body) => body.rows[0].cells[0].textContent)")
    return ranks


def sort_by(page: Page, title: str) -> None:
    """Clicks on the heading of a column."""
    page.run(f"[...document.querySelectorAll('th button')].find((b) => b.textContent === {title!r}).click()")


@pytest.mark.parametrize("name", REPORTS)
def test_the_console_is_silent(page: Page, pages: Path, name: str) -> None:
    """No error, no warning, nothing refused by the policy; the only address asked for is the page's own."""
    show(page, pages, name)
    page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.complaints() == []
    assert [url for url in page.requested() if url != "about:blank"] == [f"{pages.as_uri()}/{name}.html"]


def test_hostile_names_do_not_run(page: Page, pages: Path) -> None:
    """Scripts, handlers and addresses in names are text: also when filtered by, and when in the address."""
    attack = "<img src=x onerror=\"document.title='pwned'\">"
    for state in ("", "#q=%3Cscript%3Edocument.title%3D'pwned'%3C%2Fscript%3E", f"#node={attack}&sort={attack}"):
        show(page, pages, "hostile", state)
        page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        page.run("document.querySelectorAll('main *').forEach((each) => each.dispatchEvent(new Event('mouseover')))")
        assert page.run("document.title") == "Retry storms, 2025-10-09 08:53:20 UTC"
        assert page.run("document.querySelectorAll('script').length") == 1
        assert page.run("document.querySelectorAll('img, iframe, object, embed').length") == 0
        assert page.complaints() == []


def test_the_policy_holds_alone(page: Page, tmp_path: Path) -> None:
    """Should a name ever get through as HTML, the browser refuses to run it."""
    attacks = "".join(HOSTILE[:5])
    text = as_html(sample_report()).replace("</main>", f"{attacks}</main>")
    (tmp_path / "broken.html").write_text(text, encoding="utf-8")
    page.open(f"{tmp_path.as_uri()}/broken.html")
    assert page.run("document.scripts.length") == 2
    assert page.run("document.title") == "Retry storms, 2025-10-09 08:53:20 UTC"
    assert page.complaints() != []


def test_a_name_in_a_filter_is_text(page: Page, pages: Path) -> None:
    """The lists of nodes and releases are made from names, and choose the episode of that name."""
    show(page, pages, "hostile")
    page.run(
        """(() => {
          const select = document.getElementById("filter-node");
          select.value = [...select.options].find((option) => option.value.startsWith("<script>")).value;
          select.dispatchEvent(new Event("input", { bubbles: true }));
        })()"""
    )
    assert shown(page) == ["1"]


def test_sorting(page: Page, pages: Path) -> None:
    """Numbers begin with the highest, texts with the first; again turns it round; hearing readers learn of it."""
    show(page, pages, "sample")
    assert shown(page) == ["1", "2", "3", "4", "5", "6", "7", "8"]
    sort_by(page, "Requests")
    assert shown(page) == ["1", "3", "6", "5", "2", "4", "8", "7"]
    sort_by(page, "Requests")
    assert shown(page) == ["7", "8", "4", "2", "5", "6", "3", "1"]
    sort_by(page, "Class")
    assert shown(page) == ["4", "6", "1", "8", "5", "7", "3", "2"]
    assert page.run("document.querySelectorAll('th[aria-sort=ascending]').length") == 1
    assert page.run("document.querySelector('th[aria-sort=ascending]').textContent") == "Class"
    sort_by(page, "Lasted")
    assert shown(page)[:2] == ["6", "1"]
    sort_by(page, "Start (UTC)")
    assert shown(page)[:2] == ["3", "1"]


def test_filtering(page: Page, pages: Path) -> None:
    """By words anywhere in an episode and by its values; it is said how many are left; clearing brings all back."""
    show(page, pages, "sample")
    page.run(
        """(() => {
          const text = document.getElementById("filter-text");
          text.value = "NEWS seq";
          text.dispatchEvent(new Event("input", { bubbles: true }));
        })()"""
    )
    assert shown(page) == ["2", "8"]
    assert page.run("document.getElementById('shown').textContent") == "2 of 8 shown"
    page.run(
        """(() => {
          const select = document.getElementById("filter-class");
          select.value = "repost_loop";
          select.dispatchEvent(new Event("input", { bubbles: true }));
        })()"""
    )
    assert shown(page) == ["8"]
    page.run("document.querySelector('#filters [type=reset]').click()")
    page.run("new Promise((done) => setTimeout(done))")
    assert len(shown(page)) == 8
    assert page.run("location.hash") == ""


def test_the_address_keeps_the_state(page: Page, pages: Path) -> None:
    """A link shows what its sender saw; what it cannot have seen is ignored."""
    show(page, pages, "sample", "#q=loop&severity=critical&sort=-requests")
    assert shown(page) == ["2", "4"]
    sort_by(page, "Start (UTC)")
    assert page.run("location.hash") == "#q=loop&severity=critical&sort=start-utc"
    assert shown(page) == ["4", "2"]
    show(page, pages, "sample", "#severity=terrible&sort=nothing")
    assert len(shown(page)) == 8


def test_a_link_to_an_episode(page: Page, pages: Path) -> None:
    """It is unfolded and in sight, even if the filter had hidden it."""
    episode = sample_report().episodes[6]
    unfolded = f"document.querySelector('#e-{episode.id} details').open"
    show(page, pages, "sample", f"#e-{episode.id}")
    assert page.run(unfolded) is True
    show(page, pages, "sample", "#severity=critical")
    assert page.run(f"document.getElementById('e-{episode.id}').hidden") is True
    page.run(f"new Promise((done) => {{ onhashchange = () => done(); location.hash = 'e-{episode.id}'; }})")
    assert page.run(unfolded) is True
    assert page.run(f"document.getElementById('e-{episode.id}').hidden") is False


def test_unfolding(page: Page, pages: Path) -> None:
    """A click on a row unfolds it; one button unfolds and folds all that are shown; the keyboard does, too."""
    show(page, pages, "sample", "#severity=warn")
    opened = "document.querySelectorAll('#episode-table details[open]').length"
    page.run(f"{ROWS}[0].rows[0].cells[2].click()")
    assert page.run(opened) == 1
    page.run("document.getElementById('unfold').click()")
    assert page.run(opened) == 4
    page.run("document.getElementById('unfold').click()")
    assert page.run(opened) == 0
    page.run(f"{ROWS}[1].querySelector('summary').focus()")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert page.run(opened) == 1


def test_times_are_local_on_hover(page: Page, pages: Path) -> None:
    """The page says UTC; the reader's own time is one hover away."""
    page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    show(page, pages, "sample")
    hover = "(() => { const time = document.querySelector('td time'); time.dispatchEvent(new Event('mouseover',"
    title = page.run(f"{hover} {{ bubbles: true }})); return time.title; }})()")
    page.call("Emulation.setTimezoneOverride", timezoneId="")
    assert "2:35:04" in title


def test_the_command_is_copied(page: Page, pages: Path) -> None:
    """The button beside the command says that it is in the clipboard, or selects it."""
    show(page, pages, "sample")
    page.run("document.querySelector('#episode-table details').open = true")
    said = page.run(
        """new Promise((done) => {
          const button = document.querySelector(".command button");
          new MutationObserver(() => done(button.textContent)).observe(button, { childList: true });
          button.click();
        })"""
    )
    assert said in ("Copied", "Selected: copy it")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["sample", "quiet"])
def test_contrast(page: Page, pages: Path, name: str, scheme: str) -> None:
    """Every text stands out from its ground by 4.5 to 1 or more."""
    page.emulate(prefers_color_scheme=scheme)
    show(page, pages, name)
    page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    lowest, text = page.run(LOWEST_CONTRAST)
    assert lowest >= 4.5, text


def test_theme(page: Page, pages: Path) -> None:
    """The reader may choose against the system; the button says what it will do."""
    page.emulate(prefers_color_scheme="dark")
    show(page, pages, "sample")
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.run(colour)
    assert "Light" in page.run("document.querySelector('header button').textContent")
    page.run("document.querySelector('header button').click()")
    assert page.run(colour) != before
    assert "Dark" in page.run("document.querySelector('header button').textContent")
    page.run("localStorage.clear()")


@pytest.mark.parametrize("name", ["sample", "hostile"])
@pytest.mark.parametrize("width", [360, 800, 1100])
def test_every_width(page: Page, pages: Path, name: str, width: int) -> None:
    """From a telephone on, nothing is wider than the window, folded or unfolded."""
    page.resize(width, 740)
    show(page, pages, name)
    for _ in range(2):
        assert page.run("document.documentElement.scrollWidth") <= width
        page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")


def test_paper(page: Page, pages: Path) -> None:
    """Printed, everything is unfolded without the script's help, and there are no controls."""
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.emulate("print")
    show(page, pages, "sample")
    folded = page.run("document.querySelectorAll('details[open]').length")
    seen = page.run("[...document.querySelectorAll('.pair')].every((each) => each.getBoundingClientRect().height > 20)")
    controls = page.run("[...document.querySelectorAll('form, button, header')].some((each) => each.offsetHeight > 0)")
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert folded == 0
    assert seen
    assert not controls


def test_without_the_script(page: Page, pages: Path) -> None:
    """What only the script could do is not offered, and everything can be unfolded and read."""
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    show(page, pages, "sample")
    offered: Any = page.run("document.querySelectorAll('button:not([hidden] *), th button').length")
    listed = len(shown(page))
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert offered == 0
    assert listed == 8


def test_a_thousand_episodes(page: Page, pages: Path) -> None:
    """They are all there, and can be sorted and searched."""
    show(page, pages, "large", "#sort=-start-utc")
    ranks = shown(page)
    assert (len(ranks), ranks[0]) == (1000, "1000")
    page.run("location.hash = 'q=studio-0123'; new Promise((done) => { onhashchange = () => done(); })")
    assert shown(page) == ["124"]
    assert page.complaints() == []
