"""The routes of the web pages, with the templates and the security policy of all pages.

**Pages hold no data**, so they need no token. A page's script asks the API and the channels, with the token of its user
(``static/session.js``).

**Nothing that a page shows can run as a script.** The policy (Content-Security-Policy level 3, W3C) allows scripts and
styles of this server only, none of them inline, and no string becomes markup (Trusted Types).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from tricklecast.app.content_coding import takes_gzip
from tricklecast.app.data_plane.routing import CONTROL_PLANE
from tricklecast.app.settings import Settings
from tricklecast.app.web.assets import FOLDER, Assets
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import InvalidChannelName
from tricklecast.trickle.paths import parse_channel

if TYPE_CHECKING:
    import jinja2

OPEN_PATHS: Final = ("/", "/wall", "/publish", "/docs")
OPEN_BELOW: Final = ("/static/", "/watch/", "/api/v1/reports/")
"""Paths that need no token: those of pages and their files, and of storm reports, which need a ticket instead."""

_ERRORS: Final = {
    400: "This address is wrong",
    403: "This is not allowed",
    404: "There is no such page",
    503: "The server cannot answer now",
}
"""Titles of the page that explains an error, by the status."""

FOR_EVER: Final = "public, max-age=31536000, immutable"

_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "media-src": "'self' blob:",
    "connect-src": "'self'",
    "frame-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(self), display-capture=(self), geolocation=()",
}


def is_open(path: str) -> bool:
    """Whether a path of the control plane needs no token: pages have no data, and at other paths nothing is there."""
    nowhere = path.partition("/")[2].partition("/")[0] not in CONTROL_PLANE
    return nowhere or path in OPEN_PATHS or path.startswith(OPEN_BELOW)


class Pages:
    """Renders the pages.

    Args:
        has_tokens: whether clients of the API need one.
    """

    def __init__(self, settings: Settings, *, has_tokens: bool) -> None:
        self.assets = Assets()
        self._settings = settings
        self._has_tokens = has_tokens

    @cached_property
    def _templates(self) -> jinja2.Environment:
        import jinja2  # takes 40 ms, and many servers never show a page

        return jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def render(
        self, template: str, policy: dict[str, str] | None = None, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """Make a page.

        Args:
            template: a file in ``templates/``.
            policy: directives in place of those of every page; ``""`` leaves one out.
            status: of the response.
            context: values for the template, beside those of every page.
        """
        settings = self._settings
        # If the control plane has an address of its own, its pages read channels from the other port.
        port = "" if settings.control_port is None else str(settings.port)
        connect = f"'self' http://*:{port} https://*:{port}" if port else "'self'"
        directives = {**_POLICY, "connect-src": connect, **(policy or {})}
        html = self._templates.get_template(template).render(
            static=f"/static/{self.assets.digest}",
            version=__version__,
            base=settings.base_path,
            channels_port=port,
            has_tokens=self._has_tokens,
            **context,
        )
        csp = "; ".join(f"{name} {value}" for name, value in directives.items() if value)
        return HTMLResponse(html, status, headers={**_HEADERS, "Content-Security-Policy": csp})

    async def explain(self, request: Request, error: Exception) -> Response:
        """Answer a request that failed: to a browser with a page, to a program with JSON."""
        assert isinstance(error, StarletteHTTPException)
        path = request.scope["path"]
        if path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
            return await http_exception_handler(request, error)
        title = _ERRORS.get(error.status_code, "This did not work")
        why = "" if error.status_code == 404 else str(error.detail)
        page = self.render("error.html", status=error.status_code, heading=title, why=why, meant=_meant(path))
        page.headers.update(error.headers or {})
        return page


def _meant(path: str) -> str:
    """The channel whose player somebody may have meant with a wrong path; empty if none can be meant."""
    name = path.strip("/").removeprefix("watch/")
    try:
        return parse_channel(quote(name, safe="/"))
    except InvalidChannelName:
        return ""


def pages_router(settings: Settings, pages: Pages) -> APIRouter:
    """The routes of the pages and their files."""
    router = APIRouter(include_in_schema=False)
    line = f"tricklecast: a segment is at {settings.base_path}/CHANNEL/SEQ; the control plane is described at /docs\n"

    @router.head("/")
    @router.get("/")
    async def index(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(line)  # for curl
        return pages.render("dashboard.html", has_reports=settings.reports is not None, is_node=bool(settings.cluster))

    @router.head("/watch/{channel}")
    @router.get("/watch/{channel}")
    async def watch(channel: str) -> Response:
        try:
            # Starlette has decoded the path; parse_channel would decode a percent sign in the name once more.
            name = parse_channel(channel.replace("%", "%25"))
        except InvalidChannelName as error:
            raise HTTPException(400, str(error)) from None
        # Any page may embed the player: it changes nothing on the server.
        return pages.render("watch.html", {"frame-ancestors": "*"}, channel=name)

    @router.head("/wall")
    @router.get("/wall")
    async def wall() -> Response:
        return pages.render("wall.html", is_node=bool(settings.cluster))

    @router.head("/publish")
    @router.get("/publish")
    async def publish() -> Response:
        return pages.render("publish.html")

    @router.head("/docs")
    @router.get("/docs")
    async def docs() -> Response:
        # Swagger UI makes markup of strings, which Trusted Types forbid, and styles inline.
        loose = {"require-trusted-types-for": "", "trusted-types": "", "style-src": "'self' 'unsafe-inline'"}
        return pages.render("docs.html", loose)

    @router.head("/static/{digest}/{path:path}")
    @router.get("/static/{digest}/{path:path}")
    async def static(digest: str, path: str, request: Request) -> Response:
        asset = pages.assets.find(path)
        if asset is None:
            raise HTTPException(404, "no such file")
        headers = {
            # A page of another release may still be open: it gets today's file, and does not keep it.
            "Cache-Control": FOR_EVER if digest == pages.assets.digest else "no-store",
            "X-Content-Type-Options": "nosniff",
            "Vary": "Accept-Encoding",
            "Content-Type": asset.media_type,
        }
        if takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(asset.compressed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(asset.content, headers=headers)

    return router
