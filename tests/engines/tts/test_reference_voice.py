"""Recordings to clone voices from: what is taken, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.api import EngineError
from engines.tts.reference_voice import MAX_VOICES, read_references
from streaming.audio.wav import encode_wav
from tests.engines.tts.tiny_voices import write_recording


def test_a_recording_is_brought_to_the_models_rate(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "bob.wav", seconds=2.0, rate_hz=16_000)
    [bob] = read_references({"bob": {"ref_audio": str(path), "ref_text": " Hello there. "}}, 24_000)
    assert (bob.name, bob.text) == ("bob", "Hello there.")
    assert bob.samples.shape == (48_000,)
    assert bob.samples.dtype == np.float32
    assert 0.2 < np.abs(bob.samples).max() < 0.4
    spectrum = np.abs(np.fft.rfft(bob.samples))
    assert np.argmax(spectrum) * 24_000 / 48_000 == pytest.approx(220, abs=1)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.write_bytes(b"ID3 not a wav"), "not a RIFF"),
        (lambda path: write_recording(path, seconds=0.5), "must be 1 to 30 s"),
        (lambda path: write_recording(path, seconds=31, rate_hz=8_000), "31.0 s long"),
        (lambda path: path.write_bytes(encode_wav([np.zeros(32_000, np.int16)], 16_000)), "silent"),
        (lambda path: write_recording(path, rate_hz=9_973), "cannot resample"),
        (lambda path: path.write_bytes(bytes(33 * 2**20)), "larger than 32 MB"),
    ],
)
def test_a_recording_that_cannot_be_used_is_named(tmp_path: Path, write: object, says: str) -> None:
    assert callable(write)
    write(tmp_path / "eve.wav")
    with pytest.raises(EngineError, match=says) as caught:
        read_references({"eve": {"ref_audio": str(tmp_path / "eve.wav")}}, 24_000)
    assert caught.value.code == "bad_voice"
    assert "eve" in str(caught.value)


def test_fields_and_their_number_are_checked() -> None:
    with pytest.raises(EngineError, match="takes ref_audio and ref_text"):
        read_references({"eve": {"file": "eve.wav"}}, 24_000)
    with pytest.raises(EngineError, match="at most"):
        read_references({str(at): {} for at in range(MAX_VOICES + 1)}, 24_000)
    assert read_references({}, 24_000) == []
