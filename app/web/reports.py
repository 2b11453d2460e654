"""Storm reports on the dashboard: the newest report in a folder, and the storms that go on.

``tricklecast storms LOGS --html DIR/report.html`` and ``tricklecast storms watch LOGS --json >> DIR/alerts.jsonl`` fill
the folder. The server trusts neither file:

- It opens only plain files of this folder: no path, no symbolic link, no file that is too large.
- A report is markup with texts of unknown clients. The server sends it with a policy under which it runs no script and
  loads nothing, and has an origin of its own (Content-Security-Policy: ``sandbox``), even in a tab of its own.
- A frame cannot send a token. So the page asks for a ticket, with its token; it is valid for one report and a minute.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import orjson
from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import BaseModel, Field

from tricklecast.app.control_plane.models import ProblemModel
from tricklecast.app.encoding import encode

TICKET_S: Final = 60
"""Seconds for which a ticket is valid. The page loads its frame at once."""

MAX_REPORT: Final = 32 << 20
"""Bytes of the largest report that is served. The report of a bad day with 10,000 incidents has 1.3 MiB."""

MAX_ALERTS: Final = 4 << 20
"""Bytes that are read from the end of the newest file of alerts."""

MAX_OPEN: Final = 100
"""Storms that are shown; the worst come first."""

MAX_FILES: Final = 10_000
"""Files of the folder that are looked at."""

PATH: Final = "/api/v1/reports"

_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)

_SEVERITIES: Final = ("critical", "warn", "minor")

_LATEST: Final = 1e11
"""Seconds since 1970. An alert with a later time is ignored, since a page could not show it as a date."""


class OpenStormModel(BaseModel):
    """A storm that goes on, as its newest alert tells."""

    id: str
    status: str
    severity: str
    storm: str
    clients: list[str]
    channels: list[str]
    requests: int | None
    told: float = Field(description="When the alert was made, in seconds since 1970.")


class ReportModel(BaseModel):
    """The newest report."""

    name: str
    modified: float = Field(description="Seconds since 1970.")
    size: int = Field(description="Bytes.")
    url: str = Field(description=f"Where it can be loaded for {TICKET_S} s.")


class ReportsModel(BaseModel):
    """The newest report, and the storms that go on."""

    report: ReportModel | None
    open: list[OpenStormModel]
    watched: bool = Field(description="Whether there is a file of alerts.")
    problems: list[str] = Field(description="What could not be read.")


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file of the folder. Bytes, and seconds since 1970."""

    name: str
    modified: float
    size: int


