"""One source in the configuration: what is pulled, when, and how it is published."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Secret, model_validator

from tricklecast.trickle.amounts import parse_bitrate, parse_duration
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.media.ladder import channel_of, parse_ladder
from tricklecast.trickle.paths import is_reserved, parse_channel
from tricklecast.trickle.wire import redacted

MAX_SOURCES: Final = 64
"""Each runs in a process of its own, of some 80 MB."""

STDIN: Final = "-"

SHORTEST_SECRET: Final = 4
"""Characters."""

_OF_TRANSCODE: Final = ("video_bitrate", "gop", "audio_codec")


class SourceUrl(Secret[str]):
    """The input of a source. Its URL may have a password, which no log and no output shows."""

    def _display(self) -> str:
        return redacted(self.get_secret_value())


class InputOption(Secret[str]):
    """The value of an option of the input, which may be a password, too."""

    def _display(self) -> str:
        return "***"


def _time(value: str) -> str:
    parse_duration(value)
    return value


def _rate(value: str) -> str:
    parse_bitrate(value)
    return value


def _ladder(value: str) -> str:
    return ",".join(rung.name for rung in parse_ladder(value))


def _plays(value: str) -> str:
    if value != "forever" and not (value.isascii() and value.isdecimal() and int(value)):
        raise ValueError("must be a number of times, or forever")
    return value


def _text(value: object) -> object:
    """A number is taken for its text, as on a command line."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


Time = Annotated[str, BeforeValidator(_text), AfterValidator(_time)]
Rate = Annotated[str, BeforeValidator(_text), AfterValidator(_rate)]
Rungs = Annotated[str, AfterValidator(_ladder)]
Plays = Annotated[str, BeforeValidator(_text), AfterValidator(_plays)]
Option = Annotated[InputOption, BeforeValidator(_text)]


class SourceSettings(BaseModel):
    """A table ``[source.NAME]``. The options are those of ``tricklecast publish``, with its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    url: SourceUrl = Field(description="What is pulled: a URL, a file or a device, as `tricklecast publish` takes it.")
    when: Literal["always", "demand"] = Field(
        "always", description="Always; or on demand, from the first reader of the channel on."
    )
    stop_after_s: Annotated[float, BeforeValidator(_seconds)] = Field(
        30.0, ge=1, description="On demand: stop this long after the last reader has left."
    )
    container: Literal["mpegts", "fmp4"] | None = Field(None, description="As of `publish`.")
    transcode: bool = Field(False, description="Encode to H.264 and AAC or Opus.")
    ladder: Rungs | None = Field(
        None, description="Encode in several sizes, each for a channel of its own: 1080p,720p,360p."
    )
    video_bitrate: Rate | None = Field(None, description="With `transcode`: for example 2.5M.")
    gop: Time | None = Field(None, description="With `transcode` or `ladder`: time between keyframes.")
    audio_codec: Literal["aac", "opus"] | None = Field(None, description="With `transcode` or `ladder`.")
    min_segment: Time | None = Field(None, description="With video: end a segment at the first keyframe after this.")
    segment: Time | None = Field(None, description="Without video: end a segment after this time.")
    realtime: bool = Field(True, description="Publish at the speed at which the media plays.")
    loop: Plays = Field("1", description="The number of times that a file is played, or forever.")
    reopen_for: Time | None = Field(None, description="Open a broken input again for this time, before it failed.")
    input_options: dict[str, Option] = Field(
        default={}, description="Options of libavformat for the input, such as { rtsp_transport = 'udp' }."
    )

    @model_validator(mode="after")
    def _whole(self) -> SourceSettings:
        url = self.url.get_secret_value()
        if url == STDIN:
            raise ValueError("url: a source cannot be standard input")
        if not url or url.startswith("-") or not url.isprintable():
            raise ValueError("url: must be a URL, a file or a device")
        if self.ladder is not None and self.video_bitrate is not None:
            raise ValueError("video_bitrate: each size of a ladder has its own")
        is_encoded = self.transcode or self.ladder is not None
        if not is_encoded and (given := [name for name in _OF_TRANSCODE if getattr(self, name) is not None]):
            raise ValueError(f"{given[0]}: needs transcode = true, or a ladder")
        if "stop_after_s" in self.model_fields_set and self.when == "always":
            raise ValueError("stop_after_s: needs when = 'demand'")
        if wrong := [key for key in self.input_options if not key or "=" in key or not key.isprintable()]:
            raise ValueError(f"input_options: {wrong[0]!r} is not the name of an option")
        return self

    @property
    def secrets(self) -> list[tuple[str, str]]:
        """Texts that nobody may see, and what stands for each, the longest first."""
        url = self.url.get_secret_value()
        hidden = [value.get_secret_value() for value in self.input_options.values()]
        try:
            parts = urlsplit(url)
            hidden += [parts.password or "", unquote(parts.password or "")]
            hidden += [value for _, value in parse_qsl(parts.query)]
        except ValueError:
            pass  # no valid URL: all of it is hidden
        # A shorter one, such as the 1 of an option, would hide parts of words, and is no secret.
        shown = {text: "***" for text in hidden if len(text) >= SHORTEST_SECRET} | {url: str(self.url)}
        return sorted(shown.items(), key=lambda pair: -len(pair[0]))

    def channels(self, name: str) -> tuple[str, ...]:
        """The channels that it publishes, the one of its name first: one for each rung of a ladder.

        Args:
            name: of the source.
        """
        if self.ladder is None:
            return (name,)
        rungs = parse_ladder(self.ladder)
        return tuple(channel_of(name, rung, rungs) for rung in rungs)

    def arguments(self, to: str) -> list[str]:
        """The arguments of ``tricklecast`` that publish it.

        Args:
            to: URL of the channel.
        """
        valued = ("container", "ladder", *_OF_TRANSCODE, "min_segment", "segment", "loop", "reopen_for")
        given: dict[str, Any] = {name: getattr(self, name) for name in valued}
        options = [part for name, value in given.items() if value is not None for part in (_flag(name), value)]
        for key, value in self.input_options.items():
            options += ["--input-option", f"{key}={value.get_secret_value()}"]
        options += ["--transcode"] if self.transcode else []
        options += [] if self.realtime else ["--no-realtime"]
        # A channel that is always there outlives an input that breaks: the next process goes on with it.
        options += ["--leave-open"] if self.when == "always" else []
        return ["publish", to, self.url.get_secret_value(), *options]


def checked_names(sources: dict[str, SourceSettings]) -> dict[str, SourceSettings]:
    """Return the sources, if each key names a channel, and no two sources have one channel.

    Raises:
        ValueError: it does not, or there are too many.
    """
    if len(sources) > MAX_SOURCES:
        raise ValueError(f"has {len(sources)} sources; at most {MAX_SOURCES} run on a server")
    publishers: dict[str, str] = {}  # of channels
    for name, settings in sources.items():
        for channel in settings.channels(name):
            try:
                parse_channel(quote(channel, safe=""))
            except TrickleError as error:
                raise ValueError(str(error)) from None
            if (other := publishers.setdefault(channel, name)) != name:
                raise ValueError(f"{channel!r} would be a channel of both {other!r} and {name!r}")
        if is_reserved(name):
            raise ValueError(f"{name!r} is a channel of the server's own: its name begins with _")
    return sources


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
