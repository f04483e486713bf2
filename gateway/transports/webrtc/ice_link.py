"""Between aiortc's DTLS and aioice, without aiortc's own ICE transport."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from gateway.transports.webrtc.candidates import IceConnection


class IceLink:
    """What aiortc's DTLS asks of an ICE transport."""

    def __init__(self, ice: IceConnection) -> None:
        self.ice = ice
        self._recv = ice.recv
        self._send = ice.send

    @property
    def role(self) -> str:
        return "controlling" if self.ice.ice_controlling else "controlled"


def run_through(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that does not wait for anything: UDP is sent or dropped, never queued for."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise ConnectionError("sending media waited")
