"""Speech made before a call comes, in virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.tts.scripted import NEVER, ScriptedTts
from gateway import phrases as module
from gateway.phrases import LINE_RATES_HZ, SYNTHESIS_BOUND_S, WARM_UP_CALL, Phrase, Phrases
from streaming.audio.resample import Resampler
from streaming.jobs import Priority, Synthesis, SynthesisChunk, Synthesize
from tests.virtual_time import virtual

HELLO = Phrase("Hello there. How are you?", "tone", 1.0, "en")


RATE_HZ = 24_000
"""Of the stand-in's speech."""


def request(text: str, *, voice: str = "tone", epoch: int = 4, speed: float = 1.0) -> Synthesize:
    return Synthesize("call", epoch, 2, text, voice, Priority.FIRST_AUDIO, 0.0, speed)


@virtual
async def test_segments_come_tagged_for_who_asks() -> None:
    tts, phrases = ScriptedTts(), Phrases()
    await phrases.prepare([HELLO, HELLO], tts)
    assert [made.text for made in tts.requests] == ["Hello there.", "How are you?"]
    chunks = phrases.get(request("Hello there."), RATE_HZ)
    assert chunks is not None
    assert {(chunk.epoch, chunk.segment) for chunk in chunks} == {(4, 2)}
    assert sum(len(chunk.pcm) for chunk in chunks) == 2 * 250 * 24 * 2
    assert [chunk.last for chunk in chunks] == [False, False, True]
    assert chunks[-1].words[-1].text_end == len("Hello there.")
    await phrases.prepare([HELLO], tts)
    assert len(tts.requests) == 2


@virtual
async def test_another_voice_speed_or_text_was_not_prepared() -> None:
    phrases = Phrases()
    await phrases.prepare([HELLO], ScriptedTts())
    assert phrases.get(request("Hello there.", voice="other"), RATE_HZ) is None
    assert phrases.get(request("Hello there.", speed=1.5), RATE_HZ) is None
    assert phrases.get(request("Hello."), RATE_HZ) is None


@virtual
async def test_what_says_nothing_is_not_made() -> None:
    tts, phrases = ScriptedTts(), Phrases()
    await phrases.prepare([Phrase("", "tone", 1.0, "en"), Phrase("*** — ...", "tone", 1.0, "en")], tts)
    assert tts.requests == []


@virtual
async def test_one_that_fails_is_left_out_and_the_others_are_made() -> None:
    tts, phrases = ScriptedTts(), Phrases()
    await phrases.prepare([Phrase("One.", "nobody", 1.0, "en"), HELLO], tts)
    assert phrases.get(request("One.", voice="nobody"), RATE_HZ) is None
    assert phrases.get(request("Hello there."), RATE_HZ) is not None


@virtual
async def test_one_that_never_comes_is_cancelled_after_a_bound() -> None:
    tts, phrases = ScriptedTts(fail_segments={0: NEVER}), Phrases()
    begun = asyncio.get_running_loop().time()
    await phrases.prepare([Phrase("One.", "tone", 1.0, "en")], tts)
    assert asyncio.get_running_loop().time() == pytest.approx(begun + SYNTHESIS_BOUND_S)
    assert tts.cancelled == [(WARM_UP_CALL, 0)]
    assert tts.open_segments == 0


@virtual
async def test_a_start_that_is_stopped_leaves_no_job() -> None:
    tts, phrases = ScriptedTts(fail_segments={0: NEVER}), Phrases()
    preparing = asyncio.create_task(phrases.prepare([HELLO], tts))
    await asyncio.sleep(1)
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)
    assert tts.open_segments == 0


class OddTts(ScriptedTts):
    """Breaks the contract as told."""

    def __init__(self, answer: Callable[[Synthesize, Callable[[Synthesis], None]], None]) -> None:
        super().__init__()
        self._answer = answer

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        self.requests.append(request)
        self._answer(request, deliver)


@virtual
async def test_a_voice_that_raises_does_not_stop_the_start() -> None:
    def raises(request: Synthesize, deliver: Any) -> None:
        raise ZeroDivisionError("a voice that breaks down")

    tts, phrases = OddTts(raises), Phrases()
    await phrases.prepare([HELLO], tts)
    assert len(tts.requests) == 2
    assert phrases.get(request("Hello there."), RATE_HZ) is None


