"""Offer and answer for one stream of audio (RFC 3264), first and again (hold, resume, a new address or codec).

Pure: ports, keys and ids come from outside. One audio stream is used, every other one of an offer is rejected in its
place. A description that promises encryption is answered with encryption or refused, never in clear.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from gateway.transports.sip.sdes import OFFERED_SUITE, Crypto, key_bytes, usable_crypto
from gateway.transports.sip.sdp import Address, BadSdp, Description, Format, Stream, read_sdp, write_sdp

KEYS = "telephone-event"
COMFORT_NOISE = "cn"

_CLEAR = ("RTP/AVP", "RTP/AVPF")
_SECURE = ("RTP/SAVP", "RTP/SAVPF")
_OPUS_TYPE, _KEYS_TYPE, _OPUS_KEYS_TYPE = 96, 101, 102


class Srtp(enum.Enum):
    OFF = "off"
    """Media in clear; an offer of SRTP alone is refused."""
    ACCEPTED = "accepted"
    """Encrypted when the caller offers it; what we offer is in clear."""
    REQUIRED = "required"
    """Nothing in clear."""


@dataclass(frozen=True, slots=True)
class Local:
    """What we say of ourselves."""

    ip: str
    port: int
    rtcp_port: int
    codecs: tuple[str, ...]
    """Lower case, of ``opus``, ``g722``, ``pcmu``, ``pcma``; the order counts where we offer."""
    srtp: Srtp = Srtp.ACCEPTED


@dataclass(frozen=True, slots=True)
class Agreed:
    """What both sides said."""

    formats: tuple[Format, ...]
    """Codecs of one clock that may come; the first is the one to send."""
    keys: Format | None
    """``telephone-event``."""
    comfort_noise: int | None
    remote: Address
    remote_rtcp: Address
    rtcp_mux: bool
    send: bool
    receive: bool
    remote_hold: bool
    """The far end does not want to hear us."""
    our_crypto: Crypto | None = None
    their_crypto: Crypto | None = None


class OfferAnswer:
    """One dialog's descriptions. ``random_bytes`` makes keys."""

    def __init__(self, local: Local, session_id: int, random_bytes: Callable[[int], bytes]) -> None:
        self.local = local
        self.hold = False
        """We do not want to hear the far end. The next description says so."""
        self.agreed: Agreed | None = None
        self._session_id = session_id
        self._version = 0
        self._written: list[list[str]] | None = None
        self._random_bytes = random_bytes
        self._crypto: Crypto | None = None
        self._streams: tuple[Stream, ...] = ()
        """Of the last description from the far end, whose places have to stay."""
        self._audio_at = 0
        self._offered: tuple[Format, ...] = ()

    # --- the answer to an offer -----------------------------------------------------------------------------------

    def answer(self, offer_sdp: str) -> str:
        """Raises :class:`BadSdp`; what was agreed before stands then."""
        offer = read_sdp(offer_sdp)
        at, stream, crypto = self._choose(offer)
        formats, keys, comfort = self._common(stream.formats)
        agreed = self._agree(stream, formats, keys, comfort, crypto, self._our_crypto(crypto))
        self._streams, self._audio_at, self.agreed = offer.streams, at, agreed
        used = (formats[0], *((keys,) if keys else ()))
        return self._write(used, stream.profile, agreed, listens=agreed.receive, speaks=agreed.send)

    def _choose(self, offer: Description) -> tuple[int, Stream, Crypto | None]:
        """The best audio stream there is: an encrypted one first."""
        audio = [(at, stream) for at, stream in enumerate(offer.streams) if stream.media == "audio" and stream.port]
        if not audio:
            raise BadSdp(488, "no_audio", "The offer has no audio stream.")
        usable: list[tuple[int, Stream, Crypto | None]] = []
        for at, stream in audio:
            crypto = usable_crypto(stream.cryptos) if self.local.srtp is not Srtp.OFF else None
            if stream.profile in _SECURE and crypto is not None:
                usable.insert(0, (at, stream, crypto))
            elif stream.profile in _CLEAR and (crypto is not None or self.local.srtp is not Srtp.REQUIRED):
                usable.append((at, stream, crypto))
        for at, stream, crypto in usable:
            if any(self._is_codec(one) for one in stream.formats) and not stream.multicast:
                self._same_family(stream)
                return at, stream, crypto
        if not usable:
            if any(stream.profile in _SECURE for _, stream in audio):
                raise BadSdp(488, "no_usable_keys", "The offer asks for SRTP without keys that can be used.")
            if any(stream.profile in _CLEAR for _, stream in audio):
                raise BadSdp(488, "bad_profile", "The offer is in clear, and only SRTP is taken here.")
            raise BadSdp(488, "bad_profile", "The offer has no audio stream of a profile that is taken.")
        raise BadSdp(488, "no_common_codec", "The offer has no codec that is taken.")

    def _same_family(self, stream: Stream) -> None:
        if stream.address.ip and (":" in stream.address.ip) != (":" in self.local.ip):
            raise BadSdp(488, "bad_address_family", "The media address is of another family than ours.")

    def _is_codec(self, one: Format) -> bool:
        if one.name not in self.local.codecs:
            return False
        if one.name == "opus":
            return one.clock_hz == 48_000
        return one.clock_hz == 8000 and one.channels == 1

    def _common(self, offered: tuple[Format, ...]) -> tuple[tuple[Format, ...], Format | None, int | None]:
        """In the far end's order, but for the codec that is in use: a re-INVITE need not change it."""
        codecs = [one for one in offered if self._is_codec(one)]
        if not codecs:
            raise BadSdp(488, "no_common_codec", "There is no codec in common.")
        if self.agreed is not None:
            in_use = self.agreed.formats[0].name
            codecs.sort(key=lambda one: one.name != in_use)
        clock_hz = codecs[0].clock_hz
        codecs = [one for one in codecs if one.clock_hz == clock_hz]
        keys = [one for one in offered if one.name == KEYS]
        keys.sort(key=lambda one: one.clock_hz != clock_hz)
        comfort = [one.payload_type for one in offered if one.name == COMFORT_NOISE and one.clock_hz == clock_hz]
        return tuple(codecs), keys[0] if keys else None, comfort[0] if comfort else None

    def _our_crypto(self, theirs: Crypto | None) -> Crypto | None:
        """Our key stays while the suite does: our stream goes on under it."""
        if theirs is None:
            self._crypto = None
        elif self._crypto is None or self._crypto.suite != theirs.suite:
            self._crypto = Crypto(theirs.tag, theirs.suite, self._random_bytes(key_bytes(theirs.suite)))
        else:
            self._crypto = Crypto(theirs.tag, theirs.suite, self._crypto.key)
        return self._crypto

    def _agree(
        self,
        stream: Stream,
        formats: tuple[Format, ...],
        keys: Format | None,
        comfort: int | None,
        theirs: Crypto | None,
        ours: Crypto | None,
    ) -> Agreed:
        speaks = stream.direction in ("sendrecv", "sendonly") and not stream.holds_by_address
        listens = stream.direction in ("sendrecv", "recvonly") and not stream.holds_by_address
        return Agreed(
            formats=formats,
            keys=keys,
            comfort_noise=comfort,
            remote=stream.address,
            remote_rtcp=stream.address if stream.rtcp_mux else stream.rtcp,
            rtcp_mux=stream.rtcp_mux,
            send=listens,
            receive=speaks and not self.hold,
            remote_hold=not listens,
            our_crypto=ours,
            their_crypto=theirs,
        )

    # --- an offer of ours -----------------------------------------------------------------------------------------

    def offer(self) -> str:
        """The first one names all codecs, later ones those in use."""
        secure = self._crypto is not None or (self.agreed is None and self.local.srtp is Srtp.REQUIRED)
        if secure and self._crypto is None:
            self._crypto = Crypto(1, OFFERED_SUITE, self._random_bytes(key_bytes(OFFERED_SUITE)))
        if self.agreed is not None:
            self._offered = (*self.agreed.formats, *((self.agreed.keys,) if self.agreed.keys else ()))
            profile = self._streams[self._audio_at].profile
        else:
            self._offered = _formats_of(self.local.codecs)
            profile = "RTP/SAVP" if secure else "RTP/AVP"
        return self._write(self._offered, profile, None, listens=not self.hold, speaks=True)

    def accept(self, answer_sdp: str) -> None:
        """The answer to :meth:`offer`. Raises :class:`BadSdp`; what was agreed before stands then."""
        answer = read_sdp(answer_sdp)
        ours = self._crypto
        at = self._audio_at if self.agreed is not None else 0
        stream = answer.streams[at] if at < len(answer.streams) else None
        if stream is None or stream.media != "audio" or not stream.port or stream.multicast:
            raise BadSdp(488, "no_audio", "The answer has no audio stream.")
        theirs = usable_crypto(tuple(value for value in stream.cryptos)) if ours is not None else None
        if (ours is not None) != (stream.profile in _SECURE or theirs is not None) or (ours and not theirs):
            raise BadSdp(488, "no_usable_keys", "The answer is not secured as the offer was.")
        if ours is not None and theirs is not None and theirs.suite != ours.suite:
            raise BadSdp(488, "no_usable_keys", "The answer takes another crypto suite than the offer has.")
        self._same_family(stream)
        offered = {one.payload_type: one for one in self._offered}
        known = tuple(one for one in stream.formats if one.payload_type in offered or one.name == COMFORT_NOISE)
        formats, keys, comfort = self._common(known)
        self.agreed = self._agree(stream, formats, keys, comfort, theirs, ours)
        self._streams, self._audio_at = answer.streams, at

    # --- writing --------------------------------------------------------------------------------------------------

    def _write(
        self, formats: tuple[Format, ...], profile: str, answers: Agreed | None, *, listens: bool, speaks: bool
    ) -> str:
        local = self.local
        numbers = " ".join(str(one.payload_type) for one in formats)
        audio = [f"audio {local.port} {profile} {numbers}"]
        for one in formats:
            channels = f"/{one.channels}" if one.channels > 1 else ""
            coding = "opus" if one.name == "opus" else one.name if one.name == KEYS else one.name.upper()
            audio.append(f"rtpmap:{one.payload_type} {coding}/{one.clock_hz}{channels}")
            if one.name == KEYS:
                audio.append(f"fmtp:{one.payload_type} 0-15")
            elif one.name == "opus":
                audio.append(f"fmtp:{one.payload_type} useinbandfec=1")
        audio.append("ptime:20")
        audio.append({(1, 1): "sendrecv", (1, 0): "sendonly", (0, 1): "recvonly", (0, 0): "inactive"}[speaks, listens])
        if answers is not None and answers.rtcp_mux:
            audio.append("rtcp-mux")
        elif local.rtcp_port != local.port + 1:
            audio.append(f"rtcp:{local.rtcp_port}")
        if self._crypto is not None:
            audio.append(self._crypto.attribute)
        streams = [_rejected(stream) for stream in self._streams]
        streams[self._audio_at : self._audio_at + 1] = [audio]
        if streams != self._written:
            self._written = streams
            self._version += 1
        return write_sdp(f"- {self._session_id} {self._version}", local.ip, streams)


def _rejected(stream: Stream) -> list[str]:
    """Its place is kept, with port 0 (RFC 3264, section 6)."""
    return [f"{stream.media} 0 {stream.profile} {' '.join(stream.format_words)}"]


def _formats_of(codecs: tuple[str, ...]) -> tuple[Format, ...]:
    """All we can do, and keys at each clock."""
    known = {
        "pcmu": Format(0, "pcmu", 8000),
        "pcma": Format(8, "pcma", 8000),
        "g722": Format(9, "g722", 8000),
        "opus": Format(_OPUS_TYPE, "opus", 48_000, 2),
    }
    formats = [known[name] for name in codecs]
    keys = []
    if any(one.clock_hz == 8000 for one in formats):
        keys.append(Format(_KEYS_TYPE, KEYS, 8000))
    if any(one.clock_hz == 48_000 for one in formats):
        keys.append(Format(_OPUS_KEYS_TYPE, KEYS, 48_000))
    return (*formats, *keys)
