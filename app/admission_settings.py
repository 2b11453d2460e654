"""The settings of who is let in: limits that clients are refused at, and whose word about clients is taken."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

from tricklecast.app.core.limits import Limits
from tricklecast.app.data_plane.client_address import Network

_LIMITS = Limits()


class AdmissionSettings(BaseSettings):
    """How many at a time, over all and of each client."""

    max_readers_per_channel: int = Field(0, ge=0, description="Readers of one channel at a time; 0 for any number.")
    max_publishers: int = Field(
        _LIMITS.publishers or 0,
        ge=0,
        description="Publishing requests at a time, preconnects included; 0 for any number.",
    )
    max_connections: int = Field(
        _LIMITS.connections or 0, ge=0, description="Connections at a time; 0 for as many as can be opened."
    )
    per_ip_limit: int = Field(0, ge=0, description="Requests of one client address at a time; 0 for any number.")
    per_ip_connections: int = Field(
        0, ge=0, description="Connections of one client address at a time; 0 for any number."
    )
    per_ip_requests_per_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Requests of one client address per second in the long run; 0 for any number.",
    )
    per_ip_burst: int = Field(_LIMITS.client_burst, ge=1, description="How many of them may come at once.")
    per_ip_addresses: int = Field(
        _LIMITS.clients, ge=1, description="Client addresses told apart; more share the limits of one."
    )
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode] = Field(
        (), description="Networks of proxies whose X-Forwarded-For is believed, with commas between them."
    )

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _networks(cls, value: object) -> object:
        """As text, with commas between them, or as a list; an address is a network of its own."""
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list | tuple):
            raise ValueError("networks are wanted: 10.0.0.0/8, ::1")
        return tuple(ip_network(str(network).strip()) for network in listed if str(network).strip())
