"""What each stage of a turn costs on three machines, as plain data: measured, or published and marked so.

A table is a list of points (batch, length, milliseconds) a stage; between them is interpolated as
:class:`engines.executor.costs.Costs` does. Lengths: tokens for ``prefill``, ids for ``phonemes``, milliseconds of audio
for ``speak`` (padded buckets both), 1 otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.executor.costs import Costs
from engines.executor.kinds import Kind

Points = tuple[tuple[int, int, float], ...]
"""(batch, length, milliseconds), in any order."""

STT, LLM, TTS = "stt", "llm", "tts"


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of quantum on one machine, and where its numbers come from."""

    points: Points
    source: str
    max_batch: int = 1
    max_units: int | None = None


@dataclass(frozen=True, slots=True)
class CostTable:
    """One machine and one set of models. ``join_ms`` is paid by a prefill quantum in which prompts join the batch,
    ``leave_ms`` by a decode step in which rows leave it; a reply generated alone (the lock's) pays neither."""

    name: str
    machine: str
    encode: Stage
    transcribe: Stage
    prefill: Stage
    decode: Stage
    speak: Stage
    phonemes: Stage | None = None
    """The text half of synthesis, where it is a quantum of its own; else ``speak`` has it."""
    transcribe_steps: int = 20
    """Tokens of a caller's turn, a quantum each; 1 where a clip is decoded whole."""
    join_ms: float = 0.0
    leave_ms: float = 0.0
    start_ms: float = 1.0

    def kinds(self) -> dict[str, Kind]:
        """The kinds of quantum, as the real workloads declare theirs."""
        kinds = {
            "encode": Kind(STT, "encode", self.encode.max_batch),
            "transcribe": Kind(STT, "transcribe", self.transcribe.max_batch),
            "start": Kind(LLM, "start", opens_stream=True),
            "prefill": Kind(LLM, "prefill", self.prefill.max_batch, self.prefill.max_units),
            "decode": Kind(LLM, "decode", self.decode.max_batch),
            "speak": Kind(TTS, "speak", self.speak.max_batch, alike=True),
        }
        if self.phonemes is not None:
            kinds["phonemes"] = Kind(TTS, "encode", self.phonemes.max_batch, alike=True)
        return kinds

    def costs(self) -> Costs:
        """A cost model that knows the table."""
        costs = Costs()
        for name, kind in self.kinds().items():
            points = ((1, 1, self.start_ms),) if name == "start" else getattr(self, name).points
            for batch, length, ms in points:
                costs.seed(kind, batch, length, ms / 1000)
        return costs


_SLOT_BATCH = Stage(
    ((1, 1, 8.3), (8, 1, 10.0), (32, 1, 10.0), (64, 1, 15.1)),
    "the same model in slots (engines.executor.slots); alone: mlx-lm's own batch",
    max_batch=64,
)

H200 = CostTable(
    name="h200",
    machine="one NVIDIA H200, MLX 0.32.4 on CUDA, the backends as built; measured",
    encode=Stage(((1, 1, 16.5),), "Whisper large-v3-turbo shape, fp16, a window of 10 s, one clip a quantum"),
    transcribe=Stage(
        ((1, 1, 1.8), (2, 1, 2.0), (4, 1, 2.6), (8, 1, 2.7), (16, 1, 2.8), (32, 1, 3.6)),
        "the same model: 20 tokens in 36, 40, 52, 54, 57, 71 ms",
        max_batch=32,
    ),
    prefill=Stage(
        ((1, 64, 9.9), (4, 256, 9.9), (8, 4096, 47.0)),
        "Llama-3.2-3B shape, bf16: 1 x 64, 4 x 64, 8 x 512 tokens",
        max_batch=8,
        max_units=4096,
    ),
    decode=_SLOT_BATCH,
    phonemes=Stage(
        (
            (1, 64, 25.3),
            (2, 64, 25.3),
            (4, 64, 27.2),
            (8, 64, 33.3),
            (1, 128, 40.0),
            (2, 128, 42.5),
            (4, 128, 50.4),
            (8, 128, 51.3),
        ),
        "Kokoro 82M, fp32, text to frames in padded buckets of ids",
        max_batch=8,
    ),
    speak=Stage(
        ((1, 4800, 39.7), (2, 4800, 49.9), (4, 4800, 49.9), (1, 9600, 68.6), (2, 9600, 72.2), (4, 9600, 88.0)),
        "Kokoro 82M, fp32, frames to samples in padded buckets, at most 4 rows (8 rows of 4.8 s: 78 ms)",
        max_batch=4,
    ),
    join_ms=9.0,
    leave_ms=5.1,
)
"""Joins and leaves stalled the others for 2 to 9 ms (1 to 4 rows at once) and 0 to 5 ms: the worst is taken."""

