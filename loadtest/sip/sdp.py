"""The caller's session descriptions (RFC 3264, 8866): it offers G.711 and telephone-event, takes one codec. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

CODECS = {"pcmu": 0, "pcma": 8}
"""By name: the static payload types (RFC 3551)."""

EVENT_TYPE = 101
"""Our telephone-events' payload type."""


class NoMedia(ValueError):  # noqa: N818 (the call can't be, or goes on as it was)
    """A description that this caller can't talk by; the message says why."""


@dataclass(frozen=True, slots=True)
class RemoteMedia:
    """Where the other end wants its audio, and how. ``codec`` is a key of :data:`CODECS`, ``payload_type`` what it is
    called on the wire; ``event_type`` is None where telephone-events are not taken. ``sends`` and ``receives`` are the
    other end's intentions."""

    host: str
    port: int
    codec: str
    payload_type: int
    event_type: int | None
    sends: bool
    receives: bool


def describe(
    host: str,
    port: int,
    codecs: Sequence[str],
    *,
    session: int,
    version: int,
    direction: str = "sendrecv",
    event_type: int | None = EVENT_TYPE,
) -> str:
    """An offer or an answer."""
    family = "IP6" if ":" in host else "IP4"
    events = []
    if event_type is not None:
        events = [f"a=rtpmap:{event_type} telephone-event/8000", f"a=fmtp:{event_type} 0-15"]
    types = [*(CODECS[codec] for codec in codecs), *([] if event_type is None else [event_type])]
    lines = [
        "v=0",
        f"o=- {session} {version} IN {family} {host}",
        "s=-",
        f"c=IN {family} {host}",
        "t=0 0",
        f"m=audio {port} RTP/AVP {' '.join(map(str, types))}",
        *(f"a=rtpmap:{CODECS[codec]} {codec.upper()}/8000" for codec in codecs),
        *events,
        "a=ptime:20",
        f"a={direction}",
    ]
    return "\r\n".join(lines) + "\r\n"


def read_media(sdp: str, codecs: Sequence[str]) -> RemoteMedia:
    """The first audio of a description, with the first of its codecs that is among ``codecs``. Raises
    :class:`NoMedia`."""
    session, *media = re.split(r"(?m)^(?=m=)", sdp.replace("\r\n", "\n"))
    audio = next((part for part in media if part.startswith("m=audio ")), None)
    head = re.match(r"m=audio (\d{1,5})(?:/\d+)? (\S+)((?: \d{1,3})+)\s*$", audio.split("\n", 1)[0]) if audio else None
    if audio is None or head is None or int(head[1]) == 0:
        raise NoMedia("the other end takes no audio")
    if head[2] != "RTP/AVP":
        raise NoMedia(f"the other end wants {head[2]}, not plain RTP")
    connection = re.search(r"(?m)^c=IN IP[46] (\S+)", audio) or re.search(r"(?m)^c=IN IP[46] (\S+)", session)
    if connection is None:
        raise NoMedia("the other end does not say where it is")
    names = {int(number): name.lower() for number, name in re.findall(r"(?m)^a=rtpmap:(\d+) ([\w.-]+)/8000", audio)}
    types = [int(number) for number in head[3].split()]
    static = {number: codec for codec, number in CODECS.items()}
    named = [(number, names.get(number, static.get(number, ""))) for number in types]
    chosen = next(((number, codec) for number, codec in named if codec in codecs), None)
    if chosen is None:
        raise NoMedia("the other end takes none of our codecs")
    event_type = next((number for number, name in named if name == "telephone-event"), None)
    direction = re.search(r"(?m)^a=(sendrecv|sendonly|recvonly|inactive)\s*$", audio) or re.search(
        r"(?m)^a=(sendrecv|sendonly|recvonly|inactive)\s*$", session
    )
    way = direction[1] if direction else "sendrecv"
    try:
        silenced = ipaddress.ip_address(connection[1]).is_unspecified  # hold as RFC 2543 had it
    except ValueError as error:
        raise NoMedia(f"the other end says where it is by a name, {connection[1]}") from error
    return RemoteMedia(
        host=connection[1],
        port=int(head[1]),
        codec=chosen[1],
        payload_type=chosen[0],
        event_type=event_type,
        sends=way in ("sendrecv", "sendonly") and not silenced,
        receives=way in ("sendrecv", "recvonly") and not silenced,
    )


def answering_direction(offer: RemoteMedia, *, holding: bool = False) -> str:
    """What an answer says to an offer's direction (RFC 3264 section 6.1) by a caller who would do both, or who has the
    other end on hold."""
    match offer.sends and not holding, offer.receives:
        case True, True:
            return "sendrecv"
        case True, False:
            return "recvonly"
        case False, True:
            return "sendonly"
        case _:
            return "inactive"
