"""The commands ``tricklecast mirror …``: they ask the destination, which makes the copies, over its API.

Only where the destination is a folder a command runs a server itself. The module imports no client and no server before
a command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from tricklecast.trickle.amounts import count, parse_size, size
from tricklecast.trickle.errors import ConnectionLost, InvalidInput, TrickleError
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials, Screen, checked, option, with_credentials
from tricklecast.trickle.wire import printable, redacted

LOOK_S: Final = 2.0
"""The destination is asked this often."""

FIRST_S: Final = 2.0
"""``--detach`` waits so long for the first answer of the source, to tell of a wrong URL or token."""

AWAY_S: Final = 60.0
"""A destination that does not answer for so long ends the command that waits for it."""

PROMOTE_S: Final = 600.0
"""How long a promotion may take; a destination needs 1 s for 10,000 channels."""

EXIT_LOSS: Final = 1

MAX_RATE: Final = 10**12
"""Bytes per second; the API takes no more, either."""

_API: Final = "/api/v1/mirror"

Destination = Annotated[
    str, typer.Argument(metavar="DST", help="The server that holds the copies, by any URL on it, or a folder.")
]
Server = Annotated[str, typer.Argument(metavar="DST", help="The server that holds the copies, by any URL on it.")]
AsJson = Annotated[bool, option(None, "Print JSON.", "--json")]
Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help="The channels, by name; * stands for any number of characters.")
]
Failed = Annotated[bool, option(None, "Only those that have failed.", "--failed")]


@with_credentials
def mirror(
    src: Annotated[str, typer.Argument(metavar="SRC", help="The server to copy: http://HOST:PORT/trickle.")],
    dst: Destination,
    channel: Annotated[
        list[str] | None,
        option(
            "PATTERN",
            "Copy these channels only; * stands for any number of characters. Give it once for each pattern.",
            "--channel",
            "-c",
        ),
    ] = None,
    oldest_first: Annotated[
        bool, option(None, "Copy the oldest history first, not the newest.", "--oldest-first")
    ] = False,
    max_rate: Annotated[
        str | None, option("SIZE", "The most bytes per second that are read from the source: 10MB.", "--max-rate")
    ] = None,
    source_token_file: Annotated[
        Path | None, option("FILE", "File with the access token for the source.", "--source-token-file")
    ] = None,
    source_api: Annotated[
        str | None,
        option("URL", "The source's control plane, if it has another address (--control-port).", "--source-api"),
    ] = None,
    detach: Annotated[bool, option(None, "Return as soon as the destination has begun.", "--detach")] = False,
    port: Annotated[int, option("PORT", "Of a server on a folder; 0 takes a free one.", "--port", "-p")] = 0,
    as_json: AsJson = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Copy all channels of a server to another one, while they are written and from its data directory.

    Readers of the destination see the same epochs, numbers and bytes as those of the source, a moment later. It takes
    no publishers for these channels until it is promoted. The destination makes the copies itself: this command tells
    it to, and shows how far it is. Ctrl-C ends the command, not the copying: `tricklecast mirror stop DST` does that.

    If DST is a folder, this command runs a server on it until Ctrl-C. `tricklecast serve --data-dir` can open the
    folder later.

    Exit codes: 0 done, also by Ctrl-C if DST is a folder; 1 an error; 2 wrong usage; 130 Ctrl-C.

    Examples:

    \b
      tricklecast mirror http://main:2939/trickle http://other:2939
      tricklecast mirror http://main:2939/trickle /var/lib/archive --channel 'cam*' --max-rate 10MB
      tricklecast mirror status http://other:2939 --watch
    """
    from tricklecast.trickle.client.arguments import server_url

    for url in (src, source_api):
        if url is not None:
            server_url(url)
    if is_server := "://" in dst or not dst:
        server_url(dst)
    wanted = {
        "source": src,
        "channels": channel or ["*"],
        "order": "oldest" if oldest_first else "newest",
        "max_rate": None if max_rate is None else checked("--max-rate", _rate, max_rate),
        "source_token": _token_of(source_token_file),
        "source_api": source_api,
    }
    screen = Screen()

    async def begin(url: str, hint: str) -> None:
        from asyncio import sleep

        server = _Server(url, credentials)
        answer = await server.ask("PUT", body=wanted)
        if detach:
            until = time.monotonic() + FIRST_S
            while answer["state"] == "looking" and not answer["problem"] and time.monotonic() < until:
                await sleep(FIRST_S / 20)
                answer = await server.ask("GET")
            if answer["problem"]:
                screen.say(f"warning: {printable(answer['problem'])}; it is tried again")
            typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else f"{server} copies {redacted(src)}")
            return
        screen.say(f"{server} copies {redacted(src)}. {hint}")
        await _show(server, wanted, answer, screen, as_json=as_json)

    if is_server:
        from tricklecast.app.cli import run

        run(begin(dst, f"Ctrl-C ends this command; `tricklecast mirror stop {dst}` ends the copying."))
        return
    if detach:
        raise typer.BadParameter("a server on a folder ends with this command", param_hint="--detach")
    _serve_folder(Path(dst), port, screen.say, lambda url: begin(url, "Ctrl-C ends it."))


