"""The ``[outbound]`` table: whether calls may be placed, whereto, and how many."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_settings import NoDecode

from gateway.engine_settings import comma_separated
from gateway.outbound_address import SIP_PORTS, BadDestination, Destination, host_and_port
from gateway.security.networks import Network, parse_address

_PREFIX = re.compile(r"\+[1-9][0-9]{0,14}")
_SHOWN_AS = re.compile(r"\+?[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """An entry of a list of destinations. Exactly one of ``prefix``, ``host``, ``domain`` and ``network`` is given;
    ``port`` goes with a host."""

    prefix: str = ""
    host: str = ""
    port: int | None = None
    domain: str = ""
    """With its dot: ``.example.com``."""
    network: Network | None = None

    def names_number(self, destination: Destination) -> bool:
        return bool(self.prefix) and destination.number.startswith(self.prefix)

    def names_host(self, destination: Destination) -> bool:
        """Without a port in the entry the destination's is one of SIP's own, or not given."""
        host, port = destination.host, destination.port
        if self.host:
            return host == self.host and (port == self.port or (self.port is None and port in SIP_PORTS))
        if port not in SIP_PORTS:
            return False
        if self.domain:
            return host.endswith(self.domain)
        address = parse_address(host)
        return self.network is not None and address is not None and address in self.network


def parse_pattern(text: str) -> Pattern:
    """``+1555`` (numbers that begin so), ``pbx.example.com``, ``10.0.0.5:5070``, ``*.example.com``, ``10.0.0.0/8``.
    Raises :class:`ValueError`."""
    written = text.replace(" ", "").lower().removeprefix("sip:")
    if written.startswith("+"):
        if not _PREFIX.fullmatch(written):
            raise ValueError(f"{text!r} is not the beginning of an international number, such as +1555")
        return Pattern(prefix=written)
    if "/" in written:
        return Pattern(network=ipaddress.ip_network(written.replace("[", "").replace("]", "")))
    wild = written.startswith("*.")
    try:
        host, port = host_and_port(written.removeprefix("*."))
    except BadDestination as error:
        raise ValueError(
            f"{text!r}: {error}; say a host, HOST:PORT, *.DOMAIN, a network, or a number's beginning such as +1555"
        ) from None
    if not wild:
        return Pattern(host=host, port=port)
    if port is not None or "." not in host or host.startswith("[") or host[-1].isdecimal():
        raise ValueError(f"{text!r} is not a domain such as *.example.com")
    return Pattern(domain=f".{host}")


def _pattern(value: str) -> str:
    parse_pattern(value)
    return value


def _shown(value: str) -> str:
    if not _SHOWN_AS.fullmatch(value):
        raise ValueError(f"{value!r} is not a number such as +15551234567 or a user's name")
    return value


Patterns = Annotated[
    tuple[Annotated[str, AfterValidator(_pattern)], ...],
    NoDecode,
    BeforeValidator(comma_separated),
    Field(max_length=1_000),
]
Callers = Annotated[
    tuple[Annotated[str, AfterValidator(_shown)], ...],
    NoDecode,
    BeforeValidator(comma_separated),
    Field(max_length=1_000),
]


class OutboundSettings(BaseModel):
    """``[outbound]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=False, description="calls may be placed by POST /v1/calls; needs key and allow")
    allow: Patterns = Field(
        default=(),
        description="what may be dialled: beginnings of numbers (+1555), SIP hosts, HOST:PORT, *.DOMAIN, networks",
    )
    deny: Patterns = Field(default=(), description="what may not, whatever allow says; as allow")
    callers: Callers = Field(
        default=(), description="numbers or users that a call may show as its caller; the first unless it names one"
    )
    trunk: str = Field(
        default="", max_length=64, description="which of sip.trunks takes phone numbers; empty: the only one"
    )
    ring_s: float = Field(default=30.0, ge=5, le=180, description="how long it may ring")
    max_calls: int = Field(default=2, ge=1, le=1_000, description="placed calls at once")
    calls_per_hour: int = Field(default=30, ge=1, le=3_600, description="calls placed within any hour")
    calls_per_destination: int = Field(
        default=3, ge=1, le=3_600, description="of them to one destination; never two at once"
    )
    minutes_per_day: int = Field(default=60, ge=1, le=1_000_000, description="minutes talked within any 24 hours")
    minutes_per_call: int = Field(default=10, ge=1, le=1_440, description="the longest placed call")
    longest_extension: int = Field(
        default=6, ge=1, le=15, description="digits of a SIP user that may be an extension; longer ones are numbers"
    )

    @model_validator(mode="after")
    def _says_whereto(self) -> OutboundSettings:
        if self.enabled and not self.allow:
            raise ValueError("outbound.enabled needs outbound.allow: nothing could be dialled")
        return self
