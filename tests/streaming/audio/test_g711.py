import warnings

import numpy as np
import pytest

from streaming.audio import g711

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import audioop
except ImportError:  # gone from the standard library in 3.13
    audioop = None  # type: ignore[assignment]

EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)
EVERY_CODE = bytes(range(256))


@pytest.mark.skipif(audioop is None, reason="audioop left the standard library")
def test_every_sample_and_code_agree_with_the_standard_library() -> None:
    pcm = EVERY_SAMPLE.astype("<i2").tobytes()
    assert g711.encode_mulaw(EVERY_SAMPLE) == audioop.lin2ulaw(pcm, 2)
    assert g711.encode_alaw(EVERY_SAMPLE) == audioop.lin2alaw(pcm, 2)
    assert g711.decode_mulaw(EVERY_CODE).astype("<i2").tobytes() == audioop.ulaw2lin(EVERY_CODE, 2)
    assert g711.decode_alaw(EVERY_CODE).astype("<i2").tobytes() == audioop.alaw2lin(EVERY_CODE, 2)


def test_known_codes() -> None:
    """Silence and full scale: the values on every telephone wire."""
    pcm = np.array([0, 32767, -32768], dtype=np.int16)
    assert g711.encode_mulaw(pcm) == b"\xff\x80\x00"
    assert g711.encode_alaw(pcm) == b"\xd5\xaa\x2a"
    assert g711.decode_mulaw(b"\xff\x7f\x80\x00").tolist() == [0, 0, 32124, -32124]
    assert g711.decode_alaw(b"\xd5\x55\xaa\x2a").tolist() == [8, -8, 32256, -32256]


def test_decode_then_encode_keeps_every_code() -> None:
    assert g711.encode_alaw(g711.decode_alaw(EVERY_CODE)) == EVERY_CODE
    # µ-law has two zeros; the negative one comes back as the positive one.
    assert g711.encode_mulaw(g711.decode_mulaw(EVERY_CODE)) == EVERY_CODE.replace(b"\x7f", b"\xff")


def test_rounding_error_is_within_a_segment_step() -> None:
    for encode, decode in ((g711.encode_mulaw, g711.decode_mulaw), (g711.encode_alaw, g711.decode_alaw)):
        error = np.abs(decode(encode(EVERY_SAMPLE)).astype(np.int32) - EVERY_SAMPLE)
        assert np.all(error <= np.maximum(16, np.abs(EVERY_SAMPLE.astype(np.int32)) / 16))


def test_empty_and_strided_blocks() -> None:
    empty = np.zeros(0, dtype=np.int16)
    assert g711.encode_mulaw(empty) == b"" == g711.encode_alaw(empty)
    assert g711.decode_mulaw(b"").dtype == np.int16
    assert len(g711.decode_alaw(b"")) == 0
    stereo = np.array([1000, 0, -1000, 0], dtype=np.int16)
    assert g711.encode_mulaw(stereo[::2]) == g711.encode_mulaw(np.array([1000, -1000], dtype=np.int16))
