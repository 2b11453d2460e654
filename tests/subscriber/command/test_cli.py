"""The commands as a user types them: exit codes, and one clear line for each mistake."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from tests.support.certificates import make_certificate
from tests.support.local import local_server
from tests.support.server import RunningServer, serve
from tests.trickle.client.test_connection import unused_port
from tricklecast.app.cli import main, runnable
from tricklecast.subscriber.archive import Keep
from tricklecast.subscriber.check.cli import check
from tricklecast.subscriber.command.cli import channels, subscribe
from tricklecast.subscriber.command.moments import Moment
from tricklecast.subscriber.command.run import Received, Request
from tricklecast.subscriber.core import OnLag
from tricklecast.subscriber.events import SubscriberStatistics
from tricklecast.trickle.errors import InvalidInput

NOWHERE = f"http://127.0.0.1:{unused_port()}/trickle/cam"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["subscribe", "cam"], 2, "it must begin with http:// or https://"),
        (["subscribe", "http://host"], 2, "it names no channel"),
        (["subscribe", "http://host/trickle/a%00b"], 2, "not a channel name"),
        (["subscribe", NOWHERE], 1, "Connection refused; start one with `tricklecast serve`"),
        (["subscribe", NOWHERE, "-o", "/no/such/folder/out.ts"], 1, "its folder does not exist"),
        (["subscribe", NOWHERE, "--start", "yesterday"], 2, "use next, current, earliest, a number"),
        (["subscribe", NOWHERE, "--start", "1@"], 2, "use next, current, earliest, a number"),
        (["subscribe", NOWHERE, "--start", "1@2+9"], 2, "without +9 the segment is read again from its start"),
        (["subscribe", NOWHERE, "--on-lag", "never"], 2, ": 'never' is not one of 'earliest', 'live', 'fail'"),
        (["subscribe", NOWHERE, "--fail-on", "sight"], 2, "'sight' is not one of 'never', 'gap', 'loss'"),
        (["subscribe", NOWHERE, "--for", "-1"], 2, "not a duration"),
        (["subscribe", NOWHERE, "--wait", "soon"], 2, "not a duration"),
        (["subscribe", NOWHERE, "--since", "soon"], 2, "use a time before now (10m), or one with its date"),
        (["subscribe", NOWHERE, "--until", "18:30"], 2, "'18:30' is a time of every day: give its date, too (today: 2"),
        (["subscribe", NOWHERE, "--since", "1m", "--until", "2m"], 2, "it would end before it begins"),
        (["subscribe", NOWHERE, "--until", "2m"], 2, "give --since or --start"),
        (["subscribe", NOWHERE, "--start", "next", "--until", "0s"], 2, "give --since or --start"),
        (["subscribe", NOWHERE, "--keep", "20 parsecs"], 2, "not a size"),
        (["subscribe", NOWHERE, "--keep", "0"], 2, "a whole number at least 1"),
        (["subscribe", NOWHERE, "-o", "out.ts", "--keep", "5"], 2, "only a folder can be limited"),
        (["subscribe", NOWHERE, "-o", ""], 2, "the name is empty"),
        (["subscribe", NOWHERE, "--ca-file", "/dev/null"], 2, "cannot read certificates from /dev/null"),
        (
            ["channels", NOWHERE, "--ca-file", "/no/such/file"],
            2,
            "/no/such/file: No such file",
        ),
        (["check", NOWHERE, "--ca-file", "/dev/null"], 2, "cannot read certificates"),
        (["subscribe"], 2, "URL"),
        (["clip", NOWHERE, "-o", "out.ts", "--since", "1m"], 2, "it ends with .mp4"),
        (["clip", NOWHERE, "-o", "a.mp4", "--since", "1m", "--until", "2999-01-01"], 2, "that time is to come"),
        (["gateway", "webrtc", "http://host/", "--stun", "host"], 2, "use stun:HOST:PORT"),
        (["ingest", "rtmp://:0", "--to", "http://host/", "--keys", "/no/such/file"], 2, "--keys: cannot read"),
        (["ingest", "srt://:9000?pkt_size=1316", "--to", "http://host/"], 2, "for ADDRESS: for many streams"),
        (["channels", "host"], 2, "it must begin with http:// or https://"),
        (["channels", NOWHERE], 1, "Connection refused"),
        (["publish", "http://host/\x01/cam", "testsrc"], 2, "a control character"),
        (["publish", "http://999.1.1.1/cam", "testsrc"], 2, "not a usable URL"),
        (["subscribe", "http://host/cam\n"], 2, "a control character"),
        (["check", "http://host/\x01/cam"], 2, "a control character"),
        (["channels", "http://999.1.1.1/cam"], 2, "not a usable URL"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """On standard error, with an exit code, and never a stack trace."""
    monkeypatch.setattr("sys.argv", ["tricklecast", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    said = capfd.readouterr()
    assert left.value.code == code
    assert says in " ".join(said.err.replace("│", " ").split())
    assert "Traceback" not in said.err
    assert said.out == ""
    if code == 1:
        assert said.err.startswith("tricklecast: ")
        assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["subscribe", "check", "channels", "publish", "conformance", "stress"])
@pytest.mark.parametrize("at", [NOWHERE, "ftp://nowhere/cam"], ids=["refused", "not-http"])
def test_a_url_is_shown_without_its_secrets(
    command: str, at: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither user and password nor an access token stand in a message, which may go to a log."""
    url = at.replace("://", "://user:secret@") + "?token=secret"
    source = {"publish": ["testsrc:duration=1s"]}
    monkeypatch.setattr("sys.argv", ["tricklecast", command, url, *source.get(command, [])])
    with pytest.raises(SystemExit):
        main()
    said = capfd.readouterr()
    assert said.err
    assert "secret" not in said.out + said.err


