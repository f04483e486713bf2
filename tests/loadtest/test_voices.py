from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from loadtest import voices
from loadtest.phone_chain import Pcm16, PhoneChain
from loadtest.voice import VoiceError, say_line, shipped_voices
from loadtest.voices import find_voices, speaker, speech_level_dbfs, spoken_line
from streaming.audio.code_words import code_word, find, phrase_of

RATE_HZ = 8_000


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def say(text: str, rate_hz: int, voice: str) -> Pcm16:
        return say_line(text, rate_hz, voice, which=lambda _program: None)

    monkeypatch.setattr(voices, "say_line", say)
    find_voices.cache_clear()
    yield
    find_voices.cache_clear()


def test_without_a_wish_the_shipped_voices_speak() -> None:
    assert find_voices(()).names == shipped_voices()


def test_a_voice_that_is_not_there_is_left_out_and_told_of() -> None:
    found = find_voices(("slt", "flite:kal16", "piper:/no/such.onnx"))
    assert found.names == ("slt",)
    assert [note.split(":")[0] for note in found.skipped] == ["voice flite", "voice piper"]
    assert "flite is not installed" in found.skipped[0]


def test_without_any_voice_there_is_no_caller() -> None:
    with pytest.raises(VoiceError, match="none of the scenario's voices"):
        find_voices(("flite:kal16",))


def test_a_line_is_made_once_for_all_who_say_it() -> None:
    assert spoken_line("Stop.", "slt", RATE_HZ, None) is spoken_line("Stop.", "slt", RATE_HZ, None)
    assert spoken_line("Stop.", "rms", RATE_HZ, None) is not spoken_line("Stop.", "slt", RATE_HZ, None)


def test_what_makes_no_sound_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could answer it, and the server would be blamed."""
    monkeypatch.setattr(voices, "say_line", lambda _text, rate_hz, _voice: np.zeros(rate_hz, dtype=np.int16))
    with pytest.raises(VoiceError, match="slt makes no sound"):
        spoken_line("\N{GRINNING FACE}", "slt", RATE_HZ, None)


def test_a_telephone_is_heard_in_it() -> None:
    plain = spoken_line("Stop.", "slt", RATE_HZ, None)
    phoned = spoken_line("Stop.", "slt", RATE_HZ, PhoneChain())
    assert phoned.duration_ms == plain.duration_ms
    assert not np.array_equal(phoned.pcm, plain.pcm)


def test_without_a_code_word_the_words_are_said() -> None:
    say = speaker("slt", RATE_HZ, None, None)
    for place in ("instead", "after", "never"):
        line = say("Stop.", place)
        assert (line.text, line.code) == ("Stop.", None)


def test_a_code_word_is_said_in_its_place() -> None:
    code = code_word(7)
    say = speaker("slt", RATE_HZ, None, code)
    instead, after, never = say("Stop.", "instead"), say("Stop.", "after"), say("Stop.", "never")
    assert (instead.text, instead.code) == (None, code)
    assert instead is say("Yes.", "instead")
    assert (after.text, after.code) == ("Stop.", code)
    assert never is spoken_line("Stop.", "slt", RATE_HZ, None)
    for line in (instead, after):
        assert line.duration_ms == len(line.pcm) * 1000 / RATE_HZ
        assert [found.word for found in find(line.pcm, RATE_HZ)] == [code]
    assert find(never.pcm, RATE_HZ) == ()


def test_a_caller_is_as_loud_as_the_middle_of_its_lines() -> None:
    level = speech_level_dbfs(("Stop.", "Yes.", "Okay."), "slt", RATE_HZ, None)
    assert -30 < level < -10
    assert speech_level_dbfs((), "slt", RATE_HZ, None) == -26


@pytest.mark.parametrize(("text", "phrase"), [("Tell me more.", "tell me more"), ("Thank you, goodbye.", "goodbye")])
def test_what_is_asked_of_scripted_engines_follows_in_a_word_of_its_own(text: str, phrase: str) -> None:
    code = code_word(7)
    say = speaker("slt", RATE_HZ, None, code)
    for place in ("instead", "after"):
        line = say(text, place)
        assert line.code == code
        assert phrase in (line.text or "").lower()
        words = [found.word or "" for found in find(line.pcm, RATE_HZ)]
        assert words[0] == code
        assert [phrase_of(word) for word in words[1:]] == [phrase]
    assert say(text, "instead") is say(text, "instead")
