"""A llama in NumPy, in single precision, straight from what the GGUF holds: what every runtime is held against.

Source: the papers (RMS norm, rotary embeddings, SwiGLU, grouped queries). No code of a runtime is in it, and no
quantisation of ours.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.llm.convert import SmolLm2Source

Floats = npt.NDArray[np.float32]

_PARTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


class Llama:
    """Half a gigabyte for SmolLM2: all of its weights, dequantised."""

    def __init__(self, source: SmolLm2Source) -> None:
        self._heads, self._kv_heads = source.heads, source.kv_heads
        self._rope_base, self._epsilon = source.rope_base, source.rms_epsilon
        self._layers = [{part: source.layer(index)(part) for part in _PARTS} for index in range(source.layers)]
        self._embedding = source.tensor("token_embd.weight")
        self._head = self._embedding if source.tied else source.tensor("output.weight")
        self._last_norm = source.tensor("output_norm.weight")

    def logits(self, ids: list[int], wanted: list[int]) -> Floats:
        """What is thought to follow each of the ``wanted`` positions of ``ids``: (wanted, vocabulary)."""
        x = self._embedding[ids]
        for layer in self._layers:
            x = x + self._attention(self._normal(x, layer["attn_norm"]), layer)
            normal = self._normal(x, layer["ffn_norm"])
            gate = normal @ layer["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (normal @ layer["ffn_up"].T)) @ layer["ffn_down"].T
        found: Floats = self._normal(x[wanted], self._last_norm) @ self._head.T
        return found

    def _attention(self, x: Floats, layer: dict[str, Floats]) -> Floats:
        length, hidden = x.shape
        size, group = hidden // self._heads, self._heads // self._kv_heads
        query = self._turned((x @ layer["attn_q"].T).reshape(length, self._heads, size))
        key = self._turned((x @ layer["attn_k"].T).reshape(length, self._kv_heads, size)).repeat(group, axis=1)
        value = (x @ layer["attn_v"].T).reshape(length, self._kv_heads, size).repeat(group, axis=1)
        scores = np.matmul(query.swapaxes(0, 1), key.transpose(1, 2, 0)) / np.float32(np.sqrt(size))
        scores += np.triu(np.full((length, length), -np.inf, np.float32), 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        seen = np.matmul(weights, value.swapaxes(0, 1)).swapaxes(0, 1).reshape(length, hidden)
        out: Floats = seen @ layer["attn_output"].T
        return out

    def _normal(self, x: Floats, gamma: Floats) -> Floats:
        normal: Floats = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(self._epsilon)) * gamma
        return normal

    def _turned(self, value: Floats) -> Floats:
        """Rotary embedding, the pairs half a head apart."""
        length, _, size = value.shape
        half = size // 2
        angles = np.arange(length)[:, None] * self._rope_base ** (-np.arange(half) / half)
        cos, sin = (np.asarray(part(angles), np.float32)[:, None] for part in (np.cos, np.sin))
        first, second = value[..., :half], value[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
