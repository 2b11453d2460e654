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
from typing import Any, Final, Literal

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, expect, sync_playwright

from tests.support.waiting import WITHIN_S

NAMES: Final = (
    "chromium-headless-shell",  # without the windows that nobody sees
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
AXE: Final = Path(__file__).parents[2] / ".venv" / "npm" / "axe-core" / "axe.min.js"
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]

expect.set_options(timeout=WITHIN_S * 1000)

Scheme = Literal["light", "dark"]

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
    "--process-per-site",
)

ANCHOR: Final = "http://127.0.0.1/"


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
        context: the browser's profile. problems: what went wrong so far.
        expected: parts of messages that are no problem in this test, such as a refused request that it provokes.
        scripts: what runs in each page of this test before the page's own scripts.
    """

    context: BrowserContext
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def open(self, url: str, size: tuple[int, int] | None = None, scheme: Scheme | None = None) -> Page:
        """Open a page in a new tab, of this width and height and in these colours rather than those of the profile."""
        page = self.context.new_page()
        if size is not None:
            page.set_viewport_size({"width": size[0], "height": size[1]})
        if scheme is not None:
            page.emulate_media(color_scheme=scheme)
        page.set_default_timeout(WITHIN_S * 1000)
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on("console", self._hear)
        page.on("dialog", self._refuse)
        for script in self.scripts:
            page.add_init_script(script)
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
def tab(browser: Browser) -> Iterator[Watched]:
    """A profile of usual size, which the tests of a module share: they leave no page and no setting in it.

    A profile costs a process and half a second of processor time. One page stays open in the shared one, so that its
    process goes on: with the flag above, that process has the pages of all servers of this machine.
    """
    if browser.contexts:
        [context] = browser.contexts
    else:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.route(ANCHOR, lambda route: route.fulfill(body="", content_type="text/html"))
        page.goto(ANCHOR)
    anchor = context.pages[0]
    watched = Watched(context)
    yield watched
    found = list(watched.problems)  # a page that is closed may end what another one still plays
    for page in context.pages:
        if page is not anchor:
            page.close()
    context.unroute_all(behavior="ignoreErrors")
    context.clear_permissions()
    context.clear_cookies()
    context.set_offline(False)
    assert not found, found


def wait_for(page: Page, expression: str, arg: object = None) -> None:
    """Wait until an expression of a page is true: it is asked ten times a second, and not at every picture."""
    page.wait_for_function(expression, arg=arg, polling=100)


def barriers(page: Page, rule: str = "") -> list[str]:
    """What axe-core finds that keeps people from using the page: violations of WCAG 2.2, level AA; or of one rule."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate(
        """only => axe.run({runOnly: only, resultTypes: ['violations']}).then(result => result.violations)""",
        {"type": "rule", "values": [rule]} if rule else {"type": "tag", "values": RULES},
    )
    return [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]]


def next_seq(url: str) -> int:
    """The head of a channel; 0 if there is none."""
    answer = httpx.get(f"{url}/next", verify=False)
    return int(answer.text) if answer.status_code == 200 else 0
