"""Which of the logs that were given are new to a state, and which known ones they take the place of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.incremental.identity import Identity, Stamp, identify, stamp_of
from tricklecast.analytics.incremental.manifest import KnownLog, Manifest
from tricklecast.analytics.inputs import REMOTE, LogFiles


@dataclass(frozen=True, slots=True)
class Intake:
    """What is to be done with the logs of one run.

    Attributes:
        fresh: content to be read, by id; their ``hours`` are not known yet.
        seen: content that was given again, by id, with its present name and stamp.
        outdated: ids of known logs that have grown or were written again: their rows go.
        doubles: files with the content of another one.
    """

    fresh: dict[str, KnownLog]
    seen: dict[str, KnownLog]
    outdated: frozenset[str]
    doubles: tuple[str, ...]


def look_through(files: LogFiles, manifest: Manifest) -> Intake:
    """Tells known logs from new ones. Reads a file only if the file system says that it has changed.

    Raises:
        BadInput: a log is remote, gone or unreadable.
    """
    by_stamp = {log.stamp: key for key, log in manifest.logs.items()}
    sizes = [log.size for log in manifest.logs.values() if log.size]  # every log begins with nothing
    given: dict[str, KnownLog] = {}
    begins: dict[str, frozenset[str]] = {}
    doubles: list[str] = list(files.duplicates)
    for name in files.names:
        if REMOTE.match(name):
            raise BadInput(f"--incremental reads files of this machine; {name!r} is not one")
        stamp = stamp_of(name)
        if (known := by_stamp.get(stamp)) is not None:
            key, log = known, replace(manifest.logs[known], name=name)
        else:
            found = identify(name, sizes)
            key, log = found.id, _log(name, found, stamp, damaged=name in files.damaged)
            begins[key] = found.begins
            if key in manifest.logs:
                log = replace(manifest.logs[key], name=name, stamp=stamp, damaged=log.damaged)
        if key in given:
            doubles.append(name)
        else:
            given[key] = log
    return _sorted_out(given, begins, manifest, doubles)


def _sorted_out(
    given: dict[str, KnownLog], begins: dict[str, frozenset[str]], manifest: Manifest, doubles: Sequence[str]
) -> Intake:
    short = _beginnings(given)
    logs = {key: log for key, log in given.items() if key not in short}
    fresh = {key: log for key, log in logs.items() if key not in manifest.logs}
    grown_from = {part for key in fresh for part in begins[key]}
    outdated = (grown_from | short | _written_again(fresh, manifest, logs)) & set(manifest.logs)
    seen = {key: log for key, log in logs.items() if key in manifest.logs and key not in outdated}
    names = (*doubles, *(given[key].name for key in sorted(short)))
    return Intake(fresh, seen, frozenset(outdated), names)


def _beginnings(logs: dict[str, KnownLog]) -> set[str]:
    """Logs of this run that are the beginning of another one of it: copies that were made while it grew."""
    alike: dict[str, list[KnownLog]] = defaultdict(list)
    for log in logs.values():
        if log.first_line:
            alike[log.first_line].append(log)
    found: set[str] = set()
    for same in alike.values():
        longest = max(same, key=lambda log: log.size)
        if smaller := {log.size for log in same if log.size < longest.size}:
            found |= identify(longest.name, smaller).begins & set(logs)
    return found


def _written_again(fresh: dict[str, KnownLog], manifest: Manifest, given: Container[str]) -> set[str]:
    """Known logs whose file begins as before but goes on otherwise."""
    places = {(log.name, log.first_line) for log in fresh.values() if log.first_line}
    return {key for key, log in manifest.logs.items() if (log.name, log.first_line) in places and key not in given}


def _log(name: str, found: Identity, stamp: Stamp, *, damaged: bool) -> KnownLog:
    return KnownLog(name, found.size, stamp, found.first_line, damaged, ())
