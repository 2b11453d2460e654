"""A browser for tests: the system's Chromium, driven by playwright.

Each test gets pages that report: a script's error, a line of the console that is an error or a warning, or a breach
of the page's security policy fails the test at its end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, sync_playwright

from tests.support.waiting import WITHIN_S

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
AXE: Final = Path(__file__).parents[2] / ".venv" / "npm" / "axe-core" / "axe.min.js"
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]

FLAGS: Final = (
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


def find_browser() -> str | None:
    """The program, or ``None`` where there is none."""
    named = os.environ.get("CHROMIUM")
    return next((found for name in (named, *NAMES) if name and (found := shutil.which(name))), None)


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
    problems = [problem for watched in made for problem in watched.problems]
    assert not problems, problems


@pytest.fixture
def tab(tabs: Callable[..., Watched]) -> Watched:
    """A profile of usual size."""
    return tabs(viewport={"width": 1280, "height": 800})


def wait_for(page: Page, expression: str, arg: object = None) -> None:
    """Wait until an expression of a page is true: it is asked ten times a second, and not at every picture."""
    page.wait_for_function(expression, arg=arg, polling=100)


def barriers(page: Page) -> list[str]:
    """What axe-core finds that keeps people from using the page: violations of WCAG 2.2, level AA."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate(
        "rules => axe.run({runOnly: {type: 'tag', values: rules}}).then(result => result.violations)", RULES
    )
    return [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]]
