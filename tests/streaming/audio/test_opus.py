"""libopus as the gateway uses it: level, concealment, redundancy, and packets that are none."""

from __future__ import annotations

import ctypes.util
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.audio import opus
from streaming.audio.level import rms_dbfs
from streaming.audio.opus import (
    DECODER_HZ,
    ENCODER_HZ,
    FRAME_TICKS,
    MAX_PACKET_TICKS,
    BadPacket,
    OpusDecoder,
    OpusEncoder,
    OpusUnavailable,
    Pcm16,
    find_library,
    packet_ticks,
    silence_packet,
)

FRAME = 480


def tone(frames: int, hz: float = 440.0, amplitude: int = 10_000) -> Pcm16:
    at = np.arange(frames * FRAME) / ENCODER_HZ
    return (amplitude * np.sin(2 * np.pi * hz * at)).astype(np.int16)


def packets_of(pcm: Pcm16, encoder: OpusEncoder | None = None) -> list[bytes]:
    encoder = encoder or OpusEncoder()
    return [encoder.encode(pcm[at : at + FRAME]) for at in range(0, len(pcm), FRAME)]


@pytest.mark.parametrize("hz", [200.0, 440.0, 1000.0, 3000.0])
def test_a_tone_keeps_its_level(hz: float) -> None:
    sent = tone(50, hz)
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in packets_of(sent)])
    assert len(heard) == len(sent) * DECODER_HZ // ENCODER_HZ
    assert rms_dbfs(heard[4000:]) == pytest.approx(rms_dbfs(sent), abs=0.5)


def test_silence_stays_silence_and_costs_little() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    packets_of(tone(10), encoder)
    packets = packets_of(np.zeros(20 * FRAME, dtype=np.int16), encoder)
    heard = [decoder.decode(packet) for packet in packets]
    assert len(packets[-1]) < 30
    assert int(np.abs(heard[-1]).max()) < 8


