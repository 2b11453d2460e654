"""The configurations of docs/how-to/behind-a-proxy.md, in the proxies for which they are written."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.app.data_plane.test_players import Live
from tests.support.local import LocalServer, local_server
from tests.support.peers import Peer, fake_server, run
from tests.support.ports import free_port
from tests.support.waiting import WITHIN_S, eventually
from tricklecast import Publisher, Subscriber
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.profiles import PROFILES
from tricklecast.app.tools.conformance.runner import CaseOutcome, Runner
from tricklecast.app.tools.conformance.target import Address

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/behind-a-proxy.md"
SHORT_S: Final = 0.5
LONG_S: Final = (11.0, 70.0, 200.0)
AT_ONCE_S: Final = 9.0
"""A busy machine may take a while; what this is to find took 10 s and more."""

VIEWERS: Final = 100

BINARIES: Final = {
    name: shutil.which(name, path="/usr/sbin:/usr/local/sbin") or shutil.which(name)
    for name in ("nginx", "haproxy", "caddy")
}


def configuration(name: str, port: int, server: int) -> str:
    """What the page says about a proxy, with these ports."""
    text = blocks(name)[0]
    assert "127.0.0.1:2939" in text
    return text.replace("127.0.0.1:2939", f"127.0.0.1:{server}").replace(PORTS[name][0], PORTS[name][1] % port)


def blocks(section: str) -> list[str]:
    """The pieces of configuration in a section of the page."""
    found = re.search(rf"^## {section}$(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL | re.IGNORECASE)
    assert found is not None, f"the page has the section {section}"
    return re.findall(r"^```\w*\n(.*?)^```", found[1], re.MULTILINE | re.DOTALL)


PORTS: Final = {
    "nginx": ("listen 80;", "listen 127.0.0.1:%d;"),
    "haproxy": ("bind :80", "bind 127.0.0.1:%d"),
    "caddy": ("example.com {", "http://127.0.0.1:%d {"),
}


def command(name: str, folder: Path, text: str) -> list[str]:
    """The command that runs a proxy in the foreground with this configuration and files in this folder."""
    binary, file = BINARIES[name], folder / "config"
    assert binary is not None
    match name:
        case "nginx":
            kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            folders = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
            file.write_text(
                # Its workers would be "nobody" otherwise, who cannot look into a test's folder.
                f"user root;\ndaemon off; pid {folder}/pid; error_log stderr;\nevents {{}}\n"
                f"http {{ access_log off; {folders}\n{text}}}\n"
            )
            return [binary, "-e", "stderr", "-p", str(folder), "-c", str(file)]
        case "haproxy":
            file.write_text(text)
            return [binary, "-db", "-f", str(file)]
        case _:
            file.write_text("{\n    admin off\n    auto_https off\n}\n" + text)
            return [binary, "run", "--config", str(file), "--adapter", "caddyfile"]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server that forgets a client soon that has closed its connection."""
    with local_server(half_closed_s=0.2) as running:
        yield running


