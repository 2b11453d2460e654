"""Where a report goes: checked before the work, written so that nobody ever reads half of it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import CannotWrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.report_old.model import Report

STDOUT: Final = "-"

_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TABLES: Final = frozenset({"episodes", "rollup"})


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files of a report; ``None`` is not written, ``-`` is standard output.

    Attributes:
        html, json, prom: files. parquet: a folder, or a URI that Spark can write.
    """

    html: str | None = None
    json: str | None = None
    prom: str | None = None
    parquet: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """Option and file, of those that are wanted."""
        named = {"--html": self.html, "--json": self.json, "--prom": self.prom}
        return {option: file for option, file in named.items() if file is not None}

    @property
    def uses_stdout(self) -> bool:
        """Whether standard output is one of the files, and nothing else may be printed to it."""
        return STDOUT in self.files.values()

    def check(self) -> None:
        """Finds out before the work, rather than after it, that its results have nowhere to go.

        Raises:
            ValueError: with the option, and what is wrong.
        """
        taken: dict[str, str] = {}
        for option, file in self.files.items():
            target = file if file == STDOUT else os.path.realpath(file)
            if target in taken:
                raise ValueError(f"{option} and {taken[target]} both write to {file!r}")
            taken[target] = option
            if file != STDOUT:
                _check_file(option, file)
        if self.parquet is not None and not _REMOTE.match(self.parquet):
            _check_folder(self.parquet)

    def write(self, report: Report) -> None:
        """Writes the files, each at once.

        Raises:
            CannotWrite: a file cannot be written.
        """
        for option, file in self.files.items():
            write_at_once(file, _FORMS[option](report))

    def write_tables(self, spark: SparkSession, report: Report, rollup: DataFrame) -> None:
        """Writes the Parquet tables, if they are wanted; while Spark still runs.

        Raises:
            CannotWrite: the folder cannot be written.
        """
        from tricklecast.analytics.report_old.parquet import write_parquet

        if self.parquet is None:
            return
        if _REMOTE.match(self.parquet):
            write_parquet(spark, report, rollup, self.parquet)
            return
        folder = Path(os.path.realpath(self.parquet))
        unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            write_parquet(spark, report, rollup, unfinished.as_uri())
            _swap(unfinished, folder)
        except OSError as error:
            raise CannotWrite(f"cannot write {self.parquet!r}: {error.strerror}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def write_at_once(file: str, text: str) -> None:
    """Writes a text so that a reader of the file sees the old one or the new one.

    Args:
        file: ``-`` for standard output. A device or pipe is written to as it is.

    Raises:
        CannotWrite: it cannot be written.
    """
    if file == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_text(text, encoding="utf-8")
            return
        unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot write {file!r}: {error.strerror}") from error


def _check_file(option: str, file: str) -> None:
    target = Path(os.path.realpath(file))
    if not file or target.is_dir():
        raise ValueError(f"{option}: {file!r} is a folder")
    special = target.exists() and not target.is_file()
    if not os.access(target if special else target.parent, os.W_OK):
        raise ValueError(f"{option}: cannot write {file!r}")


def _check_folder(folder: str) -> None:
    """A folder that is not ours is left alone: it would be replaced as a whole."""
    target = Path(os.path.realpath(folder))
    if not target.exists():
        if not os.access(target.parent, os.W_OK):
            raise ValueError(f"--parquet: cannot write {folder!r}")
        return
    if not target.is_dir():
        raise ValueError(f"--parquet: {folder!r} is no folder")
    strangers = sorted(entry.name for entry in target.iterdir() if entry.name not in _TABLES)
    if strangers:
        raise ValueError(f"--parquet: {folder!r} has something else in it ({strangers[0]!r}), and would be replaced")


def _swap(new: Path, folder: Path) -> None:
    if not folder.exists():
        new.rename(folder)
        return
    # Two renames: for a moment there is no folder, but never one with half of its files.
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old)


def _html(report: Report) -> str:
    from tricklecast.analytics.report_old.html import as_html

    return as_html(report)


def _json(report: Report) -> str:
    from tricklecast.analytics.report_old.json_report import as_json

    return as_json(report)


def _prometheus(report: Report) -> str:
    from tricklecast.analytics.report_old.prometheus import as_prometheus

    return as_prometheus(report)


_FORMS: Final[dict[str, Callable[[Report], str]]] = {"--html": _html, "--json": _json, "--prom": _prometheus}
