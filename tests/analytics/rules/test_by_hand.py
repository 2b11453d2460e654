"""The steps of the rules, run one by one as the page of classes says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb

ROOT = Path(__file__).parents[3]


def test_the_page_s_steps_lead_to_the_incident(tmp_path: Path) -> None:
    """Its Python keeps what the first step reads; its SQL, in a database of its own, finds the loop that is there."""
    page = (ROOT / "docs" / "reference" / "storm-classes.md").read_text(encoding="utf-8")
    python, sql = (re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[0] for language in ("python", "sql"))
    known = {"v": 1, "node": "n", "kind": "exchange", "op": "read", "status": 404, "channel": "film", "client": "c"}
    times = range(1_760_000_000_000_000, 1_760_000_010_000_000, 100_000)
    (tmp_path / "access.jsonl").write_text("".join(json.dumps(known | {"ts_us": at}) + "\n" for at in times))
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    with duckdb.connect(tmp_path / "steps.duckdb") as shell:
        shell.execute((tmp_path / "prelude.sql").read_text())
        answers = []
        for part in sql.splitlines():
            command, _, path = part.partition(".read ")
            answers.append(shell.execute((ROOT / path).read_text() if path else command).fetchall())
    islands, incidents = (rows for part, rows in zip(sql.splitlines(), answers, strict=True) if "SELECT" in part)
    assert [(row[0], row[3], row[-1]) for row in islands] == [("c", 100, True)]
    assert [row[:2] for row in incidents] == [("not_found_loop", 100)]
