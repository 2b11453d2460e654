"""Settings: values, their sources, and variables that are none."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tricklecast.app.access.settings import is_duration
from tricklecast.app.core.limits import Limits
from tricklecast.app.data_plane.context import Options
from tricklecast.app.settings import (
    MAX_NAME_LENGTH,
    MAX_NAMED,
    InvalidSettings,
    Settings,
    SettingSource,
    load,
    unknown_variables,
)
from tricklecast.trickle.errors import TrickleError

pytestmark = pytest.mark.usefixtures("no_environment")


def test_the_defaults_are_those_of_the_parts() -> None:
    """Core and data plane agree with the settings on every default."""
    loaded = load({})
    half = Limits().total_bytes // 2
    assert loaded.settings.limits() == Limits(channel_bytes=half, publisher_bytes=half)
    assert loaded.settings.options() == Options()
    assert set(loaded.sources.values()) == {SettingSource.DEFAULT}
    assert list(loaded.sources) == list(Settings.model_fields)


def test_the_documented_defaults() -> None:
    """Port, base path, limits and keep-alive that clients in the field count on."""
    settings = load({}).settings
    assert (settings.port, settings.base_path, settings.autocreate, settings.changefeed) == (
        2939,
        "/trickle",
        True,
        True,
    )
    assert settings.keep_alive_s == 75
    assert (settings.window_segments, settings.window_bytes, settings.window_age_s) == (256, 64 << 20, 60.0)
    assert (settings.max_segment_bytes, settings.max_total_bytes) == (64 << 20, 1 << 30)
    assert (settings.max_channels, settings.max_readers) == (10_000, 50_000)


def test_later_layers_win_and_are_remembered(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File over default, environment over file, command line over environment."""
    config.write_text("max_channels = 1\nmax_readers = 1\nport = 1\n")
    monkeypatch.setenv("TRICKLECAST_MAX_READERS", "2")
    monkeypatch.setenv("TRICKLECAST_PORT", "2")
    loaded = load({"port": "3", "host": None}, config)
    assert (loaded.settings.max_channels, loaded.settings.max_readers, loaded.settings.port) == (1, 2, 3)
    assert [loaded.sources[name] for name in ("host", "max_channels", "max_readers", "port")] == [
        SettingSource.DEFAULT,
        SettingSource.FILE,
        SettingSource.ENVIRONMENT,
        SettingSource.COMMAND_LINE,
    ]


@pytest.mark.parametrize("name", ["tricklecast_port", "TRICKLECAST_PORT", "Tricklecast_Port"])
def test_environment_names_in_any_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's names are found in upper and lower case."""
    monkeypatch.setenv(name, "5")
    assert load({}).settings.port == 5


