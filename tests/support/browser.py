"""A real browser without a window, told what to do through two pipes: nothing to install but the browser itself."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import WITHIN_S

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S: Final = 120.0
"""An answer that takes longer than this will not come."""

_LAUNCHER: Final = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads its commands from descriptor 3 and answers on 4."""


def find_browser() -> str | None:
    """The program, or ``None`` where there is none."""
    named = os.environ.get("CHROMIUM")
    return next((found for name in (named, *NAMES) if name and (found := shutil.which(name))), None)


class Page:
    """One tab. Calls wait for their answers; what the page reports meanwhile is kept in ``events``."""

    def __init__(self, commands: int, answers: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._read = b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the DevTools protocol; its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Goes there, afresh (a change of the fragment alone would load nothing), and waits until it is loaded."""
        self._go("about:blank")
        self._go(url)

    def _go(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Gives the window another size, CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def emulate(self, media: str = "", **features: str) -> None:
        """Another medium (``print``) or preferences of the reader (``prefers_color_scheme="dark"``)."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=wanted)

    def complaints(self) -> list[dict[str, Any]]:
        """What the console shows since the page was opened: errors, warnings, refused by policy."""
        kinds = (
            "Log.entryAdded",
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Page.javascriptDialogOpening",
        )
        return [event for event in self.events if event["method"] in kinds]

    def requested(self) -> list[str]:
        """Every address that was asked for since the page was opened."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._answers, 1 << 16)
            assert more, "the browser has ended"
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """Starts the browser with an empty profile, gives one page, and ends it again."""
    (their_commands, commands), (answers, their_answers) = os.pipe(), os.pipe()
    # Not 3 and 4 themselves, which the launcher overwrites.
    given = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (their_commands, their_answers)]
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
    launcher = [sys.executable, "-c", _LAUNCHER, *map(str, given), program, *options, f"--user-data-dir={profile}"]
    process = subprocess.Popen(launcher, pass_fds=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for descriptor in (their_commands, their_answers, *given):
        os.close(descriptor)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)  # which is how it is told to end
        try:
            process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answers)
