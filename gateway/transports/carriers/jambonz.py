"""jambonz: the ``listen`` verb with audio streamed both ways, signed webhooks, and the calls resource of its REST API.

https://docs.jambonz.org/verbs/verbs/listen; what it does with what we send: ``mod_audio_fork`` of
jambonz/freeswitch-modules (``lws_glue.cpp``), whose ways are taken care of here:

- a sample of -1 is taken for a mark, wherever there are any: we send 0 in its place;
- marks lie among the samples, and do not survive resampling: :attr:`JambonzSettings.rate_hz` has to be the phone's;
- what is less than 80 ms (160 ms at first) waits for more before it is played: a silent tail pushes it out;
- ``killAudio`` drops what is being played, but not what waits so: the tail goes before it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engines.api import Pcm16
from gateway.carrier_settings import JambonzSettings
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
    StreamTo,
)
from gateway.transports.carriers.signatures import (
    MAX_SIGNATURE_CHARS,
    Seen,
    check_stream_token,
    check_timestamp,
    invalid,
    missing,
)
from gateway.transports.phone.line import Ability, Incoming

JSON = "application/json"
SUBPROTOCOL = "audio.jambonz.org"
TAIL_MS = 160
MAX_SIGNATURES = 4
RATES_HZ = frozenset({8_000, 16_000, 24_000, 32_000, 48_000})

_CALL = re.compile(r"[0-9A-Za-z-]{8,64}")
_OVER = frozenset({"completed", "failed", "busy", "no-answer", "queued"})


class Jambonz:
    """The vendor (:class:`Carrier`). Its stream comes with basic auth, if its address has a user and a password."""

    name = "jambonz"
    signs_upgrade = False
    subprotocol: str | None = SUBPROTOCOL

    def __init__(self, settings: JambonzSettings, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s
        self._secret = settings.webhook_secret.get_secret_value() if settings.webhook_secret is not None else ""
        self._api_key = settings.api_key.get_secret_value() if settings.api_key is not None else ""
        self.api_url = settings.api_url if self._api_key else ""
        self._seen = Seen(now_s)

    def check_upgrade(self, asked: Asked) -> None:
        check_stream_token(asked, self._settings.stream_token, allow_unsigned=self._settings.allow_unsigned)

    def check_webhook(self, asked: Asked) -> None:
        header = asked.headers.get("jambonz-signature", "")
        if not header and self._settings.allow_unsigned:
            return
        if not self._secret and self._settings.stream_token is not None:
            self.check_upgrade(asked)
            return
        if not header:
            raise missing("Jambonz-Signature")
        fields = [field.strip().partition("=") for field in header[:MAX_SIGNATURE_CHARS].split(",")]
        stamps = [value for name, _, value in fields if name == "t"]
        given = [value for name, _, value in fields if name == "v1"][:MAX_SIGNATURES]
        if not self._secret or len(stamps) != 1 or not given:
            raise invalid()
        signed = stamps[0].encode() + b"." + asked.body
        expected = hmac.new(self._secret.encode(), signed, hashlib.sha256).hexdigest()
        matches = [same(one, expected) for one in given]  # all of them: the time tells nothing
        if not any(matches):
            raise invalid()
        check_timestamp(stamps[0], self._now_s())
        self._seen.take(expected)

    def read_webhook(self, asked: Asked) -> Incoming | None:
        fields = wire.json_object(asked.body)
        if fields is None:
            raise BadWebhook("it is not a JSON object; let jambonz POST its webhooks")
        if wire.text(fields, "call_status") in _OVER:
            return None
        call = wire.text(fields, "call_sid")
        if not _CALL.fullmatch(call):
            raise BadWebhook("there is no call_sid")
        caller, dialled = wire.text(fields, "from"), wire.text(fields, "to")
        if wire.text(fields, "direction") == "outbound":  # whom it was placed to is who speaks
            caller, dialled = dialled, caller
        return Incoming("jambonz", dialled=dialled, caller=caller, wire_id=call)

    def connect(self, asked: Asked, to: StreamTo) -> Reply:
        rate_hz = self._settings.rate_hz
        listen: dict[str, object] = {
            "verb": "listen",
            "url": to.url,
            "sampleRate": rate_hz,
            "mixType": "mono",
            "passDtmf": True,
            "bidirectionalAudio": {"enabled": True, "streaming": True, "sampleRate": rate_hz},
        }
        if to.incoming.agent:
            listen["metadata"] = {"agent": to.incoming.agent}
        return _verbs(listen, {"verb": "hangup"})

    def refuse(self, asked: Asked, *, busy: bool) -> Reply:
        status, reason = (486, "Busy Here") if busy else (404, "Not Found")
        return _verbs({"verb": "sip:decline", "status": status, "reason": reason})

    def dialect(self, publish: Publish) -> Dialect:
        account = self._settings.account_sid if self.api_url else ""
        return JambonzDialect(self._settings.rate_hz, account=account, publish=publish)

    def api_headers(self, request: RestRequest) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._api_key}"}


def _verbs(*verbs: Mapping[str, object]) -> Reply:
    return Reply(wire.json_text(list(verbs)).encode(), JSON)


class JambonzDialect:
    """One stream (:class:`Dialect`). ``account``: of the REST API; empty: there is none. ``publish``: puts the verbs of
    a transfer where jambonz fetches them."""

    marks_return_on_clear = True

    def __init__(self, rate_hz: int, *, account: str = "", publish: Publish | None = None) -> None:
        self.abilities = frozenset({Ability.TRANSFER}) if account and publish is not None else frozenset[Ability]()
        self._rate_hz = rate_hz
        self._account = account
        self._publish = publish
        self._call = self._dialled = ""
        self._started = False
        self._tail = bytes(2 * (rate_hz * TAIL_MS // 1000))

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        if isinstance(message, bytes):
            if not self._started:
                return (Ignored("audio_before_start"),)
            return (Audio(message),) if message else (Ignored("bad_audio"),)
        said = wire.json_object(message)
        if said is None:
            return (Ignored("bad_json"),)
        if not self._started:
            return (self._start(said),)
        if said.get("event") == "dtmf":
            digit = wire.key(said.get("dtmf"))
            return (Key(digit) if digit is not None else Ignored("bad_digit"),)
        if said.get("type") == "mark":
            data = wire.part(said, "data")
            name = wire.text(data, "name")
            return (MarkPlayed(name, data.get("event") == "cleared") if name else Ignored("bad_mark"),)
        return (Ignored("unknown_event"),)

    def _start(self, said: dict[str, Any]) -> CarrierEvent:
        """The first text: the call's attributes."""
        rate_hz = wire.number(said, "sampleRate") or 8_000.0
        if rate_hz not in RATES_HZ or wire.text(said, "mixType") == "stereo":
            return Ignored("bad_start")
        self._started = True
        self._call = wire.text(said, "callSid")
        if not _CALL.fullmatch(self._call):
            self._call, self._account, self.abilities = "", "", frozenset()
        caller, self._dialled = wire.text(said, "from"), wire.text(said, "to")
        told = {**wire.part(said, "metadata"), **said}
        incoming = Incoming("jambonz", wire.text(told, "agent"), self._dialled, caller, self._call)
        return Started(incoming, Encoding.PCM16_LE, round(rate_hz), self._rate_hz, tail=(self._tail,))

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        return [np.where(pcm == -1, 0, pcm).astype("<i2").tobytes()]

    def encode_mark(self, name: str) -> list[Message]:
        return [wire.json_text({"type": "mark", "data": {"name": name}})]

    def encode_clear(self) -> list[Message]:
        return [self._tail, wire.json_text({"type": "killAudio"})]

    def send_dtmf(self, digits: str) -> Act:
        return Act()

    def transfer(self, target: str) -> Act:
        assert self._publish is not None, "asked only with the ability"
        if target.startswith(("sip:", "sips:")):
            to = {"type": "sip", "sipUri": target}
        else:
            to = {"type": "phone", "number": target}
        dial: dict[str, object] = {"verb": "dial", "target": [to]}
        if self._dialled:
            dial["callerId"] = self._dialled
        hook = {"url": self._publish(_verbs(dial, {"verb": "hangup"})), "method": "POST"}
        return Act(request=self._update({"call_hook": hook}, repeatable=False))

    def hang_up(self) -> Act:
        """``disconnect`` ends the verb, after which our webhook said to hang up; another's verbs may say otherwise."""
        request = None
        if self._account:
            request = self._update({"call_status": "completed"}, done=frozenset({404, 422}))
        return Act((wire.json_text({"type": "disconnect"}),), request)

    def _update(
        self, body: Mapping[str, object], *, done: frozenset[int] = frozenset(), repeatable: bool = True
    ) -> RestRequest:
        path = f"/v1/Accounts/{self._account}/Calls/{self._call}"
        return RestRequest("PUT", path, body, done=done, repeatable=repeatable)
