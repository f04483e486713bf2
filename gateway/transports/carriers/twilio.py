"""Twilio: bidirectional Media Streams (``<Connect><Stream>``), TwiML, and the calls resource of its REST API.

https://www.twilio.com/docs/voice/media-streams/websocket-messages, …/docs/voice/twiml/stream, …/docs/usage/security.
The audio is µ-law at 8 kHz. A mark comes back when everything before it was played, and at once when a clear dropped
it. The stream has no message for keys: they are sent as tones, 200 ms each.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from engines.api import Pcm16
from gateway.carrier_settings import TwilioSettings
from gateway.security.credentials import same
from gateway.transports.carriers import wire
from gateway.transports.carriers.dialect import (
    Act,
    Asked,
    Audio,
    BadWebhook,
    CarrierEvent,
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
    Stopped,
    StreamTo,
)
from gateway.transports.carriers.markup import XML, dial, xml
from gateway.transports.carriers.signatures import (
    MAX_SIGNATURE_CHARS,
    invalid,
    missing,
    twilio_signature,
    twilio_urls,
)
from gateway.transports.phone.line import Ability, Incoming
from streaming.audio.g711 import encode_mulaw
from streaming.audio.keypad_tones import keypad_tones

_ACCOUNT = re.compile(r"AC[0-9a-fA-F]{32}")
_CALL = re.compile(r"CA[0-9a-fA-F]{32}")
_SHA256 = re.compile(r"(?:^|,)\s*algorithm\s*=\s*HMAC_SHA256\s*(?:,|$)")
_MEDIA_TAIL = '"}}'
"""Of a message of audio: what is before its payload is made once a stream."""


class Twilio:
    """The vendor (:class:`Carrier`)."""

    name = "twilio"
    signs_upgrade = True
    subprotocol: str | None = None

    def __init__(self, settings: TwilioSettings) -> None:
        self._settings = settings
        self._token = settings.auth_token.get_secret_value() if settings.auth_token is not None else ""
        self._shared_key = settings.shared_key.get_secret_value() if settings.shared_key is not None else ""
        self.api_url = settings.api_url if self._token else ""
        self._account = settings.account_sid

    def check_upgrade(self, asked: Asked) -> None:
        self._check(asked)

    def check_webhook(self, asked: Asked) -> None:
        self._check(asked)

    def _check(self, asked: Asked) -> None:
        if not self._token and self._settings.allow_unsigned:
            return
        given = asked.headers.get("x-twilio-signature", "")
        if not given and self._settings.allow_unsigned:
            return
        if not given:
            raise missing("X-Twilio-Signature")
        by_rule = asked.headers.get("x-twilio-webhooks-signature-settings")
        sha256 = by_rule is not None and _SHA256.search(by_rule[:MAX_SIGNATURE_CHARS]) is not None
        secret = self._shared_key if by_rule is not None else self._token
        if not secret or (by_rule is not None and not sha256) or len(given) > MAX_SIGNATURE_CHARS:
            raise invalid()
        signed = [twilio_signature(secret, url, asked.form, sha256=sha256) for url in twilio_urls(asked.url)]
        matches = [same(given, expected) for expected in signed]  # all of them: the time tells nothing
        if not any(matches):
            raise invalid()

    def read_webhook(self, asked: Asked) -> Incoming | None:
        fields: dict[str, Any] = dict(asked.form or asked.query.items())
        call = wire.text(fields, "CallSid")
        if not call:
            raise BadWebhook("there is no CallSid")
        if wire.text(fields, "CallStatus") in {"completed", "busy", "failed", "no-answer", "canceled"}:
            return None
        if self._account and fields.get("AccountSid") != self._account:
            raise BadWebhook("the call is of another account")
        outbound = wire.text(fields, "Direction").startswith("outbound")
        caller, dialled = wire.text(fields, "From"), wire.text(fields, "To")
        if outbound:  # a call of ours: whom it was placed to is who speaks, and the agent goes by our number
            caller, dialled = dialled, caller
        return Incoming("twilio", dialled=dialled, caller=caller, wire_id=call)

    def connect(self, asked: Asked, to: StreamTo) -> Reply:
        return Reply(xml(f"<Connect><Stream url={quoteattr(to.url)}/></Connect>"), XML)

    def refuse(self, asked: Asked, *, busy: bool) -> Reply:
        return Reply(xml('<Reject reason="busy"/>' if busy else "<Reject/>"), XML)

    def dialect(self, publish: Publish) -> Dialect:
        return TwilioDialect(account=self._account, rest=bool(self.api_url))

    def api_headers(self, request: RestRequest) -> Mapping[str, str]:
        account = _ACCOUNT.search(request.path)
        user = f"{account[0] if account is not None else ''}:{self._token}"
        return {"Authorization": f"Basic {b64encode(user.encode()).decode()}"}


class TwilioDialect:
    """One stream (:class:`Dialect`). ``account``: it must be of this one, unless empty. ``rest``: there are credentials
    for the REST API."""

    marks_return_on_clear = True

    def __init__(self, *, account: str = "", rest: bool = True) -> None:
        self.abilities = frozenset({Ability.SEND_DTMF, *({Ability.TRANSFER} if rest else ())})
        self._account = account
        self._rest = rest
        self._stream = ""
        self._media_head = ""
        self._path = ""

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        if isinstance(message, bytes):
            return (Ignored("binary_message"),)
        said = wire.json_object(message)
        if said is None:
            return (Ignored("bad_json"),)
        event = said.get("event")
        if event == "media":
            return (self._media(wire.part(said, "media")),)
        match event:
            case "start":
                return (self._start(said, wire.part(said, "start")),)
            case "dtmf":
                digit = wire.key(wire.part(said, "dtmf").get("digit"))
                return (Key(digit) if digit is not None else Ignored("bad_digit"),)
            case "mark":
                name = wire.text(wire.part(said, "mark"), "name")
                return (MarkPlayed(name) if name else Ignored("bad_mark"),)
            case "stop":
                return (Stopped(),)
            case "connected":
                return (Ignored(),)
        return (Ignored("unknown_event"),)

    def _start(self, said: dict[str, Any], start: dict[str, Any]) -> CarrierEvent:
        if self._stream:
            return Ignored("second_start")
        stream = wire.text(said, "streamSid") or wire.text(start, "streamSid")
        account, call = wire.text(start, "accountSid"), wire.text(start, "callSid")
        form = wire.part(start, "mediaFormat")
        if not stream or wire.text(form, "encoding") not in {"", "audio/x-mulaw"}:
            return Ignored("bad_start")
        if self._account and account != self._account:
            return Stopped("wrong_account")
        self._stream = stream
        media = wire.json_text({"event": "media", "streamSid": stream, "media": {"payload": ""}})
        self._media_head = media.removesuffix(_MEDIA_TAIL)
        if not (_ACCOUNT.fullmatch(account) and _CALL.fullmatch(call)):
            self._rest = False  # what would go into a path must look like what it is
            self.abilities -= {Ability.TRANSFER}
        self._path = f"/2010-04-01/Accounts/{account}/Calls/{call}.json"
        told = wire.part(start, "customParameters")
        incoming = Incoming(
            "twilio",
            agent=wire.text(told, "agent"),
            dialled=wire.text(told, "to", "To"),
            caller=wire.text(told, "from", "From"),
            wire_id=call,
        )
        return Started(incoming, Encoding.MULAW, 8_000)

    def _media(self, media: dict[str, Any]) -> CarrierEvent:
        if media.get("track", "inbound") != "inbound":
            return Ignored()
        payload = wire.base64_bytes(media.get("payload"))
        if payload is None:
            return Ignored("bad_audio")
        return Audio(payload, wire.time_ms(media, "timestamp"))

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        return [self._media_head + wire.base64_text(encode_mulaw(pcm)) + _MEDIA_TAIL]

    def encode_mark(self, name: str) -> list[Message]:
        return [wire.json_text({"event": "mark", "streamSid": self._stream, "mark": {"name": name}})]

    def encode_clear(self) -> list[Message]:
        return [wire.json_text({"event": "clear", "streamSid": self._stream})]

    def send_dtmf(self, digits: str) -> Act:
        tones = keypad_tones(digits, 8_000)
        size = 8_000 // 5
        audio = [message for at in range(0, len(tones), size) for message in self.encode_audio(tones[at : at + size])]
        return Act(messages=tuple(audio), sounds_s=len(tones) / 8_000)

    def transfer(self, target: str) -> Act:
        body = {"Twiml": f"<Response>{dial(target)}</Response>"}
        return Act(request=RestRequest("POST", self._path, body, form=True, repeatable=False))

    def hang_up(self) -> Act:
        """Closing the stream alone goes on with the TwiML after ``<Connect>``: where there is none, as in ours, that
        ends the call, too."""
        if not self._rest:
            return Act()
        return Act(
            request=RestRequest("POST", self._path, {"Status": "completed"}, form=True, done=frozenset({400, 404}))
        )