@pytest.fixture(scope="module", params=list(PORTS))
def proxy(
    request: pytest.FixtureRequest, server: LocalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a proxy in front of the server."""
    port, name = free_port(), request.param
    with running(name, port, tmp_path_factory.mktemp(name), configuration(name, port, server.port)):
        yield port


def over_tls(name: str, port: int, server: int, certificate: Path, key: Path) -> str:
    """The same with TLS and HTTP/2, as the page says."""
    text = configuration(name, port, server)
    if name == "caddy":
        site = f"127.0.0.1:{port} {{"
        return text.replace(f"http://{site}", f"https://{site}\n    tls {certificate} {key}")
    (tls,) = blocks("HTTP/2")
    for before, after in (
        ("443", f"127.0.0.1:{port}"),
        ("/etc/nginx/live.pem", certificate),
        ("/etc/nginx/live.key", key),
    ):
        assert before in tls
        tls = tls.replace(before, str(after), 1)
    return text.replace(f"listen 127.0.0.1:{port};", tls)


@contextmanager
def running(name: str, port: int, folder: Path, text: str, scheme: str = "http") -> Iterator[None]:
    """Run a proxy with this configuration until the block ends."""
    if BINARIES[name] is None:
        pytest.skip(f"{name} is not installed")
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command(name, folder, text),
            stdout=said, stderr=said, env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    try:
        eventually(lambda: process.poll() is not None or reaches(port, scheme), what=f"{name} is there")
        assert process.poll() is None, (folder / "said").read_text()
        yield
    finally:
        process.terminate()
        process.wait(WITHIN_S)


@pytest.fixture
def cache(server: LocalServer, tmp_path: Path) -> Iterator[int]:
    """The port of an nginx that caches HLS."""
    port = free_port()
    outside, inside = blocks("A cache for HLS")
    listen = f"listen 127.0.0.1:{port};"
    text = configuration("nginx", port, server.port).replace(listen, f"{listen}\n{inside}")
    with running("nginx", port, tmp_path, outside.replace("/var/cache/nginx", str(tmp_path)) + text):
        yield port


def reaches(port: int, scheme: str = "http") -> bool:
    """Whether the server answers through the proxy."""
    try:
        return httpx.get(f"{scheme}://127.0.0.1:{port}/healthz", verify=False).status_code == 200
    except httpx.HTTPError:
        return False


class Raw:
    """A client that knows HTTP/1.1 by the letter: what comes is read as the answer to the oldest request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def ask(self, method: str, path: str, *fields: str) -> None:
        """Send a head."""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]
        self.writer.write("\r\n".join(lines).encode())

    async def answer(self, within_s: float = AT_ONCE_S) -> tuple[int, bytes]:
        """The status of the next answer, which has to be a final one, and its body."""
        async with asyncio.timeout(within_s):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = int(head.split(" ", 2)[1])
            if length := re.search(r"^content-length: (\d+)", head, re.MULTILINE):
                return status, await self.reader.readexactly(int(length[1]))
            if "transfer-encoding: chunked" not in head:
                return status, b""
            body = b""
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            while (await self.reader.readline()).strip():
                pass  # trailer fields
            return status, body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Raw]:
    """A connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


async def raw(port: int, channel: str, silent_s: float) -> None:
    """One connection publishes and one reads; each is used again after the silence, and at once."""
    async with connected(port) as publisher, connected(port) as reader:
        publisher.ask("POST", f"/trickle/{channel}")
        assert (await publisher.answer())[0] == 200
        for seq in range(2):
            publisher.ask("POST", f"/trickle/{channel}/{seq}", "Transfer-Encoding: chunked")
            reader.ask("GET", f"/trickle/{channel}/{seq}")
            await asyncio.sleep(silent_s if seq == 0 else 0)
            publisher.writer.write(b"4\r\ndata\r\n0\r\n\r\n")
            assert await reader.answer() == (200, b"data")
            assert (await publisher.answer())[0] == 200
            publisher.ask("GET", "/healthz")
            assert (await publisher.answer())[0] == 200


async def ours(port: int, channel: str, silent_s: float) -> None:
    """`Publisher` and `Subscriber`: one segment, silence, and another one."""
    url = f"http://127.0.0.1:{port}/trickle/{channel}"
    async with Publisher(url) as publisher, Subscriber(url, start="earliest") as subscriber:
        segments = aiter(subscriber)
        for silence_s in (0, silent_s):
            await asyncio.sleep(silence_s)
            async with asyncio.timeout(AT_ONCE_S):
                async with publisher.segment() as segment:
                    await segment.write(b"data")
                assert await (await anext(segments)).read() == b"data"
        statistics = publisher.statistics()
        assert (statistics.dropped, statistics.lost, statistics.retries) == (0, 0, 0)


async def httpx_client(port: int, channel: str, silent_s: float) -> None:
    """A client of another project, which streams its body."""
    base = f"http://127.0.0.1:{port}/trickle/{channel}"

    async def body() -> AsyncIterator[bytes]:
        await asyncio.sleep(silent_s)
        yield b"data"

    async with httpx.AsyncClient(timeout=silent_s + AT_ONCE_S) as client:
        (await client.post(base)).raise_for_status()
        for seq in range(2):
            read = asyncio.create_task(client.get(f"{base}/{seq}"))
            assert (await client.post(f"{base}/{seq}", content=body())).status_code == 200
            async with asyncio.timeout(AT_ONCE_S):
                assert (await read).content == b"data"
            silent_s = 0


async def silences(port: int, seconds: tuple[float, ...]) -> None:
    """All clients with all silences at the same time."""
    async with asyncio.TaskGroup() as group:
        for client in (raw, ours, httpx_client):
            for silent_s in seconds:
                group.create_task(client(port, f"{client.__name__}-{port}-{silent_s:g}", silent_s))


def test_a_silent_publisher_and_a_waiting_reader(proxy: int) -> None:
    """After a silence the segment arrives at once, and the next request on the connection is answered as its own."""
    asyncio.run(silences(proxy, (SHORT_S,)))


@pytest.mark.long
def test_long_silences(proxy: int) -> None:
    """11 s (an unasked interim answer came after 10), 70 s (beyond a minute, the usual limit), and 200 s."""
    asyncio.run(silences(proxy, LONG_S))


def test_an_early_answer_ends_the_post(proxy: int, server: LocalServer, request: pytest.FixtureRequest) -> None:
    """A publisher whose segment is closed learns of it while its body goes on; Caddy tells it at the body's end."""

    is_told_late = "caddy" in request.node.name

    async def main() -> None:
        channel = f"early-{proxy}"
        async with connected(proxy) as first, connected(proxy) as late:
            first.ask("POST", f"/trickle/{channel}/0", "Content-Length: 4")
            first.writer.write(b"data")
            assert (await first.answer())[0] == 200
            late.ask("POST", f"/trickle/{channel}/0", "Transfer-Encoding: chunked")
            told = asyncio.create_task(late.answer(WITHIN_S))
            chunks = range(20) if is_told_late else count()
            for _ in chunks:
                if told.done():
                    break
                late.writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0.05)
            else:
                late.writer.write(b"0\r\n\r\n")
            assert (await told)[0] == 409

    asyncio.run(main())


