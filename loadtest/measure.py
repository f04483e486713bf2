"""Times read from the recording of a call: pure functions over sample arrays.

Both sides are mono int16 at one rate and share one time axis: sample n of either was at the caller's ear and mouth at
the same moment. Voice is told from silence by energy in 5 ms frames, so times are good to about 5 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

VOICED_DBFS = -50.0
"""Below this, sound is silence to an ear on a phone line."""

BELOW_LOUDEST_DB = 40.0
"""In a recording with a noise floor, voiced is what comes within this of the loudest frame."""

SILENCE_MS = 200
"""A shorter pause is inside speech, a longer one is silence."""

_FRAME_MS = 5


@dataclass(frozen=True, slots=True)
class Span:
    """Samples [start, end) in which a side speaks."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnMark:
    """Where the caller's line lies in the recording (samples), and whether it was meant to interrupt. ``keys``: it was
    pressed, not spoken, so the recording is silent there; ``end`` is when the last key had gone down."""

    start: int
    end: int
    barge_in: bool = False
    keys: bool = False


@dataclass(frozen=True, slots=True)
class TurnTiming:
    """``voice_to_voice_ms``: last voiced sample of the caller to the first of the agent's next speech.
    ``stop_ms``: onset of an interruption to the last voiced sample of the agent before its first 200 ms of silence.
    None where there was nothing to measure. ``agent`` holds the samples of this turn's agent speech."""

    voice_to_voice_ms: float | None
    stop_ms: float | None
    agent: Span


def voiced_spans(pcm: Pcm16, rate_hz: int, join_ms: float = SILENCE_MS) -> list[Span]:
    """Spans of speech in order; pauses shorter than ``join_ms`` are part of a span."""
    frame = rate_hz * _FRAME_MS // 1000
    count = len(pcm) // frame
    if count == 0:
        return []
    power = np.mean(np.square(pcm[: count * frame].reshape(count, frame), dtype=np.float64), axis=1) / 32768.0**2
    floor = max(10.0 ** (VOICED_DBFS / 10.0), float(power.max()) * 10.0 ** (-BELOW_LOUDEST_DB / 10.0))
    voiced = np.flatnonzero(power >= floor)
    if len(voiced) == 0:
        return []
    breaks = np.flatnonzero(np.diff(voiced) > join_ms / _FRAME_MS)
    starts = voiced[np.concatenate(([0], breaks + 1))]
    ends = voiced[np.concatenate((breaks, [len(voiced) - 1]))] + 1
    return [Span(int(start) * frame, int(end) * frame) for start, end in zip(starts, ends, strict=True)]


def caller_speech(caller: Pcm16, rate_hz: int, mark: TurnMark) -> Span | None:
    """First to last voiced sample of a line, or from the first key to the last; None if the line is silence."""
    if mark.keys:
        return Span(mark.start, mark.end)
    spans = voiced_spans(caller[mark.start : mark.end], rate_hz)
    return Span(mark.start + spans[0].start, mark.start + spans[-1].end) if spans else None


def stop_ms(onset: int, caller_end: int, agent_spans: Sequence[Span], rate_hz: int) -> float | None:
    """None if the agent was not speaking when it was interrupted."""
    for span in agent_spans:
        if span.end > onset and span.start < caller_end:
            return (span.end - onset) * 1000.0 / rate_hz
    return None


def voice_to_voice_ms(caller_end: int, until: int, agent_spans: Sequence[Span], rate_hz: int) -> float | None:
    """None if the agent did not begin to speak in [caller_end, until)."""
    for span in agent_spans:
        if caller_end <= span.start < until:
            return (span.start - caller_end) * 1000.0 / rate_hz
    return None


def measure_turns(caller: Pcm16, agent: Pcm16, rate_hz: int, marks: Sequence[TurnMark]) -> list[TurnTiming]:
    """One timing a mark. A turn lasts until the next begins; what an interrupted agent still says belongs to the turn
    it was interrupted in."""
    agent_spans = voiced_spans(agent, rate_hz)
    timings: list[TurnTiming] = []
    for index, mark in enumerate(marks):
        until = marks[index + 1].start if index + 1 < len(marks) else len(agent)
        speech = caller_speech(caller, rate_hz, mark)
        begin, stopped_ms, answered_ms = mark.start, None, None
        if speech is not None:
            answered_ms = voice_to_voice_ms(speech.end, until, agent_spans, rate_hz)
            if mark.barge_in:
                stopped_ms = stop_ms(speech.start, speech.end, agent_spans, rate_hz)
        if speech is not None and stopped_ms is not None:
            begin = min(until, speech.start + round(stopped_ms * rate_hz / 1000))
            if timings:
                last = timings[-1]
                timings[-1] = TurnTiming(last.voice_to_voice_ms, last.stop_ms, Span(last.agent.start, begin))
        timings.append(TurnTiming(answered_ms, stopped_ms, Span(begin, until)))
    return timings
