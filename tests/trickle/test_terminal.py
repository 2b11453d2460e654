"""Parts that several commands share."""

from __future__ import annotations

import inspect
import io
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import typer
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tricklecast.trickle.amounts import (
    parse_duration,
)
from tricklecast.trickle.bearer import TOKEN_VARIABLE, Bearer
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, InvalidURL
from tricklecast.trickle.paths import ChannelURL
from tricklecast.trickle.terminal import (
    NO_CREDENTIALS,
    Credentials,
    Lines,
    RateMeter,
    Screen,
    bearer_for,
    checked,
    client_tls,
    no_channel,
    with_credentials,
)

# Options.


def test_a_wrong_option_is_a_usage_error() -> None:
    """The message is the parser's, or names the allowed values."""
    assert checked("--for", parse_duration, "2min") == 120
    with pytest.raises(typer.BadParameter, match=r"^not a duration: 'x'") as failed:
        checked("--for", parse_duration, "x")
    assert failed.value.param_hint == "--for"
    with pytest.raises(InvalidURL):
        checked("URL", ChannelURL.parse, "htp://host/cam")


def test_certificates_of_a_file(tmp_path: Path) -> None:
    """A file makes a context that trusts nothing else."""
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    context = client_tls(file)
    assert context is not None
    assert len(context.get_ca_certs()) == 1


def test_a_file_without_certificates(tmp_path: Path) -> None:
    """The message names the file and the reason."""
    missing = r"^cannot read certificates from .*missing: No such file or directory$"
    with pytest.raises(typer.BadParameter, match=missing):
        client_tls(tmp_path / "missing")
    file = tmp_path / "empty.pem"
    file.write_text("")
    with pytest.raises(typer.BadParameter, match=r"^cannot read certificates from .*empty\.pem: \S+"):
        client_tls(file)


def test_a_certificate_to_show(tmp_path: Path) -> None:
    """The client's certificate is loaded beside the authorities; without any file there is no context."""
    assert client_tls(None, None, None) is None
    authority = trustme.CA()
    trusted, shown = tmp_path / "ca.pem", tmp_path / "client.pem"
    authority.cert_pem.write_to_path(str(trusted))
    authority.issue_cert("player.example").private_key_and_cert_chain_pem.write_to_path(str(shown))
    context = client_tls(trusted, shown, None)
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert client_tls(None, shown, None) is not None


def test_a_certificate_that_cannot_be_shown(tmp_path: Path) -> None:
    """A key alone, and files without a certificate, are usage errors."""
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    with pytest.raises(typer.BadParameter, match=r"^give its certificate, too: --cert$"):
        client_tls(None, None, key)
    with pytest.raises(typer.BadParameter, match=rf"^cannot use {certificate}: No such file"):
        client_tls(None, certificate, None)
    certificate.write_text("nothing")
    key.write_text("nothing")
    with pytest.raises(typer.BadParameter, match=rf"^cannot use {certificate} with {key}: "):
        client_tls(None, certificate, key)


def test_an_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    """OpenSSL would ask for the password at the terminal."""
    issued = trustme.CA().issue_cert("player.example")
    certificate, key, both = tmp_path / "client.pem", tmp_path / "client.key", tmp_path / "both.pem"
    plain = load_pem_private_key(issued.private_key_pem.bytes(), None)
    encrypted = plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    key.write_bytes(encrypted)
    both.write_bytes(encrypted + certificate.read_bytes())
    for given, asked_of, hint in (((certificate, key), key, "--key"), ((both, None), both, "--cert")):
        with pytest.raises(typer.BadParameter, match=rf"^{asked_of} is encrypted; give a key without") as failed:
            client_tls(None, *given)
        assert failed.value.param_hint == hint


