"""Times read from the recording of a call: pure functions over sample arrays.

Both sides are mono int16 at one rate and share one time axis: sample n of either was at the caller's ear and mouth at
the same moment. Voice is told from silence by energy in 5 ms frames, so times are good to about 5 ms.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from loadtest.line_noise import voice_from_dbfs
from loadtest.script import TurnKind

Pcm16 = npt.NDArray[np.int16]

BELOW_LOUDEST_DB = 40.0
"""Voiced is what comes within this of the recording's loudest frame."""

SILENCE_MS = 200
"""A shorter pause is inside speech, a longer one is silence."""

HELD_MS = 1_500.0
"""At a backchannel an agent may hold its breath: it went on if it is heard again within this."""

_PAUSE_MS = 1_000.0
"""Between two sentences of a reply an agent is silent for less."""

_FRAME_MS = 5
_BLOCK_FRAMES = 8_192  # 41 s at a time: the squares of a long call would be eight times its own size


@dataclass(frozen=True, slots=True)
class Span:
    """Samples [start, end) in which a side speaks."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnMark:
    """Where the caller's line lies in the recording (samples), and what it was meant as. ``keys``: it was pressed, not
    spoken, so the recording is silent there; ``end`` is when the last key had gone down. ``code`` is the code word that
    is heard in the line; ``text`` its words or the keys."""

    start: int
    end: int
    kind: TurnKind = "say"
    keys: bool = False
    text: str | None = None
    code: str | None = None
    answer_expected: bool = True


@dataclass(frozen=True, slots=True)
class TurnTiming:
    """What came of a turn; None where there was nothing to measure. ``agent`` holds the samples of this turn's agent
    speech."""

    voice_to_voice_ms: float | None
    """Last voiced sample of the caller to the first of the agent's next speech."""
    stop_ms: float | None
    """Interruptions: the caller's onset to the last voiced sample of the agent before its first 200 ms of silence.
    Backchannels: the same, but only if the agent then gave up its reply."""
    agent: Span
    talked_on_ms: float | None = None
    """Interruptions with a ``stop_ms``: what the agent said after that silence which can't be an answer yet."""
    cut_ins: int = 0
    """How often the agent began to speak while the caller spoke its line."""
    cut_in_ms: float | None = None
    """How long it talked over the caller then, in all."""


def voiced_spans(
    pcm: Pcm16, rate_hz: int, join_ms: float = SILENCE_MS, *, noise_dbfs: float | None = None
) -> list[Span]:
    """Spans of speech in order; pauses shorter than ``join_ms`` are part of a span. ``noise_dbfs`` is the noise of the
    line (:mod:`loadtest.line_noise`)."""
    frame = rate_hz * _FRAME_MS // 1000
    power = _power(pcm, frame)
    if len(power) == 0:
        return []
    floor = max(10.0 ** (voice_from_dbfs(noise_dbfs) / 10.0), float(power.max()) * 10.0 ** (-BELOW_LOUDEST_DB / 10.0))
    voiced = np.flatnonzero(power >= floor)
    if len(voiced) == 0:
        return []
    breaks = np.flatnonzero(np.diff(voiced) > join_ms / _FRAME_MS)
    starts = voiced[np.concatenate(([0], breaks + 1))]
    ends = voiced[np.concatenate((breaks, [len(voiced) - 1]))] + 1
    return [Span(int(start) * frame, int(end) * frame) for start, end in zip(starts, ends, strict=True)]


def _power(pcm: Pcm16, frame: int) -> npt.NDArray[np.float32]:
    """Mean square of each whole frame, 1.0 at full scale."""
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame)
    power = np.empty(len(frames), dtype=np.float32)
    for start in range(0, len(frames), _BLOCK_FRAMES):
        block = frames[start : start + _BLOCK_FRAMES].astype(np.float32)
        power[start : start + len(block)] = np.einsum("fs,fs->f", block, block)
    return power / np.float32(frame * 32768.0**2)


def caller_speech(caller: Pcm16, rate_hz: int, mark: TurnMark) -> Span | None:
    """First to last voiced sample of a line, or from the first key to the last; None if the line is silence."""
    if mark.keys:
        return Span(mark.start, mark.end)
    spans = voiced_spans(caller[mark.start : mark.end], rate_hz)
    return Span(mark.start + spans[0].start, mark.start + spans[-1].end) if spans else None


