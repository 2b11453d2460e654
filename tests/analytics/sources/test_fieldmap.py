"""Field maps are checked as they are read, and say what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tricklecast.analytics.sources.fieldmap import BadFormat, Layout, Source, Stamp, Unit, built_in, load_map, parse_map
from tricklecast.analytics.sources.recognise import COMBINED, JSON_MAPS

GOOD = """
name = "edge"
stamped = "start"
prefix = "/live"
[only]
type = "access"
[gone]
status = [499]
flags = "DC"
[fields]
ts_us = [{ from = "t", unit = "ns" }, { from = "time", unit = "iso", coarse = true }]
method = "m"
path = ["uri", { from = ["a.b", "c"] }]
"""

BAD = {
    "no TOML": ("= 1", "Invalid|Expected"),
    "no fields": ("name = 'x'", "'fields' is missing"),
    "unknown key": ("colour = 'red'\n[fields]\n", "no 'colour'"),
    "unknown field": ("[fields]\nstats = 'x'\nts_us = {from = 't', unit = 's'}", "no field 'stats'"),
    "own field": ("[fields]\nkind = 'x'\nts_us = {from = 't', unit = 's'}", "no field 'kind'"),
    "no time": ("[fields]\nrequest = 'r'", "nothing gives ts_us"),
    "no request": ("[fields]\nts_us = {from = 't', unit = 's'}\nmethod = 'm'", "method and path"),
    "no unit": ("[fields]\nts_us = 't'\nrequest = 'r'", "ts_us needs a unit"),
    "unknown unit": ("[fields]\nts_us = {from = 't', unit = 'h'}\nrequest = 'r'", "'h' is not a valid Unit"),
    "duration as a date": (
        "[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r'\ndur_us = {from = 'd', unit = 'iso'}",
        "dur_us needs a unit",
    ),
    "no source": ("[fields]\nts_us = {unit = 's'}\nrequest = 'r'", "'from' is missing"),
    "unknown in source": ("[fields]\nts_us = {from = 't', unit = 's', as = 'x'}\nrequest = 'r'", "no 'as'"),
    "source of a number": ("[fields]\nts_us = 5\nrequest = 'r'", "must be a table"),
    "empty name": ("[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'a..b'", "empty name"),
    "layout": ("layout = 'xml'\n[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r'", "'xml'"),
    "prefix": ("prefix = 'live'\n[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r'", "prefix must begin"),
    "value and object": ("[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r'\nip = 'r.ip'", "both as a value"),
    "object and value": ("[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r.x'\nip = 'r'", "both as a value"),
    "case": ("[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r'\nip = 'T'", "only by case"),
    "no columns": ("layout = 'words'\n[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 't'", "columns"),
    "column twice": (
        "layout = 'words'\ncolumns = ['t', 'T']\n[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 't'",
        "once",
    ),
    "no such column": (
        "layout = 'words'\ncolumns = ['t']\n[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r'",
        "no column is called 'r'",
    ),
    "not a text": ("name = 5\n[fields]\nts_us = {from = 't', unit = 's'}\nrequest = 'r'", "5 must be a text"),
}


def test_all_that_a_map_can_say() -> None:
    """Sources in order, keys with dots in them, moments, values that skip a line or say that the client left."""
    found = parse_map(GOOD, "x")
    assert (found.name, found.layout, found.stamped, found.prefix) == ("edge", Layout.JSON, Stamp.START, "/live")
    assert found.fields["ts_us"] == (Source(("t",), Unit.NS), Source(("time",), Unit.ISO, coarse=True))
    assert found.fields["path"] == (Source(("uri",)), Source(("a.b", "c")))
    assert found.only == ((Source(("type",)), "access"),)
    assert found.gone == ((Source(("status",)), ("499",)), (Source(("flags",)), ("DC",)))


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(name: str) -> None:
    """A map that is none is refused with one line that names it and the fault."""
    text, said = BAD[name]
    with pytest.raises(BadFormat, match=said) as error:
        parse_map(text, "map.toml")
    assert str(error.value).startswith("field map 'map.toml'")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [*JSON_MAPS, COMBINED])
def test_maps_that_come_with_the_package(name: str) -> None:
    """Each is there, is right, and is called as it is asked for."""
    assert built_in(name).name == name


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, bytes and a huge file are refused, not raised."""
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "huge.toml").write_bytes(b"#" * 2_000_000)
    for name in ("missing.toml", "", "bytes.toml", "huge.toml"):
        with pytest.raises(BadFormat, match="field map"):
            load_map(str(tmp_path / name))


def test_the_map_in_the_documentation() -> None:
    """The example that people start from is a map, with all of its parts."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "log-formats.md"
    text = page.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    found = parse_map(text, "docs")
    assert (found.name, found.prefix, found.only[0][1], len(found.gone)) == ("edge", "/live", "access", 2)
    assert found.fields["ua"] == (Source(("req.headers", "User-Agent", "0")),)
