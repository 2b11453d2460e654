"""Nobody is kept out of the pages: axe-core finds no violation of WCAG 2.2, level AA."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import expect

from tests.support.browser import Scheme, Watched, barriers, wait_for
from tests.support.server import RunningServer, serve

LOOKS: tuple[tuple[Scheme, int, int], ...] = (("light", 1280, 800), ("dark", 390, 844))
"""The colour scheme, and the size of a wide window or a telephone."""

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
"""The page need not be scrolled sideways."""

PAGES = ("/", "/wall", "/publish", "/watch/messages", "/watch/bytes", "/watch/none", "/nothing")

RECEIVED = """() => performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))
    .reduce((sum, one) => sum + one.encodedBodySize, 0)"""
"""Bytes that came over the wire for the page and its files."""

SHIFTED = """() => new Promise(resolve => {
    let sum = 0;
    new PerformanceObserver(list => { for (const one of list.getEntries()) sum += one.value; })
        .observe({ type: 'layout-shift', buffered: true });
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(sum)));
})"""
"""How far things have moved (Cumulative Layout Shift); below 0.1 is good."""


FADED = """Promise.allSettled(document.getAnimations().filter(one => one instanceof CSSTransition)
    .map(one => one.finished)).then(() => {})"""
"""The colours are those that they change to."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server with a channel of messages and one of unknown bytes."""
    with serve() as running:
        for name, content_type in (("messages", "application/json"), ("bytes", "application/octet-stream")):
            url = f"{running.base}/{name}"
            httpx.post(url, headers={"Expect-Content": content_type}).raise_for_status()
            httpx.post(f"{url}/0", content=b'{"hello": 1}').raise_for_status()
        yield running


@pytest.mark.parametrize("path", PAGES)
def test_a_page_can_be_used_by_all(server: RunningServer, tab: Watched, path: str) -> None:
    """In light and dark colours, on a wide window and on a telephone, from left to right and from right to left.

    It need not be scrolled sideways, comes with less than 100 kB, and nothing moves while it builds up.
    """
    tab.expected += ["404"]  # the channel that does not exist
    page = tab.open(server.url + path)
    for look in LOOKS:
        scheme, width, height = look
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": height})
        assert barriers(page) == []
        assert page.evaluate(RECEIVED) < 100_000
        if look == LOOKS[0]:  # a list of messages is higher than a picture on a telephone
            assert page.evaluate(SHIFTED) < 0.1
        for direction in ("rtl", "ltr"):
            page.evaluate("direction => { document.documentElement.dir = direction; }", direction)
            wait_for(page, FITS)


NAMES = (
    "\u05db\u05e0\u05d9\u05e1\u05d4-\u05e8\u05d0\u05e9\u05d9\u05ea-12",
    "x" * 255,
    "camera-{:03}-of-a-building-with-a-long-name",
)
"""From right to left, the longest one, and those of many cameras."""


def test_many_channels_can_be_read_by_all(tab: Watched) -> None:
    """The list and the wall with 100 channels, an alert and an open channel, on a telephone and a very wide window."""
    looks: tuple[tuple[Scheme, int, int], ...] = (("dark", 390, 844), ("light", 3840, 2160))
    with serve() as server, httpx.Client() as client:
        for number in range(100):
            name = NAMES[min(number, 2)].format(number)
            client.post(f"{server.base}/{name}/0", content=b'{"hello": 1}').raise_for_status()
        client.get(f"{server.base}/..x/0")
        for scheme, width, height in looks:
            page = tab.open(server.url, (width, height), scheme)
            expect(page.locator(".alert-list li")).to_have_count(1)
            expect(page.locator(".row:not([hidden]) .name").first).to_be_visible()
            assert barriers(page) == []
            page.get_by_label("Filter channels").fill(NAMES[0])
            row = page.locator(".row:not([hidden])")
            expect(row).to_have_count(1)
            row.click()
            expect(page.locator("#detail-title")).to_have_text(NAMES[0])
            wait_for(page, FITS)
            page.goto(f"{server.url}/wall")
            expect(page.locator(".tile")).to_have_count(100)
            assert barriers(page) == []
            wait_for(page, FITS)
            page.close()  # before its server ends


def test_the_api_can_be_read_by_all(server: RunningServer, tab: Watched) -> None:
    """In both colour schemes each text of `/docs` has the contrast of AA: the list, a route, its form, an answer.

    Swagger UI's markup has other faults, which no style sheet can mend.
    """
    page = tab.open(f"{server.url}/docs", (1280, 900), "light")
    expect(page.get_by_text("List all channels")).to_be_visible()
    page.get_by_text("Close a segment").click()
    page.get_by_text("List all channels").click()
    page.get_by_role("button", name="Try it out").first.click()
    page.get_by_role("button", name="Execute").first.click()
    expect(page.locator(".live-responses-table")).to_contain_text("application/json")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(FADED)
        assert barriers(page, "color-contrast") == [], scheme
