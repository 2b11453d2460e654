"""``tricklecast stress``: publishes and subscribes at once, and compares both sides."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import Callable
from pathlib import Path
from secrets import randbelow, token_hex
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit

import typer

from tricklecast.app.tools import console
from tricklecast.app.tools.stress.load import CONTENT_TYPE, MARKER_BYTES, Load
from tricklecast.app.tools.stress.report import as_document, print_report, progress
from tricklecast.app.tools.stress.runner import Plan, Run, StressFailed
from tricklecast.trickle import wire
from tricklecast.trickle.errors import ConnectionLost, InvalidInput
from tricklecast.trickle.paths import normalize_base_path, parse_server_url
from tricklecast.trickle.terminal import parse_duration, parse_size

EXIT_FAULTS: Final = 1

CONNECT_S: Final = 10.0
"""How long the server may take for each step of its first answer."""

STARTS: Final = ("0", "next", "current", "earliest")
"""Subscribers connect before the first segment is published, so all of these mean segment 0, by different requests."""

T = TypeVar("T")


async def stress(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="A server, such as http://127.0.0.1:2939 or …/trickle.", show_default=False),
    ],
    publishers: Annotated[int, typer.Option("--publishers", "-p", min=1, help="Publishers, each with a channel.")] = 4,
    subscribers: Annotated[int, typer.Option("--subscribers", "-s", min=1, help="Subscribers of each channel.")] = 4,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long to publish: 30s, 2m.")] = "30s",
    segment_every: Annotated[
        str, typer.Option(metavar="TIME", help="Time between the segments of a channel.")
    ] = "500ms",
    segment_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of a segment, or a range that it is drawn from.")
    ] = "1KiB-128KiB",
    chunk_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Size of a chunk.")] = "8KiB",
    start: Annotated[str, typer.Option(help=f"How subscribers ask for segment 0: {', '.join(STARTS)}.")] = "0",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Sizes and bytes follow from it.", show_default="another each time")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that publish, and as many that subscribe.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) that an https server is checked against.", dir_okay=False)
    ] = None,
) -> None:
    """Publish and subscribe at once, and compare every byte.

    Each publisher has a channel of its own (stress-…). The command ends the channels when the run is over, and at
    Ctrl-C. It reports segments that are missing, doubled, reordered or different, latencies, and whether the command
    itself was the bottleneck. Exit code: 0 no fault, 1 faults, 2 wrong usage, 130 after Ctrl-C.
    """
    every_s = _checked(parse_duration, segment_every, "--segment-every")
    smallest, largest = _checked(parse_sizes, segment_bytes, "--segment-bytes")
    load = Load(
        seed=randbelow(1 << 32) if seed is None else seed,
        channels=publishers,
        segments=segments_in(_checked(parse_duration, for_, "--for"), every_s),
        every_s=every_s,
        smallest=smallest,
        largest=largest,
        chunk_bytes=_checked(parse_size, chunk_bytes, "--chunk-bytes"),
    )
    if start not in STARTS:
        raise typer.BadParameter(f"one of {', '.join(STARTS)}", param_hint="--start")
    base = _checked(base_url, url, "URL")
    if ca_file is not None:
        _checked(_certificates, str(ca_file), "--ca-file")
    plan = Plan(base, token_hex(3), load, subscribers, processes, start, str(ca_file or ""))
    await _reach(plan)
    await _run(plan, as_json=as_json)


async def _run(plan: Plan, *, as_json: bool) -> None:
    run = Run(plan)
    try:
        with progress(console(stderr=True), run):
            await run.carry_out()
    except asyncio.CancelledError:
        _show(run, as_json=as_json)
        raise
    _show(run, as_json=as_json)
    if run.ledger.faults:
        raise typer.Exit(EXIT_FAULTS)


def _show(run: Run, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(as_document(run), indent=1))
    else:
        print_report(console(), run)


async def _reach(plan: Plan) -> None:
    """Create a channel and end it, so that a wrong URL costs one line and not a table of faults.

    Raises:
        ConnectionLost: no server answers.
        StressFailed: it is no trickle server, or it refuses the channel.
    """
    import httpx  # --help must not wait for it

    url, shown = f"{plan.base}/{plan.channel('probe')}", wire.redacted(plan.base)
    verify = ssl.create_default_context(cafile=plan.ca_file) if plan.ca_file else True
    try:
        async with httpx.AsyncClient(verify=verify, timeout=CONNECT_S) as client:
            answer = await client.post(url, headers={wire.EXPECT_CONTENT: CONTENT_TYPE})
            if answer.is_success:
                await client.delete(url)
    except httpx.HTTPError as error:
        raise ConnectionLost(detail=f"{shown} cannot be reached: {error or type(error).__name__}") from None
    if not answer.is_success:
        raise StressFailed(
            f"{shown} creates no channels: HTTP {answer.status_code}. Is that a trickle server, and its base path?"
        )


def parse_sizes(text: str) -> tuple[int, int]:
    """Read one size or a range of sizes: ``64KiB``, ``1KiB-128KiB``.

    Raises:
        InvalidInput: it is neither, or the range is empty.
    """
    low, _, high = text.partition("-")
    smallest, largest = parse_size(low), parse_size(high or low)
    if smallest > largest:
        raise InvalidInput(f"{text!r} is an empty range")
    if smallest < MARKER_BYTES:
        raise InvalidInput(f"a segment has at least {MARKER_BYTES} bytes, which name its place")
    return smallest, largest


def base_url(url: str) -> str:
    """The URL below which channels live. A URL without a path means the usual base path.

    Raises:
        InvalidURL: it is not the URL of a server.
    """
    return parse_server_url(url) + normalize_base_path(urlsplit(url).path or wire.DEFAULT_BASE_PATH)


def segments_in(for_s: float, every_s: float) -> int:
    """The number of segments that begin within ``for_s`` seconds: at least one."""
    return max(1, math.ceil(for_s / every_s - 1e-9))


def _checked(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _certificates(path: str) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:  # SSLError included
        raise InvalidInput(f"cannot read certificates from {path}: {error.strerror}") from None
