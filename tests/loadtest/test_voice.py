from __future__ import annotations

import shlex
import stat
import wave
from pathlib import Path

import numpy as np
import pytest

from loadtest import voice
from loadtest.measure import voiced_spans
from loadtest.voice import LINES, VoiceError, read_line, say_line, shipped_line, shipped_texts


def nothing(_program: str) -> str | None:
    return None


def write_wav(path: Path, samples: int, rate_hz: int = 8_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(np.full(samples, 5_000, dtype="<i2").tobytes())
    return path


def test_every_shipped_line_is_short_clean_speech() -> None:
    assert len(shipped_texts()) >= 20
    for text in shipped_texts():
        path = shipped_line(text)
        assert path is not None
        assert path.stat().st_size <= 100_000
        pcm = say_line(text, 24_000, which=nothing)
        spans = voiced_spans(pcm, 24_000)
        assert spans[0].start < 0.1 * 24_000
        assert len(pcm) - spans[-1].end < 0.15 * 24_000
        assert np.abs(pcm.astype(np.int32)).max() < 32_000


def test_every_file_is_in_the_index_and_they_are_small_together() -> None:
    named = {name for voices in voice._index().values() for name in voices.values()}
    files = {path.name for path in LINES.glob("*.wav")}
    assert named == files
    assert sum(path.stat().st_size for path in LINES.iterdir()) < 2_200_000


def test_lines_are_found_however_they_are_typed_and_in_another_voice() -> None:
    assert shipped_line("  what are YOUR opening hours ") == LINES / "opening_hours_slt.wav"
    assert shipped_line("What are your opening hours?", "rms") == LINES / "opening_hours_rms.wav"
    assert shipped_line("Do you have vegetarian food?", "rms") == LINES / "vegetarian_slt.wav"
    assert shipped_line("Something else") is None


def test_without_a_synthesiser_the_error_says_what_to_install_and_what_is_shipped() -> None:
    with pytest.raises(VoiceError, match=r"(?s)flite.*espeak-ng.*say.*What are your opening hours\?"):
        say_line("Something that is not shipped", 24_000, which=nothing)


def test_an_empty_or_endless_text_is_refused() -> None:
    for text in ("  ", "a" * 2_001):
        with pytest.raises(VoiceError, match="characters"):
            say_line(text, 24_000)


def fake_program(tmp_path: Path, name: str, script: str) -> str:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_a_text_goes_to_the_first_synthesiser_that_can_say_it(tmp_path: Path) -> None:
    spoken = write_wav(tmp_path / "spoken.wav", 800)
    programs = {
        "flite": fake_program(tmp_path, "flite", "exit 3"),
        "espeak-ng": fake_program(
            tmp_path,
            "espeak-ng",
            f'grep -q -- "-v is no option" "$4" && cp {shlex.quote(str(spoken))} "$6"',
        ),
    }
    pcm = say_line("-v is no option", 24_000, which=programs.get)
    assert len(pcm) == 2_400


def test_when_none_can_say_it_every_failure_is_told(tmp_path: Path) -> None:
    programs = {
        "flite": fake_program(tmp_path, "flite", "exit 3"),
        "say": fake_program(tmp_path, "say", "exit 0"),
    }
    with pytest.raises(VoiceError, match=r"flite: .*status 3.*; say: .*No such file"):
        say_line("Not shipped", 24_000, which=programs.get)


def test_a_voice_of_a_program_is_asked_of_it_though_the_line_is_shipped(tmp_path: Path) -> None:
    spoken = shlex.quote(str(write_wav(tmp_path / "spoken.wav", 800)))
    asked = shlex.quote(str(tmp_path / "asked"))
    programs = {
        "espeak-ng": fake_program(tmp_path, "espeak-ng", f'echo "$2" > {asked}; cp {spoken} "$6"'),
        "piper": fake_program(tmp_path, "piper", f'cat > {asked}; echo "$2" >> {asked}; cp {spoken} "$4"'),
    }
    assert len(say_line("Stop.", 8_000, "espeak-ng:en-gb+m2", which=programs.get)) == 800
    assert (tmp_path / "asked").read_text() == "en-gb+m2\n"
    assert len(say_line("Stop.", 8_000, "piper:/models/amy.onnx", which=programs.get)) == 800
    assert (tmp_path / "asked").read_text() == "Stop./models/amy.onnx\n"


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(VoiceError, match="flite is not installed"):
        say_line("Stop.", 8_000, "flite:kal16", which=nothing)


@pytest.mark.parametrize("name", ["festival:kal", "flite:", "flite:-o", ":slt"])
def test_what_is_no_voice_is_refused(name: str) -> None:
    with pytest.raises(VoiceError, match="not a voice"):
        say_line("Stop.", 8_000, name)


def test_wav_files_are_brought_to_the_calls_rate(tmp_path: Path) -> None:
    assert len(read_line(write_wav(tmp_path / "a.wav", 8_000), 24_000)) == 24_000


def test_bad_wav_files_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no wav")
    for path in (bad, tmp_path / "missing.wav", tmp_path):
        with pytest.raises(VoiceError, match=str(path)):
            read_line(path, 24_000)
    with pytest.raises(VoiceError, match="longer"):
        read_line(write_wav(tmp_path / "long.wav", 601, rate_hz=1), 24_000)
    with pytest.raises(VoiceError, match="resample"):
        read_line(write_wav(tmp_path / "odd.wav", 10, rate_hz=1), 24_000)
