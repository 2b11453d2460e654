"""Sources in the configuration: what is accepted, what is said of what is not, and what nobody sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tricklecast.app.serve_cli import describe
from tricklecast.app.settings import InvalidSettings, load
from tricklecast.app.source_settings import MAX_SOURCES, SourceSettings

CAMERA = "rtsp://me:p%40ssword@camera.local/live?key=abcd"

pytestmark = pytest.mark.usefixtures("no_environment")


def test_a_source_becomes_the_arguments_of_publish(config: Path) -> None:
    """Its options, with those of libavformat; one that is always there leaves its channel open."""
    config.write_text(
        f'[source.cam]\nurl = "{CAMERA}"\ntranscode = true\ngop = 2\nvideo_bitrate = "2.5M"\naudio_codec = "opus"\n'
        'container = "fmp4"\nmin_segment = "500ms"\nsegment = 1.5\nreopen_for = "1min"\nrealtime = false\n'
        'input_options = { rtsp_transport = "udp", timeout = 5 }\n'
        '[source."a b"]\nurl = "film.mp4"\nloop = "forever"\nwhen = "demand"\nstop_after_s = "1min"\n'
    )
    sources = load({}, config).settings.source
    assert sources["cam"].arguments("http://to") == [
        *("publish", "http://to", CAMERA, "--container", "fmp4", "--video-bitrate", "2.5M", "--gop", "2"),
        *("--audio-codec", "opus", "--min-segment", "500ms", "--segment", "1.5", "--loop", "1", "--reopen-for", "1min"),
        *("--input-option", "rtsp_transport=udp", "--input-option", "timeout=5", "--transcode", "--no-realtime"),
        "--leave-open",
    ]
    assert sources["a b"].arguments("http://to") == ["publish", "http://to", "film.mp4", "--loop", "forever"]
    assert sources["a b"].stop_after_s == 60


def test_a_source_with_a_ladder(config: Path) -> None:
    """It has a channel for each size, and is encoded without a word."""
    config.write_text('[source.cam]\nurl = "film.mp4"\nladder = "720p, 360p"\ngop = "1s"\naudio_codec = "opus"\n')
    loaded = load({}, config)
    assert loaded.settings.source["cam"].channels("cam") == ("cam", "cam_360p")
    assert loaded.settings.source["cam"].arguments("http://to") == [
        *("publish", "http://to", "film.mp4", "--ladder", "720p,360p", "--gop", "1s", "--audio-codec", "opus"),
        *("--loop", "1", "--leave-open"),
    ]
    assert 'ladder = "720p,360p"' in describe(loaded)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[source.cam]", "source.cam.url in FILE: is missing"),
        ("[source]\ncam = 'x'", "source.cam in FILE: must be a table"),
        ("source = 3", "source in FILE: must be a table"),
        (
            "[source.cam]\nurl='a'\ncontaner='x'",
            "source.cam.contaner in FILE: unknown setting (did you mean container?)",
        ),
        ("[source.cam]\nurl='a'\ncontainer='x'", "source.cam.container in FILE: must be 'mpegts' or 'fmp4'"),
        ("[source.cam]\nurl='a'\nwhen='x'", "source.cam.when in FILE: must be 'always' or 'demand'"),
        ("[source.cam]\nurl='a'\nloop=0", "source.cam.loop in FILE: must be a number of times, or forever"),
        ("[source.cam]\nurl='a'\nloop=[1]", "source.cam.loop in FILE: must be a text"),
        ("[source.cam]\nurl='a'\ngop='2s'", "source.cam in FILE: gop: needs transcode = true, or a ladder"),
        ("[source.cam]\nurl='a'\nsegment='x'", "source.cam.segment in FILE: not a duration: 'x'"),
        (
            "[source.cam]\nurl='a'\ntranscode=true\nvideo_bitrate='x'",
            "source.cam.video_bitrate in FILE: not a bit rate: 'x'",
        ),
        ("[source.cam]\nurl='a'\nladder='x,360p'", "source.cam.ladder in FILE: not a rung: 'x'"),
        (
            "[source.cam]\nurl='a'\nladder='720p,360p'\nvideo_bitrate='1M'",
            "source.cam in FILE: video_bitrate: each size of a ladder has its own",
        ),
        (
            "[source.cam]\nurl='a'\nladder='720p,360p'\n[source.cam_360p]\nurl='a'",
            "source in FILE: 'cam_360p' would be a channel of both 'cam' and 'cam_360p'",
        ),
        (
            f"[source.{'x' * 255}]\nurl='a'\nladder='720p,360p'",
            f"source in FILE: not a channel name: '{'x' * 40}' (longer than 255 bytes)",
        ),
        ("[source.cam]\nurl='a'\nstop_after_s=5", "source.cam in FILE: stop_after_s: needs when = 'demand'"),
        (
            "[source.cam]\nurl='a'\ninput_options={'a=b'='c'}",
            "source.cam in FILE: input_options: 'a=b' is not the name",
        ),
        ("[source.cam]\nurl='-'", "source.cam in FILE: url: a source cannot be standard input"),
        ("[source.cam]\nurl='--raw'", "source.cam in FILE: url: must be a URL, a file or a device"),
        ("[source._cam]\nurl='a'", "source in FILE: '_cam' is a channel of the server's own"),
        ("[source.'a/b']\nurl='a'", "source in FILE: not a channel name: 'a%2Fb' (contains a slash)"),
        ("autocreate=false\n[source.cam]\nurl='a'", "source needs autocreate: a source creates its channel"),
        (
            "\n".join(f"[source.c{number}]\nurl='a'" for number in range(MAX_SOURCES + 1)),
            "source in FILE: has 65 sources; at most 64 run on a server",
        ),
    ],
)
def test_mistakes_are_one_clear_line(text: str, line: str, config: Path) -> None:
    """It names the file, the source and the option."""
    config.write_text(text)
    with pytest.raises(InvalidSettings) as failure:
        load({}, config)
    assert str(failure.value).startswith(line.replace("FILE", str(config)))
    assert "\n" not in str(failure.value)


def test_sources_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON, for containers; else it is said."""
    monkeypatch.setenv("TRICKLECAST_SOURCE", '{"cam": {"url": "film.mp4"}}')
    assert load({}).settings.source["cam"].url.get_secret_value() == "film.mp4"
    monkeypatch.setenv("TRICKLECAST_SOURCE", "{")
    with pytest.raises(InvalidSettings, match=r"^TRICKLECAST_SOURCE: must be a JSON object"):
        load({})


