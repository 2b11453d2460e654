"""A browser for the tests of the web pages: the system's Chromium, driven by playwright.

Each test gets pages that report: a script's error, a line of the console that is an error or a warning, or a breach
of the page's security policy fails the test at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, sync_playwright

from tests.support.browser import find_browser
from tests.support.waiting import WITHIN_S

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module: while playwright runs, `asyncio.run` does not work in its thread."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium here: name one with CHROMIUM=/path/to/it")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield chromium
        chromium.close()


@dataclass
class Watched:
    """Opens pages and collects what goes wrong in them.

    Attributes:
        context: the browser's profile of one test. problems: what went wrong so far.
        expected: parts of messages that are no problem in this test, such as a refused request that it provokes.
    """

    context: BrowserContext
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def open(self, url: str) -> Page:
        """Open a page in a new tab."""
        page = self.context.new_page()
        page.set_default_timeout(WITHIN_S * 1000)
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on("console", self._hear)
        page.on("dialog", self._refuse)
        page.goto(url)
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(f"{message.type}: {message.text}")

    def _refuse(self, dialog: Dialog) -> None:
        self._note(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note(self, problem: str) -> None:
        if not any(part in problem for part in self.expected):
            self.problems.append(problem)


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Makes profiles (arguments of playwright's `new_context`); whatever goes wrong in their pages fails the test."""
    made: list[Watched] = []

    def make(**options: object) -> Watched:
        watched = Watched(browser.new_context(**options))  # type: ignore[arg-type]
        made.append(watched)
        return watched

    yield make
    for watched in made:
        watched.context.close()
    assert [problem for watched in made for problem in watched.problems] == []


@pytest.fixture
def tab(tabs: Callable[..., Watched]) -> Watched:
    """A profile of usual size."""
    return tabs(viewport={"width": 1280, "height": 800})
