"""The format of a file is told from its lines, not from its name."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest

from tests.analytics.sources.lines import CADDY, COMBINED, ENVOY, NGINX, OWN, as_line
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.sources import BadFormat, Reading, notes_on, recognise
from tricklecast.analytics.sources.recognise import Format, recogniser

LINES = {"tricklecast": as_line(OWN), "caddy": as_line(CADDY), "envoy": as_line(ENVOY), "nginx": as_line(NGINX)}


def told(*lines: bytes, asked: str = "auto") -> Format:
    """The format of these lines."""
    return recogniser(asked)("some.log", list(lines))


@pytest.mark.parametrize("name", LINES)
def test_json_formats(name: str) -> None:
    """Each kind of JSON is told from the others by the fields that it has."""
    assert told(LINES[name]).name == name


def test_combined_with_and_without_more() -> None:
    """Words beyond those of the combined format are known by what they look like; others are passed over."""
    plain = told(COMBINED)
    assert (plain.name, len(plain.columns), plain.coarse) == ("combined", 10, True)
    assert plain.fields is not None
    assert "dur_us" not in plain.fields.fields
    timed = told(COMBINED + b' 0.250 "-" 1760000000.250')
    assert timed.fields is not None
    assert [str(source) for source in timed.fields.fields["dur_us"]] == ["word_11"]
    assert str(timed.fields.fields["ts_us"][0]) == "word_13"
    assert not timed.coarse


def test_a_host_before_the_combined_format() -> None:
    """Its words would all be taken for others: rather no format than a log without one request."""
    with pytest.raises(BadInput, match="cannot tell the format"):
        told(b"example.com:443 " + COMBINED)


@pytest.mark.parametrize(
    ("stamp", "unit", "coarse"),
    [("1760000000.250", "s", False), (1760000000.25, "s", False), ("2025-10-09T08:53:20+00:00", "iso", True)],
)
@pytest.mark.parametrize("key", ["time", "timestamp"])
def test_a_time_of_either_kind(key: str, stamp: str | float, unit: str, coarse: bool) -> None:
    """A key that may hold seconds or a date is read as what it holds in this file."""
    line = {name: value for name, value in NGINX.items() if name != "msec"} | {key: stamp}
    found = told(as_line(line))
    assert found.fields is not None
    assert [(str(source), source.unit) for source in found.fields.fields["ts_us"]] == [(key, unit)]
    assert found.coarse is coarse


def test_damage_does_not_hide_a_format() -> None:
    """The format that most lines have counts; garbage before them does not."""
    assert told(b"\0\0\0", b"[1]", b"{", LINES["envoy"], LINES["envoy"], LINES["nginx"]).name == "envoy"


@pytest.mark.parametrize("line", [b"<html>", b"{}", b"1.5", b'{"msg":"started"}', b"[" * 100_000, b"\xff" * 300])
def test_what_cannot_be_told(line: bytes) -> None:
    """An unknown format is one line, with the beginning of the file and what to pass."""
    with pytest.raises(BadInput, match=r"cannot tell the format of 'some\.log'.*--format tricklecast, nginx") as error:
        told(line)
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()


def test_what_was_asked_for_is_believed() -> None:
    """A format that was asked for is taken whatever the lines are: they will be counted as unparsable."""
    assert told(b"garbage", asked="tricklecast").name == "tricklecast"
    assert told(b"garbage", asked="caddy").name == "caddy"
    assert told(COMBINED, asked="nginx").name == "combined"
    assert told(LINES["nginx"], asked="nginx").name == "nginx"


def test_no_such_format(tmp_path: Path) -> None:
    """What is neither a name nor a field map is a mistake of usage."""
    for asked in ("apache", str(tmp_path / "missing.toml")):
        with pytest.raises(BadFormat) as error:
            recogniser(asked)
        assert error.value.exit_code == 2


def test_own_field_map(tmp_path: Path) -> None:
    """A map of one's own is used for every file."""
    text = '[fields]\nts_us = {from = "at", unit = "ms"}\nrequest = "r"\n'
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert told(b"{}", asked=str(path)).name == str(path)


