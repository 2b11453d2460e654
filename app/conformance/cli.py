"""``tricklecast conformance``: judge any server by the protocol."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from tricklecast.app.conformance.case import Case
from tricklecast.app.conformance.cases import CASES
from tricklecast.app.conformance.profiles import PROFILES, Settings
from tricklecast.app.conformance.report import Report, console, print_rules, write_json
from tricklecast.app.conformance.runner import Runner
from tricklecast.app.conformance.target import Address
from tricklecast.trickle import wire
from tricklecast.trickle.errors import InvalidURL
from tricklecast.trickle.paths import normalize_base_path, parse_server_url

EXIT_FAILED = 1
EXIT_UNREACHABLE = 3

_AS_STARTED = "What the server was started with, in seconds; the default is the profile's."


def conformance(
    url: Annotated[
        str | None, typer.Argument(help="Base URL of the server, such as http://127.0.0.1:2939/trickle.")
    ] = None,
    *,
    list_rules: Annotated[bool, typer.Option("--list", help="Print all rules and profiles, and run nothing.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only cases whose name matches; may be repeated.")
    ] = None,
    profile: Annotated[str, typer.Option(help=f"What the server was started with: {', '.join(PROFILES)}.")] = "default",
    jobs: Annotated[int, typer.Option(min=1, max=128, help="How many cases run at a time.")] = 16,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results here, too.")
    ] = None,
    drain_s: Annotated[float | None, typer.Option("--drain-s", min=0, help=_AS_STARTED)] = None,
    publisher_grace_s: Annotated[float | None, typer.Option("--publisher-grace-s", min=0, help=_AS_STARTED)] = None,
    skip_grace_s: Annotated[float | None, typer.Option("--skip-grace-s", min=0, help=_AS_STARTED)] = None,
    interim_interval_s: Annotated[float | None, typer.Option("--interim-interval-s", min=0, help=_AS_STARTED)] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust with https, as a PEM file.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say for each skipped case why.")] = False,
) -> None:
    """Check a server against every rule of the trickle protocol, over raw sockets.

    Prints PASS, FAIL or SKIP for each rule; a failure with what was expected, what came and the way there. Uses
    channels of its own and ends them. Exit code: 0 all passed, 1 failures, 2 wrong usage, 3 server not reachable.
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
    runner = Runner(
        _address(url, profile, ca_file),
        profile,
        _settings(profile, drain_s, publisher_grace_s, skip_grace_s, interim_interval_s),
    )
    _reach(runner.address, url)
    report = Report(out, verbose=verbose)
    _run(runner, cases, jobs, report)
    if json_file:
        write_json(json_file, url, profile, report.results)
    if not report.close():
        raise typer.Exit(EXIT_FAILED)


def _select(globs: Sequence[str]) -> list[Case]:
    cases = [case for case in CASES if any(fnmatchcase(case.name, glob) for glob in globs)]
    if not cases:
        raise typer.BadParameter("no case has such a name; see --list", param_hint="--only")
    return cases


def _address(url: str, profile: str, ca_file: Path | None) -> Address:
    """The path of the URL is the base path; without one it is that of the profile."""
    try:
        parse_server_url(url)
        parts = urlsplit(url)
        default = str(PROFILES[profile].options.get("base_path", wire.DEFAULT_BASE_PATH))
        base_path = normalize_base_path(parts.path or default)
    except InvalidURL as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None
    tls = None
    if parts.scheme == "https":
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise typer.BadParameter(str(error), param_hint="--ca-file") from None
    return Address(parts.hostname or "", parts.port or (443 if tls else 80), base_path, tls)


def _settings(
    profile: str,
    drain_s: float | None,
    publisher_grace_s: float | None,
    skip_grace_s: float | None,
    interim_interval_s: float | None,
) -> Settings:
    known = PROFILES[profile].settings
    return replace(
        known,
        channel_drain_s=known.channel_drain_s if drain_s is None else drain_s,
        publisher_grace_s=known.publisher_grace_s if publisher_grace_s is None else publisher_grace_s,
        skip_grace_s=known.skip_grace_s if skip_grace_s is None else skip_grace_s,
        interim_interval_s=known.interim_interval_s if interim_interval_s is None else interim_interval_s,
    )


def _reach(address: Address, url: str) -> None:
    try:
        address.connect().close()
    except OSError as error:
        console(stderr=True).print(f"tricklecast: {wire.redacted(url)} cannot be reached: {error}")
        raise typer.Exit(EXIT_UNREACHABLE) from None


def _run(runner: Runner, cases: Sequence[Case], jobs: int, report: Report) -> None:
    """Run all, and say on a terminal how far it is."""
    progress = out if (out := report.out).is_terminal else console(stderr=True)
    if not progress.is_terminal:
        for result in runner.run(cases, jobs):
            report.add(result)
        return
    with progress.status("starting") as status:
        for number, result in enumerate(runner.run(cases, jobs), 1):
            report.add(result)
            status.update(f"{number} of {len(cases)}; some rules take seconds to show")
