"""The codecs of phone calls by their names in a description."""

from __future__ import annotations

import functools
from typing import Protocol

from gateway.transports.rtp.decoding import Decoding
from gateway.transports.rtp.g711 import G711
from gateway.transports.rtp.g722 import G722
from gateway.transports.rtp.opus import Opus
from gateway.transports.sip.paced_sender import Encoding
from streaming.audio.opus import OpusUnavailable, find_library

ENCODE_HZ = {"pcmu": 8000, "pcma": 8000, "g722": G722.encode_hz, "opus": Opus.encode_hz}
"""The rate of the audio that each takes."""


class Codec(Decoding, Encoding, Protocol):
    """One call's coding both ways."""

    @property
    def name(self) -> str: ...


@functools.cache
def usable_codecs(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of them that this machine has: Opus needs a libopus."""
    if "opus" in names:
        try:
            find_library()
        except OpusUnavailable:
            return tuple(name for name in names if name != "opus")
    return names


def open_codec(name: str) -> Codec:
    """One of :data:`ENCODE_HZ`, of :func:`usable_codecs`."""
    if name == "opus":
        return Opus()
    return G722() if name == "g722" else G711(name)
