"""The graph that is written for onnxruntime against the same mathematics in NumPy, on weights of a toy's size; and what
is kept of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError
from engines.llm.onnx_convert import FACTS_NAME, GRAPH_NAME
from engines.llm.onnx_model import KEPT_TOKENS, KeptPrompts, OnnxTextModel
from engines.llm.onnx_rows import Floats, Memory, chosen
from tests.engines.llm.toy_smollm2 import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    SIZE,
    ManualOffer,
    Saying,
    ToySource,
    told,
    written,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")


def reference(source: ToySource, ids: list[int]) -> Floats:
    """Logits after ``ids``: a llama, as its papers have it."""
    x = source.tensor("token_embd.weight")[ids].astype(np.float64)
    half = SIZE // 2
    angles = np.arange(len(ids))[:, None] * source.rope_base ** (-np.arange(half) / half)
    mask = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)

    def normal(value: Any, gamma: Floats) -> Any:
        return value / np.sqrt(np.square(value).mean(axis=-1, keepdims=True) + source.rms_epsilon) * gamma

    def turned(value: Any) -> Any:
        first, second = value[..., :half], value[..., half:]
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    for index in range(LAYERS):
        part = source.layer(index)
        n = normal(x, part("attn_norm"))
        q = turned((n @ part("attn_q").T).reshape(-1, HEADS, SIZE))
        k = turned((n @ part("attn_k").T).reshape(-1, KV_HEADS, SIZE)).repeat(HEADS // KV_HEADS, axis=1)
        v = (n @ part("attn_v").T).reshape(-1, KV_HEADS, SIZE).repeat(HEADS // KV_HEADS, axis=1)
        scores = np.einsum("qhs,khs->hqk", q, k) / np.sqrt(SIZE) + mask
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hqk,khs->qhs", weights, v).reshape(len(ids), HIDDEN) @ part("attn_output").T
        n = normal(x, part("ffn_norm"))
        gate = n @ part("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (n @ part("ffn_up").T)) @ part("ffn_down").T
    logits: Floats = normal(x[-1], source.tensor("output_norm.weight")) @ source.tensor("token_embd.weight").T
    return logits


@pytest.fixture(scope="module")
def source() -> ToySource:
    return ToySource()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, source: ToySource) -> Path:
    return written(source, tmp_path_factory.mktemp("toy"))


@pytest.fixture
def model(folder: Path) -> OnnxTextModel:
    return OnnxTextModel(folder, 4)


def logits_of(model: OnnxTextModel, monkeypatch: pytest.MonkeyPatch, prompt: list[int], tokens: int) -> list[Floats]:
    """What each token was chosen from."""
    seen: list[Floats] = []

    def choose(logits: Floats, *_: object) -> int:
        seen.append(logits.copy())
        return len(seen) % 20

    monkeypatch.setattr("engines.llm.onnx_rows.chosen", choose)
    told(model, prompt, tokens)
    return seen


def test_the_graph_computes_what_a_llama_is(
    source: ToySource, model: OnnxTextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    seen = logits_of(model, monkeypatch, prompt, 4)
    for step, logits in enumerate(seen):
        expected = reference(source, prompt + [number % 20 for number in range(1, step + 1)])
        # Activations are rounded to eight bits on the way.
        assert np.corrcoef(logits, expected)[0, 1] > 0.999
        assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()
    assert len(seen) == 4


def test_only_what_is_new_of_a_prompt_is_computed_and_the_words_are_the_same(
    folder: Path, model: OnnxTextModel
) -> None:
    shared = [3, 1, 4, 1, 5, 9, 2, 6] * 3
    said, prefilled = told(model, shared, 3)
    assert prefilled == len(shared)
    turn = [*shared, *said, 7, 8]
    again, prefilled = told(model, turn, 5)
    assert prefilled in (2, 3)  # the last word of a reply is never computed
    assert again == told(OnnxTextModel(folder, 4), turn, 5)[0]
    other, prefilled = told(model, [*shared, 11, 12, 13], 5)
    assert prefilled == 3
    assert other == told(OnnxTextModel(folder, 4), [*shared, 11, 12, 13], 5)[0]
    assert told(model, turn, 5) == (again, 1), "a prompt that is known whole needs its last token's logits"


def test_a_reply_that_is_cut_leaves_what_it_computed(model: OnnxTextModel) -> None:
    said: list[int] = []

    def cut(token: int) -> bool:
        said.append(token)
        return len(said) == 2

    def broken(_: int) -> bool:
        raise ValueError("the receiver's own")

    model.generate(Saying([1, 2, 3, 4], 20, on_token=cut).wanted, ManualOffer())
    assert len(said) == 2
    saying = Saying([1, 2, 3, 4, 5], 20, on_token=broken)
    model.generate(saying.wanted, ManualOffer())
    assert str(saying.error) == "the receiver's own"
    assert told(model, [1, 2, 3, 4, 5, 6], 1)[1] == 1


def test_a_reply_ends_with_an_end_id_and_within_the_context(
    model: OnnxTextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = min(model.end_ids)
    with monkeypatch.context() as patch:
        patch.setattr("engines.llm.onnx_rows.chosen", lambda *_: end)
        assert told(model, [1, 2, 3], 9)[0] == [end]
    monkeypatch.setattr("engines.llm.onnx_model.MAX_POSITIONS", 64)
    monkeypatch.setattr("engines.llm.onnx_rows.chosen", lambda *_: 1)
    assert len(told(model, [1] * 60, 100)[0]) == 4


def test_the_repeated_is_penalised_and_sampling_takes_the_likely() -> None:
    random = np.random.default_rng(1)
    assert chosen(np.array([2.0, 1.9], np.float32), [], 0.0, random) == 0
    assert chosen(np.array([2.0, 1.9], np.float32), [0, 0], 0.0, random) == 1
    assert chosen(np.array([-2.0, -2.1], np.float32), [0], 0.0, random) == 1
    logits = np.zeros(100, np.float32)
    logits[:40] = 5.0
    drawn = {chosen(logits.copy(), [], 1.0, random) for _ in range(300)}
    assert drawn <= set(range(40))
    assert len(drawn) > 20


def memory(tokens: list[int], capacity: int = 64) -> Memory:
    return Memory(tokens, np.empty((1, 2, 1, 1, capacity, 1), np.float32))


def test_what_is_kept_is_bounded_and_the_longest_unused_goes_first() -> None:
    kept = KeptPrompts(192)
    kept.keep(memory([1, 2, 3]))
    kept.keep(memory([4, 5]))
    kept.keep(memory([6]))
    assert kept.longest([1, 2, 9])[1] == 2
    kept.keep(memory([7]))
    assert len(kept) == 3
    assert [kept.longest([token])[1] for token in (1, 4, 6, 7)] == [1, 0, 1, 1]
    kept.keep(memory([6, 1]))
    assert len(kept) == 3, "a prompt that goes on takes the place of its beginning"
    kept.keep(memory([8], capacity=KEPT_TOKENS))
    assert len(kept) == 0


def test_folders_that_hold_no_model_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        OnnxTextModel(tmp_path, 4)
    assert caught.value.code == "bad_weights"
    for name in (path.name for path in folder.iterdir()):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / GRAPH_NAME).write_bytes(b"no graph")
    with pytest.raises(EngineError) as caught:
        OnnxTextModel(tmp_path, 4)
    assert caught.value.code == "model_load_failed"
    (tmp_path / FACTS_NAME).write_text("{}")
    with pytest.raises(EngineError) as caught:
        OnnxTextModel(tmp_path, 4)
    assert caught.value.code == "bad_weights"