def test_nobody_sees_a_password(config: Path) -> None:
    """Neither with --show-config, which is TOML again, nor in the record of the settings in the access log."""
    config.write_text(f'[source.cam]\nurl = "{CAMERA}"\ninput_options = {{ headers = "Authorization: Basic 42" }}\n')
    loaded = load({}, config)
    for shown in (describe(loaded), loaded.settings.model_dump_json(exclude_defaults=True), repr(loaded.settings)):
        assert "rtsp://***@camera.local/live?key=***" in shown
        assert not [secret for secret in ("p%40ssword", "abcd", "Basic 42") if secret in shown]
    config.write_text(describe(loaded))
    assert load({}, config).settings.port == 2939


def test_what_is_hidden_in_the_lines_of_a_process() -> None:
    """The whole URL, and each of its secrets, also as libraries decode them; short values are no secrets."""
    made = SourceSettings.model_validate({"url": CAMERA, "input_options": {"user": "1", "headers": "long"}})
    assert dict(made.secrets) == {
        CAMERA: "rtsp://***@camera.local/live?key=***",
        **dict.fromkeys(["p%40ssword", "p@ssword", "abcd", "long"], "***"),
    }
    assert SourceSettings.model_validate({"url": "rtsp://[x"}).secrets == [("rtsp://[x", "rtsp://[x")]
