"""``tricklecast conformance``: check any server against the protocol."""

from __future__ import annotations

import contextlib
import re
import signal
import ssl
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from tricklecast.app.tools import EXIT_SIGNAL, console, interruptible
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.profiles import PROFILES
from tricklecast.app.tools.conformance.runner import Case, ConformanceReport, Runner, print_rules
from tricklecast.app.tools.conformance.target import Address
from tricklecast.trickle import wire
from tricklecast.trickle.amounts import parse_duration
from tricklecast.trickle.errors import InvalidURL
from tricklecast.trickle.paths import normalize_base_path, parse_server_url, socket_path
from tricklecast.trickle.terminal import CaFile, checked

_UNIX: Final = re.compile(r"(https?)\+unix://([^/]+)")

EXIT_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 3


def _setting(option: str, of_server: str | None = None) -> Any:
    """An option for a setting of the server, which may have another name there."""
    text = f"The server's {of_server or option}."
    panel = "Settings of the server that differ from the profile's"
    return typer.Option(option, metavar="TIME", help=text, rich_help_panel=panel)


def conformance(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="Base URL of the server: http://HOST:PORT/trickle, or http+unix://%2Frun%2FSOCKET/trickle.",
        ),
    ] = None,
    *,
    list_rules: Annotated[bool, typer.Option("--list", help="Print all rules and profiles, and run no test.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only cases with a matching name. May be repeated.")
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="How the server is configured; --list names the profiles.")
    ] = "default",
    jobs: Annotated[int, typer.Option(metavar="N", min=1, max=128, help="Cases that run at a time.")] = 16,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print also why cases were skipped.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json-file", metavar="FILE", help="Write the results as JSON.")
    ] = None,
    drain_s: Annotated[str | None, _setting("--drain-s", "--channel-drain-s")] = None,
    publisher_grace_s: Annotated[str | None, _setting("--publisher-grace-s")] = None,
    skip_grace_s: Annotated[str | None, _setting("--skip-grace-s")] = None,
    ca_file: CaFile = None,
) -> None:
    """Test a server against every rule of the trickle protocol, over raw sockets.

    Prints PASS, FAIL or SKIP for each rule; after FAIL, the expected and the received value, and the bytes on the wire.
    The tests use channels of their own, and end them.

    Exit codes: 0 no failure; 1 failures; 2 wrong usage; 3 the server does not answer; 130 Ctrl-C; 143 SIGTERM.

    Examples:

    \b
      tricklecast conformance http://localhost:2939/trickle
      tricklecast conformance http://localhost:2939/trickle --only 'read-*' -v
      tricklecast conformance http+unix://%2Frun%2Ftricklecast%2Fhttp.sock/trickle
      tricklecast conformance --list
    """
    cases = _select(only or ["*"])
    out = console()
    if list_rules:
        print_rules(out, cases)
        return
    if url is None:
        raise typer.BadParameter("give the URL of a server, or --list", param_hint="URL")
    if profile not in PROFILES:
        raise typer.BadParameter(f"one of {', '.join(PROFILES)}", param_hint="--profile")
    given = {
        "channel_drain_s": ("--drain-s", drain_s),
        "publisher_grace_s": ("--publisher-grace-s", publisher_grace_s),
        "skip_grace_s": ("--skip-grace-s", skip_grace_s),
    }
    known = {
        name: checked(option, partial(parse_duration, zero=True), text)
        for name, (option, text) in given.items()
        if text is not None
    }
    settings = replace(PROFILES[profile].settings, **known)  # type: ignore[arg-type]
    runner = Runner(_address(url, profile, ca_file), profile, settings)
    _reach(runner.address, url)
    report = ConformanceReport(out, verbose=verbose)
    try:
        with interruptible():
            _run(runner, cases, jobs, report)
    except KeyboardInterrupt as interrupt:
        report.close()
        raise typer.Exit(EXIT_SIGNAL + (interrupt.args or (signal.SIGINT,))[0]) from None
    if json_file:
        report.write_json(json_file, url, profile)
    if not report.close():
        raise typer.Exit(EXIT_FAILED)


def _select(globs: Sequence[str]) -> list[Case]:
    cases = [case for case in CASES if any(fnmatchcase(case.name, glob) for glob in globs)]
    if not cases:
        raise typer.BadParameter("no case has this name; see --list", param_hint="--only")
    return cases


def _address(url: str, profile: str, ca_file: Path | None) -> Address:
    """The address in a URL. A URL without a path has the base path of the profile."""
    unix = None
    if match := _UNIX.match(url):
        # As the server announces it: the path of the socket, encoded, stands in the place of a host.
        unix = socket_path(match[2])
        url = f"{match[1]}://localhost{url[match.end() :]}"
    elif match := re.match(r"(?:(?:https?\+)?unix:)?/+", url):
        path = quote("/" + url[match.end() :].removesuffix(wire.DEFAULT_BASE_PATH), safe="")
        raise InvalidURL(url, f"a Unix socket is http+unix://{path}{wire.DEFAULT_BASE_PATH}")
    parse_server_url(url)
    parts = urlsplit(url)
    default = str(PROFILES[profile].options.get("base_path", wire.DEFAULT_BASE_PATH))
    base_path = normalize_base_path(parts.path or default)
    tls = None
    if parts.scheme == "https":
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise typer.BadParameter(str(error), param_hint="--ca-file") from None
    return Address(parts.hostname or "", parts.port or (443 if tls else 80), base_path, tls, unix)


def _reach(address: Address, url: str) -> None:
    try:
        address.connect().close()
    except OSError as error:
        console(stderr=True).print(f"tricklecast: {wire.redacted(url)} cannot be reached: {error.strerror or error}")
        raise typer.Exit(EXIT_UNREACHABLE) from None


def _run(runner: Runner, cases: Sequence[Case], jobs: int, report: ConformanceReport) -> None:
    """Run all cases, and show the progress on a terminal."""
    terminal = report.out if report.out.is_terminal else console(stderr=True)
    status = terminal.status("starting") if terminal.is_terminal else None
    with status or contextlib.nullcontext(), contextlib.closing(runner.run(cases, jobs)) as results:
        for number, result in enumerate(results, 1):
            report.add(result)
            if status is not None:
                status.update(f"{number} of {len(cases)}; some rules take seconds to show")
