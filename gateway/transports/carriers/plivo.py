"""Plivo: bidirectional audio streaming, its XML, and the call resource of its REST API.

https://www.plivo.com/docs/voice/audio-streaming/audio-streaming, …/docs/voice/xml/audiostream. A checkpoint is answered
only if the audio before it was played; ``clearedAudio`` tells that the rest is gone. Upgrades are not signed, as far as
its documents say: a stream needs our ticket, or ``plivo.stream_token``. Media timestamps are of a wall clock, so they
are not taken for media time. A transfer is a URL that Plivo fetches: ours, once.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

from engines.api import Pcm16
from gateway.carrier_settings import PlivoSettings
from gateway.security.credentials import same
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
    Stopped,
    StreamTo,
)
from gateway.transports.carriers.markup import XML, xml
from gateway.transports.carriers.signatures import (
    MAX_SIGNATURE_CHARS,
    Seen,
    check_stream_token,
    invalid,
    missing,
    plivo_signature,
)
from gateway.transports.phone.line import Ability, Incoming

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_EXTRA = re.compile(
    r"(?:^|[;,{\s\"'])(?:X-PH-)?(agent|from|to)[\"']?\s*[=:]\s*[\"']?([A-Za-z0-9+_.-]{1,128})", re.IGNORECASE
)
_MAX_EXTRA_CHARS = 1_024
_MAX_NONCE_CHARS = 128
NONCE_S = 86_400.0
"""Its signatures never expire: so long a nonce is known, or until so many others came."""
_FORMATS = {"": Encoding.MULAW, "audio/x-mulaw": Encoding.MULAW, "audio/x-l16": Encoding.PCM16_LE}


def dial(target: str) -> str:
    """The element that hands the caller to a number or a SIP URI."""
    element = "User" if target.startswith(("sip:", "sips:")) else "Number"
    return f"<Dial><{element}>{escape(target)}</{element}></Dial>"


class Plivo:
    """The vendor (:class:`Carrier`). ``now_s``: Unix time."""

    name = "plivo"
    signs_upgrade = False
    subprotocol: str | None = None

    def __init__(self, settings: PlivoSettings, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._token = settings.auth_token.get_secret_value() if settings.auth_token is not None else ""
        self._seen = Seen(now_s, window_s=NONCE_S / 2)
        self.api_url = settings.api_url if settings.auth_id and self._token else ""

    def check_upgrade(self, asked: Asked) -> None:
        check_stream_token(asked, self._settings.stream_token, allow_unsigned=self._settings.allow_unsigned)

    def check_webhook(self, asked: Asked) -> None:
        """``-Ma-``: of the main account's token, where a subaccount's call comes."""
        nonce = asked.headers.get("x-plivo-signature-v3-nonce", "")
        given = [asked.headers.get(name, "") for name in ("x-plivo-signature-v3", "x-plivo-signature-ma-v3")]
        if not any(given) and self._settings.allow_unsigned:
            return
        if not any(given) or not nonce:
            raise missing("X-Plivo-Signature-V3")
        if not self._token or len(nonce) > _MAX_NONCE_CHARS or any(len(one) > MAX_SIGNATURE_CHARS for one in given):
            raise invalid()
        expected = plivo_signature(self._token, asked.method, asked.url, nonce, asked.form)
        matches = [same(one.strip(), expected) for header in given for one in header.split(",")]
        if not any(matches):
            raise invalid()
        self._seen.take(f"{nonce}|{expected}")

    def read_webhook(self, asked: Asked) -> Incoming | None:
        fields: dict[str, Any] = dict(asked.form or asked.query.items())
        call = wire.text(fields, "CallUUID")
        if not call:
            raise BadWebhook("there is no CallUUID")
        if wire.text(fields, "Event") == "Hangup" or wire.text(fields, "CallStatus") in {
            "completed",
            "busy",
            "failed",
            "timeout",
            "no-answer",
            "cancel",
        }:
            return None
        caller, dialled = wire.text(fields, "From"), wire.text(fields, "To")
        if wire.text(fields, "Direction") == "outbound":  # a call of ours: whom it was placed to is who speaks
            caller, dialled = dialled, caller
        return Incoming("plivo", dialled=dialled, caller=caller, wire_id=call)

    def connect(self, asked: Asked, to: StreamTo) -> Reply:
        stream = (
            '<Stream bidirectional="true" keepCallAlive="true" audioTrack="inbound" '
            f'contentType="audio/x-mulaw;rate=8000">{escape(to.url)}</Stream>'
        )
        return Reply(xml(stream), XML)

    def refuse(self, asked: Asked, *, busy: bool) -> Reply:
        return Reply(xml(f'<Hangup reason="{"busy" if busy else "rejected"}"/>'), XML)

    def dialect(self, publish: Publish) -> Dialect:
        return PlivoDialect(publish, account=self._settings.auth_id, rest=bool(self.api_url))

    def api_headers(self, request: RestRequest) -> Mapping[str, str]:
        user = f"{self._settings.auth_id}:{self._token}"
        return {"Authorization": f"Basic {b64encode(user.encode()).decode()}"}


class PlivoDialect:
    """One stream (:class:`Dialect`). We send in the format that comes. The byte order of ``audio/x-l16`` is not
    documented: little-endian is what the vendor's own examples feed it with; our answers ask for µ-law."""

    marks_return_on_clear = False

    def __init__(self, publish: Publish, *, account: str = "", rest: bool = True) -> None:
        self.abilities = frozenset({Ability.SEND_DTMF, *({Ability.TRANSFER} if rest else ())})
        self._publish = publish
        self._account = account
        self._rest = rest
        self._stream = ""
        self._path = ""
        self._content_type = "audio/x-mulaw"
        self._encoding = Encoding.MULAW
        self._rate_hz = 8_000

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        if isinstance(message, bytes):
            return (Ignored("binary_message"),)
        said = wire.json_object(message)
        if said is None:
            return (Ignored("bad_json"),)
        match said.get("event"):
            case "media":
                return (self._media(wire.part(said, "media")),)
            case "start":
                return (self._start(said, wire.part(said, "start")),)
            case "dtmf":
                digit = wire.key(wire.part(said, "dtmf").get("digit"))
                return (Key(digit) if digit is not None else Ignored("bad_digit"),)
            case "playedStream":
                name = wire.text(said, "name")
                return (MarkPlayed(name) if name else Ignored("bad_mark"),)
            case "clearedAudio":
                return (Cleared(),)
            case "stop":
                return (Stopped(),)
        return (Ignored("unknown_event"),)

    def _start(self, said: dict[str, Any], start: dict[str, Any]) -> CarrierEvent:
        if self._stream:
            return Ignored("second_start")
        form = wire.part(start, "mediaFormat")
        content_type = wire.text(form, "encoding").lower()
        encoding = _FORMATS.get(content_type)
        rate_hz = wire.number(form, "sampleRate") or 8_000.0
        stream, call = wire.text(start, "streamId"), wire.text(start, "callId")
        rates = {8_000} if encoding is Encoding.MULAW else {8_000, 16_000}
        if not stream or encoding is None or rate_hz not in rates:
            return Ignored("bad_start")
        self._stream, self._encoding, self._rate_hz = stream, encoding, round(rate_hz)
        self._content_type = content_type or self._content_type
        if not _ID.fullmatch(call):
            self._rest = False
            self.abilities -= {Ability.TRANSFER}
        self._path = f"/v1/Account/{self._account}/Call/{call}/"
        told = _extra(said.get("extra_headers"))
        incoming = Incoming(
            "plivo",
            agent=told.get("agent", ""),
            dialled=told.get("to", ""),
            caller=told.get("from", ""),
            wire_id=call,
        )
        return Started(incoming, encoding, self._rate_hz)

    def _media(self, media: dict[str, Any]) -> CarrierEvent:
        if media.get("track", "inbound") != "inbound":
            return Ignored()
        payload = wire.base64_bytes(media.get("payload"))
        return Audio(payload) if payload is not None else Ignored("bad_audio")

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        payload = wire.base64_text(wire.encoder(self._encoding)(pcm))
        media = {"contentType": self._content_type, "sampleRate": self._rate_hz, "payload": payload}
        return [wire.json_text({"event": "playAudio", "media": media})]

    def encode_mark(self, name: str) -> list[Message]:
        return [wire.json_text({"event": "checkpoint", "streamId": self._stream, "name": name})]

    def encode_clear(self) -> list[Message]:
        return [wire.json_text({"event": "clearAudio", "streamId": self._stream})]

    def send_dtmf(self, digits: str) -> Act:
        return Act(messages=(wire.json_text({"event": "sendDTMF", "dtmf": digits}),))

    def transfer(self, target: str) -> Act:
        url = self._publish(Reply(xml(dial(target)), XML))
        body = {"legs": "aleg", "aleg_url": url, "aleg_method": "POST"}
        return Act(request=RestRequest("POST", self._path, body, repeatable=False))

    def hang_up(self) -> Act:
        """Without credentials the stream is closed: with nothing after ``<Stream>``, as in our XML, the call ends."""
        if not self._rest:
            return Act()
        return Act(request=RestRequest("DELETE", self._path, done=frozenset({404})))


def _extra(given: object) -> dict[str, str]:
    """What a stream is told of its call (``extraHeaders``), however it is written."""
    if not isinstance(given, str) or len(given) > _MAX_EXTRA_CHARS:
        return {}
    return {name.lower(): value for name, value in _EXTRA.findall(given)}
