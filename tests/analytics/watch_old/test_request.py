"""What cannot be watched, and nobody can be told at, is refused before Spark starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.watch_old.request import checked_url, read_config, source_of
from tricklecast.app.cli import cli


def test_files_and_folders(tmp_path: Path) -> None:
    """Both by their absolute path; a file may be missing as long as its folder is there."""
    missing = tmp_path / "access.jsonl"
    assert source_of([str(tmp_path), str(missing)], None) == {"logs": [str(tmp_path), str(missing)]}


def test_globs_are_opened(tmp_path: Path) -> None:
    """What a shell has not expanded is."""
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).touch()
    assert source_of([str(tmp_path / "*.jsonl")], None)["logs"] == [
        str(tmp_path / "a.jsonl"),
        str(tmp_path / "b.jsonl"),
    ]


def test_a_topic(tmp_path: Path) -> None:
    """Brokers get Kafka's port if they have none; passwords come from a file."""
    config = tmp_path / "kafka.properties"
    config.write_text("# secret\nsasl.password = a=b\n\n")
    assert source_of(["kafka://one,two:9093/access"], str(config)) == {
        "servers": "one:9092,two:9093",
        "topic": "access",
        "config": {"sasl.password": "a=b"},
    }


@pytest.mark.parametrize(
    "logs", [["kafka://host"], ["kafka:///topic"], ["kafka://a/b", "c.jsonl"], ["s3a://bucket/logs"], ["kafka://a/b/c"]]
)
def test_what_is_no_source(logs: list[str]) -> None:
    """A usage error, in words."""
    with pytest.raises(ValueError, match=r"Kafka|expected|cannot watch"):
        source_of(logs, None)


def test_a_log_that_cannot_be(tmp_path: Path) -> None:
    """A folder that is not there is a typing error, rather than one to be waited for."""
    with pytest.raises(BadInput, match="no such log"):
        source_of([str(tmp_path / "missing" / "access.jsonl")], None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    """It is said at once."""
    (tmp_path / "access.jsonl").touch(mode=0o000)
    with pytest.raises(BadInput, match="permission denied"):
        source_of([str(tmp_path / "access.jsonl")], None)


def test_a_config_that_is_none(tmp_path: Path) -> None:
    """Neither a missing file nor other text is taken."""
    with pytest.raises(ValueError, match="cannot read"):
        read_config(tmp_path / "missing")
    (tmp_path / "other").write_text("hello\n")
    with pytest.raises(ValueError, match="NAME=VALUE"):
        read_config(tmp_path / "other")


@pytest.mark.parametrize("url", ["example.com", "ftp://example.com", "http://", "http://host:port/", "http://[::1"])
def test_what_is_no_url(url: str) -> None:
    """Nobody can be told there."""
    with pytest.raises(ValueError, match="URL"):
        checked_url(url)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["storms", "watch"], 2),
        (["storms", "watch", "kafka://host"], 2),
        (["storms", "watch", ".", "--webhook", "nowhere"], 2),
        (["storms", "watch", ".", "--set", "no_such=1"], 2),
        (["storms", "watch", "/no/such/folder/access.jsonl"], 3),
    ],
)
def test_exit_codes_without_spark(arguments: list[str], code: int) -> None:
    """Usage is 2, bad input is 3, both within a moment."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
