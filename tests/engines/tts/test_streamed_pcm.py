"""Bytes cut anywhere to blocks of PCM."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.tts.streamed_pcm import BadStreamError, StreamedPcm
from streaming.audio.wav import encode_wav

RATE = 24_000
TONE = np.rint(np.sin(np.arange(RATE) / 20) * 8000).astype(np.int16)
TONE[:1] = 8000


def through(
    blocks: Sequence[bytes], rate_hz: int = RATE
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int16]], list[int]]:
    stream = StreamedPcm(rate_hz)
    pieces = [piece for block in blocks for piece in stream.feed(block)]
    handed = len(b"".join(pieces)) // 2
    assert stream.samples == handed
    pieces.append(stream.end())
    return np.frombuffer(b"".join(pieces), "<i2").astype(np.int16), [len(piece) // 2 for piece in pieces]


@given(st.lists(st.integers(0, 48_000), max_size=20))
def test_any_cut_gives_the_same_samples(cuts: list[int]) -> None:
    data = TONE.tobytes()
    edges = [0, *sorted(cuts), len(data)]
    samples, sizes = through([data[a:b] for a, b in itertools.pairwise(edges)])
    assert np.array_equal(samples, TONE)
    assert all(480 <= size <= 4800 for size in sizes[:-1])


def test_single_bytes_make_blocks_of_at_least_20_ms() -> None:
    data = TONE.tobytes() + b"\x01"  # half a sample at the end
    samples, sizes = through([bytes([byte]) for byte in data])
    assert np.array_equal(samples, TONE)
    assert len(sizes) <= 51


def test_silence_before_the_first_sound_is_left_out() -> None:
    silence = np.full(RATE, 50, np.int16)
    data = np.concatenate((silence, TONE, silence)).tobytes()
    samples, _ = through([data[at : at + 1000] for at in range(0, len(data), 1000)])
    lead = RATE * 30 // 1000
    assert samples.size == lead + TONE.size + silence.size
    assert np.array_equal(samples[lead : lead + TONE.size], TONE)


def test_only_silence_is_not_audible_and_not_kept() -> None:
    stream = StreamedPcm(RATE)
    assert not [piece for _ in range(1000) for piece in stream.feed(bytes(9600))]
    assert not stream.audible
    assert stream.end() == b""
    assert stream._held.size < RATE


@pytest.mark.parametrize("step", [1, 7, 44, 100_000])
def test_wav_whose_sizes_are_not_known(step: int) -> None:
    wav = bytearray(encode_wav([TONE], RATE))
    wav[4:8] = wav[40:44] = b"\xff\xff\xff\xff"
    wav[12:12] = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    samples, _ = through([bytes(wav[at : at + step]) for at in range(0, len(wav), step)])
    assert np.array_equal(samples, TONE)


def test_wav_of_another_rate_in_two_channels() -> None:
    half = np.rint(np.sin(np.arange(12_000) / 10) * 8000).astype(np.int16)
    half[0] = 8000
    wav = encode_wav([half, half], 12_000)
    samples, _ = through([wav[at : at + 333] for at in range(0, len(wav), 333)])
    assert samples.size == 24_000
    expected = np.sin(np.arange(100, 23_000) / 20) * 8000
    assert np.abs(samples[100:23_000] - expected).max() < 100


@pytest.mark.parametrize(
    "data",
    [
        b"ID3\x04 some music, surely",
        b'{"error": "no such voice"}',
        b"<html>busy</html>",
        b"OggS0123456789",
        b"\xff\xfb\x90\x64" + bytes(400),
        b"\xff\xf3\x84\xc4" + bytes(400),
        b"\xff\xf1\x50\x80" + bytes(400),
        b"RIFF\0\0\0\0WAVEdata\0\0\0\0",
        b"RIFF\0\0\0\0WAVE" + b"JUNK\xff\xff\0\0" + bytes(70_000),
        encode_wav([TONE, TONE, TONE], RATE),
        encode_wav([TONE], 1),
        b"RIFF\0\0\0\0WAVEfmt ",
    ],
)
def test_what_is_no_pcm(data: bytes) -> None:
    with pytest.raises(BadStreamError):
        through([data[at : at + 1000] for at in range(0, len(data), 1000)])


def test_less_than_a_header_is_samples() -> None:
    samples, _ = through([b"\x00\x10\x00\x10"])
    assert samples.tolist() == [4096, 4096]


@pytest.mark.parametrize("first", [-1, -2, -257, 255, -1025 + 256])
def test_samples_that_begin_with_ones_are_no_frame(first: int) -> None:
    data = np.array([first, *TONE], np.int16)
    samples, _ = through([data.tobytes()])
    assert samples.size >= TONE.size
