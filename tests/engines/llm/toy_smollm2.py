"""A SmolLM2 of a toy's size as onnxruntime runs it, and what it is asked for, without a lane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engines.llm import onnx_convert
from engines.llm.chatml import END, START
from engines.llm.convert import SmolLm2Source
from engines.llm.onnx_convert import quantized, smollm2_onnx
from engines.llm.onnx_model import OnnxTextModel
from engines.llm.onnx_rows import Floats
from engines.llm.text_model import Wanted
from streaming.jobs import Priority

LAYERS, HEADS, KV_HEADS, SIZE, HIDDEN, FFN = 2, 4, 2, 16, 64, 96
TOKENS = [*"abcdefghijklmnopqrstuvwxyz\n", START, END, "<|endoftext|>"]


class ToySource:
    """Stands in for a GGUF: random weights, already such as int8 blocks hold exactly."""

    layers, heads, kv_heads, tied, rope_base, rms_epsilon = LAYERS, HEADS, KV_HEADS, True, 10_000.0, 1e-5
    tokens = TOKENS

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        shapes = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * SIZE, HIDDEN),
            "attn_v": (KV_HEADS * SIZE, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FFN, HIDDEN),
            "ffn_up": (FFN, HIDDEN),
            "ffn_down": (HIDDEN, FFN),
        }
        self.weights: dict[str, Floats] = {
            "token_embd.weight": restored(random.standard_normal((len(TOKENS), HIDDEN))),
            "output_norm.weight": random.uniform(0.5, 1.5, HIDDEN).astype(np.float32),
        }
        for index in range(LAYERS):
            for part, shape in shapes.items():
                values = random.standard_normal(shape) / np.sqrt(shape[1])
                self.weights[f"blk.{index}.{part}.weight"] = restored(values)
            for part in ("attn_norm", "ffn_norm"):
                self.weights[f"blk.{index}.{part}.weight"] = random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)

    def fact(self, name: str) -> Any:
        return {"llama.embedding_length": HIDDEN}[name]

    def tensor(self, name: str) -> Floats:
        return self.weights[name]

    def layer(self, index: int) -> Callable[[str], Floats]:
        return lambda part: self.weights[f"blk.{index}.{part}.weight"]


def restored(values: npt.NDArray[np.float64]) -> Floats:
    quants, scales = quantized(values.astype(np.float32))
    whole: Floats = ((quants.astype(np.float32) - 128) * scales[:, :, None]).reshape(values.shape)
    return whole


def written(source: ToySource, out: Path) -> Path:
    """The folder of a model with these weights."""
    from tokenizers import Tokenizer, models

    def tokenizer(_source: ToySource, into: Path) -> None:
        vocabulary = {token: index for index, token in enumerate(TOKENS)}
        Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(into / "tokenizer.json"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmolLm2Source, "open", lambda _folder: source)
        patch.setattr(onnx_convert, "write_tokenizer", tokenizer)
        smollm2_onnx(Path("unused"), out)
    return out


class ManualOffer:
    """A lane slot. ``at_yield`` runs at each yield and says whether the lane goes on."""

    def __init__(self, at_yield: Callable[[], bool] = lambda: True) -> None:
        self.at_yield = at_yield
        self.places: list[tuple[Priority, float]] = []

    def yield_if_needed(self) -> bool:
        return self.at_yield()

    def reprioritize(self, priority: Priority, deadline: float) -> None:
        self.places.append((priority, deadline))


class Saying:
    """A reply that is wanted, and what came of it."""

    def __init__(
        self,
        prompt: list[int],
        max_tokens: int = 20,
        *,
        temperature: float = 0.0,
        on_token: Callable[[int], bool] | None = None,
    ) -> None:
        self.said: list[int] = []
        self.urgency: tuple[Priority, float] | None = (Priority.DECODE, 5.0)
        self.ends = 0
        self.prefilled = -1
        self.error: Exception | None = None
        self.wanted = Wanted(
            prompt, max_tokens, temperature, on_token or self._on_token, self._on_end, lambda: self.urgency
        )

    def _on_token(self, token: int) -> bool:
        self.said.append(token)
        return False

    def _on_end(self, prefilled: int, error: Exception | None) -> None:
        self.ends += 1
        self.prefilled, self.error = prefilled, error


def told(model: OnnxTextModel, prompt: list[int], tokens: int, temperature: float = 0.0) -> tuple[list[int], int]:
    """What it says alone, and how much of the prompt was computed."""
    saying = Saying(prompt, tokens, temperature=temperature)
    model.generate(saying.wanted, ManualOffer())
    assert (saying.ends, saying.error) == (1, None)
    return saying.said, saying.prefilled