def test_a_command_gets_the_credentials_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options stand in the place of the parameter, and the command may be called with and without them."""

    @with_credentials
    def command(url: str, credentials: Credentials = NO_CREDENTIALS, wait: bool = False) -> tuple[str, Credentials]:
        """Do something."""
        return url, credentials

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    names = ["url", "ca_file", "cert", "key", "token", "token_file", "wait"]
    assert list(inspect.signature(command).parameters) == names
    assert command("u") == ("u", NO_CREDENTIALS)
    _, given = command(url="u", token="secret", wait=True)
    assert given.auth is not None
    assert (given.auth.token, given.tls) == ("secret", None)
    assert given.arguments == {"verify": True, "auth": given.auth}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"token": "a", "token_file": Path("b")}, "--token-file"),
        ({"token": "a b"}, "--token"),
        ({"token_file": Path("/no/such/file")}, "--token-file"),
        ({}, TOKEN_VARIABLE),
    ],
)
def test_a_token_that_cannot_be_used_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], hint: str
) -> None:
    """With the name of the option, as for every other one."""
    monkeypatch.setenv(TOKEN_VARIABLE, "a b")
    with pytest.raises(typer.BadParameter) as raised:
        with_credentials(lambda credentials=NO_CREDENTIALS: credentials)(**given)
    assert raised.value.param_hint == hint


# Access tokens.


def sent(bearer: Bearer | None) -> str:
    """The header of a request."""
    assert bearer is not None
    request: Any = SimpleNamespace(headers={})
    assert bearer(request) is request
    value: str = request.headers["Authorization"]
    return value


def test_without_a_token() -> None:
    """Requests carry no header; an empty variable counts as no token."""
    assert bearer_for(None, None, {}) is None
    assert bearer_for(None, None, {TOKEN_VARIABLE: ""}) is None


def test_an_argument_goes_before_a_file_and_a_file_before_the_environment(tmp_path: Path) -> None:
    """An argument wins over the variable, and so does a file; both together are an error."""
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    environment = {TOKEN_VARIABLE: "of-the-environment"}
    assert sent(bearer_for("given", None, environment)) == "Bearer given"
    assert sent(bearer_for(None, file, environment)) == "Bearer of-the-file"
    assert sent(bearer_for(None, None, environment)) == "Bearer of-the-environment"
    with pytest.raises(InvalidInput, match=r"not both"):
        bearer_for("given", file, {})


def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    """The next request sends the new token; while the file is empty, requests send the last one."""
    file = tmp_path / "token"
    file.write_text("old")
    bearer = bearer_for(None, file, {})
    file.write_text(" new ")
    assert sent(bearer) == "Bearer new"
    file.write_text("")
    assert sent(bearer) == "Bearer new"
    file.unlink()
    assert sent(bearer) == "Bearer new"
    file.write_text("newest")
    assert sent(bearer) == "Bearer newest"


@pytest.mark.parametrize("text", ["", " ", "a b", "a\nb", "a\x00", "é", "\x7f"])
def test_unusable_tokens_are_refused(tmp_path: Path, text: str) -> None:
    """A token that would break the header is refused, and the message does not repeat it."""
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"^the token is empty, or contains a character that is not visible ASCII$"):
        bearer_for(text, None, {})
    with pytest.raises(InvalidInput, match=r"token is empty, or contains a character that is not visible ASCII$"):
        bearer_for(None, file, {})


@pytest.mark.parametrize("text", ["Bearer abc", "bearer  abc", "BEARER abc\n"])
def test_a_header_that_was_pasted_as_a_token(tmp_path: Path, text: str) -> None:
    """The message tells the user to leave out the word Bearer, and does not repeat the token."""
    file = tmp_path / "token"
    file.write_text(text)
    message = "begins with the word Bearer; leave it out, since the client adds it"
    with pytest.raises(InvalidInput, match=f"^the token {message}$"):
        bearer_for(text, None, {})
    with pytest.raises(InvalidInput, match=f"^the token {message}$"):
        bearer_for(None, None, {TOKEN_VARIABLE: text})
    with pytest.raises(InvalidInput, match=f"^{file} {message}$"):
        bearer_for(None, file, {})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The command fails before it sends anything."""
    with pytest.raises(InvalidInput, match=r"^cannot read .*missing: No such file or directory$"):
        bearer_for(None, tmp_path / "missing", {})


def test_a_rate_is_that_of_the_last_seconds() -> None:
    """A faster or slower time before the window does not count."""
    now = 100.0
    meter = RateMeter(lambda: now)
    total = 0
    for second in range(20):
        total += 1_000_000 if second < 10 else 125_000
        now += 1
        bits_per_s = meter.bits_per_s(total)
        if second == 9:
            assert bits_per_s == 8e6
    assert bits_per_s == 1e6


# Lines on a terminal.


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    """A standard error that nobody reads."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError


def test_a_live_line_is_kept_below_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refreshed, cut to the terminal's width, moved down by lines, and removed at the end."""
    monkeypatch.setattr(Screen, "REFRESH_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "6")
    stream, drawn = Terminal(), threading.Event()
    screen = Screen(stream)

    def line() -> str:
        drawn.set()
        return "[6] and more"

    with screen.live(line):
        assert drawn.wait(60)
        screen.say("a line that stays")
    screen.say("over")
    assert "\r\x1b[2K[6] a" in stream.getvalue()
    assert "\r\x1b[2Ka line that stays\n[6] a" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[2Kover\n")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_no_live_line_without_a_terminal(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on a terminal without a cursor; control characters in a server's words are replaced."""
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen(stream)
    with screen.live(lambda: pytest.fail("asked for")):
        screen.say("[bold]\x1b[31m\tred")
    assert stream.getvalue() == "[bold]?[31m?red\n"


def test_a_closed_standard_error_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command goes on."""
    monkeypatch.setattr(sys, "stderr", Closed())
    Screen().say("nobody reads this")
    stream = io.StringIO()
    stream.close()
    Screen(stream).say("nor this")


def test_a_part_of_a_command_shows_its_lines_elsewhere() -> None:
    """Also on a terminal it has no live line: there are many parts."""
    said: list[str] = []
    screen = Lines(said.append)
    with screen.live(lambda: pytest.fail("asked for")):
        screen.say("one")
    assert said == ["one"]


@pytest.mark.parametrize(
    ("detail", "wait_s", "text"),
    [
        ("Stream not found", None, "no channel at http://h/trickle/c?token=***; is its publisher running?"),
        ("", 5.0, "no channel at http://h/trickle/c?token=***; is its publisher running?"),
        ("", 0.0, "no channel at http://h/trickle/c?token=***; is its publisher running? --wait 10s waits for it"),
        ("Not found: look there", 0.0, "channel not found: Not found: look there (HTTP 404)"),
    ],
)
def test_a_missing_channel_is_named(detail: str, wait_s: float | None, text: str) -> None:
    """The message has no secrets and a hint, unless the server says that the URL is wrong."""
    error = ChannelNotFound(404, detail=detail)
    assert str(no_channel(error, "http://h/trickle/c?token=secret", wait_s)) == text