@with_credentials
async def status(
    dst: Server,
    watch: Annotated[bool, option(None, f"Look again every {LOOK_S:g} s, until stopped.", "--watch")] = False,
    for_promotion: Annotated[
        bool,
        option(
            None,
            "List exactly what would be lost if DST was promoted now; exit code 1 if anything. While a channel is "
            "published, the end of its open segment is.",
            "--for-promotion",
        ),
    ] = False,
    as_json: AsJson = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Show how far the copies of a mirror are.

    With --for-promotion a mirror that is well lists the open segment of each channel that is published at the moment:
    it is here as far as it is written, and its end is not. To move without any loss, use `promote --drain-s`.

    Exit codes: 0 done, and with --for-promotion nothing would be lost; 1 something would be, or an error; 2 wrong
    usage.

    Examples:

    \b
      tricklecast mirror status http://other:2939
      tricklecast mirror status http://other:2939 --for-promotion
    """
    query = "?for_promotion=1" if for_promotion else ""
    from tricklecast.trickle.client.control import show

    server = _Server(dst, credentials)
    every_s = LOOK_S if watch else None
    answer = await show(lambda: server.ask("GET", query), table, as_json=as_json, every_s=every_s)
    if for_promotion and answer["lost"]:
        raise typer.Exit(EXIT_LOSS)


@with_credentials
async def promote(
    dst: Server,
    channel: Annotated[
        list[str] | None,
        option(
            "PATTERN",
            "Promote these channels only, and those that match later; the others stay copies. Give it once for each "
            "pattern.",
            "--channel",
            "-c",
        ),
    ] = None,
    accept_loss: Annotated[
        bool, option(None, "Promote even if parts of the source are not copied.", "--accept-loss")
    ] = False,
    drain_s: Annotated[
        float,
        option(
            "SECONDS",
            "The source lives: it takes no new segments, and DST waits for this time until the open ones have ended "
            "and all is copied. Then nothing is lost. Else nothing is done, and the source goes on.",
            "--drain-s",
        ),
    ] = 0.0,
    as_json: AsJson = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Let a destination take the place of its source: its copies become channels that take publishers.

    Their epochs go one up. The source takes no publishers for them any more when it comes back: it is told. With
    --channel the mirror goes on with all other channels.

    This refuses to lose anything that is known to be at the source, the end of an open segment included. Use --drain-s
    if the source lives; if it is lost, look at the list, and use --accept-loss.

    Exit codes: 0 done; 1 nothing was done, since something would be lost, or an error; 2 wrong usage.

    Examples:

    \b
      tricklecast mirror promote http://other:2939 --drain-s 30
      tricklecast mirror promote http://other:2939 --accept-loss
      tricklecast mirror promote http://other:2939 --channel 'cam*'
    """
    from tricklecast.app.access.rights import matches_any

    server = _Server(dst, credentials)
    if not accept_loss:
        lost = (await server.ask("GET", "?for_promotion=1"))["lost"] or ()
        lost = [one for one in lost if not channel or matches_any(channel, one["channel"])]
        lost = [one for one in lost if not (drain_s and one.get("open"))]
        if lost:
            typer.echo(_losses(lost), err=True)
            raise TrickleError(f"{count(len(lost), 'part')} of the source would be lost: {_way_out(lost)}")
    query = urlencode([("drain_s", drain_s), *(("pattern", one) for one in channel or ())])
    answer = await server.ask("POST", f"/promote?{query}", within_s=PROMOTE_S + drain_s)
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False))
        return
    typer.echo(f"{server} has taken over {count(answer['channels'], 'channel')}")
    if answer["lost"]:
        typer.echo(_losses(answer["lost"], "not copied"), err=True)