def test_a_refused_post_costs_nobody_else(proxy: int) -> None:
    """The server closes its connection after such an answer; the next request comes over another one."""

    async def main() -> None:
        for path, status in (("/trickle/_reserved/0", 403), ("/nowhere", 404), ("/trickle/c/x", 400)):
            async with connected(proxy) as client, connected(proxy) as other:
                client.ask("POST", path, "Content-Length: 4")
                client.writer.write(b"data")
                assert (await client.answer())[0] == status
                other.ask("GET", "/healthz")
                assert (await other.answer())[0] == 200

    asyncio.run(main())


def test_a_reader_that_leaves_is_forgotten(proxy: int, server: LocalServer, request: pytest.FixtureRequest) -> None:
    """Though nothing is published: behind Caddy when something is."""

    async def main() -> None:
        channel = f"left-{proxy}"
        async with connected(proxy) as publisher, connected(proxy) as reader:
            publisher.ask("POST", f"/trickle/{channel}")
            assert (await publisher.answer())[0] == 200
            reader.ask("GET", f"/trickle/{channel}/0")
            await asyncio.to_thread(eventually, lambda: server.plane.registry.readers == 1)
            reader.writer.close()
            if "caddy" in request.node.name:
                publisher.ask("POST", f"/trickle/{channel}/0", "Content-Length: 4")
                publisher.writer.write(b"data")
            await asyncio.to_thread(eventually, lambda: not server.plane.registry.readers)

    asyncio.run(main())


def test_many_viewers_behind_a_cache_are_one_request(cache: int, server: LocalServer) -> None:
    """Of the next state of a playlist, of a part that is not there yet, and of a segment."""
    film = f"film-{cache}"

    async def all_get(names: list[str], publish: Callable[[], object] | None = None) -> None:
        """Each of many viewers asks for each of these; what they wait for is published when the server is asked."""
        before = len(server.records)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{cache}/trickle/{film}/", limits=limits) as client:
            asked = [asyncio.create_task(client.get(name, timeout=WITHIN_S)) for _ in range(VIEWERS) for name in names]
            if publish is not None:
                waiting = server.plane.parked[ParkedFor.PLAYLIST]
                await asyncio.to_thread(eventually, lambda: len(waiting) == len(names), what="the server is asked")
                await asyncio.to_thread(publish)
            answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == len(names)
        paths = [f"/trickle/{film}/{name.partition('?')[0]}" for name in names]
        seen = Counter(record.path for record in server.records[before:] if record.path in paths)
        # A viewer who is very late, as on a busy machine, finds a playlist that is too old, and the cache asks again.
        assert seen.keys() == {*paths}
        assert max(seen.values()) <= VIEWERS // 20

    with server.client() as target:
        live = Live(target.channel(film))
        for seq in range(3):
            live.publish(seq)
        playlist = live.playlist()
        asyncio.run(all_get(["media.m3u8" + live.next_query(), playlist.hint], lambda: live.publish(3)))
        asyncio.run(all_get([playlist.whole[-1].uri]))


