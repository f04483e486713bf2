from __future__ import annotations

import base64
import io
import wave
from pathlib import Path

import numpy as np
import pytest

from loadtest.report_audio import CLIP_MS, Clip, data_uri, outline, read_clip


def write(path: Path, seconds: float, *, rate_hz: int = 16_000, channels: int = 2, width: int = 2) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate_hz)
        second = np.repeat(np.arange(int(seconds) + 1), rate_hz)[: int(seconds * rate_hz)]
        out.writeframes(np.repeat(second, channels).astype(f"<i{width}" if width == 2 else "u1").tobytes())


def test_a_short_recording_is_there_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", 4.5)
    clip = read_clip(tmp_path, "a.wav", 4_000)
    assert clip is not None
    assert clip.whole
    assert (clip.from_ms, clip.length_ms, clip.of_ms) == (0, 4_500, 4_500)


@pytest.mark.parametrize(("focus_ms", "from_ms"), [(0, 0), (60_000, 55_000), (119_000, 90_000)])
def test_of_a_long_one_it_is_the_stretch_around_the_moment_asked_for(
    tmp_path: Path, focus_ms: float, from_ms: float
) -> None:
    write(tmp_path / "a.wav", 120)
    clip = read_clip(tmp_path, "a.wav", focus_ms)
    assert clip is not None
    assert not clip.whole
    assert (clip.from_ms, clip.length_ms, clip.of_ms) == (from_ms, CLIP_MS, 120_000)
    assert clip.caller[0] == clip.agent[0] == from_ms // 1000


def test_what_is_no_recording_of_a_call_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    write(tmp_path / "outside.wav", 1)
    write(folder / "mono.wav", 1, channels=1)
    write(folder / "bytes.wav", 1, width=1)
    write(folder / "odd.wav", 1, rate_hz=12_345)
    write(folder / "empty.wav", 0)
    (folder / "text.wav").write_text("not a wav")
    (folder / "cut.wav").write_bytes(b"RIFF")
    (folder / "folder.wav").mkdir()
    (folder / "link.wav").symlink_to(tmp_path / "outside.wav")
    names = ("mono", "bytes", "odd", "empty", "text", "cut", "folder", "link", "missing", "../outside")
    for name in (*(f"{name}.wav" for name in names), str(tmp_path / "outside.wav"), ""):
        assert read_clip(folder, name, 0) is None, name


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
def test_what_is_played_is_8_khz_stereo_with_the_sides_where_they_were(rate_hz: int) -> None:
    at = np.arange(rate_hz) / rate_hz
    caller = (8_000 * np.sin(2 * np.pi * 400 * at)).astype(np.int16)
    clip = Clip(caller, np.zeros(rate_hz, np.int16), rate_hz, 0, 1_000)
    kind, _, encoded = data_uri(clip).partition(",")
    assert kind == "data:audio/wav;base64"
    with wave.open(io.BytesIO(base64.b64decode(encoded, validate=True))) as played:
        assert (played.getframerate(), played.getnchannels(), played.getsampwidth()) == (8_000, 2, 2)
        sides = np.frombuffer(played.readframes(8_000), "<i2").reshape(-1, 2)
    assert len(sides) == 8_000
    assert np.abs(sides[:, 0]).max() == pytest.approx(8_000, rel=0.05)
    assert not sides[:, 1].any()


def test_silence_has_no_outline() -> None:
    assert outline(np.zeros(8_000, np.int16), 32_767) == ""
    assert outline(np.zeros(0, np.int16), 32_767) == ""
    assert outline(np.ones(10, np.int16), 0) == ""


def test_the_outline_of_the_loudest_reaches_both_edges() -> None:
    pcm = np.zeros(8_000, np.int16)
    pcm[4_000:4_016] = [20_000, -20_000] * 8
    heights = [int(point.split()[1]) for point in outline(pcm, 20_000).strip("MZ").split("L")]
    assert (min(heights), max(heights)) == (0, 101)


def test_the_extremes_of_pcm_are_drawn_too() -> None:
    assert outline(np.array([-32_768, 32_767] * 500, np.int16), 32_768)
