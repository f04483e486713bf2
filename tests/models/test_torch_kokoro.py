"""Kokoro on PyTorch with real weights: what it says is read back by Whisper, and its word times fit its words."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from engines.fetch import ensure
from engines.lane import CpuLane
from engines.stt.whisper_decoder import FINAL, WhisperDecoder
from engines.tts.torch_kokoro import TorchKokoro
from streaming.jobs import INPUT_RATE_HZ
from tests.engines.tts.spoken import say
from tests.models.heard import was_heard
from tests.models.kokoro_weights import VOICES, kokoro_folder
from tests.models.speech import resampled

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

SENTENCES = (
    "Hello, this is Blue Door Bakery. How can I help you?",
    "We are open Monday to Saturday, from eight to six.",
    "Your total comes to forty two dollars and ninety five cents.",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tts() -> AsyncIterator[TorchKokoro]:
    lane = CpuLane(1)
    engine = TorchKokoro(kokoro_folder(), ensure("misaki-en"), ensure("g2p-en"), lane, device="cpu", voices=VOICES)
    await engine.start()
    await say(engine, "Sure.").end()  # the lane's thread is there before any test
    yield engine
    await engine.close()
    await lane.close()


@pytest.fixture(scope="module")
def ear() -> WhisperDecoder:
    return WhisperDecoder(ensure("whisper-tiny.en"), 1)


@pytest.mark.parametrize(("text", "voice"), [*zip(SENTENCES, ("jf_alpha", "jm_kumo", "jf_nezumi"), strict=True)])
async def test_it_is_understood(tts: TorchKokoro, ear: WhisperDecoder, text: str, voice: str) -> None:
    spoken = await say(tts, text, voice=voice).end()
    heard = ear.decode(resampled(spoken.pcm, tts.rate_hz, INPUT_RATE_HZ), FINAL).text
    assert was_heard(text, heard), heard


async def test_words_end_where_they_are_heard_to_end(tts: TorchKokoro, ear: WhisperDecoder) -> None:
    text = "We are open on Saturday. We are closed on Sunday."
    spoken = await say(tts, text).end()
    ends = [word.audio_end_ms for word in spoken.words]
    assert ends == sorted(ends)
    assert [word.text_end for word in spoken.words] == [text.index(word) + len(word) for word in _spans(text)]
    (half_ms,) = [word.audio_end_ms for word in spoken.words if word.text_end == len("We are open on Saturday.")]
    first = spoken.pcm[: int(half_ms * tts.rate_hz / 1000)]
    heard = ear.decode(resampled(np.append(first, np.zeros(4800, np.int16)), tts.rate_hz, INPUT_RATE_HZ), FINAL).text
    assert was_heard("We are open on Saturday.", heard), heard


def _spans(text: str) -> list[str]:
    """Each word with all before it: where it ends is how long that is."""
    words = text.split()
    return [" ".join(words[: count + 1]) for count in range(len(words))]
