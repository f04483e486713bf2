"""The tables of telephone exchanges: ``[audiosocket]`` and ``[asterisk]`` (Asterisk's two ways), ``[freeswitch]``."""

from __future__ import annotations

import ipaddress
import uuid
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gateway.carrier_settings import Token
from gateway.network_settings import Networks

LOOPBACK = ("127.0.0.0/8", "::1/128")
MAX_UUIDS = 1_000


def _uuids(table: dict[str, str]) -> dict[str, str]:
    seen: dict[uuid.UUID, str] = {}
    for name, agent in table.items():
        try:
            call = uuid.UUID(name)
        except ValueError:
            raise ValueError(f"{name!r} is not a UUID such as 40325ec2-5efd-4bd3-805f-53576e581d13") from None
        if call in seen:
            raise ValueError(f"{name!r} and {seen[call]!r} are the same UUID")
        if not agent.strip():
            raise ValueError(f"{name!r} has no agent")
        seen[call] = name
    return table


class AudioSocketSettings(BaseModel):
    """``[audiosocket]``: the protocol has neither encryption nor a password."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=False, description="take calls of Asterisk's AudioSocket (TCP)")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on: loopback, or a private one")
    port: int = Field(default=9_092, ge=0, le=65_535, description="port to listen on; 0 picks a free one")
    allowed: Networks = Field(
        default=LOOPBACK, min_length=1, max_length=64, description="addresses or networks that may connect"
    )
    calls: Literal["any", "known"] = Field(
        default="known",
        description="known: UUIDs of audiosocket.uuids, and those announced over HTTP (once each); any: every UUID",
    )
    uuids: Annotated[dict[str, str], AfterValidator(_uuids)] = Field(
        default_factory=dict,
        max_length=MAX_UUIDS,
        description='UUIDs that any number of calls may use, and who answers: {"40325ec2-…" = "sales"}',
    )
    transfers: bool = Field(
        default=False, description="the dialplan asks where a caller goes on to when AudioSocket() returns"
    )

    @model_validator(mode="after")
    def _strangers(self) -> AudioSocketSettings:
        local_only = all(ipaddress.ip_network(network).is_loopback for network in self.allowed)
        if self.enabled and self.calls == "any" and not local_only:
            raise ValueError('audiosocket.calls = "any" is for loopback only: other machines would need no secret')
        return self


class AsteriskSettings(BaseModel):
    """``[asterisk]``: chan_websocket, which Asterisk dials at ``/v1/carriers/asterisk/stream``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=False, description="take calls of Asterisk's chan_websocket")
    username: str = Field(default="asterisk", min_length=1, description="of the password, as in websocket_client.conf")
    password: Token = Field(default=None, description="opens a stream (basic auth)")
    transfers: bool = Field(
        default=False, description="the dialplan asks where a caller goes on to when Dial() returns (its option g)"
    )

    @model_validator(mode="after")
    def _complete(self) -> AsteriskSettings:
        if self.enabled and self.password is None:
            raise ValueError("asterisk.enabled needs asterisk.password: without one, anybody could call")
        return self


class FreeswitchSettings(BaseModel):
    """``[freeswitch]``: mod_audio_stream, which FreeSWITCH dials at ``/v1/carriers/freeswitch/stream``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=False, description="take calls of FreeSWITCH's mod_audio_stream")
    stream_token: Token = Field(default=None, description="opens a stream (Authorization: Bearer, or ?token=)")
    rate_hz: Literal[8_000, 16_000] = Field(
        default=16_000, description="of the stream, as its start command says (8k, 16k); answers have it, too"
    )
    transfers: bool = Field(
        default=False, description="a script of FreeSWITCH obeys the transfer messages of the stream"
    )

    @model_validator(mode="after")
    def _complete(self) -> FreeswitchSettings:
        if self.enabled and self.stream_token is None:
            raise ValueError("freeswitch.enabled needs freeswitch.stream_token: without one, anybody could call")
        return self
