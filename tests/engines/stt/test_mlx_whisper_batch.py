"""The model and the batch of Whisper on MLX, against what mlx-whisper's own forward passes make of one clip alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from engines.executor.thread import MlxExecutor
from engines.stt.mlx_whisper_batch import DecodeBatch, Row
from engines.stt.mlx_whisper_model import WhisperModel, window_frames
from tests.engines.stt.tiny_whisper import needs_mlx_whisper
from tests.engines.stt.whisper_rig import SECOND, alone, audio, decode, fresh

pytestmark = [needs_mlx_whisper, pytest.mark.usefixtures("shorter_retry")]


async def test_the_full_window_is_what_mlx_whisper_computes(executor: MlxExecutor, checkpoint: Path) -> None:
    def compare(model: WhisperModel) -> tuple[float, list[int], list[int]]:
        import mlx.core as mx
        from mlx_whisper.audio import log_mel_spectrogram

        pcm = audio(3)
        mel = log_mel_spectrogram(pcm.astype(np.float32) / 32768, 80, padding=27 * SECOND)[:3000]
        heard = model._encoder(mx.where(mx.arange(3000)[:, None] < 300, mel, 0.0)[None])
        keys = model._decoder.blocks[1].cross_attn.key(heard)
        ours = model.encode(pcm, 3000)
        off = float(mx.abs(model._split(keys) - ours[1][0]).max() / mx.abs(keys).max())
        row = decode(model, Row(ours, model.prompt("en"), 16))
        tokens = model.prompt("en")
        vocabulary = model.vocabulary
        for step in range(16):
            logits = np.array(model._decoder(mx.array([tokens]), heard)[0][0, -1])
            scores = logits + (vocabulary.suppressed if step else vocabulary.suppressed_first)
            tokens.append(int(scores.argmax()))
            if tokens[-1] == vocabulary.end:
                break
        return off, row.tokens, [token for token in tokens[len(row.prompt) :] if token != vocabulary.end]

    off, ours, theirs = await alone(executor, checkpoint, compare)
    assert off < 1e-4
    assert ours == theirs
    assert len(set(ours)) > 3, "the words depend on nothing, so this proves nothing"


async def test_a_short_window_hears_the_audio_and_not_only_its_length(executor: MlxExecutor, checkpoint: Path) -> None:
    def hear(model: WhisperModel) -> list[tuple[int, ...]]:
        return [tuple(decode(model, fresh(model, seed, 400)).tokens[:8]) for seed in (0, 7, 14)]

    assert len(set(await alone(executor, checkpoint, hear))) == 3


@pytest.mark.parametrize("seed", range(4))
async def test_rows_that_join_and_leave_say_what_each_says_alone(
    executor: MlxExecutor, checkpoint: Path, seed: int
) -> None:
    def mix(model: WhisperModel) -> list[tuple[list[int], list[int], float, float]]:
        chance = random.Random(seed)
        batch = DecodeBatch(model)
        waiting: list[tuple[Row, tuple[int, int, float]]] = []
        running, done = list(waiting), list(waiting)
        for index in range(8):
            args = (index * 5 + seed, chance.choice((200, 400, 1200)), chance.choice((1.0, 1.3)))
            waiting.append((fresh(model, *args), args))
        while waiting or running:
            joining = [waiting.pop() for _ in range(min(len(waiting), chance.randrange(4)))]
            batch.join([row for row, _ in joining])
            running += joining
            for _ in range(chance.randrange(5) if running else 0):
                batch.step()
            out = [each for each in running if each[0].ended or chance.random() < 0.1]
            batch.leave([row for row, _ in out])
            running = [each for each in running if each not in out]
            done += out
            assert len(batch) == len(running)
        result = []
        for row, args in done:
            solo = decode(model, fresh(model, *args))
            if row.ended:
                assert row.tokens == solo.tokens
            result.append((row.tokens, solo.tokens[: len(row.tokens)], row.no_speech, solo.no_speech))
        return result

    for tokens, expected, no_speech, expected_no_speech in await alone(executor, checkpoint, mix):
        assert tokens == expected
        assert no_speech == pytest.approx(expected_no_speech, rel=1e-3)


async def test_the_penalty_keeps_a_row_from_repeating_itself(executor: MlxExecutor, checkpoint: Path) -> None:
    def count(model: WhisperModel) -> list[int]:
        rows = [decode(model, Row(model.encode(audio(2, 3), 400), model.prompt("en"), 40, p)) for p in (1.0, 3.0)]
        return [len(set(row.tokens)) * 100 // len(row.tokens) for row in rows]

    plain, penalized = await alone(executor, checkpoint, count)
    assert penalized > plain


def test_windows_are_the_smallest_bucket_that_holds_speech_and_padding() -> None:
    buckets = (400, 1200, 3000)
    assert [window_frames(seconds * SECOND, 200, buckets) for seconds in (1, 2, 3, 10, 11, 40)] == [
        400,
        400,
        1200,
        1200,
        3000,
        3000,
    ]