class Reports:
    """The folder, which may appear after the server has started.

    Args:
        wall_us: the time, microseconds since 1970.
    """

    def __init__(self, folder: Path, wall_us: Callable[[], int]) -> None:
        self._folder = folder
        self._wall_us = wall_us
        self._secret = secrets.token_bytes(32)
        # The last file of alerts and its storms: each dashboard asks every 10 s, and reading takes 40 ms.
        self._alerts: tuple[FolderFile, list[dict[str, Any]]] | None = None

    def look(self) -> dict[str, Any]:
        """The newest report and the storms that go on, as in :class:`ReportsModel`. This reads files."""
        try:
            report, alerts = self._newest(".html"), self._newest(".jsonl")
        except OSError as error:
            problem = f"the folder of reports cannot be read: {error.strerror}"
            return {"report": None, "open": [], "watched": False, "problems": [problem]}
        problems: list[str] = []
        storms: list[dict[str, Any]] = []
        if alerts is not None:
            try:
                if self._alerts is None or self._alerts[0] != alerts:
                    self._alerts = alerts, open_storms(self._read(alerts.name, MAX_ALERTS, tail=True))
                storms = self._alerts[1]
            except OSError as error:
                problems.append(f"{alerts.name} cannot be read: {error.strerror}")
        shown = None
        if report is not None and report.size > MAX_REPORT:
            problems.append(f"{report.name} is larger than {MAX_REPORT >> 20} MiB, and is not shown")
        elif report is not None:
            url = f"{PATH}/{quote(report.name, safe='')}?ticket={self.ticket(report.name)}"
            shown = {"name": report.name, "modified": report.modified, "size": report.size, "url": url}
        return {"report": shown, "open": storms, "watched": alerts is not None, "problems": problems}

    def read(self, name: str) -> bytes | None:
        """The report of this name; ``None`` if there is none that may be served."""
        if not name.endswith(".html"):
            return None
        try:
            return self._read(name, MAX_REPORT)
        except (OSError, ValueError):
            return None

    def ticket(self, name: str) -> str:
        """Make a ticket, with which a frame may load this report."""
        until = self._wall_us() // 1_000_000 + TICKET_S
        return f"{until}.{self._mac(name, until)}"

    def admits(self, name: str, ticket: str) -> bool:
        """Whether the ticket is for this report, and still valid."""
        until, _, mac = ticket.partition(".")
        if not (until.isdecimal() and until.isascii() and len(until) < 12 and mac.isascii()):
            return False
        return hmac.compare_digest(mac, self._mac(name, int(until))) and self._wall_us() // 1_000_000 <= int(until)

    def _mac(self, name: str, until: int) -> str:
        return hmac.new(self._secret, f"{until}\n{name}".encode("utf-8", "surrogateescape"), sha256).hexdigest()

    def _newest(self, suffix: str) -> FolderFile | None:
        newest: FolderFile | None = None
        with os.scandir(self._folder) as entries:
            for _, entry in zip(range(MAX_FILES), entries, strict=False):
                if not entry.name.endswith(suffix) or entry.name.startswith(".") or not _is_text(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # the analytics has just replaced it
                if stat.S_ISREG(status.st_mode) and (newest is None or status.st_mtime > newest.modified):
                    newest = FolderFile(entry.name, status.st_mtime, status.st_size)
        return newest

    def _read(self, name: str, most: int, *, tail: bool = False) -> bytes:
        """The content of a plain file of the folder, or its end.

        Raises:
            OSError: it is no plain file of this folder, is too large, or cannot be read.
        """
        if "/" in name or name.startswith(".") or "\0" in name:
            raise OSError(0, "not a file of the folder")
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Not blocking, since opening a pipe would wait for its writer.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(file, "rb") as opened:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "not a plain file")
            if status.st_size > most:
                if not tail:
                    raise OSError(0, "too large")
                opened.seek(-most, os.SEEK_END)
            return opened.read(most)


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8, as URLs and JSON need it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_storms(lines: bytes) -> list[dict[str, Any]]:
    """The storms that go on, by the last alert of each, the worst first.

    Args:
        lines: of ``storms watch --json`` (docs/reference/storm-report.md, "Alert"). Other lines are ignored, such as
            the rest of a line at the beginning.
    """
    storms: dict[str, dict[str, Any]] = {}
    for line in lines.splitlines():
        try:
            alert = orjson.loads(line)
            incident, told = alert["incident"], alert["told_us"] / 1e6
            if not 0 <= told < _LATEST:
                continue
            name = str(incident["id"])[:64]
            storms.pop(name, None)
            if alert["status"] not in ("firing", "worse"):
                continue
            requests = incident["n"]
            storms[name] = {
                "id": name,
                "status": str(alert["status"]),
                "severity": str(incident["severity"])[:32],
                "storm": str(incident["storm"])[:64],
                "clients": [str(client)[:256] for client in incident["clients"][:20]],
                "channels": [str(channel)[:256] for channel in incident["channels"][:20]],
                "requests": requests if isinstance(requests, int) else None,
                "told": told,
            }
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError):
            continue
    ordered = sorted(storms.values(), key=lambda storm: (_rank(storm["severity"]), -storm["told"]))
    return ordered[:MAX_OPEN]


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


def reports_router(reports: Reports) -> APIRouter:
    """The routes below ``/api/v1/reports``."""
    router = APIRouter(prefix=PATH, tags=["dashboard"])

    @router.get("", summary="The newest storm report, and the storms that go on", response_model=ReportsModel)
    async def look() -> Response:
        """Needs the right to manage everything."""
        return Response(encode(await asyncio.to_thread(reports.look)), media_type="application/json")

    @router.get(
        "/{name}",
        summary="A storm report",
        responses={
            200: {"content": {"text/html": {}}},
            403: {"model": ProblemModel, "description": "The ticket is not good for this report, or not any more"},
            404: {"model": ProblemModel},
        },
        response_class=Response,
    )
    async def show(
        name: str, ticket: Annotated[str, Query(description="Of the list's `url`: frames cannot send a token.")] = ""
    ) -> Response:
        """The report as a page that runs no script and loads nothing."""
        if not reports.admits(name, ticket):
            raise HTTPException(403, "this link is not good any more: open the report on the dashboard again")
        content = await asyncio.to_thread(reports.read, name)
        if content is None:
            raise HTTPException(404, "no such report")
        headers = {
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return Response(content, headers=headers, media_type="text/html; charset=utf-8")

    return router