@virtual
async def test_silence_is_not_kept_as_speech() -> None:
    def silent(request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        deliver(SynthesisChunk(request.epoch, request.segment, b"", 24_000, last=True))

    phrases = Phrases()
    await phrases.prepare([HELLO], OddTts(silent))
    assert phrases.get(request("Hello there."), RATE_HZ) is None


@virtual
async def test_chunks_after_the_last_are_not_added() -> None:
    def twice(request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        for _ in range(2):
            deliver(SynthesisChunk(request.epoch, request.segment, b"\1\0", 24_000, last=True))

    phrases = Phrases()
    await phrases.prepare([HELLO], OddTts(twice))
    chunks = phrases.get(request("Hello there."), RATE_HZ)
    assert chunks is not None
    assert len(chunks) == 1


@virtual
async def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEGMENTS", 3)
    tts, phrases = ScriptedTts(), Phrases()
    await phrases.prepare([Phrase(f"Word {word}.", "tone", 1.0, "en") for word in "abcdef"], tts)
    assert len(tts.requests) == 3


def spoken(chunks: tuple[SynthesisChunk, ...] | None) -> list[tuple[bytes, int, bool]]:
    assert chunks is not None
    return [(chunk.pcm, chunk.rate_hz, chunk.last) for chunk in chunks]


@virtual
async def test_at_a_lines_rate_it_is_the_same_as_resampled_where_it_is_played() -> None:
    phrases = Phrases()
    await phrases.prepare([HELLO], ScriptedTts())
    made = phrases.get(request("Hello there."), RATE_HZ)
    at_8k = phrases.get(request("Hello there."), 8_000)
    assert made is not None
    assert at_8k is not None
    resampler = Resampler(RATE_HZ, 8_000)
    expected = np.concatenate([resampler.process(np.frombuffer(one.pcm, "<i2")) for one in made] + [resampler.flush()])
    assert b"".join(one.pcm for one in at_8k) == expected.tobytes()
    assert [one.words for one in at_8k] == [one.words for one in made]
    assert {one.rate_hz for one in at_8k} == {8_000}
    again = phrases.get(request("Hello there.", epoch=9), 8_000)
    assert again is not None
    assert again[0].pcm is at_8k[0].pcm, "it was made once"


async def test_what_phones_ask_for_is_resampled_before_any_calls_and_off_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_in: list[tuple[int, str]] = []

    def noted(chunks: tuple[SynthesisChunk, ...], rate_hz: int) -> tuple[SynthesisChunk, ...]:
        made_in.append((rate_hz, threading.current_thread().name))
        return resampled(chunks, rate_hz)

    resampled = module._resampled
    monkeypatch.setattr(module, "_resampled", noted)
    phrases = Phrases()
    await phrases.prepare([HELLO], ScriptedTts())
    assert [rate_hz for rate_hz, _ in made_in] == [8_000, 16_000] * 2, "it is made at 24 kHz"
    assert threading.current_thread().name not in {thread for _, thread in made_in}
    for rate_hz in LINE_RATES_HZ:
        assert {rate for _, rate, _ in spoken(phrases.get(request("Hello there."), rate_hz))} == {rate_hz}
    assert len(made_in) == 4


@virtual
async def test_what_is_kept_at_other_rates_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESAMPLED_BYTES", 3 * 8_000)
    phrases = Phrases()
    await phrases.prepare([HELLO], ScriptedTts())
    first = spoken(phrases.get(request("Hello there."), 8_000))
    for rate_hz in (8_000, 11_025, 12_000, 16_000, 48_000, 8_000):
        assert {rate for _, rate, _ in spoken(phrases.get(request("Hello there."), rate_hz))} == {rate_hz}
        held = sum(len(one.pcm) for chunks in phrases._resampled.values() for one in chunks)
        assert held == phrases._resampled_bytes <= 3 * 8_000
    assert spoken(phrases.get(request("Hello there."), 8_000)) == first


@virtual
async def test_a_rate_that_cannot_be_made_is_left_to_whoever_plays_it() -> None:
    phrases = Phrases()
    await phrases.prepare([HELLO], ScriptedTts())
    assert {rate for _, rate, _ in spoken(phrases.get(request("Hello there."), 7))} == {RATE_HZ}