def measure_turns(
    caller: Pcm16,
    agent: Pcm16,
    rate_hz: int,
    marks: Sequence[TurnMark],
    answered: Collection[int] = (),
    *,
    noise_dbfs: float | None = None,
) -> list[TurnTiming]:
    """One timing a mark. A turn lasts until the next begins, but a backchannel ends none. What an interrupted agent
    still says belongs to the turn it was interrupted in. ``answered`` are indices of backchannels after which a new
    reply is known to have begun: what is heard then is no sign that the agent went on. ``noise_dbfs`` is the noise of
    the agent's line."""
    spans = voiced_spans(agent, rate_hz, noise_dbfs=noise_dbfs)
    timings: list[TurnTiming] = []
    answering: int | None = None
    for index, mark in enumerate(marks):
        until = next((later.start for later in marks[index + 1 :] if later.kind != "backchannel"), len(agent))
        speech = caller_speech(caller, rate_hz, mark)
        if mark.kind == "backchannel":
            stopped_ms = (
                None
                if speech is None
                else _gave_up_ms(speech, mark.start if index in answered else until, spans, rate_hz)
            )
            timings.append(TurnTiming(None, stopped_ms, Span(mark.start, mark.start)))
            continue
        timing = TurnTiming(None, None, Span(mark.start, until))
        if speech is not None:
            timing = _timing(mark, speech, until, spans, rate_hz)
        if answering is not None and timing.stop_ms is not None:
            before = timings[answering]
            timings[answering] = replace(before, agent=Span(before.agent.start, timing.agent.start))
        answering = index
        timings.append(timing)
    return timings


def _timing(mark: TurnMark, speech: Span, until: int, spans: Sequence[Span], rate_hz: int) -> TurnTiming:
    ms = 1000.0 / rate_hz
    stopped = _cut_span(speech, spans) if mark.kind == "interrupt" else None
    # An interrupted agent may come back within the line: that is talking on.
    begun = [] if mark.kind == "interrupt" else [s for s in spans if speech.start < s.start < speech.end]
    answer_from = speech.end
    talked_on_ms: float | None = None
    if stopped is not None:
        # No agent takes a turn within 200 ms of the last word, buffers included; keys need no waiting.
        answer_from += 0 if mark.keys else SILENCE_MS * rate_hz // 1000
        talked_on_ms = sum(s.end - s.start for s in spans if stopped.end < s.start < min(answer_from, until)) * ms
    answer = next((s for s in spans if answer_from <= s.start < until), None)
    begin = mark.start if stopped is None else min(until, stopped.end)
    return TurnTiming(
        voice_to_voice_ms=None if answer is None else (answer.start - speech.end) * ms,
        stop_ms=None if stopped is None else (stopped.end - speech.start) * ms,
        agent=Span(begin, until),
        talked_on_ms=talked_on_ms,
        cut_ins=len(begun),
        cut_in_ms=sum(min(s.end, speech.end) - s.start for s in begun) * ms if begun else None,
    )


def _cut_span(speech: Span, spans: Sequence[Span]) -> Span | None:
    """What the agent said when it was interrupted; None if it was silent."""
    return next((span for span in spans if span.end > speech.start and span.start < speech.end), None)


def _gave_up_ms(speech: Span, resumes_before: int, spans: Sequence[Span], rate_hz: int) -> float | None:
    """Onset of a backchannel to the agent's last sound (0: it paused just then), if it broke off for it; None if it
    went on, or was not speaking."""
    ms = rate_hz / 1000.0
    index = next((i for i, span in reversed(list(enumerate(spans))) if span.start <= speech.start), None)
    if (
        index is None
        or spans[index].end < speech.start - _PAUSE_MS * ms
        or spans[index].end >= speech.end + HELD_MS * ms
    ):
        return None
    stopped = max(spans[index].end, speech.start)
    resumed = index + 1 < len(spans) and spans[index + 1].start < min(resumes_before, stopped + HELD_MS * ms)
    return None if resumed else (stopped - speech.start) / ms
