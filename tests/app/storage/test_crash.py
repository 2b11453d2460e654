"""A server is killed at every seam of its storage, or loses its power; what it has acknowledged is still there."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.app.storage.crash import History, Load, Promise, check, crash_round, power_round, served, worker_round

WRITTEN: Final = (
    *(("create-db", 1), ("write-db", 1), ("write-db", 3), ("write-db", 9), ("sync-db", 1)),
    *(("create-wal", 1), ("write-wal", 2), ("write-wal", 60), ("write-wal", 150), ("sync-wal", 1), ("sync-wal", 2)),
    *(("mkdir-dir", 1), ("mkdir-dir", 3), ("create-seg", 1), ("create-seg", 5), ("write-seg", 1), ("write-seg", 20)),
    *(("unlink-seg", 1), ("unlink-seg", 2)),
)
"""Where every server can be killed: at the n-th operation of a kind."""

SYNCED: Final = (
    *(("sync-seg", 1), ("sync-seg", 9), ("sync-seg", 25), ("sync-dir", 2), ("sync-dir", 5), ("sync-dir", 12)),
    *(("sync-wal", 9), ("sync-wal", 40), ("sync-db", 3)),
)
"""And one with ``--ack fsync``."""

SEAMS: Final = [
    (ack, f"{operation}:{number}:{when}")
    for ack in ("memory", "journal", "fsync")
    for operation, number in (*WRITTEN, *(SYNCED if ack == "fsync" else ()))
    for when in ("before", "after", *(["half"] if operation.startswith("write") else []))
]

NOTHING: Final = Promise(acked=False)
ALL: Final = Promise(acked=True)

PROMISED: Final = {"memory": NOTHING, "journal": ALL, "fsync": ALL}
"""The segments that a killed server must have after its restart, for each ``--ack``."""


def rounds(folder: Path, ack: str, seams: list[str], seed: int) -> int:
    """Kill a server at each of these seams, in one folder; an empty one is a random moment. Returns how many it met."""
    histories: dict[str, History] = {}
    rng = random.Random(seed)
    met = 0
    for seam in seams:
        met += crash_round(folder, ack, histories, rng, seam=seam)
        with served(folder, ack) as server:
            check(server, histories, PROMISED[ack])
    return met


def powerless(folder: Path, ack: str, seams: list[str], how: str, seed: int) -> None:
    """The same, and each time the machine loses its power."""
    histories: dict[str, History] = {}
    rng = random.Random(seed)
    for seam in seams:
        power_round(folder, ack, histories, rng, how=how, seam=seam)
        with served(folder, ack) as server:
            check(server, histories, ALL if ack == "fsync" else Promise(acked=False, sound=False))


def moving(folder: Path, how: str, seams: list[str], seed: int) -> int:
    """The number of workers changes again and again, and the power fails; returns how often while channels moved."""
    histories: dict[str, History] = {}
    rng = random.Random(seed)
    with served(folder, "fsync") as server:
        Load(server, histories, rng, share=6).wait()
    met, workers = 0, 1
    for seam in seams:
        one, workers = rng.sample([number for number in range(1, 5) if number != workers], 2)
        met += power_round(folder, "fsync", histories, rng, "--workers", str(one), how=how, seam=seam, share=3)
        with served(folder, "fsync", "--workers", str(workers)) as server:
            check(server, histories, ALL)
    return met


@pytest.mark.parametrize("ack", PROMISED)
def test_a_killed_server_loses_nothing_that_it_promised(tmp_path: Path, ack: str) -> None:
    """A sample of the seams, one after the other in one folder; publishers go on after each.

    Where nothing is promised, what is left must be sound: a smaller sample.
    """
    seams = [seam for mode, seam in SEAMS if mode == ack]
    rng = random.Random(ack)
    sample = rng.sample(seams, 3 if PROMISED[ack].acked else 1)
    assert rounds(tmp_path / "data", ack, ["unlink-seg:1:after", *sample, ""], seed=1)


def killed_workers(folder: Path, ack: str, servers: int, seed: int) -> int:
    """Kill workers under load, two of each server, and then the server; returns how many of them were killed."""
    histories: dict[str, History] = {}
    rng = random.Random(seed)
    killed = 0
    for _ in range(servers):
        with served(folder, ack, "--workers", "2") as server:
            check(server, histories, PROMISED[ack])
            for _ in range(2):  # a third one within a minute would end it
                worker_round(server, histories, rng)
                check(server, histories, PROMISED[ack])
                killed += 1
    return killed


@pytest.mark.parametrize("ack", ["fsync"])
def test_a_killed_worker_loses_nothing_that_was_promised(tmp_path: Path, ack: str) -> None:
    """Of two workers, each at a random moment; nor does a server whose supervisor is killed."""
    assert killed_workers(tmp_path / "data", ack, 1, seed=1) == 2


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("ack", PROMISED)
def test_random_deaths_of_workers(tmp_path: Path, ack: str, number: int) -> None:
    """360 of them, six in each folder."""
    assert killed_workers(tmp_path / "data", ack, 3, seed=number) == 6


@pytest.mark.parametrize(
    ("how", "seams"),
    [
        ("drop", ["sync-wal:20:after", "sync-dir:9:before"]),
        ("tear", ["write-seg:30:before"]),
        ("random", ["write-seg:30:before", "sync-wal:20:after", "sync-dir:9:before"]),
    ],
)
def test_a_loss_of_power_loses_nothing_that_was_synced(tmp_path: Path, how: str, seams: list[str]) -> None:
    """With ``--ack fsync`` everything that was answered is there, whatever the kernel had not written yet."""
    powerless(tmp_path / "data", "fsync", seams, how, seed=2)


@pytest.mark.parametrize("ack", ["memory", "journal"])
def test_a_loss_of_power_makes_up_nothing(tmp_path: Path, ack: str) -> None:
    """Without fsync segments may be missing; those that are served have the bytes that were sent."""
    powerless(tmp_path / "data", ack, ["write-seg:30:half", "write-wal:90:after"], "random", seed=3)


@pytest.mark.parametrize("how", ["drop", "random"])
def test_a_loss_of_power_while_channels_move_loses_nothing(tmp_path: Path, how: str) -> None:
    """At a start with another number of workers; the next start has yet another one."""
    assert moving(tmp_path / "data", how, ["sync-wal:5:after"], seed=2) == 1


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("how", ["drop", "tear", "random"])
def test_random_losses_of_power_while_channels_move(tmp_path: Path, how: str, number: int) -> None:
    """240 of them, four in each folder; some are soon after the server has started."""
    rng = random.Random(number)
    places = [("rename-dir", 1), ("rename-dir", 3), ("sync-wal", 9), ("any", 200)]
    seams = [f"{what}:{rng.randint(1, most)}:{rng.choice(['before', 'after'])}" for what, most in places]
    assert moving(tmp_path / "data", how, seams, seed=number)


@pytest.mark.long
@pytest.mark.parametrize(("ack", "seam"), SEAMS)
def test_every_seam(tmp_path: Path, ack: str, seam: str) -> None:
    """A fresh folder, and one that a server has written to before."""
    met = rounds(tmp_path / "data", ack, [seam, seam], seed=4)
    assert met or (ack != "fsync" and seam.startswith("sync")), "without fsync SQLite syncs at checkpoints only"


@pytest.mark.long
@pytest.mark.parametrize("number", range(60))
@pytest.mark.parametrize("ack", PROMISED)
def test_random_moments(tmp_path: Path, ack: str, number: int) -> None:
    """540 of them, three in each folder."""
    assert rounds(tmp_path / "data", ack, [""] * 3, seed=100 + number) == 3


@pytest.mark.long
@pytest.mark.parametrize("number", range(40))
@pytest.mark.parametrize(
    ("ack", "how"), [*(("fsync", how) for how in ("drop", "tear", "random")), ("journal", "random")]
)
def test_random_losses_of_power(tmp_path: Path, ack: str, how: str, number: int) -> None:
    """480 of them, three in each folder."""
    rng = random.Random(number)
    seams = [f"any:{rng.randint(1, 900)}:{rng.choice(['before', 'after', 'half'])}" for _ in range(3)]
    powerless(tmp_path / "data", ack, seams, how, seed=number)


def test_the_seams_are_named_once() -> None:
    """A seam that stands twice would be met once."""
    assert [seam for seam, count in Counter(SEAMS).items() if count > 1] == []
