import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.audio.wav import WavError, encode_wav, read_wav


def wav(
    body: bytes, *, tag: int = 1, channels: int = 1, bits: int = 16, extra: bytes = b"", before: bytes = b""
) -> bytes:
    frame = channels * bits // 8
    header = struct.pack("<HHIIHH", tag, channels, 8_000, 8_000 * frame, frame, bits) + extra
    chunks = b"WAVEfmt " + struct.pack("<I", len(header)) + header + before
    chunks += b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


WANT = [0, 16_384, -16_384, -32_768]


@pytest.mark.parametrize(
    ("tag", "bits", "body"),
    [
        (1, 8, bytes([128, 192, 64, 0])),
        (1, 16, struct.pack("<4h", *WANT)),
        (1, 24, b"".join(struct.pack("<i", value << 16)[1:] for value in WANT)),
        (1, 32, struct.pack("<4i", *(value << 16 for value in WANT))),
        (3, 32, struct.pack("<4f", 0.0, 0.5, -0.5, -1.5)),
    ],
)
def test_every_encoding_reads_the_same(tag: int, bits: int, body: bytes) -> None:
    pcm, rate_hz = read_wav(wav(body, tag=tag, bits=bits))
    assert (pcm.tolist(), rate_hz, pcm.dtype) == (WANT, 8_000, np.dtype(np.int16))


def test_not_a_number_reads_as_silence() -> None:
    assert read_wav(wav(struct.pack("<2f", float("nan"), 0.25), tag=3, bits=32))[0].tolist() == [0, 8_192]


def test_stereo_is_mixed_and_other_chunks_are_skipped() -> None:
    data = wav(struct.pack("<4h", 100, 300, -100, -300), channels=2, before=b"LIST\x03\x00\x00\x00abc\x00")
    assert read_wav(data)[0].tolist() == [200, -200]


def test_extensible_names_its_real_format() -> None:
    guid = struct.pack("<HHIH", 22, 32, 0, 3) + bytes(14)
    data = wav(struct.pack("<2f", 0.5, -0.5), tag=0xFFFE, bits=32, extra=guid)
    assert read_wav(data)[0].tolist() == [16_384, -16_384]
    with pytest.raises(WavError, match="unsupported"):
        read_wav(wav(b"\0\0", tag=0xFFFE))


def test_a_recording_cut_off_is_read_to_its_end() -> None:
    whole = wav(struct.pack("<4h", 1, 2, 3, 4))
    assert read_wav(whole[:-3])[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a RIFF"),
        (b"RIFF\0\0\0\0WAVE", "no data"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "before format"),
        (b"RIFF\0\0\0\0WAVEfmt \x02\0\0\0\x01\0", "too short"),
        (wav(b"", channels=0), "no channels"),
        (wav(b"\0", bits=4), "unsupported"),
        (wav(b"\0\0", tag=6, bits=8), "unsupported"),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WavError, match=reason):
        read_wav(data)


def test_two_channels_of_unequal_length() -> None:
    left, right = np.array([1, 2, 3], dtype=np.int16), np.array([-1], dtype=np.int16)
    with wave.open(io.BytesIO(encode_wav((left, right), 24_000))) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 24_000, 3)
        assert struct.unpack("<6h", file.readframes(3)) == (1, -1, 2, 0, 3, 0)


def test_no_channels_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        encode_wav((), 8_000)


@given(st.lists(st.integers(-32_768, 32_767)), st.integers(1, 192_000))
def test_there_and_back(samples: list[int], rate_hz: int) -> None:
    pcm, rate_back_hz = read_wav(encode_wav((np.array(samples, dtype=np.int16),), rate_hz))
    assert (pcm.tolist(), rate_back_hz) == (samples, rate_hz)


@given(st.binary(max_size=200))
def test_any_bytes_read_or_are_refused(body: bytes) -> None:
    for data in (body, b"RIFF\0\0\0\0WAVE" + body, wav(body, channels=3, bits=24)):
        try:
            pcm, _ = read_wav(data)
        except WavError:
            continue
        assert pcm.ndim == 1
