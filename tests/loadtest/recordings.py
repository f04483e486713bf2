"""Recordings whose truth is known sample by sample, and calls and runs made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from loadtest.call import CallTape, EndCause, Transport
from loadtest.ear import HeardMedia
from loadtest.measure import TurnMark
from loadtest.measured_call import OfferedCall
from loadtest.outcome import CallOutcome, Fate
from loadtest.script import TurnKind
from loadtest.wire import CallLog
from streaming.audio.code_words import code_word, speak

Pcm16 = npt.NDArray[np.int16]
RATE_HZ = 8_000


@dataclass(frozen=True)
class Expect:
    answer_within_ms: float | None = 1_500.0
    stop_within_ms: float | None = 500.0
    setup_within_ms: float | None = 1_000.0
    max_late_share: float | None = 0.001
    codes: bool = True
    refused_ok: bool = False
    agent_ends: bool = False


def samples(ms: float) -> int:
    return round(ms * RATE_HZ / 1000)


def tone(length_ms: float, hz: float = 200.0) -> Pcm16:
    return (8_000 * np.sin(2 * np.pi * hz * np.arange(samples(length_ms)) / RATE_HZ)).astype(np.int16)


class Tracks:
    """Both sides of a call that is put together: what is said is laid where it is said."""

    def __init__(self, length_ms: float) -> None:
        self.caller = np.zeros(samples(length_ms), dtype=np.int16)
        self.agent = np.zeros(samples(length_ms), dtype=np.int16)
        self.marks: list[TurnMark] = []

    def says(
        self, at_ms: float, pcm: Pcm16, kind: TurnKind = "say", code: str | None = None, text: str | None = None
    ) -> None:
        """The caller."""
        start = samples(at_ms)
        self.caller[start : start + len(pcm)] = pcm
        self.marks.append(TurnMark(start, start + len(pcm), kind, code=code, text=text))

    def answers(self, at_ms: float, *parts: Pcm16) -> None:
        """The agent, the parts one after another."""
        start = samples(at_ms)
        pcm = np.concatenate(parts)[: len(self.agent) - start]
        self.agent[start : start + len(pcm)] = pcm

    def tape(self, cause: EndCause = EndCause.HANGUP, heard: HeardMedia | None = None) -> CallTape:
        return CallTape(
            end_cause=cause,
            problem=None,
            setup_ms=50.0,
            caller=self.caller,
            agent=self.agent,
            marks=tuple(self.marks),
            late_slots=(),
            caller_lag_ms=0.4,
            log=CallLog("call-1"),
            rate_hz=RATE_HZ,
            heard=heard or HeardMedia(frames_due=500),
        )


def offered(number: int = 0, transport: Transport = Transport.SIP) -> OfferedCall:
    return OfferedCall(number=number, transport=transport, offered_s=10.0, ended_s=30.0)


def sung(number: int) -> Pcm16:
    return speak(code_word(number), RATE_HZ)


def conversation(number: int, answers_after_ms: Sequence[float] = (700.0, 700.0, 700.0)) -> Tracks:
    """A call of some turns of which each holds the caller's code word, as does each answer."""
    tracks, at_ms = Tracks(5_000.0 * len(answers_after_ms) + 500.0), 500.0
    for after_ms in answers_after_ms:
        tracks.says(at_ms, sung(number), code=code_word(number))
        tracks.answers(at_ms + 800 + after_ms, tone(300), sung(number), tone(400))
        at_ms += 5_000.0
    return tracks


def outcome(number: int = 0, **changes: object) -> CallOutcome:
    """A good call, with changes."""
    good = CallOutcome(
        number=number,
        transport="websocket",
        fate=Fate.COMPLETED,
        offered_s=float(number),
        answered_s=number + 0.1,
        ended_s=number + 10.0,
        setup_ms=100.0,
        end_cause="hangup",
        frames_due=400,
        replies=2,
        mos=4.4,
    )
    return msgspec.structs.replace(good, **changes)
