"""The runtimes that SmolLM2 is served on, with the weights that presets give them, asked what they think comes next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from engines.llm.chatml import END, START, ChatMl
from engines.llm.convert import SmolLm2Source
from engines.llm.onnx_convert import FACTS_NAME
from engines.llm.onnx_rows import Facts, Graph, Memory, Run
from engines.registry import BACKENDS
from engines.weights import ensure
from scripts.bench_answers.scores import Floats, Reads


def folder_of(backend: str) -> Path:
    """The weights that a backend of the registry serves, made if need be. Raises EngineError."""
    return ensure(BACKENDS[backend].weights[0])


def chat_of(folder: Path) -> ChatMl:
    """As all of them read and write: the tokenizer beside the weights."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    start, end = (tokenizer.token_to_id(marker) for marker in (START, END))
    return ChatMl(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids), start, end)


class Onnx:
    """As a call is served: a prompt at once, then token by token."""

    def __init__(self, folder: Path, source: SmolLm2Source) -> None:
        embedding = source.tensor("token_embd.weight")
        facts = Facts(**json.loads((folder / FACTS_NAME).read_text(encoding="utf-8")))
        self._graph = Graph(folder, facts, lambda ids: embedding[ids])

    def logits(self, ids: list[int], wanted: list[int]) -> Floats:
        memory = Memory([], self._graph.facts.room(1, len(ids)))
        run = Run(self._graph, memory.state)
        ends = [position + 1 for position in wanted]
        return np.concatenate([run.advance([ids[a:b]], [memory]).copy() for a, b in pairwise([0, *ends])])


class CTranslate2:
    def __init__(self, folder: Path, source: SmolLm2Source) -> None:
        import ctranslate2

        self._tokens = source.tokens
        self._generator: Any = ctranslate2.Generator(str(folder), device="cpu", compute_type="int8", intra_threads=1)

    def logits(self, ids: list[int], wanted: list[int]) -> Floats:
        found = self._generator.forward_batch([[self._tokens[token] for token in ids]], return_log_probs=False)
        return np.array(found, np.float32)[0, wanted]


class Mlx:
    """To be made and used on the MLX executor's thread."""

    def __init__(self, folder: Path, _source: SmolLm2Source) -> None:
        from engines.llm.mlx_rows import load_checkpoint

        self._model, _ = load_checkpoint(folder)

    def logits(self, ids: list[int], wanted: list[int]) -> Floats:
        import mlx.core as mx

        return np.array(self._model(mx.array([ids]))[0])[wanted]


RUNTIMES: Mapping[str, Callable[[Path, SmolLm2Source], Reads]] = {
    "smollm2-onnx": Onnx,
    "smollm2-ctranslate2": CTranslate2,
    "smollm2-mlx": Mlx,
}
"""By the backend's name."""