def test_empty_and_compressed_files(tmp_path: Path) -> None:
    """Nothing is a log of ours; compressed files are looked into, cut ones as far as they go."""
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(LINES["caddy"] + b"\n"))
    (tmp_path / "b.log.bz2").write_bytes(bz2.compress(LINES["envoy"] + b"\n"))
    lines = b"\n".join(json.dumps(NGINX | {"msec": at}).encode() for at in range(20_000))
    cut = gzip.compress(lines)
    (tmp_path / "c.log.gz").write_bytes(cut[: len(cut) // 2])
    (tmp_path / "d.log.gz").write_bytes(b"no gzip")
    grouped = recognise(find_logs([str(tmp_path)]))
    assert {group.format.name: len(group.names) for group in grouped.groups} == {
        "caddy": 1,
        "envoy": 1,
        "nginx": 1,
        "tricklecast": 2,
    }


def test_what_else_lies_in_a_folder(tmp_path: Path) -> None:
    """An error log beside the access log is left out, and the report says so; named, or alone, it is refused."""
    access, error = tmp_path / "access.log", tmp_path / "error.log"
    access.write_bytes(COMBINED + b"\n")
    error.write_bytes(b"2025/10/09 08:53:20 [error] 7#7: *1 upstream timed out\n")
    files = find_logs([str(tmp_path)])
    grouped = recognise(files)
    assert [group.names for group in grouped.groups] == [[str(access)]]
    assert f"files in the folder that are no access logs were left out: {error}" in notes_on(files, grouped)
    for arguments in ([str(tmp_path), str(error)], [str(error)]):
        with pytest.raises(BadInput, match="cannot tell the format"):
            recognise(find_logs(arguments))
    access.unlink()
    with pytest.raises(BadInput, match="cannot tell the format"):
        recognise(find_logs([str(tmp_path)]))


def test_client_keys_are_checked_first(tmp_path: Path) -> None:
    """A key of which a format has no field is a mistake of usage; JSON may have any."""
    (tmp_path / "own.jsonl").write_bytes(LINES["tricklecast"] + b"\n")
    (tmp_path / "words.log").write_bytes(COMBINED + b"\n")
    (tmp_path / "json.log").write_bytes(LINES["nginx"] + b"\n")
    with pytest.raises(BadFormat, match="tricklecast has no field 'x-user'"):
        recognise(find_logs([str(tmp_path / "own.jsonl")]), Reading(client_key="x-user"))
    with pytest.raises(BadFormat, match="combined has no field 'x-user'"):
        recognise(find_logs([str(tmp_path / "words.log")]), Reading(client_key="ip+x-user"))
    recognise(find_logs([str(tmp_path / "words.log")]), Reading(client_key="remote_user,ip"))
    recognise(find_logs([str(tmp_path / "json.log")]), Reading(client_key="x-user"))
    for key in ("", "ip+", ",ip"):
        with pytest.raises(BadFormat, match="empty part"):
            recognise(find_logs([str(tmp_path / "json.log")]), Reading(client_key=key))


def test_versions_and_formats_are_noted(tmp_path: Path) -> None:
    """Lines of another version, and formats that leave questions open, are said."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(OWN | {"v": version}) + "\n" for version in (1, 2, "x", [3])))
    files = find_logs([str(path)])
    assert notes_on(files, recognise(files)) == (
        "lines of another version of the access log ('x', 2, [3]; this program reads 1) are unparsable",
    )
    path.write_bytes(LINES["nginx"] + b"\n")
    files = find_logs([str(path)])
    assert notes_on(files, recognise(files)) == (
        "read as logs of nginx: what they do not say, such as events, is not known",
    )
