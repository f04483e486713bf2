"""The ``[media]`` table: how audio reaches the gateway from browsers, and over SIP."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from gateway.engine_settings import comma_separated
from gateway.network_settings import Address

MIN_PORTS = 10
"""A call takes a port for each address of this machine while it is set up: fewer would refuse the second one."""

_ICE_URL = re.compile(
    r"^(stuns?:(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?"
    r"|turns?:(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?(\?transport=(udp|tcp))?)$"
)


def _port_range(value: str) -> str:
    if not value:
        return value
    first, dash, last = value.partition("-")
    if not (dash and first.strip().isdecimal() and last.strip().isdecimal()):
        raise ValueError(f"{value!r} is not a range of ports such as 40000-40100")
    low, high = int(first), int(last)
    if not 1024 <= low <= high <= 65_535:
        raise ValueError(f"{value!r}: ports are from 1024 to 65535, the lower one first")
    if high - low + 1 < MIN_PORTS:
        raise ValueError(f"{value!r} has fewer than {MIN_PORTS} ports")
    return f"{low}-{high}"


def _ice_url(value: str) -> str:
    if not _ICE_URL.fullmatch(value):
        raise ValueError(f"{value!r} is not a server such as stun:HOST:PORT or turn:HOST:PORT?transport=udp")
    return value


PortRange = Annotated[str, AfterValidator(_port_range)]
IceUrls = Annotated[
    tuple[Annotated[str, AfterValidator(_ice_url)], ...],
    NoDecode,
    BeforeValidator(comma_separated),
    Field(max_length=8),
]


class MediaSettings(BaseModel):
    """``[media]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    advertised_ip: Address = Field(
        default="",
        description="the address that browsers and SIP peers reach, where NAT hides this machine's own; empty: its own",
    )
    port_range: PortRange = Field(
        default="", description="UDP ports of WebRTC and SIP calls, such as 40000-40100; empty: any that is free"
    )
    ice_servers: IceUrls = Field(
        default=(), description="stun: and turn: servers, for the gateway and for its page; none is asked unless named"
    )
    turn_secret: SecretStr | None = Field(
        default=None, description="secret shared with the turn: servers (TURN REST); credentials are made from it"
    )
    private_candidates: bool | None = Field(
        default=None,
        description="send media to private addresses that a browser names; unset: unless advertised_ip is given",
    )
    loopback_candidates: bool | None = Field(
        default=None, description="media over loopback; unset: when the gateway listens there only"
    )

    @model_validator(mode="after")
    def _turn_needs_both(self) -> MediaSettings:
        turns = any(url.startswith("turn") for url in self.ice_servers)
        secret = self.turn_secret.get_secret_value() if self.turn_secret is not None else None
        if turns and not secret:
            raise ValueError("a turn: server in media.ice_servers needs media.turn_secret")
        if secret is not None and not turns:
            raise ValueError("media.turn_secret is for turn: servers, and media.ice_servers names none")
        return self

    def ports(self) -> tuple[int, int] | None:
        """The first and the last port; None: any."""
        if not self.port_range:
            return None
        low, _, high = self.port_range.partition("-")
        return int(low), int(high)
