"""``python -m scripts.bench_phones.echo serve ...``: the gateway, but callers hear themselves.

What comes is heard as in a call, and goes back on the line: what is left is the wire, and the detector.
"""

from __future__ import annotations

import asyncio

import gateway.cli
import gateway.transports.carriers.stream
import gateway.transports.sip.answering
from engines.api import Pcm16
from gateway.state import Gateway
from gateway.switchboard import Admission
from gateway.transports.phone.ear import Ear
from gateway.transports.phone.line import Incoming, PhoneLine
from streaming.jobs import INPUT_RATE_HZ

MOST_BEHIND_SAMPLES = INPUT_RATE_HZ
"""A call whose detector is a second behind is ended: one that is not judged shall not count as held."""


class EchoCall:
    """In the place of :class:`gateway.transports.phone.phone_call.PhoneCall`."""

    def __init__(self, gateway: Gateway, admission: Admission, incoming: Incoming, line: PhoneLine) -> None:
        self._loop = asyncio.get_running_loop()
        self._admission = admission
        self._line = line
        self._ear = Ear()
        self._vad = gateway.engines.vad.open(lambda probability, end_samples: None)
        self._over: asyncio.Future[str] = self._loop.create_future()

    async def run(self) -> str:
        self._admission.connected()
        try:
            return await self._over
        finally:
            self._vad.close()
            await self._line.hang_up("over")

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        for block in self._ear.hear(pcm, rate_hz, at_ms, self._loop.time()):
            self._vad.feed(block)
        if self._vad.backlog_samples > MOST_BEHIND_SAMPLES:
            self.hung_up("agent_hangup")
        self._line.play(pcm)

    def hung_up(self, cause: str) -> None:
        if not self._over.done():
            self._over.set_result(cause)

    def dtmf(self, digit: str) -> None: ...

    def mark_played(self, name: str, *, cleared: bool = False) -> None: ...

    def held(self, on: bool) -> None: ...

    def writable(self) -> None: ...


def main() -> None:
    for module in (gateway.transports.carriers.stream, gateway.transports.sip.answering):
        assert hasattr(module, "PhoneCall")
        module.PhoneCall = EchoCall  # type: ignore[attr-defined]
    gateway.cli.main()


if __name__ == "__main__":
    main()
