"""The ``[sip]`` table: who may phone in over SIP, and where this side of it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from gateway.engine_settings import comma_separated
from gateway.network_settings import Address, Networks
from gateway.security.networks import is_loopback

_NAME = re.compile(r"[A-Za-z0-9\-_.!~*'+]{1,64}")
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9\-.]{0,253}[A-Za-z0-9])?)(?::\d{1,5})?")
MAX_USERS = 1_000
MAX_TRUNKS = 16

Transport = Literal["udp", "tcp", "tls"]


def _server(value: str) -> str:
    if not _SERVER.fullmatch(value) or not 0 < int(_port_of(value) or "1") <= 65_535:
        raise ValueError(f"{value!r} is not a host such as sip.example.com or 203.0.113.5:5060")
    return value


def _port_of(server: str) -> str:
    return server.rpartition(":")[2] if re.search(r":\d+$", server.partition("]")[2] or server) else ""


def _user(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name such as alice or +15551234567 (letters, digits, -_.!~*'+)")
    return value


def _once(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError("one is named twice")
    return values


def _realm(value: str) -> str:
    if not value or not value.isprintable() or any(char in '"\\' for char in value):
        raise ValueError("a realm is printable text without quotes")
    return value


Codecs = Annotated[tuple[Literal["opus", "g722", "pcmu", "pcma"], ...], NoDecode, BeforeValidator(comma_separated)]
Digests = Annotated[
    tuple[Literal["md5", "sha-256"], ...], NoDecode, BeforeValidator(comma_separated), AfterValidator(_once)
]
Transports = Annotated[tuple[Transport, ...], NoDecode, BeforeValidator(comma_separated)]
User = Annotated[str, AfterValidator(_user)]


class TrunkSettings(BaseModel):
    """``[sip.trunks.NAME]``: a carrier or PBX that we register with, or place calls by."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: Annotated[str, AfterValidator(_server)] = Field(description="its host, or host:port")
    user: User = Field(description="our name there")
    password: SecretStr | None = Field(default=None, description="for its challenges")
    auth_user: str = Field(default="", max_length=128, description="the name to answer challenges with; empty: user")
    domain: Annotated[str, AfterValidator(lambda value: _server(value) if value else value)] = Field(
        default="", description="the domain of our address there; empty: the server's host"
    )
    transport: Transport = Field(default="udp", description="udp, tcp or tls")
    register_here: bool = Field(
        default=True, alias="register", description="register, so that its calls come here; off: only to place calls"
    )
    expires_s: int = Field(default=600, ge=60, le=86_400, description="how long a registration is asked for")

    @property
    def host_port(self) -> tuple[str, int]:
        port = _port_of(self.server)
        host = self.server[: -len(port) - 1] if port else self.server
        return host.strip("[]"), int(port or ("5061" if self.transport == "tls" else "5060"))

    @property
    def our_domain(self) -> str:
        host = self.host_port[0]
        return self.domain or (f"[{host}]" if ":" in host else host)


class SipSettings(BaseModel):
    """``[sip]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=False, description="take calls over SIP")
    host: Address = Field(default="127.0.0.1", description="address to listen on; 0.0.0.0: all of IPv4")
    port: int = Field(default=5060, ge=0, le=65_535, description="UDP and TCP port to listen on; 0 picks a free one")
    transports: Transports = Field(default=("udp", "tcp"), min_length=1, description="of udp, tcp and tls")
    tls_port: int = Field(default=5061, ge=0, le=65_535, description="where tls listens; 0 picks a free one")
    tls_cert: Path | None = Field(default=None, description="PEM certificate chain for tls; unset: the gateway's own")
    tls_key: Path | None = Field(default=None, description="PEM private key for tls; unset: the gateway's own")
    tls_ca: Path | None = Field(
        default=None, description="PEM file of who may sign the certificates of peers that we call; unset: the system's"
    )
    allow: Networks = Field(default=(), description="addresses or networks whose calls need no password (a trunk's)")
    users: dict[User, SecretStr] = Field(
        default_factory=dict, max_length=MAX_USERS, description='who else may call, by password: {"alice" = "…"}'
    )
    anyone: bool = Field(default=False, description="let anyone call who reaches the port")
    realm: Annotated[str, AfterValidator(_realm)] = Field(
        default="offhook", max_length=64, description="what callers' phones are told that the password is for"
    )
    digest: Digests = Field(
        default=("md5",),
        min_length=1,
        description="what passwords are asked for by, of md5 and sha-256, the best first; phones that know only md5 "
        "(baresip 1.0, sipp) give up on an answer that names another beside it",
    )
    ring_s: float = Field(default=0.0, ge=0, le=60, description="how long a call rings before it is answered")
    calls_per_source: int | None = Field(
        default=None, ge=1, description="calls at once from one address; beyond: 486; unset: as many as there is room"
    )
    requests_per_s: int = Field(
        default=20, ge=1, le=10_000, description="of an address without a call, beyond that dropped without a word"
    )
    max_connections: int = Field(default=256, ge=1, le=10_000, description="TCP and TLS connections at once")
    codecs: Codecs = Field(
        default=("pcmu", "pcma"), min_length=1, description="of opus, g722, pcmu and pcma, the best first"
    )
    srtp: Literal["off", "accepted", "required"] = Field(
        default="accepted", description="encrypted media (SDES): off, accepted when offered, or required"
    )
    session_expires_s: int = Field(
        default=1_800, ge=0, le=86_400, description="how often a call is checked to be still there; 0: only if asked"
    )
    trunks: dict[str, TrunkSettings] = Field(
        default_factory=dict, max_length=MAX_TRUNKS, description="[sip.trunks.NAME] tables"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SipSettings:
        if not self.host:
            raise ValueError("sip.host is an address, such as 0.0.0.0")
        if len(set(self.transports)) < len(self.transports):
            raise ValueError("sip.transports names one twice")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("sip.tls_cert and sip.tls_key go together")
        if any(not password.get_secret_value() for password in self.users.values()):
            raise ValueError("sip.users: an empty password protects nothing")
        if 0 < self.session_expires_s < 90:
            raise ValueError("sip.session_expires_s is 0, or at least 90 (RFC 4028)")
        for name, trunk in self.trunks.items():
            if trunk.transport not in self.transports:
                raise ValueError(f"sip.trunks.{name} goes by {trunk.transport}, which sip.transports does not name")
        if self.enabled and not self.is_open_to_none and not (self.allow or self.users or self.anyone or self.trunks):
            raise ValueError(
                f"sip.host {self.host} lets other machines call: say who may in sip.allow or sip.users, "
                "or set sip.anyone = true"
            )
        return self

    @property
    def is_open_to_none(self) -> bool:
        """Only this machine reaches it."""
        return is_loopback(self.host)