def test_sizes_take_units(config: Path) -> None:
    """Sizes are numbers of bytes or have a unit, in every layer."""
    config.write_text('window_bytes = "1MiB"\n')
    settings = load({"max_segment_bytes": "2kB", "max_total_bytes": "5000000"}, config).settings
    assert (settings.window_bytes, settings.max_segment_bytes, settings.max_total_bytes) == (1 << 20, 2000, 5_000_000)


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if is_duration(name)])
def test_times_take_units(name: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting that is a time, in every layer; a plain number is one of seconds, as ever."""
    beside = {"shutdown_deadline_s": "8d"} if name == "shutdown_drain_s" else {}
    bounded = {"publisher_wait_s": 6, "webhook_timeout_s": 60, "jwt_leeway_s": 300, "webhook_cache_s": 3600}
    texts = {6: ("6000ms",), 60: ("1min", "60"), 300: ("5 min",), 3600: ("1h", "3600.0"), 604_800: ("7d", "1w")}
    longest = bounded.get(name, 604_800)
    for text in texts[longest]:
        assert getattr(load({**beside, name: text}).settings, name) == longest
        config.write_text(f'{name} = "{text}"\n')
        assert getattr(load(beside, config).settings, name) == longest
    monkeypatch.setenv(f"TRICKLECAST_{name.upper()}", f"{longest}s")
    assert getattr(load(beside).settings, name) == longest


@pytest.mark.parametrize(
    "given", ["https://A.example, http://b.example:8080,", ["https://a.example", "http://b.example:8080"]]
)
def test_origins_are_a_list(given: object) -> None:
    """As text with commas or as a list of the file; the data plane gets them in lower case."""
    options = load({"cors_write_origins": given}).settings.options()
    assert options.cors_write_origins == ("https://a.example", "http://b.example:8080")
    assert options.cors_read_origins == ("*",)


@pytest.mark.parametrize(("given", "on"), [("on", True), ("off", False)])
def test_the_storm_guard_is_on_or_off(given: str, on: bool) -> None:
    """In words, as on the command line."""
    assert load({"storm_guard": given}).settings.options().storm_guard is on


@pytest.mark.parametrize(("given", "path"), [("/", ""), ("", ""), ("a/b/", "/a/b"), ("//x", "/x")])
def test_base_paths_are_normalized(given: str, path: str) -> None:
    """However it is written, the base path has one form."""
    assert load({"base_path": given}).settings.base_path == path


def test_settings_are_frozen() -> None:
    """Nobody changes a setting of a running server."""
    with pytest.raises(ValueError, match="frozen"):
        load({}).settings.port = 1


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"port": "x"}, "--port: must be a whole number"),
        ({"port": "65536"}, "--port: must be less than or equal to 65535"),
        ({"port": "-1"}, "--port: must be greater than or equal to 0"),
        ({"window_bytes": "many"}, "--window-bytes: not a size: 'many' (64KiB, 500MB)"),
        ({"window_bytes": "1kbit"}, "--window-bytes: not a size: '1kbit' (64KiB, 500MB)"),
        ({"window_bytes": [1]}, "--window-bytes: must be a size such as 500000 or 64MiB"),
        ({"retain_age_s": "7 days"}, "--retain-age-s: not a duration: '7 days' (30s, 500ms, 2min, 1h or 7d)"),
        ({"retain_age_s": "1.2.3"}, "--retain-age-s: must be a number of seconds, or a time such as 30s or 7d"),
        ({"retain_age_s": "0h"}, "--retain-age-s: must be greater than 0"),
        ({"keep_alive_s": "1500ms"}, "--keep-alive-s: must be a whole number of seconds"),
        ({"per_ip_requests_per_s": "7d"}, "--per-ip-requests-per-s: must be a number"),
        (
            {"jwt_audience": "live", "jwt_issuer": "me"},
            "jwt_audience and jwt_issuer without a key: no token would be checked, and every client may do everything. "
            "Add jwt_secret_file, jwt_key_file, jwks_file or jwks_url",
        ),
        ({"window_bytes": "0"}, "--window-bytes: must be greater than 0"),
        ({"window_age_s": "nan"}, "--window-age-s: must be a finite number"),
        ({"publisher_grace_s": "-1"}, "--publisher-grace-s: must be greater than or equal to 0"),
        ({"first_byte_timeout_s": "0"}, "--first-byte-timeout-s: must be greater than 0"),
        ({"max_channels": "0"}, "--max-channels: must be greater than or equal to 1"),
        (
            {"workers": "0"},
            "--workers: must be a number from 1 to 64, or auto for all cores of this process",
        ),
        (
            {"base_path": "/a b"},
            "--base-path: not a usable URL: '/a b': a base path is a plain URL path such as /trickle",
        ),
        ({"base_path": "/é"}, "--base-path: must be ASCII; percent-encode other characters"),
        ({"tls_cert": "x"}, "tls_cert and tls_key go together: tls_key is missing"),
        ({"tls_key": "x"}, "tls_cert and tls_key go together: tls_cert is missing"),
        ({"host": "localhost:4902"}, "--host: 'localhost:4902' contains a port; give the port to --port"),
        ({"host": "[::1]:4902"}, "--host: '[::1]:4902' contains a port; give the port to --port"),
        (
            {"port": 7, "control_port": 7},
            "port and control_port are the same: 7; the control plane needs another port",
        ),
        ({"access_log": ""}, "--access-log: must be the path of a file, or - for standard output"),
        ({"data_dir": ""}, "--data-dir: must be the path of a folder, such as . for the current one"),
        ({"ack": "journal"}, "ack journal needs data_dir, the folder in which segments are kept"),
        ({"on_disk_full": "refuse"}, "on_disk_full refuse needs data_dir, the folder in which segments are kept"),
        ({"reports": "/dev/null"}, "--reports: /dev/null is not a folder; make it first (mkdir)"),
        (
            {"max_total_bytes": 10, "max_segment_bytes": 11},
            "max_segment_bytes must not exceed max_total_bytes, the memory of all segments",
        ),
        ({"node": "n" * 65}, "--node: must have at most 64 characters"),
        ({"storm_guard": "maybe"}, "--storm-guard: must be 'on' or 'off'"),
        ({"colour": "red"}, "--colour: unknown setting"),
        ({"shutdown_drain_s": "inf"}, "--shutdown-drain-s: must be a finite number"),
        ({"per_ip_requests_per_s": "inf"}, "--per-ip-requests-per-s: must be a finite number"),
        ({"per_ip_limit": "-1"}, "--per-ip-limit: must be greater than or equal to 0"),
        ({"trusted_proxies": "10.0.0.1/8"}, "--trusted-proxies: 10.0.0.1/8 has host bits set"),
        (
            {"trusted_proxies": "127.0.0.1, proxy"},
            "--trusted-proxies: 'proxy' does not appear to be an IPv4 or IPv6 network",
        ),
        (
            {"cors_read_origins": "https://a.example/player"},
            "--cors-read-origins: 'https://a.example/player' is not an origin; "
            "write scheme://host, scheme://host:port, or *",
        ),
        ({"trusted_proxies": 7}, "--trusted-proxies: must be a list, such as 10.0.0.0/8, ::1"),
    ],
)
def test_a_wrong_value_is_one_clear_line(values: dict[str, Any], line: str) -> None:
    """The line names the setting, what is wrong with it, and where it came from."""
    with pytest.raises(InvalidSettings) as error:
        load(values)
    assert str(error.value) == line
    assert isinstance(error.value, TrickleError)


@pytest.mark.parametrize("where", ["command line", "environment", "file", "list"])
def test_networks_are_a_list_however_they_are_written(
    where: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text with commas between them everywhere, and in the file also a list; an address is a network."""
    text = " 10.0.0.0/8, ::1,"
    arguments = {"trusted_proxies": text} if where == "command line" else {}
    if where == "environment":
        monkeypatch.setenv("TRICKLECAST_TRUSTED_PROXIES", text)
    in_file = {"file": f'"{text}"', "list": '["10.0.0.0/8", "::1"]'}.get(where, "[]")
    config.write_text(f"trusted_proxies = {in_file}\n")
    networks = load(arguments, config).settings.trusted_proxies
    assert networks == (ip_network("10.0.0.0/8"), ip_network("::1/128"))


def test_zero_is_no_limit() -> None:
    """Where a limit can be switched off; others are at least one."""
    names = [name for name, field in Settings.model_fields.items() if "0 for" in (field.description or "")]
    off = {name: 0 for name in names if name.startswith(("max_", "per_ip_"))}
    limits = load(off).settings.limits()
    assert len(off) == 8
    assert (limits.channel_bytes, limits.publisher_bytes) == (None, None)
    assert (limits.readers_per_channel, limits.publishers, limits.connections) == (None, None, None)
    assert (limits.client_exchanges, limits.client_connections, limits.client_requests_per_s) == (None, None, None)


def test_quotas_are_half_of_the_memory_unless_a_segment_may_be_as_large() -> None:
    """A given value counts as it is."""
    small = load({"max_total_bytes": "1MiB", "max_segment_bytes": "512KiB"}).settings.limits()
    assert (small.channel_bytes, small.publisher_bytes) == (512 << 10, 512 << 10)
    large = load({"max_total_bytes": "1MiB", "max_segment_bytes": "600KiB"}).settings.limits()
    assert (large.channel_bytes, large.publisher_bytes) == (None, None)
    given = load({"max_channel_bytes": "1kB", "max_publisher_bytes": 0}).settings.limits()
    assert (given.channel_bytes, given.publisher_bytes) == (1000, None)


def test_several_wrong_values_are_still_one_line(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them with its origin."""
    config.write_text("prot = 1\n")
    monkeypatch.setenv("TRICKLECAST_PORT", "x")
    with pytest.raises(InvalidSettings) as error:
        load({}, config)
    text = str(error.value)
    assert f"prot in {config}: unknown setting (did you mean port?)" in text
    assert "TRICKLECAST_PORT: must be a whole number" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "no such file: "),
        (b"port = ", "cannot read "),
        (b'x = "\xff"', "cannot read "),
        (b"= 1", "cannot read "),
    ],
)
def test_a_file_that_cannot_be_read(config: Path, content: bytes | None, line: str) -> None:
    """A missing or malformed file is one clear line, too."""
    if content is not None:
        config.write_bytes(content)
    with pytest.raises(InvalidSettings, match=f"config: {line}") as error:
        load({}, config)
    assert str(config) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_is_no_file_of_settings(tmp_path: Path) -> None:
    """It is there, and cannot be read."""
    with pytest.raises(InvalidSettings, match=r"^config: .* is a directory$"):
        load({}, tmp_path)


def test_a_table_in_the_file_is_an_unknown_key(config: Path) -> None:
    """The file is flat."""
    config.write_text("[server]\nport = 1\n")
    with pytest.raises(InvalidSettings, match=r"server in .*: unknown setting \(.*top level.*, in no table\)"):
        load({}, config)


@pytest.mark.parametrize("key", ["max-channel", "MAX_CHANELS", "TRICKLECAST_MAX_CHANNELS", "max_chanels"])
def test_a_misspelt_key_of_the_file_gets_a_suggestion(config: Path, key: str) -> None:
    """Also one that is spelt as an option or a variable."""
    config.write_text(f"{key} = 1\n")
    with pytest.raises(InvalidSettings, match=rf"{key} in .*: unknown setting \(did you mean max_channels\?\)"):
        load({}, config)


def test_every_setting_is_described() -> None:
    """The descriptions are the command line's help and the documentation."""
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TRICKLECAST_MAX_READER", "TRICKLECAST_MAX_READERS"),
        ("TRICKLECAST_MAX_CHANELS", "TRICKLECAST_MAX_CHANNELS"),
        ("TRICKLECAST_ACCESSLOG", "TRICKLECAST_ACCESS_LOG"),
        ("tricklecast_tls_certs", "TRICKLECAST_TLS_CERT"),
        ("TRICKLECAST_TOKENS", "TRICKLECAST_TOKEN"),
    ],
)
def test_a_misspelt_setting_is_told_with_what_was_meant(name: str, nearest: str) -> None:
    """As it is written, and as it should be."""
    assert unknown_variables(["PATH", name]) == f"no setting, and ignored: {name} (did you mean {nearest}?)"


