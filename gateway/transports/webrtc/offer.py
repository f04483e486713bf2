"""A browser's SDP offer, read strictly into the little that matters here, and the answer to it.

One bundled transport, one audio section with Opus, at most one data channel; everything else is refused section by
section (JSEP, RFC 9429 section 5.3; BUNDLE, RFC 9143). Pure: addresses are read here, and judged in ``candidates``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

MAX_SDP_BYTES = 64 * 1024
"""Chromium's offer with audio, video and data is 7 kB."""
MAX_LINES = 4000
MAX_SECTIONS = 16
MAX_CANDIDATES = 64
"""Read of one offer; ``candidates`` keeps fewer."""

Code = Literal[
    "bad_sdp",
    "too_large",
    "no_audio",
    "no_opus",
    "not_bundled",
    "no_rtcp_mux",
    "no_ice",
    "bad_fingerprint",
    "bad_setup",
]
Direction = Literal["sendrecv", "sendonly", "recvonly", "inactive"]

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`{|}~-]{1,64}")
_ICE_CHARACTERS = re.compile(r"[A-Za-z0-9+/=_-]{4,256}")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2})*")
_MEDIA = re.compile(r"([a-z]{1,32}) ([0-9]{1,5})(?:/[0-9]{1,5})? ([A-Za-z/]{1,64}) ([ -~]{1,1024})")
_PAYLOAD_TYPE = re.compile(r"[0-9]{1,3}")
_HASH_BYTES = {"sha-256": 32, "sha-384": 48, "sha-512": 64}
_DIRECTIONS: tuple[Direction, ...] = ("sendrecv", "sendonly", "recvonly", "inactive")
_ANSWERED: dict[Direction, Direction] = {"sendonly": "recvonly", "recvonly": "sendonly", "sendrecv": "sendrecv"}
_RTP_PROFILES = ("UDP/TLS/RTP/SAVPF", "UDP/TLS/RTP/SAVP", "RTP/SAVPF", "RTP/SAVP")
_CHANNEL_PROFILES = ("UDP/DTLS/SCTP", "DTLS/SCTP")
DEFAULT_MESSAGE_BYTES = 64 * 1024
"""What a peer takes that does not say (RFC 8841, section 6.1)."""


class BadOffer(ValueError):  # noqa: N818 (an answer: 400 with its code)
    """An offer that cannot be answered. ``code`` is for programs, ``str()`` for people."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


@dataclass(frozen=True, slots=True)
class Section:
    """An ``m=`` line of the offer."""

    kind: str
    profile: str
    formats: str
    mid: str
    rejected: bool


@dataclass(frozen=True, slots=True)
class Offer:
    sections: tuple[Section, ...]
    audio: int
    """Index of the section that is answered with audio."""
    channel: int | None
    """Index of the section with the data channel."""
    direction: Direction
    """Of the audio, as the peer sees it."""
    opus: int
    """Payload type."""
    ufrag: str
    pwd: str
    ice_lite: bool
    fingerprints: tuple[tuple[str, str], ...]
    """Algorithm and value, upper case."""
    setup: Literal["active", "passive", "actpass"]
    candidates: tuple[str, ...]
    """What follows ``a=candidate:``."""
    sctp_port: int
    max_message_bytes: int


@dataclass(slots=True)
class _Lines:
    """The attributes of the session or of one section, in order, and what began it."""

    media: str = ""
    attributes: list[tuple[str, str]] = field(default_factory=list)

    def first(self, name: str) -> str | None:
        return next((value for key, value in self.attributes if key == name), None)

    def every(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


def parse_offer(text: str) -> Offer:
    """Read an offer. Raises :class:`BadOffer` and nothing else."""
    session, sections = _split(text)
    parsed = [_section(lines) for lines in sections]
    mids = [section.mid for section in parsed]
    if len(set(mids)) != len(mids):
        raise BadOffer("bad_sdp", "two sections have the same mid")
    audio = _audio(session, parsed, sections)
    bundle = _bundle(session, parsed, audio)
    channel = next(
        (n for n, s in enumerate(parsed) if s.kind == "application" and _is_channel(s) and s.mid in bundle), None
    )
    if channel is None and any(_is_channel(section) for section in parsed):
        raise BadOffer("not_bundled", "audio and data channel must share a transport (a=group:BUNDLE)")
    # The transport is that of the group's first section that is used (RFC 9143, section 7.2).
    used = [audio] if channel is None else [audio, channel]
    transport = min(used, key=lambda n: bundle.index(parsed[n].mid) if parsed[n].mid in bundle else 0)
    ufrag, pwd = _credentials(session, sections[transport])
    sctp_port, max_message_bytes = _sctp(sections[channel]) if channel is not None else (5000, DEFAULT_MESSAGE_BYTES)
    return Offer(
        sections=tuple(parsed),
        audio=audio,
        channel=channel,
        direction=_direction(session, sections[audio]),
        opus=_opus(parsed[audio], sections[audio]),
        ufrag=ufrag,
        pwd=pwd,
        ice_lite=session.first("ice-lite") is not None,
        fingerprints=_fingerprints(session, sections[transport]),
        setup=_setup(session, sections[transport]),
        candidates=tuple(candidate for n in sorted({transport, *used}) for candidate in sections[n].every("candidate"))[
            :MAX_CANDIDATES
        ],
        sctp_port=sctp_port,
        max_message_bytes=max_message_bytes,
    )


def _split(text: str) -> tuple[_Lines, list[_Lines]]:
    if len(text) > MAX_SDP_BYTES:
        raise BadOffer("too_large", f"an offer may have {MAX_SDP_BYTES} bytes")
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > MAX_LINES:
        raise BadOffer("too_large", f"an offer may have {MAX_LINES} lines")
    if lines[0].strip() != "v=0":
        raise BadOffer("bad_sdp", "an offer begins with v=0")
    session = current = _Lines()
    sections: list[_Lines] = []
    for line in lines:
        if line.startswith("m="):
            if len(sections) == MAX_SECTIONS:
                raise BadOffer("too_large", f"an offer may have {MAX_SECTIONS} sections")
            current = _Lines(line[2:].strip())
            sections.append(current)
        elif line.startswith("a="):
            name, _, value = line[2:].partition(":")
            current.attributes.append((name.strip().lower(), value.strip()))
    return session, sections


def _section(lines: _Lines) -> Section:
    match = _MEDIA.fullmatch(lines.media)
    if match is None:
        raise BadOffer("bad_sdp", "an m= line is not understood")
    kind, port, profile, formats = match.groups()
    mid = lines.first("mid") or ""
    if mid and not _TOKEN.fullmatch(mid):
        raise BadOffer("bad_sdp", "a mid is not a token")
    # Port 0 refuses a section, unless it hangs on a group's transport (RFC 9143, section 6).
    return Section(kind, profile, formats, mid, rejected=port == "0" and lines.first("bundle-only") is None)


def _audio(session: _Lines, parsed: list[Section], sections: list[_Lines]) -> int:
    found = [n for n, section in enumerate(parsed) if section.kind == "audio" and not section.rejected]
    found = [n for n in found if parsed[n].profile in _RTP_PROFILES]
    found = [n for n in found if _direction(session, sections[n]) != "inactive"]
    if not found:
        raise BadOffer("no_audio", "the offer has no audio section that is open")
    audio = found[0]
    if sections[audio].first("rtcp-mux") is None:
        raise BadOffer("no_rtcp_mux", "the audio section must have a=rtcp-mux")
    return audio


def _bundle(session: _Lines, parsed: list[Section], audio: int) -> list[str]:
    """The mids of the group that the audio section is in; of it alone if it is in none."""
    for group in session.every("group"):
        semantics, *mids = group.split()[: MAX_SECTIONS + 1] or [""]
        if semantics == "BUNDLE" and parsed[audio].mid in mids:
            return mids
    return [parsed[audio].mid]


def _is_channel(section: Section) -> bool:
    return (
        section.kind == "application"
        and section.profile in _CHANNEL_PROFILES
        and section.formats.split()[0] == "webrtc-datachannel"
        and not section.rejected
    )


def _direction(session: _Lines, lines: _Lines) -> Direction:
    for name, _ in lines.attributes + session.attributes:
        for direction in _DIRECTIONS:
            if name == direction:
                return direction
    return "sendrecv"


def _opus(section: Section, lines: _Lines) -> int:
    names = {}
    for value in lines.every("rtpmap"):
        payload_type, _, codec = value.partition(" ")
        names[payload_type] = codec.strip().lower()
    for payload_type in section.formats.split():
        if names.get(payload_type) == "opus/48000/2" and _PAYLOAD_TYPE.fullmatch(payload_type):
            number = int(payload_type)
            if number < 64 or 95 < number < 128:  # what RTCP's packet types leave (RFC 5761, section 4)
                return number
    raise BadOffer("no_opus", "the audio section does not offer Opus")


def _credentials(session: _Lines, lines: _Lines) -> tuple[str, str]:
    ufrag = lines.first("ice-ufrag") or session.first("ice-ufrag") or ""
    pwd = lines.first("ice-pwd") or session.first("ice-pwd") or ""
    if not _ICE_CHARACTERS.fullmatch(ufrag) or not _ICE_CHARACTERS.fullmatch(pwd) or len(pwd) < 22:
        raise BadOffer("no_ice", "the offer lacks a proper a=ice-ufrag or a=ice-pwd")
    return ufrag, pwd


def _fingerprints(session: _Lines, lines: _Lines) -> tuple[tuple[str, str], ...]:
    found = []
    for value in (lines.every("fingerprint") or session.every("fingerprint"))[:8]:
        algorithm, _, digest = value.partition(" ")
        size = _HASH_BYTES.get(algorithm.lower())
        if size is None:
            continue  # of several, those not known are not asked for (RFC 8122, section 5)
        if len(digest) != size * 3 - 1 or not _FINGERPRINT.fullmatch(digest):
            raise BadOffer("bad_fingerprint", "an a=fingerprint is malformed")
        found.append((algorithm.lower(), digest.upper()))
    if not found:
        raise BadOffer("bad_fingerprint", "the offer has no a=fingerprint by SHA-256, SHA-384 or SHA-512")
    return tuple(found)


def _setup(session: _Lines, lines: _Lines) -> Literal["active", "passive", "actpass"]:
    match lines.first("setup") or session.first("setup"):
        case "active":
            return "active"
        case "passive":
            return "passive"
        case "actpass" | None:
            return "actpass"
        case _:
            raise BadOffer("bad_setup", "a=setup of an offer is actpass, active or passive")


def _sctp(lines: _Lines) -> tuple[int, int]:
    port, size = lines.first("sctp-port") or "5000", lines.first("max-message-size") or str(DEFAULT_MESSAGE_BYTES)
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536 or not re.fullmatch("[0-9]{1,20}", size):
        raise BadOffer("bad_sdp", "the data channel's a=sctp-port or a=max-message-size is no number")
    return int(port), int(size)


@dataclass(frozen=True, slots=True)
class Local:
    """What the answer tells of this side."""

    session_id: int
    ufrag: str
    pwd: str
    fingerprint: str
    """SHA-256."""
    setup: Literal["active", "passive"]
    candidates: tuple[str, ...]
    ssrc: int
    cname: str
    sctp_port: int
    max_message_bytes: int


def write_answer(offer: Offer, local: Local) -> str:
    """The answer, with CR LF: the audio and the data channel accepted, all other sections refused."""
    accepted = {offer.audio, offer.channel} - {None}
    mids = [section.mid for n, section in enumerate(offer.sections) if n in accepted and section.mid]
    lines = ["v=0", f"o=- {local.session_id} 1 IN IP4 127.0.0.1", "s=-", "t=0 0"]
    if mids:
        lines.append(f"a=group:BUNDLE {' '.join(mids)}")
    lines.append("a=msid-semantic:WMS *")
    for number, section in enumerate(offer.sections):
        if number == offer.audio:
            lines += _audio_lines(offer, section, local)
        elif number == offer.channel:
            lines += _channel_lines(section, local)
        else:
            lines += [f"m={section.kind} 0 {section.profile} {section.formats}", "c=IN IP4 0.0.0.0", "a=inactive"]
            lines += _transport_lines(section, local, candidates=False)
            if section.kind in ("audio", "video"):
                lines.append("a=rtcp-mux")
    return "\r\n".join(lines) + "\r\n"


def _audio_lines(offer: Offer, section: Section, local: Local) -> list[str]:
    direction = _ANSWERED[offer.direction]
    lines = [f"m=audio 9 {section.profile} {offer.opus}", "c=IN IP4 0.0.0.0", "a=rtcp:9 IN IP4 0.0.0.0"]
    lines += _transport_lines(section, local, candidates=True)
    lines += [f"a={direction}", "a=rtcp-mux", f"a=rtpmap:{offer.opus} opus/48000/2"]
    # Mono both ways: what is decoded here is, and a browser need not code a second channel.
    lines.append(f"a=fmtp:{offer.opus} minptime=10;useinbandfec=1;stereo=0;sprop-stereo=0")
    lines += ["a=ptime:20", "a=maxptime:60"]
    if direction != "recvonly":
        lines += [f"a=msid:offhook agent-{local.cname}", f"a=ssrc:{local.ssrc} cname:{local.cname}"]
        lines.append(f"a=ssrc:{local.ssrc} msid:offhook agent-{local.cname}")
    return lines


def _channel_lines(section: Section, local: Local) -> list[str]:
    lines = [f"m=application 9 {section.profile} webrtc-datachannel", "c=IN IP4 0.0.0.0"]
    lines += _transport_lines(section, local, candidates=True)
    return [*lines, f"a=sctp-port:{local.sctp_port}", f"a=max-message-size:{local.max_message_bytes}"]


def _transport_lines(section: Section, local: Local, *, candidates: bool) -> list[str]:
    lines = [f"a=mid:{section.mid}"] if section.mid else []
    # Refused sections have them too: aiortc's own clients insist.
    lines += [f"a=ice-ufrag:{local.ufrag}", f"a=ice-pwd:{local.pwd}"]
    lines += [f"a=fingerprint:sha-256 {local.fingerprint}", f"a=setup:{local.setup}"]
    if candidates:
        lines += [f"a=candidate:{candidate}" for candidate in local.candidates]
        lines.append("a=end-of-candidates")
    return lines
