"""What all pages have in common: their policy, their files, the sign-in."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import playwright
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Watched, barriers
from tests.support.server import RunningServer, serve
from tricklecast.app.data_plane.routing import CONTROL_PLANE
from tricklecast.app.web.assets import FOLDER

ROOT = Path(__file__).parents[2]
NPM = ROOT / ".venv" / "npm"
HTML = {"Accept": "text/html"}
PAGES = ("/", "/wall", "/publish", "/docs", "/watch/cam")
TOKEN = "a-token-of-32-characters-or-more"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server without access control."""
    with serve() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose control plane asks for a token."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN)
    with serve("--control-token-file", str(file)) as running:
        yield running


def test_scripts_have_the_types_that_their_comments_state() -> None:
    """The compiler of TypeScript finds no error in the JSDoc types of any script, in its strict mode."""
    node = Path(playwright.__file__).parent / "driver" / "node"
    compiler = NPM / "typescript" / "tsc.js"
    done = subprocess.run([node, compiler, "-p", FOLDER / "tsconfig.json"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_allows_scripts_of_this_server_only(server: RunningServer, path: str) -> None:
    """Its policy allows no inline script and no other origin, and its markup has neither inline script nor style."""
    answer = httpx.get(server.url + path, headers=HTML)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert answer.status_code == 200
    assert (policy["default-src"], policy["script-src"], policy["base-uri"]) == ("'none'", "'self'", "'none'")
    assert policy["frame-ancestors"] == ("*" if path.startswith("/watch") else "'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|https?://(?!www\.w3\.org)", answer.text)


def test_files_are_kept_by_browsers_and_compressed(server: RunningServer) -> None:
    """A page's files carry a digest in their URLs and are cached for ever; a vendored one comes with its licence."""
    page = httpx.get(server.url, headers=HTML).text
    [style] = re.findall(r'href="(/static/\w+/style\.css)"', page)
    answer = httpx.get(server.url + style)
    assert (answer.status_code, answer.headers["content-encoding"]) == (200, "gzip")
    assert "immutable" in answer.headers["cache-control"]
    base = style.removesuffix("/style.css")
    for name in ("mpegts.js/mpegts.js", "mpegts.js/LICENSE", "swagger-ui-dist/swagger-ui.css"):
        assert httpx.get(f"{server.url}{base}/{name}").status_code == 200
    old = httpx.get(f"{server.url}/static/000000000000/style.css")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-store")


@pytest.mark.parametrize("name", ["none.js", "../pages.py", "%2e%2e/pages.py", "..%2f..%2fserver.py", "tsconfig.json"])
def test_no_other_file_is_served(server: RunningServer, name: str) -> None:
    """Only the pages' own files."""
    with server.client() as client:
        assert client.ask("GET", f"/static/0/{name}").status == 404


def test_a_wrong_channel_name_is_refused(server: RunningServer) -> None:
    """The player's page says what is wrong with the name."""
    answer = httpx.get(f"{server.url}/watch/..x", headers=HTML)
    assert (answer.status_code, "contains &#39;..&#39;" in answer.text) == (400, True)
    assert httpx.get(f"{server.url}/watch/..x").json() == {"detail": "not a channel name: '..x' (contains '..')"}


@pytest.mark.parametrize("path", ["/nothing", "/no/thing", "/watch/a/b", "/static/0/none.js", "/trickle", "/dashboard"])
def test_an_address_without_a_page_says_where_the_pages_are(
    server: RunningServer, guarded: RunningServer, path: str
) -> None:
    """To a browser in a page, with tokens or without; to a program as before."""
    for running in (server, guarded):
        answer = httpx.get(running.url + path, headers=HTML)
        if running is guarded and path == "/dashboard":  # a name of the control plane: it may have something there
            assert answer.status_code == 401
            continue
        assert (answer.status_code, "There is no such page" in answer.text) == (404, True)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    told = httpx.get(server.url + path)
    assert (told.status_code, "<html" in told.text) == (404, False)


def test_a_wrong_address_may_mean_a_channel(server: RunningServer, tab: Watched) -> None:
    """The page offers its player, and can be used by all."""
    tab.expected += ["404"]
    page = tab.open(f"{server.url}/cam")
    assert barriers(page) == []
    page.get_by_role("link", name="Watch “cam”").click()
    expect(page.get_by_role("heading", name="cam")).to_be_visible()


def test_all_that_needs_a_token_has_a_name_of_the_control_plane(guarded: RunningServer) -> None:
    """Other paths are open: nothing may ever be there."""
    paths = httpx.get(f"{guarded.url}/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}).json()["paths"]
    assert {path.split("/")[1] for path in paths} <= CONTROL_PLANE
    assert httpx.get(f"{guarded.url}/api/v1/channels").status_code == 401
    assert httpx.get(f"{guarded.url}//api/v1/channels").status_code == 404


def test_without_web_pages_there_is_only_the_api() -> None:
    """With `--no-web` no page is served, and the API is."""
    with serve("--no-web") as running:
        assert [httpx.get(running.url + path, headers=HTML).status_code for path in PAGES] == [404] * len(PAGES)
        assert httpx.get(f"{running.url}/api/v1/channels").status_code == 200


def test_the_api_is_described_without_another_server(server: RunningServer, tab: Watched) -> None:
    """`/docs` shows every route, and asks nobody but this server."""
    asked: list[str] = []
    tab.context.on("request", lambda request: asked.append(request.url))
    page = tab.open(f"{server.url}/docs")
    expect(page.get_by_text("List all channels")).to_be_visible()
    assert [url for url in asked if not url.startswith((server.url, "data:"))] == []


def test_signing_in_keeps_the_token_out_of_urls(guarded: RunningServer, tabs: Callable[..., Watched]) -> None:
    """The page asks for a token, says that one is wrong, keeps the right one for the tab, and forgets it again."""
    tab = tabs()
    tab.expected += ["401"]  # what the console says of the first requests
    asked: list[str] = []
    tab.context.on("request", lambda request: asked.append(request.url))
    page = tab.open(f"{guarded.url}/docs")

    _sign_in(page, "a-wrong-token")
    expect(page.get_by_role("alert")).to_have_text("The server does not accept this token.")
    _sign_in(page, TOKEN)
    expect(page.get_by_text("List all channels")).to_be_visible()
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    assert not any(TOKEN in url for url in asked)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def _sign_in(page: Page, token: str) -> None:
    page.get_by_label("Access token").fill(token)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()


def test_pages_of_other_origins_change_nothing(server: RunningServer, tab: Watched) -> None:
    """A page of another origin can neither create nor end a channel: not by a request, and not by a form."""
    tab.expected += ["403", "CORS", "net::ERR_FAILED"]
    httpx.post(f"{server.base}/mine").raise_for_status()
    other = f"<form method=post action={server.base}/form></form>"
    tab.context.route("http://other.test/", lambda route: route.fulfill(body=other, content_type="text/html"))
    page = tab.open("http://other.test/")
    page.evaluate(
        """async (url) => {
            await fetch(url + "/mine", {method: "DELETE"}).catch(() => {});
            await fetch(url + "/theirs", {method: "POST", mode: "no-cors"}).catch(() => {});
        }""",
        server.base,
    )
    with page.expect_navigation():
        page.evaluate("document.forms[0].submit()")
    assert "origin" in page.content()
    channels = httpx.get(f"{server.url}/api/v1/channels").json()["channels"]
    assert [channel["name"] for channel in channels if not channel["name"].startswith("_")] == ["mine"]
