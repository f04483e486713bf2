"""A call in virtual time with an agent whose line has noise: what it says, and when, is the same without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from loadtest.call import SLOT_MS, CallOver, CallPlan, CallTape, EndCause, Key, Transport
from loadtest.ear import Ear
from loadtest.frame_tables import Encoding, Voice, each_frame, frame_tables
from loadtest.holding import hold_call
from loadtest.phone_wire import PhoneWire
from loadtest.playout import Playout
from loadtest.rtp_playout import RtpPlayout
from loadtest.script import Line, Patience, Step
from loadtest.stream_playout import StreamPlayout
from loadtest.ticker import FRAME_S, Member, Ticker
from loadtest.voice import say_line

Pcm16 = npt.NDArray[np.int16]
RATE_HZ = 8_000
_SLOT = RATE_HZ * SLOT_MS // 1000
_ENCODING = Encoding("pcm16", RATE_HZ, each_frame(lambda frame: frame.tobytes()))
_AHEAD_SLOTS = 1

ANSWER = "What are your opening hours?"
"""What the agent says: a recording of a voice, with its soft beginning and end."""
PATIENCE = Patience(greeting_ms=2_000, answer_ms=4_000, pause_ms=800, agent_turn_ms=8_000)


class _Plain:
    def decode(self, payload: bytes) -> Pcm16:
        return np.frombuffer(payload, dtype=np.int16)

    def recover(self, samples: int, following: bytes | None) -> Pcm16:
        raise AssertionError("nothing is lost here")


class Agent:
    """Greets, answers 300 ms after the caller, falls silent 200 ms into an interruption; ``stubborn``: it does not.
    ``noise`` is under all that it sends."""

    def __init__(self, noise: Callable[[int], Pcm16], *, greets: bool = True, stubborn: bool = False) -> None:
        self._noise = noise
        self._stubborn = stubborn
        self._heard = self._unheard = self.sent = 0
        self._saying = self._reply(25) if greets else []

    def hear(self, voiced: bool) -> None:
        if voiced:
            self._heard, self._unheard = self._heard + 1, 0
            if self._heard == 10 and not self._stubborn:
                self._saying.clear()
        elif self._heard:
            self._unheard += 1
            if self._unheard == 15:
                self._heard = 0
                self._saying = self._saying + self._reply(0)

    @property
    def speaks(self) -> bool:
        return bool(self._saying)

    def frame(self) -> Pcm16:
        said = self._saying.pop(0) if self._saying else np.zeros(_SLOT, dtype=np.int16)
        self.sent += 1
        mixed: Pcm16 = np.clip(said.astype(np.int32) + self._noise(self.sent), -32_768, 32_767).astype(np.int16)
        return mixed

    def _reply(self, silent_slots: int) -> list[Pcm16]:
        pcm = say_line(ANSWER, RATE_HZ)
        pcm = np.pad(pcm, (silent_slots * _SLOT, -len(pcm) % _SLOT))
        return list(pcm.reshape(-1, _SLOT))


class _Line(PhoneWire):
    """The wire: frames come from the agent in time, 20 ms each."""

    rate_hz = RATE_HZ
    setup_ms = 50.0
    patience = PATIENCE
    voice: Voice

    def __init__(self, agent: Agent, transport: Transport, steps: tuple[Step, ...]) -> None:
        super().__init__("call")
        self._agent = agent
        self._spoke = 0
        self.ear: Ear
        match transport:
            case Transport.SIP:
                self.ear = RtpPlayout(None, _Plain(), rate_hz=RATE_HZ, clock_hz=RATE_HZ)
            case Transport.TWILIO:
                self.ear = StreamPlayout(rate_hz=RATE_HZ)
            case _:
                self.ear = Playout(rate_hz=RATE_HZ)

    def encode(self, pcm: Pcm16) -> bytes:
        return pcm.tobytes()

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        self._agent.hear(any(frame))

    def deliver(self, now_s: float) -> None:
        """What the agent sends in this slot. The Realtime protocol has items: of replies, with their noise before and
        after, and nothing between them."""
        speaks, pcm, number = self._agent.speaks, self._agent.frame(), self._agent.sent
        match self.ear:
            case RtpPlayout() as ear:
                ear.push(number & 0xFFFF, number * _SLOT, pcm.tobytes(), now_s)
            case StreamPlayout() as ear:
                ear.push(pcm, now_s)
            case Playout() as ear:
                self._spoke = 40 if speaks else self._spoke - 1
                if self._spoke > 0:
                    ear.push("item", pcm, now_s)
                elif self._spoke == 0:
                    ear.finish("item", now_s)

    def setup(self) -> None:
        return None

    def buffer(self) -> None:
        return None

    async def vanish(self, linger_s: float) -> None:
        raise AssertionError("nobody vanishes here")

    async def hang_up(self) -> str | None:
        self.end(CallOver(EndCause.HANGUP))
        return None


class _Slots:
    """In place of the ticker."""

    def __init__(self) -> None:
        self.member: Member | None = None

    def join(self, member: Member) -> int:
        self.member = member
        return 0

    def leave(self, member: Member) -> None:
        self.member = None


async def call(agent: Agent, transport: Transport, steps: tuple[Step, ...]) -> CallTape:
    """The tape of a call of these steps with the agent, which takes no time."""
    line, slots = _Line(agent, transport, steps), _Slots()
    line.voice = await frame_tables.voice(_ENCODING, steps)
    plan = CallPlan("ws://nowhere", steps, rate_hz=RATE_HZ, max_seconds=60.0)
    holding = asyncio.create_task(hold_call(plan, cast(Any, line), cast(Ticker, slots)))
    await asyncio.sleep(0)
    slot = 0
    while (member := slots.member) is not None:
        now_s = 1_000.0 + slot * FRAME_S
        member.tick(now_s, now_s)
        line.deliver(now_s + FRAME_S / 2)
        slot += 1
        assert slot < 5_000
        await asyncio.sleep(0)
    return await holding


def caller_line(length_ms: int = 1_000) -> Line:
    """A voice that is there from its first sample to its last."""
    samples = RATE_HZ * length_ms // 1000
    pcm = (6_000 * np.sin(2 * np.pi * 300 * (np.arange(samples) + 0.5) / RATE_HZ)).astype(np.int16)
    return Line("Hello?", pcm, float(length_ms))