H200_LIBRARY = CostTable(
    name="h200-library",
    machine="one NVIDIA H200, MLX 0.32.4 on CUDA, the libraries' own calls; measured",
    encode=Stage(((1, 1, 33.0),), "Whisper large-v3-turbo shape, a 30 s window; batching gains nothing"),
    transcribe=Stage(
        ((1, 1, 2.85), (2, 1, 3.15), (4, 1, 3.4), (8, 1, 3.85), (16, 1, 4.65), (32, 1, 6.75)),
        "the same model: 20 tokens in 57, 63, 68, 77, 93, 135 ms",
        max_batch=32,
    ),
    prefill=Stage(
        ((1, 64, 16.0), (1, 512, 39.0), (8, 4096, 210.0)),
        "Llama-3.2-3B shape, bf16: 8 x 512 tokens in 0.21 s; the least is a step (13 ms) and its share",
        max_batch=8,
        max_units=4096,
    ),
    decode=Stage(
        (
            (1, 1, 8.3),
            (2, 1, 12.4),
            (4, 1, 12.1),
            (8, 1, 12.5),
            (16, 1, 12.9),
            (32, 1, 11.9),
            (64, 1, 11.3),
            (128, 1, 15.0),
        ),
        "the same model, mlx-lm's batch",
        max_batch=128,
    ),
    speak=Stage(
        ((1, 4400, 104.0), (1, 7500, 151.0), (1, 13800, 152.0), (1, 26000, 257.0)),
        "Kokoro 82M by seconds of audio made, warm, one segment at a time",
    ),
    join_ms=90.0,
    leave_ms=33.0,
)
"""Joins: a prompt that joined 32 rows made the worst step 125 to 131 ms where a plain one takes 13 to 17, prefill of
the 512 tokens included. Leaving: ``remove()`` took 33 ms."""

CPU = CostTable(
    name="cpu",
    machine="Linux x86-64, 2 shared cores, CTranslate2 and onnxruntime on one of them (embedded preset); measured",
    encode=Stage(((1, 1, 60.0),), "tiny.en int8, speech + 10 s of window: 127 to 150 ms in all; mel and encoder of it"),
    transcribe=Stage(((1, 1, 80.0),), "the rest of it; batching gains nothing on a CPU"),
    prefill=Stage(
        ((1, 64, 42.0), (1, 512, 680.0)), "SmolLM2 135M int8: first token 42 ms; 750 tokens/s", max_units=512
    ),
    decode=Stage(
        ((1, 1, 12.7), (2, 1, 15.6), (4, 1, 18.2), (8, 1, 33.9), (16, 1, 75.8)),
        "the same model: 79, 128, 220, 236, 211 tokens/s of all rows",
        max_batch=16,
    ),
    speak=Stage(((1, 2600, 177.0), (1, 7000, 480.0)), "Piper joe, one thread: RTF 0.07"),
    transcribe_steps=1,
)

MAC = CostTable(
    name="mac",
    machine="Apple M4 Max, 128 GB; figures published by others, not measured here",
    # Whisper large-v3-turbo on mlx-whisper: 46.7 s of audio (two windows) in 0.86 s; Kokoro 82M bf16 on MLX: 22 times
    # real time. https://github.com/waybarrios/vllm-mlx/blob/main/docs/benchmarks/audio.md
    encode=Stage(
        ((1, 1, 50.0),),
        "0.43 s a 30 s window; the encoder's share is 0.15 s by its arithmetic (1.9 TFLOP at 13 TFLOPS), a third of it "
        "for the window of 10 s that the backend runs",
    ),
    transcribe=Stage(
        ((1, 1, 3.5),), "the other 0.28 s of a window over its about 80 tokens; no batched figure, no gain assumed"
    ),
    # Qwen3-4B bf16, 2048 tokens: 1781 tokens/s. https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/BENCHMARKS.md
    prefill=Stage(((1, 64, 36.0), (1, 2048, 1150.0)), "1780 tokens/s", max_batch=4, max_units=2048),
    # Llama-3.2-3B 4-bit: 200.1 tokens/s alone, 364.8 for five at once.
    # https://github.com/waybarrios/vllm-mlx/blob/main/docs/benchmarks/llm.md
    decode=Stage(
        ((1, 1, 5.0), (5, 1, 13.7), (32, 1, 72.4)),
        "200 tokens/s for one, 365 for five; beyond five drawn on in a straight line (no published figure)",
        max_batch=32,
    ),
    speak=Stage(((1, 3000, 136.0), (1, 7000, 318.0)), "RTF 0.045; no batched figure, no gain assumed"),
)

TABLES: dict[str, CostTable] = {table.name: table for table in (CPU, H200, H200_LIBRARY, MAC)}
