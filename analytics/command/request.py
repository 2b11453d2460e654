"""What is asked of one run, checked: everything that can be wrong with it is found before Spark starts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Final

from tricklecast.analytics.cli.times import parse_time
from tricklecast.analytics.command.baseline import Baseline
from tricklecast.analytics.command.outputs import Outputs
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.sources import Reading

FORMATS: Final = ("auto", "tricklecast", "nginx", "envoy", "caddy")
"""Formats that are known by name; any other is a field map, a ``.toml`` file."""

_SPARK_OWN: Final = {"spark.master": "--master"}


class FailOn(StrEnum):
    """From which severity on a storm makes the command fail."""

    WARN = "warn"
    CRITICAL = "critical"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Request:
    """One run.

    Attributes:
        logs: as typed.
        reading: how their lines are read, and of what time.
        params: what counts as a storm.
        outputs: where the report goes.
        baseline: what it is compared with.
        fail_on: from which severity on to fail.
        master: where Spark runs; ``None`` leaves it to ``spark-submit``. conf: settings for Spark.
        state: the folder of an incremental run; keep_us: how much of it is kept, microseconds, ``None`` for all.
        explain: the id of the episode to be explained, or its beginning.
        verbose, quiet: more, or less, than usual on the terminal.
    """

    logs: tuple[str, ...]
    reading: Reading
    params: StormParams
    outputs: Outputs
    baseline: Baseline | None
    fail_on: FailOn
    master: str | None
    conf: dict[str, str]
    state: str | None
    keep_us: int | None
    explain: str | None
    verbose: bool
    quiet: bool

    def check(self) -> None:
        """Finds what does not go together.

        Raises:
            ValueError: with the options, and what is wrong.
        """
        if not self.logs and self.state is None:
            raise ValueError("no logs were given")
        since, until = self.reading.window.from_us, self.reading.window.to_us
        if since is not None and until is not None and since >= until:
            raise ValueError("--from is not before --to")
        if self.keep_us is not None and self.state is None:
            raise ValueError("--keep is about the state that --incremental keeps")
        if self.verbose and self.quiet:
            raise ValueError("-v and -q contradict each other")
        self.outputs.check()
        if self.explain is not None:
            self._check_explain(self.explain)

    def _check_explain(self, episode: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{4,64}", episode):
            raise ValueError(f"--explain takes an episode's id from a report, such as 3f2a90c1d4e5, not {episode!r}")
        others = [name for name, value in (("--html", self.outputs.html), ("--prom", self.outputs.prom)) if value]
        others += ["--parquet"] if self.outputs.parquet else []
        others += ["--incremental"] if self.state is not None else []
        others += ["--baseline"] if self.baseline is not None else []
        if others:
            raise ValueError(f"--explain shows one episode from its logs; it does not go with {others[0]}")


def described(reading: Reading) -> dict[str, str | None]:
    """The options by which lines are read, each with its value, as a state remembers them."""
    return {"--format": reading.format, "--client-key": reading.client_key, "--path-prefix": reading.path_prefix}


def checked_format(name: str) -> str:
    """The same format.

    Raises:
        ValueError: it is neither known nor a file.
    """
    if name in FORMATS:
        return name
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ValueError(f"no such field map: {name!r}")
        return name
    near = get_close_matches(name, FORMATS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; {', '.join(FORMATS)}, or a field map (FILE.toml)"
    raise ValueError(f"no such format: {name!r}{hint}")


def spark_conf(settings: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` each, as Spark has them.

    Raises:
        ValueError: one is not of this form, no setting of Spark's, or has an option of its own.
    """
    conf: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise ValueError(f"--conf takes spark.KEY=VALUE, not {setting!r}")
        if key in _SPARK_OWN:
            raise ValueError(f"{key} is set by {_SPARK_OWN[key]}")
        conf[key] = value
    return conf


def moment(text: str | None) -> int | None:
    """A time as typed, microseconds since the epoch; ``None`` for none.

    Raises:
        ValueError: it is no time.
    """
    return None if text is None else parse_time(text, now_us())


def now_us() -> int:
    """The time, microseconds since the epoch."""
    return time.time_ns() // 1000
