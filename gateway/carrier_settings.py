"""The tables of carriers, ``[twilio]``, ``[telnyx]``, ``[plivo]``, ``[vonage]`` and ``[jambonz]``: credentials, and
where their REST APIs are."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

_UNSIGNED = "take calls that nobody signed: for tests, where the gateway listens on loopback only"


def web_url(value: str) -> str:
    """An ``http`` or ``https`` URL without query, its last slash taken off; empty: none."""
    if not value:
        return value
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError(f"{value!r} is not a URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{value!r} is not a URL such as https://voice.example.com")
    if parts.query or parts.fragment or any(c.isspace() for c in value):
        raise ValueError(f"{value!r} has a query or a fragment; only scheme, host, port and path are taken")
    return value.rstrip("/")


def _api_url(value: str) -> str:
    if not value:
        raise ValueError("the base URL of the REST API must not be empty")
    return web_url(value)


def _ed25519_key(value: str) -> str:
    """32 bytes in base64; empty: none."""
    try:
        raw = base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError("the public key is base64, as the portal shows it") from None
    if value and len(raw) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, not {len(raw)}")
    return value


def _token(value: SecretStr | None) -> SecretStr | None:
    if value is not None and len(value.get_secret_value().strip()) < 16:
        raise ValueError("a secret has 16 characters at least")
    return value


def _matching(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if value and not compiled.fullmatch(value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return AfterValidator(check)


WebUrl = Annotated[str, AfterValidator(web_url)]
ApiUrl = Annotated[str, AfterValidator(_api_url)]
Token = Annotated[SecretStr | None, AfterValidator(_token)]
Ed25519Key = Annotated[str, AfterValidator(_ed25519_key)]
AccountSid = Annotated[str, _matching(r"AC[0-9a-fA-F]{32}", "a Twilio account SID: AC and 32 hexadecimal digits")]
PlainId = Annotated[str, _matching(r"[A-Za-z0-9_-]{1,128}", "an id of letters and digits")]


class _CarrierTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=False, description="take this carrier's calls")
    allow_unsigned: bool = Field(default=False, description=_UNSIGNED)

    def _needs(self, table: str, **given: object) -> None:
        missing = [name for name, value in given.items() if not value]
        if self.enabled and not self.allow_unsigned and missing:
            needed = ", ".join(f"{table}.{name}" for name in missing)
            raise ValueError(f"{table}.enabled needs {needed}: calls are judged by their signatures")


class TwilioSettings(_CarrierTable):
    """``[twilio]``."""

    auth_token: SecretStr | None = Field(default=None, description="signs requests, and opens the REST API")
    shared_key: SecretStr | None = Field(
        default=None, description="of a webhooks rule with HMAC_SHA256, if there is one"
    )
    account_sid: AccountSid = Field(default="", description="only this account's calls; empty: as the call says")
    api_url: ApiUrl = Field(default="https://api.twilio.com", description="base URL of the REST API")

    @model_validator(mode="after")
    def _complete(self) -> TwilioSettings:
        self._needs("twilio", auth_token=self.auth_token)
        return self


class TelnyxSettings(_CarrierTable):
    """``[telnyx]``."""

    public_key: Ed25519Key = Field(default="", description="Ed25519 key of the portal, base64: signs webhooks")
    api_key: SecretStr | None = Field(default=None, description="of the REST API; unset: no hang-up, transfer or keys")
    stream_token: Token = Field(
        default=None, description="opens a stream that no webhook of ours began (stream_auth_token, or ?token=)"
    )
    api_url: ApiUrl = Field(default="https://api.telnyx.com", description="base URL of the REST API")

    @model_validator(mode="after")
    def _complete(self) -> TelnyxSettings:
        self._needs("telnyx", public_key=self.public_key or self.stream_token)
        return self


class PlivoSettings(_CarrierTable):
    """``[plivo]``."""

    auth_id: PlainId = Field(default="", description="the account: its REST API")
    auth_token: SecretStr | None = Field(default=None, description="signs requests, and opens the REST API")
    stream_token: Token = Field(default=None, description="opens a stream that no webhook of ours began (?token=)")
    api_url: ApiUrl = Field(default="https://api.plivo.com", description="base URL of the REST API")

    @model_validator(mode="after")
    def _complete(self) -> PlivoSettings:
        self._needs("plivo", auth_token=self.auth_token)
        return self


class VonageSettings(_CarrierTable):
    """``[vonage]``."""

    application_id: PlainId = Field(default="", description="the voice application")
    private_key: Path | None = Field(default=None, description="PEM private key of the application: the REST API")
    signature_secret: SecretStr | None = Field(default=None, description="signs webhooks (JWT, HS256)")
    stream_token: Token = Field(default=None, description="opens a stream that no webhook of ours began (?token=)")
    rate_hz: Literal[8_000, 16_000, 24_000] = Field(default=16_000, description="of the audio, both ways")
    api_url: ApiUrl = Field(default="https://api.nexmo.com", description="base URL of the REST API")

    @model_validator(mode="after")
    def _complete(self) -> VonageSettings:
        self._needs("vonage", signature_secret=self.signature_secret)
        if self.private_key is not None and not self.application_id:
            raise ValueError("vonage.private_key needs vonage.application_id")
        return self


class JambonzSettings(_CarrierTable):
    """``[jambonz]``."""

    webhook_secret: SecretStr | None = Field(default=None, description="signs webhooks (Jambonz-Signature)")
    account_sid: PlainId = Field(default="", description="the account: its REST API")
    api_key: SecretStr | None = Field(default=None, description="of the REST API; unset: the stream does what it can")
    stream_token: Token = Field(
        default=None, description="password of a stream that no webhook of ours began (basic auth, or ?token=)"
    )
    rate_hz: Literal[8_000, 16_000, 24_000] = Field(
        default=8_000, description="of the audio, both ways; jambonz loses marks unless it is the phone's own"
    )
    api_url: WebUrl = Field(default="", description="base URL of the REST API: there is one at each installation")

    @model_validator(mode="after")
    def _complete(self) -> JambonzSettings:
        self._needs("jambonz", webhook_secret=self.webhook_secret or self.stream_token)
        if self.api_key is not None and not (self.api_url and self.account_sid):
            raise ValueError("jambonz.api_key needs jambonz.api_url and jambonz.account_sid")
        return self
