"""FreeSWITCH with mod_audio_stream, its duplex edition: raw PCM both ways, which it plays as it comes.

The module's README and its page on bi-directional streaming. What it has queued can be dropped over the event socket
only (``uuid_audio_stream … break``), and it tells there alone what it played: on the stream there is neither a clear
nor a mark. So this side owns the clock, and sends no more than two frames ahead. Keys, too, come only if the dialplan
sends them (``uuid_audio_stream … send_text``). Messages of ours that are no audio surface as ``mod_audio_stream::json``
events: a hang-up and a transfer are such, for a script to act on. Not tried with the commercial module.
"""

from __future__ import annotations

from typing import Any

from engines.api import Pcm16
from gateway.bridge_settings import FreeswitchSettings
from gateway.transports.carriers import wire
from gateway.transports.carriers.dialect import (
    Act,
    Asked,
    Audio,
    CarrierEvent,
    Dialect,
    Encoding,
    Ignored,
    Key,
    Message,
    Publish,
    Started,
    Stopped,
)
from gateway.transports.carriers.exchange import Exchange
from gateway.transports.carriers.signatures import check_stream_token
from gateway.transports.phone.line import Ability, Incoming, PlayoutOwner


class Freeswitch(Exchange):
    """The exchange (:class:`Carrier`): a token opens its streams, and it has no webhooks."""

    name = "freeswitch"
    subprotocol: str | None = None

    def __init__(self, settings: FreeswitchSettings) -> None:
        self._settings = settings

    def check_upgrade(self, asked: Asked) -> None:
        check_stream_token(asked, self._settings.stream_token, allow_unsigned=False)

    def dialect(self, publish: Publish) -> Dialect:
        return FreeswitchDialect(self._settings.rate_hz, transfers=self._settings.transfers)


class FreeswitchDialect:
    """One stream (:class:`Dialect`). ``rate_hz``: of the ``start`` command, which its messages do not tell."""

    marks_return_on_clear = False

    def __init__(self, rate_hz: int, *, transfers: bool = False) -> None:
        self.abilities: frozenset[Ability] = frozenset({Ability.TRANSFER} if transfers else ())
        self._rate_hz = rate_hz
        self._started = self._announced = False

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        if isinstance(message, bytes):
            if not message:
                return (Ignored("bad_audio"),)
            # Without metadata the stream begins with audio.
            return (Audio(message),) if self._started else (self._start({}), Audio(message))
        said = wire.json_object(message)
        if not self._started:
            return (self._start(said or {}), *(() if said is not None else (Ignored("bad_json"),)))
        if said is None:
            return (Ignored("bad_json"),)
        match said.get("event"):
            case "dtmf":
                digit = wire.key(said.get("digit"))
                return (Key(digit) if digit is not None else Ignored("bad_digit"),)
            case "hangup":
                return (Stopped(),)
        return (Ignored("unknown_event"),)

    def _start(self, told: dict[str, Any]) -> CarrierEvent:
        """``told``: the metadata of the ``start`` command."""
        self._started = True
        incoming = Incoming(
            "freeswitch",
            agent=wire.text(told, "agent"),
            dialled=wire.text(told, "to"),
            caller=wire.text(told, "from"),
            wire_id=wire.text(told, "uuid"),
        )
        return Started(incoming, Encoding.PCM16_LE, self._rate_hz, owner=PlayoutOwner.OURS)

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        """The rate goes before the first audio, also after a clear: that may have dropped it."""
        audio = pcm.astype("<i2").tobytes()
        if self._announced:
            return [audio]
        self._announced = True
        return [wire.json_text({"type": "rawAudio", "data": {"sampleRate": self._rate_hz}}), audio]

    def encode_mark(self, name: str) -> list[Message]:
        return []

    def encode_clear(self) -> list[Message]:
        self._announced = False
        return []

    def send_dtmf(self, digits: str) -> Act:
        return Act()

    def transfer(self, target: str) -> Act:
        return Act((wire.json_text({"type": "transfer", "data": {"target": target}}),))

    def hang_up(self) -> Act:
        return Act((wire.json_text({"type": "hangup"}),))
