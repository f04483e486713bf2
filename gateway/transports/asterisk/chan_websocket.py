"""Asterisk's chan_websocket, which dials the gateway: media as binary messages, control as text.

https://docs.asterisk.org/Configuration/Channel-Drivers/WebSocket/ and ``chan_websocket.c`` (20.16, 21.11, 22.6, 23.0
and later). Control is plain text, or JSON (from 20.18, 22.8, 23.2): whichever Asterisk begins with. It plays from a
queue of 1,000 frames, of which FLUSH_MEDIA drops everything, marks too, and without a word: a mark of our own right
after it tells that it was done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from engines.api import Pcm16
from gateway.bridge_settings import AsteriskSettings
from gateway.security.credentials import basic, same
from gateway.transports.asterisk.expected import NextSteps
from gateway.transports.carriers import wire
from gateway.transports.carriers.dialect import (
    MAX_NAME_CHARS,
    Act,
    Asked,
    Audio,
    CarrierEvent,
    Cleared,
    Dialect,
    Encoding,
    Flow,
    Ignored,
    Key,
    MarkPlayed,
    Message,
    Publish,
    Started,
    Stopped,
    Unauthentic,
)
from gateway.transports.carriers.exchange import Exchange
from gateway.transports.carriers.framing import Framer
from gateway.transports.phone.line import Ability, Incoming

FORMATS: Mapping[str, tuple[Encoding, int]] = {
    "ulaw": (Encoding.MULAW, 8_000),
    "alaw": (Encoding.ALAW, 8_000),
    "slin": (Encoding.PCM16_LE, 8_000),
    "slin12": (Encoding.PCM16_LE, 12_000),
    "slin16": (Encoding.PCM16_LE, 16_000),
    "slin24": (Encoding.PCM16_LE, 24_000),
    "slin32": (Encoding.PCM16_LE, 32_000),
    "slin44": (Encoding.PCM16_LE, 44_100),
    "slin48": (Encoding.PCM16_LE, 48_000),
}
"""Asterisk's names of codecs. With others (opus, g722) it neither re-frames nor marks nor flushes."""

MAX_FRAME_BYTES = 16_384
MAX_MARKS = 512
FLUSHED = "flushed"
_QUIET = frozenset({"STATUS", "QUEUE_DRAINED", "MEDIA_BUFFERING_COMPLETED"})


