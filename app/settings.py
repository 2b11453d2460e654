"""Every setting of the server, with its unit in its name, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ByteSize, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tricklecast.app.access.settings import AccessSettings
from tricklecast.app.admission_settings import AdmissionSettings
from tricklecast.app.core.drain import Drain
from tricklecast.app.core.limits import Limits
from tricklecast.app.data_plane.context import Options
from tricklecast.app.data_plane.routing import CONTROL_PLANE
from tricklecast.trickle import wire
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.paths import normalize_base_path

_LIMITS = Limits()
_OPTIONS = Options()


_IN_WORDS: Final = {"extra_forbidden": "there is no such setting", "path_type": "the path of a file is wanted"}
"""What pydantic says in terms of its own."""


class InvalidSettings(InvalidInput):
    """A setting has a value that it cannot have."""


class Settings(AccessSettings, AdmissionSettings):
    """Settings of one server, frozen. Sizes take a unit (``64MiB``); times are seconds."""

    model_config = SettingsConfigDict(env_prefix="TRICKLECAST_", extra="forbid", frozen=True, env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all of IPv4, :: for all.")
    port: int = Field(wire.DEFAULT_PORT, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    base_path: str = Field(wire.DEFAULT_BASE_PATH, description="Channels live below this path; / is allowed.")
    autocreate: bool = Field(True, description="A POST to a missing channel creates it.")
    changefeed: bool = Field(True, description="Announce new and ended channels on the channel _changes.")
    access_log: Path | None = Field(None, description="Write one JSON line per request to this file; - for stdout.")
    access_log_max_bytes: ByteSize = Field(ByteSize(256 << 20), gt=0, description="Rotate the log at this size.")
    access_log_max_age_s: float = Field(3600.0, gt=0, description="Rotate the log after this time.")
    access_log_files: int = Field(48, ge=1, description="Keep so many rotated log files.")
    access_log_queue: int = Field(100_000, ge=1, description="Records that may wait to be written.")
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM); switches TLS on.")
    tls_key: Path | None = Field(None, description="Private key (PEM) of the certificate.")
    node: str | None = Field(None, max_length=64, description="This server's name in logs; its host name if unset.")
    health_file: Path | None = Field(None, description="Write to this file where `tricklecast health` is to ask.")
    workers: Literal[1] = Field(1, description="Processes; one process serves one core, more are not supported.")

    max_segment_bytes: ByteSize = Field(ByteSize(_LIMITS.segment_bytes), gt=0, description="Size of one segment.")
    window_segments: int = Field(_LIMITS.window_segments, ge=1, description="Closed segments kept per channel.")
    window_bytes: ByteSize = Field(ByteSize(_LIMITS.window_bytes), gt=0, description="Bytes of them kept per channel.")
    window_age_s: float = Field(_LIMITS.window_age_s, gt=0, description="How long they are kept.")
    max_total_bytes: ByteSize = Field(ByteSize(_LIMITS.total_bytes), gt=0, description="Memory of all segments.")
    max_channels: int = Field(_LIMITS.channels, ge=1, description="Channels at a time.")
    max_readers: int = Field(_LIMITS.readers, ge=1, description="Readers at a time, waiting ones included.")
    publisher_grace_s: float = Field(
        _LIMITS.publisher_grace_s, ge=0, description="How long a segment waits for its lost publisher to resume it."
    )
    skip_grace_s: float = Field(
        _LIMITS.skip_grace_s, ge=0, description="How long an overtaken preconnect may still begin."
    )
    overtaking_grace_s: float = Field(
        _LIMITS.overtaking_grace_s,
        ge=0,
        description="How long an overtaken request may take to arrive; 0 for not at all.",
    )
    first_byte_timeout_s: float | None = Field(
        None, gt=0, description="Close a preconnect that has not begun after this time; off if unset."
    )
    channel_drain_s: float = Field(
        _LIMITS.channel_drain_s, ge=0, description="How long an ended channel stays readable."
    )
    idle_timeout_s: float = Field(
        _LIMITS.idle_timeout_s, gt=0, description="End a channel to which nothing is published for so long."
    )
    reader_lag_bytes: ByteSize = Field(
        ByteSize(_OPTIONS.reader_lag_bytes), gt=0, description="Cut off a reader that is so far behind."
    )
    reader_lag_s: float = Field(
        _OPTIONS.reader_lag_s, gt=0, description="Cut off a reader that lacks what is so old, or stands still so long."
    )
    peer_timeout_s: int = Field(60, ge=6, description="Break a connection whose peer acknowledges nothing so long.")
    interim_interval_s: float = Field(
        _OPTIONS.interim_interval_s, gt=0, description="Send 100 Continue to an idle preconnect this often."
    )
    metrics_channels: int = Field(
        _OPTIONS.metrics_channels, ge=0, le=100, description="Busiest channels that /metrics names; 0 for none."
    )
    head_timeout_s: float = Field(
        _OPTIONS.head_timeout_s,
        gt=0,
        description="Longest time for a request's head, or for a body that nobody reads, to arrive.",
    )
    storm_guard: Literal["on", "off"] = Field(
        "on", description="Answer a client later that repeats what gets it nowhere; on or off."
    )
    keep_alive_s: int = Field(75, ge=1, description="Close a connection without requests after this time.")
    # Together below the 10 s after which `docker stop` kills: to be killed costs more than to send away faster.
    shutdown_drain_s: float = Field(
        5.0, ge=0, allow_inf_nan=False, description="Send waiting clients away over this time on SIGTERM."
    )
    shutdown_deadline_s: float = Field(
        8.0, ge=0, allow_inf_nan=False, description="Break what is still running so long after SIGTERM."
    )
    shutdown_restart_s: float = Field(
        2.0,
        ge=0,
        allow_inf_nan=False,
        description="How long after the end a successor answers: clients come back then; 0: others answer already.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in: :func:`load` reads the other sources, since it must tell where a value came from."""
        return (init_settings,)

    @field_validator("base_path")
    @classmethod
    def _normalize_base_path(cls, value: str) -> str:
        if not value.isascii():
            raise ValueError("only ASCII is possible here; percent-encode the rest")
        try:
            path = normalize_base_path(value)
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        if (first := path.lstrip("/").partition("/")[0]) in CONTROL_PLANE:
            raise ValueError(f"/{first} belongs to the control plane")
        return path

    @field_validator("workers", mode="before")
    @classmethod
    def _one_worker(cls, value: object) -> object:
        if str(value) != "1":
            raise ValueError("only 1 is supported: a channel lives in one process; run one server per core instead")
        return 1

    @model_validator(mode="after")
    def _drain_in_time(self) -> Settings:
        if self.shutdown_drain_s > self.shutdown_deadline_s:
            raise ValueError("shutdown_drain_s must not exceed shutdown_deadline_s")
        return self

    @model_validator(mode="after")
    def _whole_tls(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self

    def limits(self) -> Limits:
        """The limits of the core."""
        return Limits(
            segment_bytes=self.max_segment_bytes,
            window_segments=self.window_segments,
            window_bytes=self.window_bytes,
            window_age_s=self.window_age_s,
            total_bytes=self.max_total_bytes,
            channels=self.max_channels,
            readers=self.max_readers,
            readers_per_channel=self.max_readers_per_channel or None,
            publishers=self.max_publishers or None,
            connections=self.max_connections or None,
            client_exchanges=self.per_ip_limit or None,
            client_connections=self.per_ip_connections or None,
            client_requests_per_s=self.per_ip_requests_per_s or None,
            client_burst=self.per_ip_burst,
            clients=self.per_ip_addresses,
            publisher_grace_s=self.publisher_grace_s,
            skip_grace_s=self.skip_grace_s,
            overtaking_grace_s=self.overtaking_grace_s,
            first_byte_timeout_s=self.first_byte_timeout_s,
            channel_drain_s=self.channel_drain_s,
            idle_timeout_s=self.idle_timeout_s,
        )

    def drain(self, now: float) -> Drain:
        """The end of a server that begins now."""
        return Drain(
            begun_at=now,
            spread_s=self.shutdown_drain_s,
            deadline_s=self.shutdown_deadline_s,
            restart_s=self.shutdown_restart_s,
        )

    def options(self) -> Options:
        """The settings of the data plane."""
        return Options(
            base_path=self.base_path,
            interim_interval_s=self.interim_interval_s,
            reader_lag_bytes=self.reader_lag_bytes,
            reader_lag_s=self.reader_lag_s,
            metrics_channels=self.metrics_channels,
            keep_alive_s=self.keep_alive_s,
            head_timeout_s=self.head_timeout_s,
            storm_guard=self.storm_guard == "on",
            trusted_proxies=self.trusted_proxies,
        )


class Origin(StrEnum):
    """Where a value came from; of several the last of this list wins."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each came from."""

    settings: Settings
    origins: dict[str, Origin]


def load(arguments: Mapping[str, Any], config: Path | None = None) -> Loaded:
    """Put the settings together: defaults, TOML file, ``TRICKLECAST_*``, command line; the later wins.

    Args:
        arguments: values from the command line, ``None`` for those that were not given.
        config: a TOML file whose top-level keys are names of settings.

    Raises:
        InvalidSettings: the file cannot be read, or a value or a key is wrong.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, Origin.DEFAULT)
    layers = (
        (Origin.FILE, _read_file(config)),
        (Origin.ENVIRONMENT, EnvSettingsSource(Settings)()),
        (Origin.COMMAND_LINE, {name: value for name, value in arguments.items() if value is not None}),
    )
    for origin, layer in layers:
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    try:
        return Loaded(Settings.model_validate(values), {name: origins[name] for name in Settings.model_fields})
    except ValidationError as error:
        raise InvalidSettings(_one_line(error, origins)) from None


def _read_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    if not config.is_file():
        raise InvalidSettings(f"config: no such file: {config}")
    try:
        return TomlConfigSettingsSource(Settings, config)()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"config: cannot read {config}: {error}") from None


def _one_line(error: ValidationError, origins: Mapping[str, Origin]) -> str:
    problems = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        message = _IN_WORDS.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
        origin = f" ({origins[name]})" if name in origins else ""
        problems.append(f"{name}: {message}{origin}" if name else message)
    return "; ".join(problems)
