"""Telnyx: media streaming in its RTP mode, started by TeXML or by Call Control, and Call Control's REST API.

https://developers.telnyx.com/api-reference/websockets/stream-call-media-over-websocket (and /docs/voice, TeXML verbs).
Without the RTP mode Telnyx takes MP3 files and ignores what we send, so our answers always ask for it. Chunks may come
out of order. Upgrades are not signed: a stream needs our ticket, or ``telnyx.stream_token``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from engines.api import Pcm16
from gateway.carrier_settings import TelnyxSettings
from gateway.transports.carriers import wire
from gateway.transports.carriers.chunk_order import ChunkOrder
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
    Unauthentic,
)
from gateway.transports.carriers.markup import XML, dial, xml
from gateway.transports.carriers.signatures import (
    Ed25519Verifier,
    Seen,
    check_stream_token,
    check_timestamp,
    invalid,
    missing,
)
from gateway.transports.phone.line import Ability, Incoming
from streaming.audio.g711 import encode_mulaw

_CALL = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9:_=.~-]{1,128}")
"""What may go into a path (``..`` would leave it): ids look like ``v3:`` and letters."""

_ENCODINGS = {"": Encoding.MULAW, "PCMU": Encoding.MULAW, "PCMA": Encoding.ALAW, "L16": Encoding.PCM16_BE}
_RATES = frozenset({8_000, 16_000, 24_000})
_ACCOUNT = "texml_account"
"""The parameter by which a stream of our TeXML tells that it is one, and whose."""

EMPTY = Reply(b"", "application/json")


class Telnyx:
    """The vendor (:class:`Carrier`). ``now_s``: Unix time."""

    name = "telnyx"
    signs_upgrade = False
    subprotocol: str | None = None

    def __init__(self, settings: TelnyxSettings, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s
        self._verifier = Ed25519Verifier(settings.public_key) if settings.public_key else None
        self._seen = Seen(now_s)
        self._api_key = settings.api_key.get_secret_value() if settings.api_key is not None else ""
        self.api_url = settings.api_url if self._api_key else ""

    def check_upgrade(self, asked: Asked) -> None:
        check_stream_token(asked, self._settings.stream_token, allow_unsigned=self._settings.allow_unsigned)

    def check_webhook(self, asked: Asked) -> None:
        signature = asked.headers.get("telnyx-signature-ed25519", "")
        if not signature and self._settings.allow_unsigned:
            return
        if not signature:
            raise missing("telnyx-signature-ed25519")
        if self._verifier is None:
            raise Unauthentic("signature_invalid", "telnyx.public_key is not set.")
        if asked.method != "POST":
            raise Unauthentic("signature_invalid", "Only the body is signed: let the webhook's method be POST.")
        timestamp = asked.headers.get("telnyx-timestamp", "")
        if len(timestamp) > 12 or not timestamp.isascii():
            raise invalid()
        self._verifier.check(signature, timestamp.encode() + b"|" + asked.body)
        check_timestamp(timestamp, self._now_s())
        self._seen.take(f"{timestamp}|{hashlib.sha256(asked.body).hexdigest()}")  # base64 spells a signature many ways

    def read_webhook(self, asked: Asked) -> Incoming | None:
        if asked.form:
            fields: dict[str, Any] = dict(asked.form)
            call = wire.text(fields, "CallSid")
            if not call:
                raise BadWebhook("there is no CallSid")
            if wire.text(fields, "CallStatus") in {"completed", "busy", "failed", "no-answer", "canceled"}:
                return None
            return Incoming("telnyx", dialled=wire.text(fields, "To"), caller=wire.text(fields, "From"), wire_id=call)
        said = wire.json_object(asked.body)
        if said is None:
            raise BadWebhook("it is neither a TeXML form nor a Call Control event")
        data = wire.part(said, "data")
        payload = wire.part(data, "payload")
        if data.get("event_type") != "call.initiated" or wire.text(payload, "direction") not in {"incoming", "inbound"}:
            return None
        call = wire.text(payload, "call_control_id")
        if not _CALL.fullmatch(call):
            raise BadWebhook("there is no call_control_id")
        return Incoming("telnyx", dialled=wire.text(payload, "to"), caller=wire.text(payload, "from"), wire_id=call)

    def connect(self, asked: Asked, to: StreamTo) -> Reply:
        if asked.form:
            account = wire.text(dict(asked.form), "AccountSid")
            told = f"<Parameter name={quoteattr(_ACCOUNT)} value={quoteattr(account)}/>" if account else ""
            stream = (
                f'<Connect><Stream url={quoteattr(to.url)} track="inbound_track" codec="PCMU" '
                f'bidirectionalMode="rtp" bidirectionalCodec="PCMU">{told}</Stream></Connect>'
            )
            return Reply(xml(stream), XML)
        body = {
            "stream_url": to.url,
            "stream_track": "inbound_track",
            "stream_codec": "PCMU",
            "stream_bidirectional_mode": "rtp",
            "stream_bidirectional_codec": "PCMU",
        }
        request = RestRequest("POST", _action(to.incoming.wire_id, "answer"), body)
        return Reply(b"", "application/json", request)

    def refuse(self, asked: Asked, *, busy: bool) -> Reply:
        if asked.form:
            return Reply(xml('<Reject reason="busy"/>' if busy else "<Reject/>"), XML)
        incoming = self.read_webhook(asked)
        if incoming is None:
            return EMPTY
        cause = "USER_BUSY" if busy else "CALL_REJECTED"
        return Reply(
            b"", "application/json", RestRequest("POST", _action(incoming.wire_id, "reject"), {"cause": cause})
        )

    def dialect(self, publish: Publish) -> Dialect:
        return TelnyxDialect(rest=bool(self.api_url))

    def api_headers(self, request: RestRequest) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._api_key}"}


KEY_S = 0.25 + 0.1
"""What a key takes that Telnyx sends: its tone, of ``duration_millis`` by default, and a pause, which its documents do
not tell and is our judgement. It answers before the first."""


def _action(call: str, action: str) -> str:
    return f"/v2/calls/{call}/actions/{action}"


class TelnyxDialect:
    """One stream (:class:`Dialect`). We send µ-law at 8 kHz, whatever comes. That ``L16`` comes in network order is
    what its documents say of RTP payloads, and was not tried."""

    marks_return_on_clear = True

    def __init__(self, *, rest: bool = True) -> None:
        self.abilities = frozenset({Ability.TRANSFER, Ability.SEND_DTMF}) if rest else frozenset[Ability]()
        self._rest = rest
        self._order: ChunkOrder[Audio] = ChunkOrder()
        self._call = ""
        self._account = ""
        self._started = False

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        if isinstance(message, bytes):
            return (Ignored("binary_message"),)
        said = wire.json_object(message)
        if said is None:
            return (Ignored("bad_json"),)
        match said.get("event"):
            case "media":
                return self._media(wire.part(said, "media"))
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
            case "error":
                return (Ignored("vendor_error"),)
        return (Ignored("unknown_event"),)

    def _start(self, said: dict[str, Any], start: dict[str, Any]) -> CarrierEvent:
        if self._started:
            return Ignored("second_start")
        form = wire.part(start, "media_format")
        encoding = _ENCODINGS.get(wire.text(form, "encoding").upper())
        rate_hz = wire.number(form, "sample_rate") or 8_000.0
        if not wire.text(said, "stream_id") and not wire.text(start, "call_control_id"):
            return Ignored("bad_start")
        if encoding is None or rate_hz not in _RATES or (encoding is not Encoding.PCM16_BE and rate_hz != 8_000):
            return Ignored("bad_start")
        self._started = True
        self._call = wire.text(start, "call_control_id")
        if not _CALL.fullmatch(self._call):
            self._rest = False
            self.abilities = frozenset()
        told = wire.part(start, "custom_parameters")
        account = wire.text(told, _ACCOUNT)
        self._account = account if _CALL.fullmatch(account) else ""
        incoming = Incoming(
            "telnyx",
            agent=wire.text(told, "agent"),
            dialled=wire.text(start, "to") or wire.text(told, "to"),
            caller=wire.text(start, "from") or wire.text(told, "from"),
            wire_id=self._call,
        )
        return Started(incoming, encoding, round(rate_hz), 8_000)

    def _media(self, media: dict[str, Any]) -> tuple[CarrierEvent, ...]:
        if media.get("track", "inbound") not in ("inbound", "inbound_track"):  # whatever it is
            return ()
        payload = wire.base64_bytes(media.get("payload"))
        if payload is None:
            return (Ignored("bad_audio"),)
        number = wire.number(media, "chunk")
        late = self._order.late
        ready = self._order.put(
            round(number) if number is not None else None, Audio(payload, wire.time_ms(media, "timestamp"))
        )
        return (Ignored("late_audio"),) if self._order.late > late else tuple(ready)

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        return [wire.json_text({"event": "media", "media": {"payload": wire.base64_text(encode_mulaw(pcm))}})]

    def encode_mark(self, name: str) -> list[Message]:
        return [wire.json_text({"event": "mark", "mark": {"name": name}})]

    def encode_clear(self) -> list[Message]:
        return [wire.json_text({"event": "clear"})]

    def send_dtmf(self, digits: str) -> Act:
        request = RestRequest("POST", _action(self._call, "send_dtmf"), {"digits": digits}, repeatable=False)
        return Act(request=request, sounds_s=KEY_S * len(digits))

    def transfer(self, target: str) -> Act:
        """Telnyx answers when it begins to dial. A call of TeXML is given another document: with its stream closed, the
        one it has would end it."""
        if not self._account:
            return Act(request=RestRequest("POST", _action(self._call, "transfer"), {"to": target}, repeatable=False))
        path = f"/v2/texml/Accounts/{self._account}/Calls/{self._call}"
        body = {"Texml": f"<Response>{dial(target)}</Response>"}
        return Act(request=RestRequest("POST", path, body, form=True, repeatable=False))

    def hang_up(self) -> Act:
        """422 (code 90018) and 404: it has ended already. Without a key, closing the stream is all we can do, and the
        call goes on with what its TeXML says."""
        if not self._rest:
            return Act()
        return Act(request=RestRequest("POST", _action(self._call, "hangup"), {}, done=frozenset({404, 422})))