def test_packets_tell_their_length() -> None:
    encoder = OpusEncoder()
    for ms in (5, 10, 20, 40, 60):
        packet = encoder.encode(np.zeros(ENCODER_HZ * ms // 1000, dtype=np.int16))
        assert packet_ticks(packet) == ms * 48
        assert len(OpusDecoder().decode(packet)) == ms * 16


@pytest.mark.parametrize(
    ("head", "ticks"),
    [(b"\x00", 480), (b"\x18", 2880), (b"\x80", 120), (b"\x83\x30", 5760), (b"\x19", 5760), (b"\xfb\x06", 5760)],
)
def test_the_first_bytes_tell_the_length(head: bytes, ticks: int) -> None:
    """Sums by hand from RFC 6716, section 3.1."""
    assert packet_ticks(head) == ticks


@pytest.mark.parametrize("packet", [b"", b"\x03", b"\x03\x00", b"\x1b\x3f"])
def test_what_cannot_have_a_length_is_refused(packet: bytes) -> None:
    with pytest.raises(BadPacket):
        packet_ticks(packet)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_what_is_no_packet_is_refused_and_harms_nothing(junk: list[bytes]) -> None:
    decoder = OpusDecoder()
    good = packets_of(tone(3))
    for data in junk:
        try:
            ticks = packet_ticks(data)
        except BadPacket:
            ticks = 0
        try:
            pcm = decoder.decode(data)
        except BadPacket:
            continue
        assert len(pcm) * 3 == ticks, "a length that was told is the length that comes"
    for packet in good:
        assert len(decoder.decode(packet)) == 320


@given(st.binary(min_size=1, max_size=60), st.integers(1, MAX_PACKET_TICKS))
def test_concealment_takes_anything_for_the_next_packet(following: bytes, ticks: int) -> None:
    decoder = OpusDecoder()
    decoder.decode(packets_of(tone(1))[0])
    assert len(decoder.conceal(ticks, following)) == ticks // 3


@pytest.mark.parametrize("ticks", [0, -960, MAX_PACKET_TICKS + 1])
def test_concealment_is_bounded(ticks: int) -> None:
    with pytest.raises(ValueError, match="ticks"):
        OpusDecoder().conceal(ticks)


def test_the_next_packet_brings_back_the_one_before_it() -> None:
    """A tone that only the lost packet has is heard with redundancy, and cannot be guessed without."""
    pcm = np.concatenate((tone(20, 300.0, 6000), tone(1, 900.0, 12_000), tone(5, 300.0, 6000)))
    packets = packets_of(pcm, OpusEncoder(expected_loss_percent=20))
    heard = {}
    for name, following in (("redundancy", packets[21]), ("guess", None)):
        decoder = OpusDecoder()
        for packet in packets[:20]:
            decoder.decode(packet)
        heard[name] = decoder.conceal(FRAME_TICKS, following)
    assert power_at(heard["redundancy"], 900.0) > 4 * power_at(heard["guess"], 900.0)


def power_at(pcm: Pcm16, hz: float) -> float:
    at = np.arange(len(pcm)) / DECODER_HZ
    return float(np.abs(np.sum(pcm * np.exp(-2j * np.pi * hz * at))) ** 2)


def test_a_packet_that_was_not_coded_is_silence_after_silence() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    for packet in packets_of(tone(10), encoder) + packets_of(np.zeros(3 * FRAME, dtype=np.int16), encoder):
        decoder.decode(packet)
    empty = silence_packet(packet)
    assert len(empty) == 1
    assert packet_ticks(empty) == FRAME_TICKS
    heard = np.concatenate([decoder.decode(empty) for _ in range(5)])
    assert rms_dbfs(heard) < -60


def test_after_a_reset_nothing_of_the_stream_is_left() -> None:
    encoder = OpusEncoder()
    fresh = packets_of(tone(5, 700.0), encoder)
    packets_of(tone(5, 200.0), encoder)
    encoder.reset()
    assert packets_of(tone(5, 700.0), encoder) == fresh


def test_a_frame_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="481 samples"):
        OpusEncoder().encode(np.zeros(481, dtype=np.int16))


def test_a_setting_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="4010"):
        OpusEncoder(complexity=11)


def test_a_rate_that_opus_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OpusUnavailable, match="no decoder: "):
        OpusDecoder(11_025)
    monkeypatch.setattr(opus, "ENCODER_HZ", 11_025)
    with pytest.raises(OpusUnavailable, match="no encoder: "):
        OpusEncoder()


def test_the_library_is_found_in_pyavs_wheel() -> None:
    assert "av.libs" in find_library() or "dylibs" in find_library()


@pytest.fixture
def fresh_library() -> None:
    opus._library.cache_clear()


@pytest.mark.parametrize("file", ["av.libs/libopus-1234.so.0", "av/.dylibs/libopus.0.dylib", "av.libs/opus-12.dll"])
def test_the_library_is_found_on_every_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    found = tmp_path / file
    found.parent.mkdir(parents=True)
    (tmp_path / "av").mkdir(exist_ok=True)
    found.touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: av_at(tmp_path / "av"))
    assert Path(find_library()).samefile(found)


def av_at(folder: Path) -> ModuleSpec:
    spec = ModuleSpec("av", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


def test_without_the_wheels_the_systems_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: av_at(tmp_path))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libopus.so.0")
    assert find_library() == "libopus.so.0"


@pytest.mark.usefixtures("fresh_library")
def test_without_any_it_is_said_what_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(OpusUnavailable, match="libopus0"):
        OpusEncoder()


@pytest.mark.usefixtures("fresh_library")
def test_a_file_that_is_no_libopus_is_said_to_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libopus.so").write_bytes(b"no")
    monkeypatch.setattr(opus, "find_library", lambda: str(tmp_path / "libopus.so"))
    with pytest.raises(OpusUnavailable, match="cannot be used"):
        OpusDecoder()
