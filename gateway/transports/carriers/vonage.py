"""Vonage: an NCCO that connects the call to a WebSocket, signed webhooks, and the calls resource of the Voice API.

https://developer.vonage.com/en/voice/voice-api/concepts/websockets, …/ncco-reference,
…/getting-started/concepts/webhooks. Audio is binary, PCM16 little-endian, exactly 20 ms a message each way, up to 3,072
of them buffered. ``clear`` drops them and every notification that waits behind them, and is answered with
``websocket:cleared``. That a webhook's token hashes its body (``payload_hash``) is what its documents say; it was not
tried with a live account.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import jwt

from engines.api import Pcm16
from gateway.carrier_settings import VonageSettings
from gateway.security.credentials import bearer, same
from gateway.settings import ConfigurationError
from gateway.transports.carriers import wire
from gateway.transports.carriers.dialect import (
    Act,
    Asked,
    Audio,
    BadWebhook,
    CarrierEvent,
    Cleared,
    Dialect,
    Encoding,
    Ignored,
    Key,
    MarkPlayed,
    Message,
    Publish,
    Reply,
    RestRequest,
    Started,
    StreamTo,
    Unauthentic,
)
from gateway.transports.carriers.framing import Framer
from gateway.transports.carriers.signatures import Seen, check_stream_token, check_timestamp, invalid, missing
from gateway.transports.phone.line import Ability, Incoming

JSON = "application/json"
API_TOKEN_S = 300
RATES_HZ = frozenset({8_000, 16_000, 24_000})

_CALL = re.compile(r"[0-9A-Za-z-]{8,64}")
_CONTENT_TYPE = re.compile(r"audio/l16\s*;\s*rate\s*=\s*(\d{4,5})", re.IGNORECASE)


class Vonage:
    """The vendor (:class:`Carrier`). Raises :class:`ConfigurationError` (``vonage_key_unreadable``)."""

    name = "vonage"
    signs_upgrade = False
    subprotocol: str | None = None

    def __init__(self, settings: VonageSettings, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s
        self._secret = _revealed(settings.signature_secret)
        self._private_key = _read_key(settings)
        self.api_url = settings.api_url if self._private_key else ""
        self._seen = Seen(now_s)

    def check_upgrade(self, asked: Asked) -> None:
        check_stream_token(asked, self._settings.stream_token, allow_unsigned=self._settings.allow_unsigned)

    def check_webhook(self, asked: Asked) -> None:
        token = bearer(asked.headers.get("authorization", ""))
        if not token and self._settings.allow_unsigned:
            return
        if not token:
            raise missing("Authorization")
        claims = self._claims(token)
        check_timestamp(str(claims.get("iat")), self._now_s())
        application = self._settings.application_id
        if application and claims.get("application_id", application) != application:
            raise invalid()
        if asked.body:
            said = claims.get("payload_hash")
            if not isinstance(said, str) or not same(said.lower(), hashlib.sha256(asked.body).hexdigest()):
                raise invalid()
        self._seen.take(f"{claims.get('jti')}")

    def _claims(self, token: str) -> dict[str, Any]:
        if not self._secret:
            raise invalid()
        try:
            options: Any = {"verify_exp": False, "verify_iat": False, "verify_aud": False, "require": ["iat", "jti"]}
            claims: dict[str, Any] = jwt.decode(token, self._secret, algorithms=["HS256"], options=options)
        except (jwt.PyJWTError, ValueError, TypeError):
            raise invalid() from None
        expires = claims.get("exp")
        if isinstance(expires, int | float) and expires < self._now_s():
            raise Unauthentic("signature_expired", "The token of this request has expired.")
        return claims

    def read_webhook(self, asked: Asked) -> Incoming | None:
        fields: dict[str, Any] | None = dict(asked.form or asked.query.items())
        if asked.body and not asked.form:
            fields = wire.json_object(asked.body)
        if fields is None:
            raise BadWebhook("it is not a JSON object")
        if wire.text(fields, "status"):
            return None
        call = wire.text(fields, "uuid")
        if not _CALL.fullmatch(call):
            raise BadWebhook("there is no uuid of a call")
        return Incoming("vonage", dialled=wire.text(fields, "to"), caller=wire.text(fields, "from"), wire_id=call)

    def connect(self, asked: Asked, to: StreamTo) -> Reply:
        told = {
            "uuid": to.incoming.wire_id,
            "agent": to.incoming.agent,
            "from": to.incoming.caller,
            "to": to.incoming.dialled,
        }
        endpoint = {
            "type": "websocket",
            "uri": to.url,
            "content-type": f"audio/l16;rate={self._settings.rate_hz}",
            "headers": {name: value for name, value in told.items() if value},
        }
        return _ncco({"action": "connect", "endpoint": [endpoint]})

    def refuse(self, asked: Asked, *, busy: bool) -> Reply:
        """An NCCO has no busy signal: one without actions ends the call."""
        return _ncco()

    def dialect(self, publish: Publish) -> Dialect:
        return VonageDialect(self._settings.rate_hz, rest=bool(self.api_url))

    def api_headers(self, request: RestRequest) -> Mapping[str, str]:
        now = int(self._now_s())
        claims = {
            "application_id": self._settings.application_id,
            "iat": now,
            "exp": now + API_TOKEN_S,
            "jti": secrets.token_hex(16),
        }
        return {"Authorization": f"Bearer {jwt.encode(claims, self._private_key, algorithm='RS256')}"}


def _revealed(secret: Any) -> str:
    return secret.get_secret_value() if secret is not None else ""


def _read_key(settings: VonageSettings) -> str:
    if not settings.enabled or settings.private_key is None:
        return ""
    try:
        key = settings.private_key.read_text("ascii")
        jwt.get_algorithm_by_name("RS256").prepare_key(key)
    except (OSError, ValueError, TypeError, jwt.PyJWTError):
        problem = f"vonage.private_key: there is no PEM private key in {settings.private_key}"
        raise ConfigurationError("vonage_key_unreadable", problem) from None
    return key


def _ncco(*actions: Mapping[str, object]) -> Reply:
    return Reply(wire.json_text(list(actions)).encode(), JSON)


KEY_S = 0.25 + 0.1
"""What a key takes that Vonage sends, tone and pause. Its documents tell neither, nor when it answers: as long as with
Telnyx is our judgement."""


class VonageDialect:
    """One stream (:class:`Dialect`). ``rate_hz``: if its first message does not say."""

    marks_return_on_clear = False

    def __init__(self, rate_hz: int = 16_000, *, rest: bool = True) -> None:
        self.abilities = frozenset({Ability.TRANSFER, Ability.SEND_DTMF}) if rest else frozenset[Ability]()
        self._rest = rest
        self._rate_hz = rate_hz
        self._call = self._dialled = ""
        self._started = False
        self._frames = Framer(rate_hz // 25, b"\0\0")

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        if isinstance(message, bytes):
            if not self._started:
                return (Ignored("audio_before_start"),)
            return (Audio(message),) if message else (Ignored("bad_audio"),)
        said = wire.json_object(message)
        if said is None:
            return (Ignored("bad_json"),)
        match said.get("event"):
            case "websocket:connected":
                return (self._start(said),)
            case "websocket:dtmf":
                digit = wire.key(said.get("digit") or wire.part(said, "dtmf").get("digit") or said.get("dtmf"))
                return (Key(digit) if digit is not None else Ignored("bad_digit"),)
            case "websocket:notify":
                name = wire.text(wire.part(said, "payload"), "mark")
                return (MarkPlayed(name) if name else Ignored("bad_mark"),)
            case "websocket:cleared":
                return (Cleared(),)
        return (Ignored("unknown_event"),)

    def _start(self, said: dict[str, Any]) -> CarrierEvent:
        if self._started:
            return Ignored("second_start")
        found = _CONTENT_TYPE.match(wire.text(said, "content-type"))
        rate_hz = int(found[1]) if found is not None else self._rate_hz
        if rate_hz not in RATES_HZ:
            return Ignored("bad_start")
        self._started = True
        self._frames = Framer(rate_hz // 25, b"\0\0")
        told = {**wire.part(said, "headers"), **said}
        self._call = wire.text(told, "uuid")
        if not _CALL.fullmatch(self._call):
            self._call, self._rest, self.abilities = "", False, frozenset()
        self._dialled = wire.text(told, "to")
        incoming = Incoming("vonage", wire.text(told, "agent"), self._dialled, wire.text(told, "from"), self._call)
        return Started(incoming, Encoding.PCM16_LE, rate_hz)

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        return self._messages(self._frames.add(pcm.astype("<i2").tobytes()))

    def encode_mark(self, name: str) -> list[Message]:
        notify = wire.json_text({"action": "notify", "payload": {"mark": name}})
        return [*self._messages(self._frames.fill()), notify]

    def encode_clear(self) -> list[Message]:
        self._frames.drop()
        return [wire.json_text({"action": "clear"})]

    def _messages(self, data: bytes) -> list[Message]:
        size = self._frames.frame_bytes
        return [data[at : at + size] for at in range(0, len(data), size)]

    def send_dtmf(self, digits: str) -> Act:
        request = RestRequest("PUT", f"/v1/calls/{self._call}/dtmf", {"digits": digits}, repeatable=False)
        return Act(request=request, sounds_s=KEY_S * len(digits))

    def transfer(self, target: str) -> Act:
        """The caller goes on with a new NCCO, which leaves this stream behind."""
        if target.startswith(("sip:", "sips:")):
            endpoint = {"type": "sip", "uri": target}
        else:
            endpoint = {"type": "phone", "number": target.removeprefix("+")}
        action: dict[str, object] = {"action": "connect", "endpoint": [endpoint]}
        if self._dialled:
            action["from"] = self._dialled
        body = {"action": "transfer", "destination": {"type": "ncco", "ncco": [action]}}
        return Act(request=RestRequest("PUT", f"/v1/calls/{self._call}", body, repeatable=False))

    def hang_up(self) -> Act:
        """Without a key, closing the stream is all we can do: it was the NCCO's last action, so the call ends."""
        if not self._rest:
            return Act()
        done = frozenset({400, 404})  # it has ended
        return Act(request=RestRequest("PUT", f"/v1/calls/{self._call}", {"action": "hangup"}, done=done))