@pytest.mark.parametrize("name", ["TRICKLECAST_SERVICE_HOST", "TRICKLECAST_", "TRICKLECAST_CONFORMANCE_URL"])
def test_what_is_like_no_setting_is_told_as_it_is(name: str) -> None:
    """Somebody else may use the prefix."""
    assert unknown_variables([name]) == f"no setting, and ignored: {name}"


def test_settings_are_no_strangers() -> None:
    """Every setting is known, in any case, and so are the clients' token and the file of settings."""
    names = [f"TRICKLECAST_{name.upper()}" for name in Settings.model_fields]
    names += ["TRICKLECAST_TOKEN", "TRICKLECAST_CONFIG"]
    assert unknown_variables([*names, *map(str.lower, names), "PATH", "XTRICKLECAST_X"]) is None


@pytest.mark.parametrize(("count", "more"), [(MAX_NAMED - 1, ""), (MAX_NAMED, ""), (MAX_NAMED + 1, " and 1 more")])
def test_it_is_one_line_however_many_there_are(count: int, more: str) -> None:
    """One below and at the limit all are named; one above, how many more there are; none at any length."""
    line = unknown_variables([f"TRICKLECAST_QQ\n{number}" + "x" * 1000 for number in range(count)])
    assert line is not None
    assert "\n" not in line
    assert line.endswith(more or "x")
    assert len(line) < 100 + MAX_NAMED * (MAX_NAME_LENGTH + 50)


@pytest.mark.parametrize(
    ("wait_s", "grace_s", "used_s"), [(0.15, 0.2, 0.15), (1.0, 0.2, 0.15), (0.15, 0.0, 0.15), (0.0, 0.2, 0.0)]
)
def test_a_publisher_waits_for_less_than_the_grace_of_an_overtaken_request(
    wait_s: float, grace_s: float, used_s: float
) -> None:
    """A POST that lies unread on a connection that waits is not overtaken meanwhile; without a grace none waits."""
    values: dict[str, Any] = {"publisher_wait_s": wait_s, "overtaking_grace_s": grace_s}
    options = Settings(**values).options()
    assert options.publisher_wait_s == pytest.approx(used_s)
