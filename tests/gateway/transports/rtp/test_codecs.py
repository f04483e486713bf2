"""Each codec's way there and back, and what is made of what is lost."""

from __future__ import annotations

import itertools

import av
import numpy as np
import pytest

from engines.api import Pcm16
from gateway.transports.rtp.concealment import Concealment
from gateway.transports.rtp.g711 import G711
from gateway.transports.rtp.g722 import G722
from gateway.transports.rtp.opus import Opus
from streaming.audio.level import rms_dbfs


def voice(samples: int, rate_hz: int, hz: float = 150.0) -> Pcm16:
    """Harmonics of one pitch, as a vowel has."""
    at = np.arange(samples) / rate_hz
    parts = [np.sin(2 * np.pi * hz * n * at + n) / n for n in range(1, 6)]
    pcm: Pcm16 = (6000 * np.sum(parts, axis=0)).astype(np.int16)
    return pcm


def step(pcm: Pcm16) -> int:
    """The greatest difference of neighbours: a click is one that the signal does not have."""
    return int(np.abs(np.diff(pcm.astype(np.int32))).max())


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_every_code_goes_through_g711_as_it_is(law: str) -> None:
    """µ-law has two zeros: the negative one comes back as the positive."""
    codec = G711(law)
    codes = bytes(range(256))
    expected = codes.replace(b"\x7f", b"\xff") if law == "pcmu" else codes
    assert codec.encode(codec.decode(codes)) == expected


def test_g722_is_close_to_what_went_in() -> None:
    codec, far = G722(), G722()
    pcm = voice(16_000, 16_000)
    heard = np.concatenate([far.decode(codec.encode(pcm[at : at + 320])) for at in range(0, 16_000, 320)])
    assert len(heard) == 16_000
    best = max(float(np.corrcoef(pcm[2000:12_000], heard[2000 + lag : 12_000 + lag])[0, 1]) for lag in range(40))
    assert best > 0.999


def test_opus_is_mono_at_its_level() -> None:
    codec, far = Opus(), Opus()
    pcm = voice(24_000, 24_000)
    heard = np.concatenate([far.decode(codec.encode(pcm[at : at + 480])) for at in range(0, 24_000, 480)])
    assert len(heard) == 16_000
    assert rms_dbfs(heard[4000:]) == pytest.approx(rms_dbfs(pcm[6000:]), abs=1.0)


@pytest.mark.parametrize("codec", [G711("pcmu"), G722()], ids=["g711", "g722"])
def test_payloads_that_are_none(codec: G711 | G722) -> None:
    for payload in (b"", bytes(1601)):
        with pytest.raises(ValueError, match="bytes"):
            codec.ticks(payload)
    assert codec.ticks(bytes(80)) == 80
    assert not codec.is_quiet(b"\xff")


def test_what_ffmpeg_cannot_decode_is_no_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, frames: list[av.AudioFrame] | None) -> None:
            self._frames = frames

        def decode(self, packet: object) -> list[av.AudioFrame]:
            if self._frames is None:
                raise av.InvalidDataError(1, "invalid")
            return self._frames

    codec = G722()
    for frames in (None, [av.AudioFrame.from_ndarray(np.zeros((1, 7), np.int16), format="s16", layout="mono")]):
        monkeypatch.setattr(codec, "_decoder", Broken(frames))
        with pytest.raises(ValueError, match=r"nvalid|samples"):
            codec.decode(bytes(160))


@pytest.mark.parametrize("codec", [G711("pcma"), G722()], ids=["g711", "g722"])
def test_codecs_without_concealment_of_their_own_get_it(codec: G711 | G722) -> None:
    pcm = voice(codec.rate_hz, codec.rate_hz)
    frame = codec.rate_hz // 50
    for at in range(0, 10 * frame, frame):
        codec.decode(codec.encode(pcm[at : at + frame]))
    made = codec.conceal(160, b"")
    assert len(made) == frame
    assert rms_dbfs(made) > rms_dbfs(pcm) - 3


@pytest.mark.parametrize("hz", [90.0, 150.0, 180.0])
@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_hole_is_filled_with_the_voice_before_it_without_a_click(hz: float, frames: int) -> None:
    concealment = Concealment(8000)
    pcm = voice(8000, 8000, hz)
    heard = [concealment.heard(pcm[at : at + 160]) for at in range(0, 1600, 160)]
    heard += [concealment.conceal(160) for _ in range(frames)]
    after = 1600 + 160 * frames
    heard += [concealment.heard(pcm[at : at + 160]) for at in range(after, 4000, 160)]
    whole = np.concatenate(heard)
    assert len(whole) == 4000
    assert step(whole) <= 1.3 * step(pcm)
    assert np.array_equal(whole[:1600], pcm[:1600]), "what came is not touched"
    assert np.array_equal(whole[after + 32 :], pcm[after + 32 : 4000]), "but for a seam of 4 ms"
    if frames == 1:
        likeness = np.corrcoef(whole[1600:1760], pcm[1600:1760])[0, 1]
        assert likeness > 0.9
        assert rms_dbfs(whole[1600:1760]) == pytest.approx(rms_dbfs(pcm[1600:1760]), abs=2.0)


def test_a_long_hole_fades_to_silence() -> None:
    concealment = Concealment(8000)
    for at in range(0, 1600, 160):
        concealment.heard(voice(1600, 8000)[at : at + 160])
    levels = [rms_dbfs(concealment.conceal(160)) for _ in range(4)]
    assert all(after < before for before, after in itertools.pairwise(levels[:3]))
    assert levels[3] < -90


def test_nothing_is_made_of_nothing() -> None:
    concealment = Concealment(8000)
    assert not concealment.conceal(160).any()
    short = voice(100, 8000)
    assert len(concealment.heard(short)) == 100
    assert not concealment.conceal(80).any(), "too little to find a period in"


def test_loud_voices_do_not_wrap_around() -> None:
    concealment = Concealment(8000)
    loud = np.clip(voice(1600, 8000).astype(np.int32) * 8, -32768, 32767).astype(np.int16)
    concealment.heard(loud)
    made = concealment.conceal(160)
    assert step(made) <= 1.3 * step(loud)
    joined = concealment.heard(np.full(20, 32767, np.int16))
    assert joined.min() >= -32768