@with_credentials
async def back(
    new: Annotated[str, typer.Argument(metavar="NEW", help="The server that was promoted: http://HOST:PORT/trickle.")],
    old: Annotated[str, typer.Argument(metavar="OLD", help="The former source: http://HOST:PORT/trickle.")],
    export: Annotated[
        Path | None, option("FOLDER", "Write what only OLD has to files here, before it is replaced.", "--export")
    ] = None,
    discard: Annotated[bool, option(None, "Go on without a copy of what only OLD has.", "--discard")] = False,
    source_token_file: Annotated[
        Path | None, option("FILE", "File with the access token for NEW.", "--source-token-file")
    ] = None,
    source_api: Annotated[
        str | None, option("URL", "The control plane of NEW, if it has another address.", "--source-api")
    ] = None,
    old_api: Annotated[
        str | None, option("URL", "The control plane of OLD, if it has another address.", "--old-api")
    ] = None,
    as_json: AsJson = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Make the former source a mirror of the server that has taken its place.

    First this lists the segments that only OLD has: they were published there and never copied. They are exported or
    discarded, as you say, and never mixed with those of NEW. Then OLD copies NEW; to return, promote OLD. The options
    --ca-file, --cert, --key and --token-file are for OLD.

    Exit codes: 0 done; 1 nothing was done, since only OLD has some segments, or an error; 2 wrong usage.

    Examples:

    \b
      tricklecast mirror back http://other:2939/trickle http://main:2939/trickle --export only-main/
      tricklecast mirror status http://main:2939 --watch
      tricklecast mirror promote http://main:2939 --drain-s 30
    """
    from tricklecast.app.mirror.difference import export as export_segments
    from tricklecast.app.mirror.difference import only_at
    from tricklecast.app.mirror.opening import open_source
    from tricklecast.app.mirror.sides import SourceError
    from tricklecast.app.mirror.trickle_source import TrickleSource

    server, source_token = _Server(old_api or old, credentials), _token_of(source_token_file)
    old_token = None if credentials.auth is None else credentials.auth.token
    async with AsyncExitStack() as stack:
        try:
            former = await open_source(old, old_token, tls=credentials.tls, api=old_api)
            stack.push_async_callback(former.close)
            if not isinstance(former, TrickleSource):
                text = "cannot be a mirror: has it no API of tricklecast, or another address for that (--old-api)?"
                raise TrickleError(f"{redacted(old)} {text}")
            present = await open_source(new, source_token, tls=credentials.tls, api=source_api)
            stack.push_async_callback(present.close)
        except SourceError as error:
            hint = "; --token-file is for OLD, --source-token-file for NEW" if "token" in str(error) else ""
            raise TrickleError(f"{error}{hint}") from None
        if isinstance(present, TrickleSource) and (by := await present.successor()):
            raise TrickleError(f"{redacted(new)} takes no publishers, since {by} has its place: are the two swapped?")
        only = await only_at(former, present)
        for channel, epoch, segment in only:
            text = f"{printable(channel)} epoch {epoch} segment {segment.seq}, {size(segment.size)}"
            typer.echo(f"only at {redacted(old)}: {text}", err=True)
        if only and export is not None:
            await export_segments(former, only, export)
            Screen().say(f"exported {count(len(only), 'segment')} to {export}")
        elif only and not discard:
            raise TrickleError(f"{count(len(only), 'segment')} would be lost: use --export FOLDER, or --discard")
    wanted = {"source": new, "source_token": source_token, "source_api": source_api, "replace": True}
    answer = await server.ask("PUT", body=wanted)
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else f"{server} copies {redacted(new)}")


@with_credentials
async def stop(
    dst: Server,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Stop a mirror. Its copies stay, can be read and promoted; `tricklecast mirror SRC DST` goes on.

    Exit codes: 0 done; 1 an error; 2 wrong usage.

    Examples:

    \b
      tricklecast mirror stop http://other:2939
    """
    server = _Server(dst, credentials)
    await server.ask("DELETE")
    typer.echo(f"{server} copies nothing more")


@with_credentials
async def resync(
    dst: Server,
    pattern: Pattern = "*",
    failed: Failed = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Look again whether the copies of some channels are complete, and make those that have failed again.

    Exit codes: 0 done; 1 an error; 2 wrong usage.

    Examples:

    \b
      tricklecast mirror resync http://other:2939 --failed
      tricklecast mirror resync http://other:2939 'cam*'
    """
    server = _Server(dst, credentials)
    answer = await server.ask("POST", f"/resync?{urlencode({'pattern': pattern, 'failed': failed})}")
    looked = f"{count(answer['channels'], 'channel')} looked at again"
    typer.echo("nothing has failed" if failed and not answer["channels"] else looked)


@with_credentials
async def reverify(
    dst: Server,
    pattern: Pattern = "*",
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Compare the bytes of copies with their source's next, instead of when their turn comes.

    Exit codes: 0 done; 1 an error; 2 wrong usage.

    Examples:

    \b
      tricklecast mirror reverify http://other:2939 film
    """
    server = _Server(dst, credentials)
    answer = await server.ask("POST", f"/reverify?{urlencode({'pattern': pattern})}")
    several = answer["channels"] != 1
    typer.echo(f"{count(answer['channels'], 'channel')} {'are' if several else 'is'} read again now: see the status")


# The destination.


@dataclass
class _Server:
    """A destination, by any URL on it."""

    url: str
    credentials: Credentials

    @property
    def root(self) -> str:
        """Its scheme and authority."""
        from tricklecast.trickle.client.arguments import server_url

        return server_url(self.url)

    def __str__(self) -> str:
        return redacted(self.root)

    async def ask(
        self, method: str, route: str = "", *, body: object = None, within_s: float | None = None
    ) -> dict[str, Any]:
        """Its answer.

        Raises:
            ConnectionLost: it cannot be reached. TrickleError: it says no. RemoteProtocolError: it has no mirrors.
        """
        from tricklecast.trickle.client.control import TIMEOUT_S, answer_of

        absent, within_s = "has no mirrors: is it a tricklecast server?", within_s or TIMEOUT_S
        return await answer_of(
            self.root,
            _API + route,
            self.credentials.tls,
            self.credentials.auth,
            absent=absent,
            method=method,
            within_s=within_s,
            body=body,
        )


def _serve_folder(
    folder: Path, port: int, say: Callable[[str], None], mirror: Callable[[str], Coroutine[Any, Any, None]]
) -> None:
    """Run a server on a data directory until SIGINT or SIGTERM; its other settings are those of the environment.

    Args:
        port: on this machine; 0 takes a free one. say: is told where readers find it.
        mirror: runs beside it, with the server's URL.

    Raises:
        CannotServe, StorageError: the folder or the port cannot be used.
    """
    from asyncio import FIRST_COMPLETED, Event, create_task, wait

    from tricklecast.app.bus import Bus, ServerClosed
    from tricklecast.app.server import serve
    from tricklecast.app.settings import load

    listening, address = Event(), ""

    def announce(url: str) -> None:
        nonlocal address
        address = url
        say(f"copies to {folder}; readers find them at {url}")
        listening.set()

    async def stopped(bus: Bus) -> None:
        with suppress(ServerClosed):
            async for _ in bus.subscribe():
                pass

    async def program(bus: Bus) -> None:
        await listening.wait()
        showing, end = create_task(mirror(address)), create_task(stopped(bus))
        await wait((showing, end), return_when=FIRST_COMPLETED)
        end.cancel()
        if not showing.cancel():
            await showing

    serve(load({"data_dir": str(folder), "port": str(port)}, None).settings, announce, program)


async def _show(
    server: _Server, wanted: dict[str, Any], answer: dict[str, Any], screen: Screen, *, as_json: bool
) -> None:
    """Show how far the copies are, until stopped. A destination that has forgotten its setting gets it again."""
    from asyncio import sleep

    from tricklecast.trickle.client.control import QUIET_S

    answered, said, last, away = time.monotonic(), "", summary(answer), ""

    def line() -> str:
        silent_s = time.monotonic() - answered
        return last if silent_s < LOOK_S + QUIET_S else f"no answer for {_rounded(silent_s)} (last: {last})"

    with screen.live(line):
        while True:
            if as_json and not away:
                typer.echo(json.dumps(answer, ensure_ascii=False))
            if not screen.is_terminal and (word := away or f"{answer['state']} {answer['problem']}") != said:
                said = word
                screen.say(last)
            await sleep(LOOK_S)
            try:
                answer = await server.ask("GET")
                if answer["state"] == "none":  # it was started again, in memory
                    answer = await server.ask("PUT", body=wanted)
                    screen.say(f"{server} was started again, and begins anew")
                answered = time.monotonic()
            except ConnectionLost as error:
                last = away = str(error)
                if time.monotonic() - answered > AWAY_S:
                    raise
                continue
            last, away = summary(answer), ""
            if answer["state"] in ("stopped", "promoted", "deposed"):
                screen.say(last)
                return


# Texts.


_NEXT: Final = {
    "none": "this server mirrors nothing: `tricklecast mirror SRC DST` begins",
    "stopped": "`tricklecast mirror SRC DST` goes on, `tricklecast mirror promote DST` takes the source's place",
    "promoted": "`tricklecast mirror back NEW OLD` makes the former source a mirror of this server",
    "deposed": "it takes no publishers: `tricklecast mirror back NEW OLD` makes it a mirror of its successor",
}
"""The next command that an operator may want, by the state of the mirror."""

_TOLD: Final = {
    "yes": "knows that it was replaced",
    "no": "does not know yet that it was replaced, and is told when it answers",
    "impossible": "cannot be told that it was replaced: keep its publishers away from it",
}
"""Whether the former source knows that it was replaced, in words."""


def summary(answer: dict[str, Any]) -> str:
    """The state of a mirror in one line."""
    segments, lag = answer["segments"], answer["lag"]
    parts = [answer["state"]]
    if answer["problem"]:
        parts.append(printable(answer["problem"]))
    parts += [printable(answer[name]) for name in ("storage", "plain") if answer[name]]
    if answer["state"] in _NEXT:
        return ", ".join([*parts, _NEXT[answer["state"]]])
    parts.append(f"{count(answer['live'], 'channel')} live")
    if answer["stores"]:
        parts.append(f"{segments.get('synced', 0)} of {count(_wanted(segments), 'segment')} copied")
    if beyond := segments.get("beyond", 0):
        parts.append(f"{beyond} beyond its retention")
    if failed := segments.get("failed", 0):
        parts.append(f"{failed} failed")
    if lag["segments"]:
        parts.append(f"{count(lag['segments'], 'segment')} behind")
    if answer["rate"] >= 1:
        parts.append(f"{size(answer['rate'])}/s")
    if answer["remaining_s"]:
        parts.append(f"about {_rounded(answer['remaining_s'])} left")
    return ", ".join(parts)


def table(answer: dict[str, Any]) -> str:
    """The state of a mirror for a person: a line for each figure."""
    setting, lag, oldest, now = answer["setting"], answer["lag"], answer["oldest"], time.time()
    rows = [("state", _coloured(answer["state"], complete=answer["complete"]))]
    rows += [(name, printable(answer[name])) for name in ("problem", "successor") if answer[name]]
    if answer["told"] is not None:
        rows.append(("former source", _TOLD[answer["told"]]))
    if answer["state"] in _NEXT:
        rows.append(("next", _NEXT[answer["state"]]))
    if setting is not None:
        rows += [("source", printable(setting["source"])), ("channels", printable(" ".join(setting["channels"])))]
        if answer["plain"]:
            rows.append(("copied", printable(answer["plain"])))
        if setting["promoted"]:
            rows.append(("promoted", printable(" ".join(setting["promoted"]))))
    if answer["state"] in ("promoted", "deposed"):
        setting = None  # nothing is copied: what was, is this server's own
    if answer["last_contact"] is not None:
        rows.append(("last contact", f"{_rounded(now - answer['last_contact'])} ago"))
    if setting is not None:
        rows.append(("channels copied", _counts(answer["channels"])))
        history = "the windows only: the destination has no data directory"
        copied = _counts(answer["segments"]) + (f", {answer['verified']} verified" if answer["verified"] else "")
        rows.append(("segments copied", copied if answer["stores"] else history))
        behind = f"{count(lag['segments'], 'segment')}, {size(lag['bytes'])}"
        if answer["state"] == "stopped":
            behind += " that are known"
        late = ", for how long is not known" if lag["seconds"] is None else f", {_rounded(lag['seconds'])}"
        if answer["storage"]:
            rows.append(("storage", f"{printable(answer['storage'])}; new copies are in memory"))
        rows.append(("behind", behind + (late if lag["seconds"] != 0 else "")))
        left = "" if not answer["remaining_s"] else f", about {_rounded(answer['remaining_s'])} left"
        rows.append(("rate", f"{size(answer['rate'])}/s{left}"))
    if oldest is not None:
        rows.append(("waiting longest", f"{printable(oldest['channel'])}, for {_rounded(now - oldest['since'])}"))
    if answer["mismatches"]:
        rows.append(("mismatches", f"{answer['mismatches']}, copied again"))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    for error in answer["errors"]:
        at = time.strftime("%H:%M:%S", time.localtime(error["at"]))
        where = f"{printable(error['channel'])}: " if error["channel"] else ""
        lines.append(f"{at} {where}{printable(error['error'])}")
    if answer["lost"] is not None:
        lines.append(_losses(answer["lost"]) or "A promotion would lose nothing that is known.")
    return "\n".join(lines)


def _losses(lost: list[dict[str, Any]], verb: str = "would be lost") -> str:
    lines = []
    for one in lost:
        what = "some of it, perhaps" if one["seq"] is None else f"segment {one['seq']}"
        amount = "" if one["bytes"] is None else f", {size(one['bytes'])}"
        lines.append(
            f"{verb}: {printable(one['channel'])} epoch {one['epoch']}: {what}{amount} ({printable(one['why'])})"
        )
    return "\n".join(lines)


def _way_out(lost: list[dict[str, Any]]) -> str:
    """Say how an operator avoids the loss of these parts, or accepts it."""
    if all(one.get("open") for one in lost):
        return (
            "only the ends of segments that are being written. If the source lives, use --drain-s 30; otherwise "
            "--accept-loss: a publisher that has both URLs sends such a segment again"
        )
    return "wait until they are copied, or use --accept-loss"


def _wanted(counts: dict[str, int]) -> int:
    """How many copies there are when all is done."""
    return sum(number for state, number in counts.items() if state not in ("beyond", "deleted"))


def _counts(counts: dict[str, int]) -> str:
    others = (("failed", "failed"), ("beyond", "not copied: beyond the destination's retention"))
    told = [f"{counts[state]} {text}" for state, text in others if counts.get(state)]
    return ", ".join([f"{counts.get('synced', 0)} of {_wanted(counts)}", *told])


def _coloured(state: str, *, complete: bool) -> str:
    text = f"{state}, complete" if complete and state == "following" else state
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    colour = 32 if complete else 33 if state in ("following", "looking", "starting") else 31
    return f"\x1b[{colour}m{text}\x1b[0m"


def _rounded(seconds: float) -> str:
    """A time as a person would say it: 1.2 s, 14 s, 3 min, 5 h."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _rate(text: str) -> int:
    """Bytes per second.

    Raises:
        InvalidInput: the text is no rate, or it is out of bounds.
    """
    with suppress(InvalidInput):
        if (rate := parse_size(text)) <= MAX_RATE:
            return rate
    raise InvalidInput(f"bytes per second, from 1B to {size(MAX_RATE)}: 10MB, not {text[:40]!r}")


def _token_of(file: Path | None) -> str | None:
    """The token in a file, read once: the destination keeps it."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TrickleError(f"cannot read {file}: {error}") from None
