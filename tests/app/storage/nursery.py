"""The nursery of the servers that crash tests kill: small files, so that each seam is met within a moment."""

from __future__ import annotations

import os
import sqlite3
import sys
from types import ModuleType
from typing import Final

from tests.support import forked
from tricklecast.app.storage import archive, database, restore

FILE_BYTES: Final = 64 << 10
"""So that files fill up, and are removed."""


CHECKPOINT_PAGES: Final = 30
"""So that SQLite moves its log into the database now and then."""


def main() -> None:
    """Change what a test would otherwise need minutes and a reboot for, and fork servers."""
    prepare = database.prepare

    def prepared(sql: sqlite3.Connection) -> None:
        prepare(sql)
        sql.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")

    changed: dict[tuple[ModuleType, str], object] = {
        (archive, "FILE_BYTES"): FILE_BYTES,
        (archive, "BEHIND_S"): 0.001,
        (archive, "RETRY_S"): 0.05,
        (database, "prepare"): prepared,
        (restore, "boot_id"): lambda: os.environ.get("SEAM_BOOT", "the same"),
        (archive, "boot_id"): lambda: os.environ.get("SEAM_BOOT", "the same"),
    }
    for (module, name), value in changed.items():
        assert hasattr(module, name)
        setattr(module, name, value)
    forked.serve_forks(sys.argv[2], "serve")


if __name__ == "__main__":
    main()
