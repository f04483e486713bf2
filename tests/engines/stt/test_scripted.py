from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engines.api import EngineError, Pcm16
from engines.stt.scripted import ScriptedStt, ScriptedUtterance
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
    TranscriptionFailed,
)
from tests.virtual_time import virtual


def loud(ms: int) -> Pcm16:
    return np.full(16 * ms, 3000, dtype=np.int16)


def final(revision: int = 1, utterance: int = 1) -> FinalizeTranscription:
    return FinalizeTranscription(utterance, revision, Priority.FINAL, 0.0)


class Heard:
    """Transcripts with the virtual time they came at."""

    def __init__(self) -> None:
        self.got: list[Transcript] = []
        self.at_s: list[float] = []

    def __call__(self, transcript: Transcript) -> None:
        self.got.append(transcript)
        self.at_s.append(asyncio.get_running_loop().time())


def opened(stt: ScriptedStt, heard: Heard, call: str = "a", utterance: int = 1) -> ScriptedUtterance:
    return stt.open(OpenTranscription(call, utterance, 0), heard)


@virtual
async def test_each_utterance_with_sound_takes_the_next_line_of_its_call() -> None:
    stt = ScriptedStt(("one", "two"))
    heard = Heard()
    for call, audio in (
        ("a", loud(20)),
        ("b", loud(20)),
        ("a", np.zeros(320, np.int16)),
        ("a", loud(20)),
        ("a", loud(20)),
    ):
        stream = opened(stt, heard, call)
        stream.feed(audio)
        stream.finalize(final())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stream.close()
    assert [t.text for t in heard.got if isinstance(t, FinalTranscript)] == ["one", "one", "", "two", "one"]
    assert stt.open_streams == 0


@virtual
async def test_lines_may_be_a_function_of_call_and_count() -> None:
    stt = ScriptedStt(lambda call, n: f"{call}{n}")
    heard = Heard()
    stream = opened(stt, heard, "x")
    stream.feed(loud(10))
    stream.finalize(final())
    await asyncio.sleep(1)
    assert heard.got == [FinalTranscript(1, 1, "x0")]


@virtual
async def test_the_final_comes_after_exactly_its_delay() -> None:
    stt = ScriptedStt(final_delay_s=0.25)
    heard = Heard()
    stream = opened(stt, heard)
    stream.feed(loud(10))
    asked_s = asyncio.get_running_loop().time()
    stream.finalize(final())
    await asyncio.sleep(1)
    assert heard.at_s == [asked_s + 0.25]


@virtual
async def test_partials_reveal_words_as_audio_goes_by() -> None:
    stt = ScriptedStt(("a b c d",), partial_every_ms=400)
    heard = Heard()
    stream = opened(stt, heard)
    for _ in range(10):
        stream.feed(loud(200))
        await asyncio.sleep(0.2)
    texts = [t.text for t in heard.got if isinstance(t, PartialTranscript)]
    assert texts == ["a", "a b", "a b c", "a b c d"]


@virtual
async def test_no_partials_where_none_are_wanted() -> None:
    stt = ScriptedStt(partial_every_ms=100)
    heard = Heard()
    stream = stt.open(OpenTranscription("a", 1, 0, partials=False), heard)
    stream.feed(loud(2000))
    await asyncio.sleep(1)
    assert heard.got == []


@virtual
async def test_nothing_after_close_unless_the_script_says_late() -> None:
    for fault, count in (("none", 0), ("late", 1)):
        stt = ScriptedStt(final_delay_s=0.1, fault=fault)  # type: ignore[arg-type]
        heard = Heard()
        stream = opened(stt, heard)
        stream.finalize(final())
        stream.close()
        stream.close()
        await asyncio.sleep(1)
        assert len(heard.got) == count, fault


@virtual
async def test_faults() -> None:
    stt = ScriptedStt(fault="twice")
    heard = Heard()
    stream = opened(stt, heard)
    stream.finalize(final(1))
    await asyncio.sleep(1)
    stt.fault = "mute"
    stream.finalize(final(2))
    await asyncio.sleep(1)
    stt.fault = "fail"
    stream.finalize(final(3))
    await asyncio.sleep(1)
    assert heard.got == [
        FinalTranscript(1, 1, ""),
        FinalTranscript(1, 1, ""),
        TranscriptionFailed(1, 3, "scripted", "the script says so"),
    ]
    assert stt.finals_asked == 3
    with pytest.raises(EngineError):
        await ScriptedStt(start_fails=True).start()
    await stt.start()
    await stt.close()
