"""Every setting of the server, with its unit in its name, and the source of each value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, Secret, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from tricklecast.app.access.settings import AccessSettings, is_duration, is_number
from tricklecast.app.core.limits import Limits
from tricklecast.app.data_plane.client_address import Network
from tricklecast.app.data_plane.context import Options
from tricklecast.app.data_plane.cors import ANY
from tricklecast.app.data_plane.routing import CONTROL_PLANE
from tricklecast.app.machine import default_budget
from tricklecast.app.masking import LogIps
from tricklecast.app.server_log import LogFormat
from tricklecast.app.shutdown import Drain
from tricklecast.app.source_settings import SourceSettings, checked_names
from tricklecast.app.storage.archive import Ack, OnDiskFull, Retention
from tricklecast.trickle import wire
from tricklecast.trickle.amounts import parse_size
from tricklecast.trickle.bearer import TOKEN_VARIABLE
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.paths import normalize_base_path

_LIMITS = Limits()
_OPTIONS = Options()
_RETENTION = Retention()

_MESSAGES: Final = {
    "extra_forbidden": "unknown setting",
    "path_type": "must be the path of a file",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "byte_size": "must be a size such as 500000 or 64MiB",
    "int_from_float": "must be a whole number",
    "missing": "is missing",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "string_type": "must be a text",
}
"""Texts for errors that pydantic describes in its own terms."""

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|[0-9a-f:]+")

CONFIG_VARIABLE: Final = "TRICKLECAST_CONFIG"
"""The environment variable that may name the TOML file."""

_NATS: Final = re.compile(r"(?:nats|tls)://(?:[^\s@/,]*@)?(?:[a-zA-Z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?/?")
_NATS_EXAMPLE: Final = "nats://10.0.0.1:4222,nats://10.0.0.2:4222"

_EVERY: Final = ("0.0.0.0", "::", "")
"""Addresses to listen on that stand for every address of the machine."""

_PASSWORD: Final = re.compile(r":[^:/@]*@")

_ORIGIN: Final = re.compile(r"https?://[a-z0-9._~\[\]:-]+")

MAX_NAMED: Final = 5
MAX_NAME_LENGTH: Final = 64
"""The most unknown variables that a warning names, and the most characters of each."""


class NatsUrl(Secret[str]):
    """The URL of a server of NATS, whose password no log and no output shows."""

    def _display(self) -> str:
        return _PASSWORD.sub(":***@", self.get_secret_value())


TABLES: Final = ("source",)
"""Settings that are tables of the file, and no options of the command."""


class InvalidSettings(InvalidInput):
    """A value or the name of a setting is wrong."""


MAX_WORKERS: Final = 64
"""More workers than any machine on which this was thought through."""


class Settings(AccessSettings):
    """Settings of one server, frozen.

    Sizes and times take a unit (``64MiB``, ``7d``). A plain number is one of bytes, or of seconds.
    """

    model_config = SettingsConfigDict(
        env_prefix="TRICKLECAST_", extra="forbid", frozen=True, env_ignore_empty=True, allow_inf_nan=False
    )

    host: str = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 is every IPv4 address, :: is every address."
    )
    unix_socket: Path | None = Field(
        default=None,
        description="Listen on this Unix socket, in place of host and port; its owner and group may connect.",
    )
    port: int = Field(default=wire.DEFAULT_PORT, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    base_path: str = Field(default=wire.DEFAULT_BASE_PATH, description="Path of all channels; / is allowed.")
    autocreate: bool = Field(default=True, description="A POST to a missing channel creates it.")
    changefeed: bool = Field(default=True, description="Announce new and ended channels on the channel _changes.")
    web: bool = Field(default=True, description="Serve the web pages: the dashboard, the player and the others.")
    reports: Path | None = Field(default=None, description="Show the storm reports in this folder on the dashboard.")
    access_log: Path | None = Field(
        default=None, description="Write one JSON line per request to this file; - for stdout."
    )
    access_log_max_bytes: ByteSize = Field(
        default=ByteSize(256 << 20), gt=0, description="Rotate the log at this size."
    )
    access_log_max_age_s: float = Field(default=3600.0, gt=0, description="Rotate the log after this time.")
    access_log_files: int = Field(default=48, ge=1, description="Number of rotated log files to keep.")
    access_log_queue: int = Field(default=100_000, ge=1, description="Records that may wait to be written.")
    log_ips: LogIps = Field(
        default=LogIps.FULL,
        description="Addresses of clients in the access log: full, the network's prefix, or a hash.",
    )
    log_format: LogFormat = Field(
        default=LogFormat.TEXT, description="The server's own log on standard error: text or json."
    )
    tls_cert: Path | None = Field(default=None, description="Certificate chain (PEM); switches TLS on.")
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of the certificate.")
    tls_client_ca: Path | None = Field(
        default=None, description="Serve only clients with a certificate that these authorities (PEM) have signed."
    )
    node: str | None = Field(
        default=None,
        max_length=64,
        description="This server's name in logs and in its cluster; its host name if unset.",
    )
    health_file: Path | None = Field(
        default=None, description="Write the server's address to this file, for `tricklecast health`."
    )
    workers: Literal["auto"] | int = Field(
        default=1,
        description="Processes that share the channels, so that the server uses as many cores: a number, or auto for "
        "the cores that it may use. Each further one takes some 30 MB of memory.",
    )

    cluster: Annotated[tuple[NatsUrl, ...], NoDecode] = Field(
        default=(),
        description="Servers of NATS (nats://HOST:PORT, tls://…), separated by commas: all servers that share them are "
        "nodes of one cluster, with one namespace of channels.",
    )
    advertise_url: str | None = Field(
        default=None,
        description="URL at which the other nodes of the cluster and its clients reach this one, such as "
        "http://10.0.0.1:2939 (default: of host and port).",
    )
    cluster_name: str = Field(
        default="trickle", description="Name of the cluster; clusters that share servers of NATS have one each."
    )
    cluster_creds: Path | None = Field(
        default=None, description="Credentials (.creds) with which this node comes to NATS."
    )
    cluster_ca: Path | None = Field(
        default=None,
        description="Authorities (PEM) for the certificates of NATS and of the other nodes; the system's if unset.",
    )
    cluster_lease_s: float = Field(
        default=2.0,
        ge=0.2,
        description="A node of the cluster that is silent for this time loses its channels to others.",
    )
    cluster_history_bytes: ByteSize = Field(
        default=ByteSize(16 << 30),
        gt=0,
        description="Room that NATS reserves for the histories of channels (--ack quorum).",
    )

    source: dict[str, SourceSettings] = Field(
        default={},
        description="Inputs that the server publishes itself, each to the channel of its name; tables [source.NAME] of "
        "the file, and no option.",
    )

    max_segment_bytes: ByteSize = Field(
        default=ByteSize(_LIMITS.segment_bytes), gt=0, description="Size of one segment."
    )
    data_dir: Path | None = Field(
        default=None, description="Keep channels and segments in this folder; in memory if unset."
    )
    ack: Ack = Field(
        default=Ack.MEMORY,
        description="Answer a publisher at once (memory), or when the kernel (journal), the disk (fsync) or NATS "
        "(quorum, in a cluster) has it.",
    )
    on_disk_full: OnDiskFull = Field(
        default=OnDiskFull.MEMORY,
        description="If the data folder cannot be written: go on in memory, or refuse publishers.",
    )
    retain_channel_bytes: ByteSize = Field(
        default=ByteSize(_RETENTION.channel_bytes), gt=0, description="Bytes kept in the data folder per channel."
    )
    retain_channel_segments: int = Field(
        default=_RETENTION.channel_segments, ge=1, description="Segments kept in the data folder per channel."
    )
    retain_total_bytes: ByteSize = Field(
        default=ByteSize(_RETENTION.total_bytes), gt=0, description="Bytes kept in the data folder for all channels."
    )
    retain_age_s: float = Field(
        default=_RETENTION.age_s, gt=0, description="How long segments are kept in the data folder."
    )
    window_segments: int = Field(
        default=_LIMITS.window_segments, ge=1, description="Closed segments kept in memory per channel."
    )
    window_bytes: ByteSize = Field(
        default=ByteSize(_LIMITS.window_bytes), gt=0, description="Bytes of closed segments kept in memory per channel."
    )
    window_age_s: float = Field(
        default=_LIMITS.window_age_s, gt=0, description="How long closed segments are kept in memory."
    )
    max_total_bytes: ByteSize = Field(
        default_factory=lambda: ByteSize(default_budget()),
        gt=0,
        description="Memory for all segments (default: 1GiB, or half of the memory that the process may use).",
    )
    max_channel_bytes: ByteSize | None = Field(
        default=None,
        description="Memory for the unfinished segments of one channel; 0 for no limit (default: half of "
        "max_total_bytes, or no limit if one segment may be larger than that).",
    )
    max_publisher_bytes: ByteSize | None = Field(
        default=None,
        description="Memory for the unfinished segments of one publisher (the subject of its token, or its address); 0 "
        "for no limit (default: as max_channel_bytes).",
    )
    max_channels: int = Field(default=_LIMITS.channels, ge=1, description="Maximum number of channels.")
    max_readers: int = Field(
        default=_LIMITS.readers, ge=1, description="Maximum number of readers, waiting ones included."
    )
    max_readers_per_channel: int = Field(
        default=0, ge=0, description="Maximum number of readers of one channel; 0 for no limit."
    )
    max_publishers: int = Field(
        default=_LIMITS.publishers or 0,
        ge=0,
        description="Maximum number of publishing requests, preconnects included; 0 for no limit.",
    )
    max_connections: int = Field(
        default=_LIMITS.connections or 0,
        ge=0,
        description="Maximum number of connections; 0 for as many as can be opened.",
    )
    per_ip_limit: int = Field(
        default=0, ge=0, description="Simultaneous requests of one client address; 0 for no limit."
    )
    per_ip_connections: int = Field(default=0, ge=0, description="Connections of one client address; 0 for no limit.")
    per_ip_requests_per_s: float = Field(
        default=0.0,
        ge=0,
        description="Average requests per second of one client address; 0 for no limit.",
    )
    per_ip_burst: int = Field(
        default=_LIMITS.client_burst, ge=1, description="How many requests of one client address may come at once."
    )
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode] = Field(
        default=(), description="Networks of proxies whose X-Forwarded-For is trusted, separated by commas."
    )
    cors_read_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(ANY,), description="Origins whose web pages may read, such as https://example.org; * for all."
    )
    cors_write_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins whose web pages may publish, end channels and use the control plane."
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Names by which clients may call the server (Host), such as live.example or *.example.org; * for "
        "all (default: local names on a server that only this machine reaches, all names on others).",
    )
    publisher_grace_s: float = Field(
        default=_LIMITS.publisher_grace_s,
        ge=0,
        description="How long a segment stays open for a publisher whose connection broke.",
    )
    skip_grace_s: float = Field(
        default=_LIMITS.skip_grace_s, ge=0, description="How long an overtaken preconnect may still begin."
    )
    overtaking_grace_s: float = Field(
        default=_LIMITS.overtaking_grace_s,
        ge=0,
        description="How long the server waits for an overtaken request; 0 for no wait.",
    )
    first_byte_timeout_s: float | None = Field(
        default=None, gt=0, description="Close a preconnect without a byte after this time; off if unset."
    )
    channel_drain_s: float = Field(
        default=_LIMITS.channel_drain_s, ge=0, description="How long an ended channel stays readable."
    )
    idle_timeout_s: float = Field(
        default=_LIMITS.idle_timeout_s, gt=0, description="End a channel after this time without a published byte."
    )
    reader_lag_bytes: ByteSize = Field(
        default=ByteSize(_OPTIONS.reader_lag_bytes), gt=0, description="Cut off a reader that lacks this many bytes."
    )
    reader_lag_s: float = Field(
        default=_OPTIONS.reader_lag_s,
        gt=0,
        description="Cut off a reader that lacks a byte of this age, or reads less than 4 KiB in this time.",
    )
    publisher_wait_s: float = Field(
        default=_OPTIONS.publisher_wait_s,
        ge=0,
        le=10,
        description="How long a publisher waits for slow readers; 0 for no wait; below overtaking_grace_s.",
    )
    peer_timeout_s: int = Field(
        default=60, ge=6, description="Close a connection whose peer acknowledges no bytes for this time."
    )
    metrics_channels: int = Field(
        default=_OPTIONS.metrics_channels,
        ge=0,
        le=100,
        description="Busiest channels of each worker in /metrics; 0 for none.",
    )
    half_closed_s: float = Field(
        default=_OPTIONS.half_closed_s,
        ge=0,
        description="How long a client that has closed its sending side may wait for the first byte of an answer.",
    )
    head_timeout_s: float = Field(
        default=_OPTIONS.head_timeout_s,
        gt=0,
        description="Longest time for a request's head to arrive, or for a body that the server ignores.",
    )
    storm_guard: Literal["on", "off"] = Field(
        default="on", description="Delay the answers to a client that repeats fruitless requests; on or off."
    )
    keep_alive_s: int = Field(default=75, ge=1, description="Close a connection without requests after this time.")
    # Together below the 10 s after which `docker stop` kills: to be killed costs more than to send away faster.
    shutdown_drain_s: float = Field(
        default=5.0, ge=0, description="After SIGTERM, spread the answers to waiting clients over this time."
    )
    shutdown_deadline_s: float = Field(default=8.0, ge=0, description="Cut what still runs this long after SIGTERM.")
    shutdown_restart_s: float = Field(
        default=2.0,
        ge=0,
        description="How long after its end the next server answers; 0 if another one answers already.",
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
        """Use only the arguments: :func:`load` reads the other sources itself and notes where each value came from."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _size(cls, value: object, info: ValidationInfo) -> object:
        is_text = isinstance(value, str) and cls.model_fields[str(info.field_name)].annotation is ByteSize
        return parse_size(str(value)) if is_text and not is_number(str(value)) else value

    @field_validator("host")
    @classmethod
    def _no_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if port.isdigit() and host and (":" not in host or host.endswith("]")):
            raise ValueError(f"{value!r} contains a port; give the port to --port")
        return value

    @field_validator("access_log", mode="before")
    @classmethod
    def _some_file(cls, value: object) -> object:
        if value == "":
            raise ValueError("must be the path of a file, or - for standard output")
        return value

    @field_validator("data_dir", "reports", mode="before")
    @classmethod
    def _some_folder(cls, value: object) -> object:
        if value == "":  # Path("") is the current folder.
            raise ValueError("must be the path of a folder, such as . for the current one")
        return value

    @field_validator("unix_socket", mode="before")
    @classmethod
    def _some_socket(cls, value: object) -> object:
        if value == "":
            raise ValueError("must be the path of a socket")
        if isinstance(value, str) and value.startswith("@"):
            raise ValueError(
                f"must be a path, since every program of this machine may use an abstract socket (a file: ./{value})"
            )
        return value

    @field_validator("reports")
    @classmethod
    def _existing_folder(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_dir():
            raise ValueError(f"{value} is not a folder; make it first (mkdir)")
        return value

    @field_validator("base_path")
    @classmethod
    def _normalize_base_path(cls, value: str) -> str:
        if not value.isascii():
            raise ValueError("must be ASCII; percent-encode other characters")
        try:
            path = normalize_base_path(value)
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        if (first := path.lstrip("/").partition("/")[0]) in CONTROL_PLANE:
            raise ValueError(f"/{first} belongs to the control plane")
        return path

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _networks(cls, value: object) -> object:
        return tuple(ip_network(network) for network in _listed(value, "10.0.0.0/8, ::1"))

    @field_validator("cors_read_origins", "cors_write_origins", mode="before")
    @classmethod
    def _origins(cls, value: object) -> object:
        origins = tuple(origin.lower() for origin in _listed(value, "https://example.org, or *"))
        for origin in origins:
            if origin != ANY and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not an origin; write scheme://host, scheme://host:port, or *")
        return origins

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _hosts(cls, value: object) -> object:
        names = tuple(name.lower() for name in _listed(value, "live.example, *.example.org"))
        for name in names:
            if name != ANY and not _HOST.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a host; write it without scheme and port, or *")
        return tuple(name.removesuffix(".") for name in names)

    @field_validator("cluster", mode="before")
    @classmethod
    def _nats(cls, value: object) -> object:
        urls = tuple(NatsUrl(url) for url in _listed(value, _NATS_EXAMPLE))
        for url in urls:
            if not _NATS.fullmatch(url.get_secret_value()):
                raise ValueError(f"{url} is not the URL of a server of NATS; write {_NATS_EXAMPLE}")
        return urls

    @field_validator("cluster_name")
    @classmethod
    def _bucket(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", value):
            raise ValueError("must be up to 32 small letters, digits and underscores, and begin with a letter")
        return value

    @field_validator("source")
    @classmethod
    def _channels(cls, value: dict[str, SourceSettings]) -> dict[str, SourceSettings]:
        return checked_names(value)

    @field_validator("workers", mode="before")
    @classmethod
    def _workers(cls, value: object) -> object:
        if value == "auto":
            return value
        if not str(value).isdecimal() or not 1 <= int(str(value)) <= MAX_WORKERS:
            raise ValueError(f"must be a number from 1 to {MAX_WORKERS}, or auto for all cores of this process")
        return int(str(value))

    @model_validator(mode="after")
    def _may_be_created(self) -> Settings:
        if self.source and not self.autocreate:
            raise ValueError("source needs autocreate: a source creates its channel")
        return self

    @model_validator(mode="after")
    def _drain_in_time(self) -> Settings:
        if self.shutdown_drain_s > self.shutdown_deadline_s:
            raise ValueError("shutdown_drain_s must not exceed shutdown_deadline_s")
        return self

    @model_validator(mode="after")
    def _whole_tls(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ValueError(f"tls_cert and tls_key go together: {missing} is missing")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _one_address(self) -> Settings:
        if self.unix_socket is not None and self.model_fields_set & {"host", "port"}:
            raise ValueError("unix_socket takes the place of host and port; give the one or the other")
        return self

    @model_validator(mode="after")
    def _two_ports(self) -> Settings:
        if self.port and self.port == self.control_port and self.control_host in (None, self.host):
            raise ValueError(f"port and control_port are the same: {self.port}; the control plane needs another port")
        return self

    @model_validator(mode="after")
    def _within_the_budget(self) -> Settings:
        # The default does not count: a small budget alone is no mistake. A window may exceed the budget: one channel
        # may have all of it.
        if "max_segment_bytes" in self.model_fields_set and self.max_segment_bytes > self.max_total_bytes:
            raise ValueError("max_segment_bytes must not exceed max_total_bytes, the memory of all segments")
        return self

    @model_validator(mode="after")
    def _needs_a_folder(self) -> Settings:
        if self.data_dir is None and self.ack in (Ack.JOURNAL, Ack.FSYNC):
            raise ValueError(f"ack {self.ack} needs data_dir, the folder in which segments are kept")
        if self.data_dir is None and self.on_disk_full is OnDiskFull.REFUSE:
            raise ValueError("on_disk_full refuse needs data_dir, the folder in which segments are kept")
        return self

    @model_validator(mode="after")
    def _whole_cluster(self) -> Settings:
        if not self.cluster:
            if self.ack is Ack.QUORUM:
                raise ValueError("ack quorum needs cluster, the servers of NATS that keep the segments")
            if self.advertise_url is not None:
                raise ValueError("advertise_url is for a node of a cluster: cluster is missing")
            return self
        if self.workers != 1:
            raise ValueError("a node of a cluster has one worker: start one node for each core, each with its own name")
        if self.ack is Ack.QUORUM and self.data_dir is not None:
            raise ValueError("ack quorum keeps segments in NATS, not in data_dir; leave one of them out")
        if self.advertise_url is None and (self.unix_socket is not None or self.host in _EVERY):
            raise ValueError("cluster needs advertise_url, at which the other nodes reach this one")
        if self.advertise_url is not None and urlsplit(self.advertise_url).hostname in _EVERY:
            raise ValueError("advertise_url must have an address of this machine, not one that stands for all of them")
        if self.node is not None and ("/" in self.node or not self.node.isprintable()):
            raise ValueError("node must have no slash and no control character in a cluster: the API has it in paths")
        return self

    def retention(self) -> Retention:
        """The retention limits of the data directory."""
        return Retention(
            channel_bytes=self.retain_channel_bytes,
            channel_segments=self.retain_channel_segments,
            total_bytes=self.retain_total_bytes,
            age_s=self.retain_age_s,
        )

    def limits(self) -> Limits:
        """The limits of the core."""
        return Limits(
            segment_bytes=self.max_segment_bytes,
            window_segments=self.window_segments,
            window_bytes=self.window_bytes,
            window_age_s=self.window_age_s,
            total_bytes=self.max_total_bytes,
            channel_bytes=self._quota(self.max_channel_bytes),
            publisher_bytes=self._quota(self.max_publisher_bytes),
            channels=self.max_channels,
            readers=self.max_readers,
            readers_per_channel=self.max_readers_per_channel or None,
            publishers=self.max_publishers or None,
            connections=self.max_connections or None,
            client_exchanges=self.per_ip_limit or None,
            client_connections=self.per_ip_connections or None,
            client_requests_per_s=self.per_ip_requests_per_s or None,
            client_burst=self.per_ip_burst,
            publisher_grace_s=self.publisher_grace_s,
            skip_grace_s=self.skip_grace_s,
            overtaking_grace_s=self.overtaking_grace_s,
            first_byte_timeout_s=self.first_byte_timeout_s,
            channel_drain_s=self.channel_drain_s,
            idle_timeout_s=self.idle_timeout_s,
        )

    def _quota(self, setting: int | None) -> int | None:
        """The setting; without one, half of the budget, unless one segment may be larger than that."""
        half = self.max_total_bytes // 2
        return (half if self.max_segment_bytes <= half else None) if setting is None else setting or None

    def drain(self, now: float) -> Drain:
        """The plan of a shutdown that begins now."""
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
            reader_lag_bytes=self.reader_lag_bytes,
            reader_lag_s=self.reader_lag_s,
            # A POST that lies unread on a connection that waits must not be overtaken meanwhile.
            publisher_wait_s=min(self.publisher_wait_s, 0.75 * self.overtaking_grace_s or self.publisher_wait_s),
            metrics_channels=self.metrics_channels,
            half_closed_s=self.half_closed_s,
            head_timeout_s=self.head_timeout_s,
            keep_alive_s=self.keep_alive_s,
            storm_guard=self.storm_guard == "on",
            trusted_proxies=self.trusted_proxies,
            cors_read_origins=self.cors_read_origins,
            cors_write_origins=self.cors_write_origins,
            # A proxy passes on the names that its clients use.
            allowed_hosts=self.allowed_hosts or ((ANY,) if self.trusted_proxies else ()),
            own_hosts=tuple(filter(None, (self.host, self.control_host, urlsplit(self.advertise_url or "").hostname))),
        )


def _listed(value: object, example: str) -> list[str]:
    """The items of a text with commas, or of a list; empty ones are left out."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        raise ValueError(f"must be a list, such as {example}")
    return [text for item in listed if (text := str(item).strip())]


class SettingSource(StrEnum):
    """The source of a value. If several sources have a value, the last one in this list wins."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and the source of each."""

    settings: Settings
    sources: dict[str, SettingSource]


def load(arguments: Mapping[str, Any], config: Path | None = None) -> Loaded:
    """Put the settings together: defaults, TOML file, ``TRICKLECAST_*``, command line; the later wins.

    Args:
        arguments: values from the command line, ``None`` for those that were not given.
        config: a TOML file whose top-level keys are names of settings.

    Raises:
        InvalidSettings: the file cannot be read, or a value or a key is wrong.
    """
    values: dict[str, Any] = {}
    try:
        environment = EnvSettingsSource(Settings)()
    except SettingsError:
        raise InvalidSettings("TRICKLECAST_SOURCE: must be a JSON object with an object for each source") from None
    sources = dict.fromkeys(Settings.model_fields, SettingSource.DEFAULT)
    layers = (
        (SettingSource.FILE, _read_file(config)),
        (SettingSource.ENVIRONMENT, environment),
        (SettingSource.COMMAND_LINE, {name: value for name, value in arguments.items() if value is not None}),
    )
    for source, layer in layers:
        values.update(layer)
        sources.update(dict.fromkeys(layer, source))
    try:
        return Loaded(Settings.model_validate(values), {name: sources[name] for name in Settings.model_fields})
    except ValidationError as error:
        raise InvalidSettings(_one_line(error, sources, config)) from None


def _read_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    if config.is_dir():
        raise InvalidSettings(f"config: {config} is a directory")
    if not config.is_file():
        raise InvalidSettings(f"config: no such file: {config}")
    try:
        return TomlConfigSettingsSource(Settings, config)()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"config: cannot read {config}: {error}") from None
    except RecursionError:  # Python's parser calls itself for each bracket
        raise InvalidSettings(f"config: cannot read {config}: brackets are nested too deep") from None


def _one_line(error: ValidationError, sources: Mapping[str, SettingSource], config: Path | None) -> str:
    problems = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        message = _MESSAGES.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
        message = message.replace("Input should be", "must be").replace("String should", "must")
        if is_duration(name):
            message = message.replace("a number", "a number of seconds, or a time such as 30s or 7d")
            message = message.replace("a whole number", "a whole number of seconds")
        if problem["type"] == "extra_forbidden":
            plain = name[:MAX_NAME_LENGTH].lower().replace("-", "_").removeprefix("tricklecast_")
            known: Mapping[str, object] = Settings.model_fields
            if len(problem["loc"]) > 1:  # in a table
                plain, known = plain.rpartition(".")[2], SourceSettings.model_fields
            nearest = get_close_matches(plain, sorted(known), n=1, cutoff=0.75)
            hint = f"did you mean {nearest[0]}?" if nearest else ""
            if isinstance(problem["input"], dict) and len(problem["loc"]) == 1:
                hint = "settings stand at the top level of the file, in no table"
            message += f" ({hint})" if hint else ""
        origin = sources.get(str(problem["loc"][0])) if problem["loc"] else None
        problems.append(f"{_spelt(name, origin, config)}: {message}" if name else message)
    return "; ".join(problems)


def _spelt(name: str, source: SettingSource | None, config: Path | None) -> str:
    """A setting's name as its source spells it: an option, a variable, or a key of the file."""
    match source:
        case SettingSource.COMMAND_LINE:
            return "--" + name.replace("_", "-")
        case SettingSource.ENVIRONMENT:
            return f"{Settings.model_config['env_prefix']}{name.upper()}"
        case _:
            return f"{name} in {config or 'the file of settings'}"


def unknown_variables(names: Iterable[str]) -> str | None:
    """Warn about environment variables that begin like settings and are none, such as a misspelt limit.

    They are no error, since other programs may use the prefix: for a service called ``tricklecast`` Kubernetes sets
    ``TRICKLECAST_SERVICE_HOST``. The warning tells names only, no values.

    Args:
        names: of all environment variables, in any case.

    Returns:
        One line with the unknown names and the setting that each most resembles; ``None`` if there are none.
    """
    prefix = Settings.model_config["env_prefix"]
    known = {name.upper() for name in Settings.model_fields}
    known |= {variable.removeprefix(prefix) for variable in (TOKEN_VARIABLE, CONFIG_VARIABLE)}
    unknown = sorted(
        name for name in names if name.upper().startswith(prefix) and name[len(prefix) :].upper() not in known
    )
    if not unknown:
        return None
    named = []
    for name in unknown[:MAX_NAMED]:
        # 0.75: a letter or two are wrong, missing or one too many.
        nearest = get_close_matches(name[len(prefix) : MAX_NAME_LENGTH].upper(), sorted(known), n=1, cutoff=0.75)
        hint = f" (did you mean {prefix}{nearest[0]}?)" if nearest else ""
        # The name of a variable may contain anything, line ends included.
        named.append(ascii(name)[1:-1][:MAX_NAME_LENGTH] + hint)
    more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
    return f"no setting, and ignored: {', '.join(named)}{more}"
