"""Joined projections say what the model's own say, and what cannot be joined is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from engines.executor.thread import MlxExecutor
from engines.llm.mlx_fused import fuse
from tests.engines.tiny_llama import needs_mlx

pytestmark = needs_mlx

LAYERS, PER_LAYER = 2, 3
"""Products saved a layer: two of q, k, v, one of gate and up."""
ARGUMENTS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 96,
}


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    await made.start()
    yield made
    await made.close()


def _model(kind: str, **more: Any) -> Any:
    import importlib

    import mlx.core as mx

    mx.random.seed(3)
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    model = module.Model(module.ModelArgs.from_dict({"model_type": kind} | ARGUMENTS | more))
    for layer in model.layers:  # biases are made zero
        for part in layer.self_attn.values():
            if "bias" in part:
                part.bias = mx.random.normal(part.bias.shape)
    mx.eval(model.parameters())
    return model


def _logits(model: Any) -> list[Any]:
    """A prompt, two rows of it, and a token after it."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    tokens = mx.array([[5, 9, 33, 2, 71, 8]])
    cache = make_prompt_cache(model)
    said = [model(tokens, cache=cache), model(tokens[:, :1], cache=cache), model(mx.concatenate([tokens, tokens + 3]))]
    mx.eval(said)
    return said


def _nbytes(model: Any) -> int:
    from mlx.utils import tree_flatten

    return sum(int(array.nbytes) for _, array in tree_flatten(model.parameters()))


def _same(model: Any, saved: int) -> None:
    """Joins, and says the same to rounding, with as many bytes."""
    import mlx.core as mx

    before, nbytes = _logits(model), _nbytes(model)
    assert fuse(model) == saved
    assert _nbytes(model) == nbytes
    for one, other in zip(before, _logits(model), strict=True):
        assert mx.allclose(one, other, rtol=1e-4, atol=1e-4).item()
        assert (mx.abs(one).max() > 0.1).item()
    assert fuse(model) == 0


@pytest.mark.parametrize(
    ("kind", "more", "bits"),
    [
        ("llama", {}, None),
        ("llama", {"attention_bias": True, "mlp_bias": True}, None),
        ("llama", {}, 4),
        ("llama", {"attention_bias": True}, 8),
        ("qwen2", {}, None),
        (
            "qwen3",
            {"head_dim": 16, "max_position_embeddings": 512, "rope_theta": 1e4, "tie_word_embeddings": True},
            None,
        ),
    ],
)
async def test_joined_projections_say_the_same(
    executor: MlxExecutor, kind: str, more: dict[str, Any], bits: int | None
) -> None:
    def check() -> None:
        import mlx.nn as nn

        model = _model(kind, **more)
        if bits is not None:
            nn.quantize(model, group_size=32, bits=bits)
        _same(model, LAYERS * PER_LAYER)

    await executor.run(check)


async def test_only_layers_of_one_kind_are_joined(executor: MlxExecutor) -> None:
    """One is quantised otherwise, one is not quantised, one is a class of its own."""

    def check() -> None:
        import mlx.nn as nn

        class Own(nn.Linear):  # type: ignore[misc]
            pass

        model = _model("llama")
        first, second = model.layers
        first.self_attn.q_proj = first.self_attn.q_proj.to_quantized(32, 4)
        first.self_attn.k_proj = first.self_attn.k_proj.to_quantized(32, 8)
        first.self_attn.v_proj = first.self_attn.v_proj.to_quantized(32, 8)
        first.mlp.up_proj = first.mlp.up_proj.to_quantized(32, 8)
        own = Own(64, 32, bias=False)
        own.weight = second.self_attn.v_proj.weight
        second.self_attn.v_proj = own
        _same(model, 1)

    await executor.run(check)


async def test_projections_of_other_inputs_are_left_alone(executor: MlxExecutor) -> None:
    """Asked twice, not at all, or with another array."""

    def check() -> None:
        import mlx.core as mx
        import mlx.nn as nn

        class Odd(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
                    self[name] = nn.Linear(8, 8)

            def __call__(self, x: Any) -> Any:
                y = self.q_proj(x) + self.k_proj(x + 1) + self.v_proj(x)
                return y + self.gate_proj(y) + self.gate_proj(y) + self.up_proj(y)

        class Net(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.embed = nn.Embedding(4, 8)
                self.layers = [Odd(), Odd()]

            def __call__(self, tokens: Any) -> Any:
                return self.layers[0](self.embed(tokens))

        model = Net()
        before = model(mx.array([[1]]))
        assert fuse(model) == 0
        assert type(model.layers[0].q_proj) is nn.Linear
        assert mx.array_equal(before, model(mx.array([[1]]))).item()

    await executor.run(check)


async def test_a_model_without_such_projections_is_left_alone(executor: MlxExecutor) -> None:
    def check() -> None:
        model = _model("phi3", rope_theta=1e4, max_position_embeddings=512, original_max_position_embeddings=512)
        before = repr(model)
        assert fuse(model) == 0
        assert repr(model) == before

    await executor.run(check)


async def test_a_model_that_refuses_the_trial_is_left_alone(executor: MlxExecutor) -> None:
    def check() -> None:
        model = _model("llama")
        before = repr(model)
        model.model.norm = None
        assert fuse(model) == 0
        del model.model.norm
        import mlx.nn as nn

        model.model.norm = nn.RMSNorm(64, eps=1e-5)
        assert sorted(repr(model)) == sorted(before)

    await executor.run(check)


async def test_joining_needs_one_groups_memory_at_most(executor: MlxExecutor) -> None:
    def check() -> None:
        import mlx.core as mx

        model = _model("llama", num_hidden_layers=8, hidden_size=256, intermediate_size=1024)
        largest = 2 * 1024 * 256 * 4  # gate and up of a layer
        mx.clear_cache()
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        assert fuse(model) == 8 * PER_LAYER
        assert mx.get_peak_memory() - active <= largest * 1.1
        assert abs(mx.get_active_memory() - active) < largest // 16

    await executor.run(check)


async def test_what_was_computed_is_let_go_with_the_last_part(executor: MlxExecutor) -> None:
    """And an input met again is computed again: arrays may be changed in place."""

    def check() -> None:
        import mlx.core as mx

        model = _model("llama")
        fuse(model)
        attention = model.layers[0].self_attn
        shared: Any = attention.q_proj._part.__self__
        x = mx.ones((1, 1, 64))
        parts = [attention.v_proj(x), attention.q_proj(x)]
        before = shared._input
        assert before is x
        parts.append(attention.k_proj(x))
        assert shared._input is None
        assert not shared._left
        assert [part.shape[-1] for part in parts] == [32, 64, 32]
        assert not mx.array_equal(attention.q_proj(x), attention.q_proj(x * 2)).item()
        first = attention.q_proj(x)
        x += 1
        assert not mx.array_equal(first, attention.q_proj(x)).item()

    await executor.run(check)
