"""The process of the callers: ``callers CORE sip|twilio echo|call``. Ready-made G.711 out, nothing decoded."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from scripts.bench_media.lateness import NOTHING
from scripts.bench_media.talk import Pcm16, joined_lines
from scripts.bench_media.wire import ROOT, Message, run_child
from scripts.bench_phones.arrivals import FRAME_MS
from scripts.bench_phones.sip_caller import Signalling, SipPhone
from scripts.bench_phones.twilio_caller import TwilioPhone
from streaming.audio.g711 import encode_mulaw

RATE_HZ = 8_000
FRAME = 160
SLOTS = 4
"""The callers of a frame's 20 ms are spread over so many moments."""
# The callers' own sends: later than this counts against the window, whose lateness they could not tell.
OWN_LATE_MS = 10.0
MOST_BEHIND_MS = 200.0

Phone = SipPhone | TwilioPhone


def sound(subject: str) -> Pcm16:
    """What the callers say: to an echo people's words; to an agent that shall talk on a quiet line (-70 dBFS), which
    nobody takes for speech."""
    if subject == "echo":
        return joined_lines(ROOT / "loadtest" / "lines", RATE_HZ)
    return np.random.default_rng(1).normal(0, 10, RATE_HZ * 10).astype(np.int16)


def frames(pcm: Pcm16) -> list[bytes]:
    coded = bytes(encode_mulaw(pcm))
    return [coded[at : at + FRAME] for at in range(0, len(coded) - FRAME + 1, FRAME)]


class Callers:
    """All the phones, and their one clock."""

    def __init__(self, wire: str, payloads: Sequence[bytes], *, lead: bool) -> None:
        self._wire = wire
        self._lead = lead
        self._payloads = TwilioPhone.encoded(payloads) if wire == "twilio" else payloads
        self._signalling: Signalling | None = None
        self._slots: list[list[Phone]] = [[] for _ in range(SLOTS)]
        self.sent = 0
        self.sent_late = 0

    @property
    def phones(self) -> list[Phone]:
        return [phone for slot in self._slots for phone in slot]

    async def call(self, port: int) -> None:
        number = len(self.phones)
        phone: Phone
        if self._wire == "twilio":
            phone = TwilioPhone(self._payloads, number, lead=self._lead)
            await phone.call(port)
        else:
            self._signalling = self._signalling or await Signalling.open(port)
            phone = SipPhone(self._payloads, number)
            await self._signalling.call(phone)
        self._slots[number % SLOTS].append(phone)

    async def talk(self) -> None:
        """Until cancelled. What could not be sent in time is sent late, and counted; nobody bursts for long."""
        step_s = FRAME_MS / 1000 / SLOTS
        due_s, slot = time.monotonic(), 0
        while True:
            due_s, slot = due_s + step_s, (slot + 1) % SLOTS
            await asyncio.sleep(due_s - time.monotonic())
            behind_ms = (time.monotonic() - due_s) * 1000
            late = behind_ms > OWN_LATE_MS
            if behind_ms > MOST_BEHIND_MS:
                due_s = time.monotonic()
            for phone in self._slots[slot]:
                phone.send_frame()
            self.sent += len(self._slots[slot])
            self.sent_late += late * len(self._slots[slot])


async def call(arguments: Sequence[str]) -> Callable[[Message], Awaitable[Message]]:
    wire, subject = arguments
    callers = Callers(wire, frames(sound(subject)), lead=wire == "twilio" and subject == "call")
    talking = asyncio.create_task(callers.talk())

    async def answer(message: Message) -> Message:
        assert not talking.done()
        if message["do"] == "call":
            try:
                for _ in range(message["count"]):
                    await callers.call(message["port"])
            except (TimeoutError, OSError, RuntimeError) as error:
                return {"error": f"call number {len(callers.phones) + 1} did not come about: {error!r}"}
            return {}
        if message["do"] == "open_window":
            gc.collect()
            callers.sent = callers.sent_late = 0
        came = sum((phone.playout.read() for phone in callers.phones), NOTHING)
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "frames": came.frames,
            "late": came.late,
            "worst_ms": came.worst_ms,
            "sent": callers.sent,
            "sent_late": callers.sent_late,
        }

    return answer


if __name__ == "__main__":
    run_child(call)