def test_media_is_not_poured_onto_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -o on a terminal, the command says what to type instead."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(typer.BadParameter, match="refusing to write media to a terminal; use -o FILE or a pipe"):
        runnable(subscribe)(NOWHERE)


@pytest.mark.parametrize("option", ["-o-", "--json"])
def test_a_closed_standard_output_is_a_plain_error(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``tricklecast subscribe URL >&-``."""
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(InvalidInput, match="stdout is closed"):
        runnable(subscribe)(NOWHERE, **({"as_json": True} if option == "--json" else {"output": "-"}))


def test_a_pipe_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, standard output is the default."""
    seen: list[Request] = []

    async def run(request: Request, reporter: object) -> Received:
        seen.append(request)
        return Received(SubscriberStatistics(), 0)

    monkeypatch.setattr("tricklecast.subscriber.command.run.run", run)
    app = typer.Typer()
    app.command()(runnable(subscribe))
    arguments = [
        "--start",
        "-3",
        "--for",
        "5min",
        "--wait",
        "2",
        "--reconnect-for",
        "1h",
        "--on-lag",
        "earliest",
        "--raw",
    ]
    assert CliRunner().invoke(app, [NOWHERE, *arguments]).exit_code == 0
    assert CliRunner().invoke(app, [NOWHERE, "-o", "x/", "--keep", "20GB", "--reconnect-for", "forever"]).exit_code == 0
    assert CliRunner().invoke(app, [NOWHERE, "-o", "x/", "--keep", "500", "--on-lag", "live"]).exit_code == 0
    assert CliRunner().invoke(app, [NOWHERE, "--start", "0"]).exit_code == 0
    assert CliRunner().invoke(app, [NOWHERE, "--since", "10m"]).exit_code == 0
    assert seen == [
        Request(NOWHERE, "-", start=-3, for_s=300, wait_s=2, reconnect_s=3600, on_lag=OnLag.EARLIEST, raw=True),
        Request(NOWHERE, "x/", on_lag=OnLag.EARLIEST, reconnect_s=None, keep=Keep(bytes=20_000_000_000)),
        Request(NOWHERE, "x/", on_lag=OnLag.LIVE, keep=Keep(segments=500)),
        Request(NOWHERE, "-", start=0),
        Request(NOWHERE, "-", since=Moment(600), on_lag=OnLag.EARLIEST),
    ]


@pytest.mark.parametrize(
    ("fail_on", "totals", "left_out", "code"),
    [
        ("never", SubscriberStatistics(missed=1, broken=1), 0, 0),
        ("gap", SubscriberStatistics(missed=1), 0, 3),
        ("gap", SubscriberStatistics(truncated=1), 0, 0),
        ("loss", SubscriberStatistics(truncated=1), 0, 3),
        ("loss", SubscriberStatistics(broken=1), 0, 3),
        ("loss", SubscriberStatistics(), 0, 0),
        ("loss", SubscriberStatistics(), 1, 3),
        ("gap", SubscriberStatistics(), 1, 0),
    ],
)
def test_losses_can_be_failures(
    monkeypatch: pytest.MonkeyPatch, fail_on: str, totals: SubscriberStatistics, left_out: int, code: int
) -> None:
    """With an exit code of their own."""

    async def run(request: object, reporter: object) -> Received:
        return Received(totals, left_out)

    monkeypatch.setattr("tricklecast.subscriber.command.run.run", run)
    app = typer.Typer()
    app.command()(runnable(subscribe))
    assert CliRunner().invoke(app, [NOWHERE, "--fail-on", fail_on]).exit_code == code


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One for all tests."""
    with serve() as running:
        yield running


@pytest.mark.parametrize("command", ["subscribe", "check"])
def test_a_channel_that_is_missing_is_named(
    command: str, server: RunningServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the user can do; a URL without a channel is told apart."""
    said = []
    for url, *options in ((f"{server.base}/none",), (f"{server.base}/none", "--wait", "10ms"), (server.base,)):
        monkeypatch.setattr("sys.argv", ["tricklecast", command, url, *options])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 1
        said.append(capfd.readouterr().err)
    missing = f"tricklecast: no channel at {server.base}/none; is its publisher running?"
    assert said[0] == f"{missing} --wait 10s waits for it\n"
    assert said[1].endswith(f"{missing}\n")
    assert "Method not allowed: this URL has no channel; " in said[2]


def test_the_past_of_a_channel_that_is_missing_may_be_stored(
    server: RunningServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands read a channel that is over."""
    monkeypatch.setattr("sys.argv", ["tricklecast", "subscribe", f"{server.base}/none", "--since", "1h"])
    with pytest.raises(SystemExit):
        main()
    assert (
        "; of a channel that is over, `tricklecast clip` makes a file, and `tricklecast store" in capfd.readouterr().err
    )


def test_events_go_where_the_media_does_not(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """To standard output, or to standard error, which then holds nothing else; an error is their last one."""
    monkeypatch.setattr("sys.argv", ["tricklecast", "subscribe", NOWHERE, "--json"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capfd.readouterr()
    assert left.value.code == 1
    assert [json.loads(line)["event"] for line in said.out.splitlines()] == ["start", "error"]
    assert said.err.startswith("tricklecast: cannot connect to http://127.0.0.1:")
    monkeypatch.setattr("sys.argv", ["tricklecast", "subscribe", NOWHERE, "--json", "-o", "-"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capfd.readouterr()
    assert left.value.code == 1
    assert said.out == ""
    assert json.loads(said.err.splitlines()[-1])["error"] == "ConnectionLost"
    assert all(json.loads(line) for line in said.err.splitlines())


def test_channels_are_fetched_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the URL and the format that were asked for."""
    said: list[object] = []

    async def fetch_channels(url: str, tls: object, auth: object) -> dict[str, object]:
        return {"url": url}

    monkeypatch.setattr("tricklecast.trickle.client.listing.fetch_channels", fetch_channels)
    monkeypatch.setattr(
        "tricklecast.subscriber.command.listing.print_channels", lambda answer, as_json: said.append((answer, as_json))
    )
    runnable(channels)(NOWHERE, as_json=True)
    assert said == [({"url": NOWHERE}, True)]


def test_a_certificate_of_ones_own_is_trusted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By each command; a server that has another one is not."""
    certificate, key = make_certificate(tmp_path)
    app = typer.Typer()
    for command in (subscribe, check, channels):
        app.command(command.__name__)(runnable(command))
    with local_server(tls_cert=certificate, tls_key=key, channel_drain_s=60) as server:
        base = f"https://127.0.0.1:{server.port}"
        url = f"{base}/trickle/cam"
        trust = ssl.create_default_context(cafile=certificate)
        with httpx.Client(verify=trust) as client:
            client.post(f"{url}/0", content=b"data").raise_for_status()
            client.delete(url).raise_for_status()
        for arguments in (
            ["subscribe", url, "-o", str(tmp_path / "out"), "--start", "0"],
            ["check", url, "--start", "0"],
            ["channels", base],
        ):
            ran = CliRunner().invoke(app, [*arguments, "--ca-file", str(certificate)])
            assert ran.exit_code == 0, (arguments, ran.output)
            ran = CliRunner().invoke(app, arguments)
            assert "certificate verify failed" in str(ran.exception), (arguments, ran.output)
    assert (tmp_path / "out").read_bytes() == b"data"