CLOSING: Final = {
    "publish/zero-byte-close-advances-the-head",
    "publish/counted-zero-bytes-advance-the-head",
    "publish/no-body-at-all-advances-the-head",
    "publish/segment-closed-before-the-first-byte",
    "publish/segment-deleted-mid-body",
    "publish/segment-reset-mid-body",
    "ahead/far-ahead-is-470-before-the-body",
    "repeated/segment-closed-as-a-part-is-truncated",
    "occupied/publisher-beside-another-is-409",
    "pinned/publisher-of-another-epoch-is-409",
    "takeover/earlier-writer-is-409",
    "takeover/earlier-preconnect-is-409",
    "order/overtaken-preconnect-is-skipped-in-the-end",
    "end/every-publisher-is-answered",
}
"""Rules that want `Connection: close`, which no proxy passes on."""

EARLY: Final = {
    "repeated/closed-segment-is-409-before-the-body",
    "repeated/retry-takes-over-from-a-half-dead-connection",
    "repeated/overtaken-attempt-is-409",
    "repeated/key-behind-which-others-wrote-is-409",
    "takeover/bytes-follow-what-is-there",
    "takeover/late-bytes-are-dropped",
    "takeover/stale-end-closes-nothing",
    "takeover/stale-abort-closes-nothing",
}
"""Rules that want an answer while the body goes on."""

ENDLESS: Final = {f"refusals/{name}" for name in ("endless-headers-are-431", "endless-header-value-is-431")}

DIFFERENCES: Final = {
    "nginx": CLOSING | ENDLESS | {"names/nul-is-refused", "lost-publisher/leaves-a-truncated-segment"},
    "haproxy": CLOSING
    | ENDLESS
    | {
        "refusals/endless-url-is-414",
        "malformed/length-and-chunked-is-400",
        "http/half-closed-readers-are-no-danger",
    },
    "caddy": CLOSING | EARLY | {"malformed/length-and-chunked-is-400"},
}
"""What the page says that the conformance suite finds."""


def broken(proxy: int, only: str, explained: Set[str] = frozenset()) -> set[str]:
    """The rules that do not hold behind a proxy, of those with a matching name that the page does not explain.

    Each has four chances: a case judges by the order of requests on several connections, or by how much of a chunk
    the proxy reads at once, and on a busy machine a proxy may change both.
    """
    runner = Runner(Address("127.0.0.1", proxy), "default", PROFILES["default"].settings)
    rules = {case.name for case in CASES if fnmatchcase(case.name, only)} - explained
    for _ in range(4):
        cases = [case for case in CASES if case.name in rules]
        rules = {result.case.name for result in runner.run(cases, 16) if result.outcome is CaseOutcome.FAIL}
    return rules


def test_chunks_are_not_split(proxy: int) -> None:
    """Clients that take each chunk for a message get whole ones."""
    assert not broken(proxy, "read/*-is-not-split")


def test_nginx_reads_more_of_a_published_chunk_than_its_default_holds(tmp_path: Path) -> None:
    """It passed on 8 KiB at a time, and readers got those as chunks that did not reach the server together."""
    passed_on: list[bytes] = []

    async def answers(peer: Peer) -> None:
        with suppress(asyncio.IncompleteReadError):  # the proxy has ended
            while True:
                if (await peer.head()).method == "POST":
                    passed_on.extend(await peer.body())
                await peer.answer(200)

    async def main() -> None:
        port = free_port()
        async with fake_server(answers) as fake:
            text = configuration("nginx", port, httpx.URL(fake.base).port or 0)
            with ExitStack() as proxied:
                await asyncio.to_thread(proxied.enter_context, running("nginx", port, tmp_path, text))
                async with connected(port) as publisher:
                    publisher.ask("POST", "/trickle/c/0", "Transfer-Encoding: chunked")
                    publisher.writer.write(b"8000\r\n%b\r\n" % bytes(32_768) * 8 + b"0\r\n\r\n")
                    assert (await publisher.answer())[0] == 200

    run(main)
    assert sum(map(len, passed_on)) == 8 * 32_768
    assert max(map(len, passed_on)) > 16_384


@pytest.mark.long
def test_the_page_knows_every_difference(proxy: int, request: pytest.FixtureRequest) -> None:
    """The rules of the protocol hold behind each proxy, but for those that the page explains."""
    assert not broken(proxy, "*", DIFFERENCES[request.node.callspec.params["proxy"]])
