"""The codecs of phone calls by their names in a description."""

from __future__ import annotations

from typing import Protocol

from gateway.transports.rtp.decoding import Decoding
from gateway.transports.rtp.g711 import G711
from gateway.transports.sip.paced_sender import Encoding

ENCODE_HZ = {"pcmu": 8000, "pcma": 8000}
"""The rate of the audio that each takes."""


class Codec(Decoding, Encoding, Protocol):
    """One call's coding both ways."""

    @property
    def name(self) -> str: ...


def open_codec(name: str) -> Codec:
    """``pcmu``, ``pcma``. Raises :class:`KeyError`."""
    return G711(name)