class Asterisk(Exchange):
    """The exchange (:class:`Carrier`): it authenticates itself with a name and a password, and has no webhooks.
    ``next_steps`` holds where its dialplan shall send callers who were transferred."""

    name = "asterisk"
    subprotocol: str | None = "media"

    def __init__(self, settings: AsteriskSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._secret = settings.password.get_secret_value() if settings.password is not None else ""
        self.next_steps = NextSteps(now)

    def check_upgrade(self, asked: Asked) -> None:
        given = basic(asked.headers.get("authorization", ""))
        if not given:
            raise Unauthentic("signature_missing", "There is no Authorization header with a name and a password.")
        if not self._secret or not same(given, f"{self._settings.username}:{self._secret}"):
            raise Unauthentic("signature_invalid", "The name or the password is wrong.")

    def dialect(self, publish: Publish) -> Dialect:
        return ChanWebSocket(self.next_steps if self._settings.transfers else None)


class ChanWebSocket:
    """One channel (:class:`Dialect`). ``next_steps``: None: its dialplan does not ask where a caller goes."""

    marks_return_on_clear = False

    def __init__(self, next_steps: NextSteps | None = None) -> None:
        self.abilities: frozenset[Ability] = frozenset({Ability.TRANSFER} if next_steps is not None else ())
        self._next_steps = next_steps
        self._json = False
        self._started = False
        self._channel = ""
        self._encode: Callable[[Pcm16], bytes] = wire.encoder(Encoding.MULAW)
        self._frames = Framer(160, b"\xff")
        self._numbers = itertools.count(1)
        self._marks: dict[str, str] = {}
        """Our names of marks to those of the call: a command may have 128 characters, and no space in its id."""

    # --- from Asterisk --------------------------------------------------------------------------------------------

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        if isinstance(message, bytes):
            if not self._started:
                return (Ignored("audio_before_start"),)
            return (Audio(message),) if message else (Ignored("bad_audio"),)
        event = self._event(message)
        if event is None:
            return (Ignored("bad_json" if message.startswith("{") else "unknown_event"),)
        name, fields = event
        match name:
            case "MEDIA_START":
                return self._start(fields, as_json=message.lstrip().startswith("{"))
            case "DTMF_END":
                key = wire.key(fields.get("digit"))
                return (Key(key) if key is not None else Ignored("bad_key"),)
            case "MEDIA_MARK_PROCESSED":
                return (self._mark_processed(wire.text(fields, "correlation_id")),)
            case "MEDIA_XOFF" | "MEDIA_XON":
                return (Flow(name == "MEDIA_XON"),)
            case "ERROR":
                return (Ignored("asterisk_error"),)
        return (Ignored("" if name in _QUIET else "unknown_event"),)

    def _event(self, text: str) -> tuple[str, dict[str, Any]] | None:
        """The name and the fields of either form; None: it is neither."""
        if text.lstrip().startswith("{"):
            fields = wire.json_object(text)
            return None if fields is None else (wire.text(fields, "event"), fields)
        words = text.split()
        if not words or not words[0].isupper() or not words[0].replace("_", "").isalpha():
            return None
        plain = {}
        for word in words[1:32]:
            name, colon, value = word.partition(":")
            plain[name if colon else "correlation_id"] = value if colon else name
        return words[0], plain

    def _start(self, fields: dict[str, Any], *, as_json: bool) -> tuple[CarrierEvent, ...]:
        if self._started:
            return (Ignored("second_start"),)
        form = FORMATS.get(wire.text(fields, "format"))
        size = wire.number(fields, "optimal_frame_size")
        if form is None:
            return (Ignored("asterisk_format_unsupported"), Stopped("protocol_error"))
        encoding, rate_hz = form
        per_sample = wire.sample_bytes(encoding)
        whole = rate_hz // 50 * per_sample
        frame_bytes = int(size) if size is not None and 0 < size <= MAX_FRAME_BYTES else whole
        hush = {Encoding.MULAW: b"\xff", Encoding.ALAW: b"\xd5"}.get(encoding, b"\0\0")
        self._frames = Framer(frame_bytes if frame_bytes % per_sample == 0 else whole, hush)
        self._started, self._json = True, as_json
        self._encode = wire.encoder(encoding)
        self._channel = wire.text(fields, "channel")
        if not self._channel:
            self.abilities = frozenset()  # its dialplan could not say whose next step it asks for
        variables = wire.part(fields, "channel_variables")
        incoming = Incoming(
            "asterisk",
            agent=wire.text(variables, "OFFHOOK_AGENT"),
            dialled=wire.text(variables, "OFFHOOK_DIALLED"),
            caller=wire.text(variables, "OFFHOOK_CALLER"),
            wire_id=self._channel or wire.text(fields, "connection_id"),
        )
        return (Started(incoming, encoding, rate_hz),)

    def _mark_processed(self, ours: str) -> CarrierEvent:
        if ours.startswith(FLUSHED):
            return Cleared()
        name = self._marks.pop(ours, None)
        return MarkPlayed(name) if name is not None else Ignored("unknown_mark")

    # --- to Asterisk ----------------------------------------------------------------------------------------------

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        """Whole frames only: what is left over of a message Asterisk drops, so it waits for the next one here."""
        data = self._frames.add(self._encode(pcm))
        return [data] if data else []

    def encode_mark(self, name: str) -> list[Message]:
        ours = str(next(self._numbers))
        self._marks[ours] = name[:MAX_NAME_CHARS]
        if len(self._marks) > MAX_MARKS:
            del self._marks[next(iter(self._marks))]
        left = self._frames.fill()
        return [*([left] if left else []), self._command("MARK_MEDIA", ours)]

    def encode_clear(self) -> list[Message]:
        self._frames.drop()
        return [self._command("FLUSH_MEDIA"), self._command("MARK_MEDIA", f"{FLUSHED}{next(self._numbers)}")]

    def _command(self, name: str, correlation_id: str | None = None) -> str:
        if not self._json:
            return name if correlation_id is None else f"{name} {correlation_id}"
        named = {} if correlation_id is None else {"correlation_id": correlation_id}
        return wire.json_text({"command": name, **named})

    def send_dtmf(self, digits: str) -> Act:
        return Act()

    def transfer(self, target: str) -> Act:
        """The dialplan goes on after ``Dial()``, and asks where to."""
        if self._next_steps is not None:
            self._next_steps.hand_over(self._channel, target)
        return self.hang_up()

    def hang_up(self) -> Act:
        return Act((self._command("HANGUP"),))
