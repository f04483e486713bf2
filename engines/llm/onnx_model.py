"""SmolLM2's weights on onnxruntime, with the keys and values of recent prompts kept: prompt ids in, reply ids out.

A step is memory-bound: int8 weights read once, 9 ms of a core where CTranslate2 takes 23 (presumably it packs
them anew for each product). So all replies step together (:mod:`engines.llm.onnx_rows`). A prompt is computed from
the first token on that none of the kept prompts begins with: a turn computes its new words, and all calls share one
reading of a system prompt.
"""

from __future__ import annotations

import json
import mmap
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from engines.api import EngineError
from engines.lane import CpuLane
from engines.llm.chatml import END, START, ChatMl
from engines.llm.ctranslate2 import CTranslate2LanguageModel
from engines.llm.onnx_convert import BLOCK, FACTS_NAME, MAX_POSITIONS, WEIGHTS_NAME
from engines.llm.onnx_rows import Batch, Facts, Floats, Graph, Memory, Row, Run, Stepper
from engines.llm.text_model import Offer, Wanted

KEPT_TOKENS = 4096
"""There is room for in all kept prompts together: 46 kB each, so 190 MB."""
HISTORY_STEP = 4
"""Turns leave a long conversation so many at a time: each cut has the rest read again."""

_GROWS_BY = 64
_END_OF_TEXT = "<|endoftext|>"


class KeptPrompts:
    """What was computed of recent prompts, with room for at most ``max_tokens`` in all; the longest unused goes first.
    Thread-safe."""

    def __init__(self, max_tokens: int = KEPT_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._kept: deque[Memory] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, prompt: list[int]) -> tuple[Memory | None, int]:
        """The memory that begins with most of ``prompt``, and how many tokens of it."""
        with self._lock:
            best: Memory | None = None
            length = 0
            for memory in self._kept:
                shared = _shared(memory.tokens, prompt)
                if shared > length:
                    best, length = memory, shared
            if best is not None:
                self._kept.remove(best)
                self._kept.append(best)
            return best, length

    def keep(self, memory: Memory) -> None:
        """Nobody may change ``memory`` any more."""
        with self._lock:
            for older in [old for old in self._kept if _shared(old.tokens, memory.tokens) == len(old.tokens)]:
                self._kept.remove(older)
            self._kept.append(memory)
            while sum(kept.capacity for kept in self._kept) > self._max_tokens:
                self._kept.popleft()


def onnx_language_model(model_dir: Path, lane: CpuLane) -> CTranslate2LanguageModel:
    """The engine that serves these weights."""
    return CTranslate2LanguageModel(model_dir, lane, history_step=HISTORY_STEP, load=OnnxTextModel)


class OnnxTextModel:
    """A :class:`engines.llm.text_model.TextModel` for at most ``rows`` replies at once. Each reads its prompt on a
    thread of its own, then joins the others."""

    def __init__(self, model_dir: Path, rows: int) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Any = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
            facts = Facts(**json.loads((model_dir / FACTS_NAME).read_text(encoding="utf-8")))
            with (model_dir / WEIGHTS_NAME).open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except Exception as error:  # the tokenizers extension raises bare types
            raise EngineError("bad_weights", f"{model_dir} holds no language model: {error}") from error
        blocks = facts.hidden_size // BLOCK
        shape = (facts.vocabulary, blocks, BLOCK)
        self._embedding = np.ndarray(shape, np.uint8, self._mapped, facts.embedding_at)
        self._embedding_scales = np.ndarray(shape[:2], np.float32, self._mapped, facts.embedding_scales_at)
        self._graph = Graph(model_dir, facts, self._embed)
        self._kept = KeptPrompts()
        self._stepper = Stepper(Batch(self._graph, rows), self._ended)
        # A caller who says "<|im_end|>" says seven characters, and ends nothing.
        self._tokenizer.encode_special_tokens = True
        self.end_ids = frozenset((self._id(END), self._id(_END_OF_TEXT)))
        self.chat = ChatMl(self._encode, self._id(START), self._id(END))

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def generate(self, wanted: Wanted, slot: Offer) -> None:
        row: Row | None = None
        try:
            row = self._begun(wanted)
            logits = row.alone.advance([wanted.prompt[len(row.memory.tokens) :]], [row.memory])
            last = row.left <= 0 or row.say(logits[0])
        except Exception as error:  # noqa: BLE001 (it is for whoever wanted the reply)
            if row is None:
                wanted.on_end(0, error)
            else:
                self._ended(row, error)
            return
        if last:
            self._ended(row, None)
        else:
            self._stepper.add(row, slot)

    def reorder(self) -> None:
        self._stepper.reorder()

    def close(self) -> None:
        self._graph.close()
        self._kept = KeptPrompts(0)

    def _ended(self, row: Row, error: Exception | None) -> None:
        self._kept.keep(row.memory)
        row.wanted.on_end(row.prefilled, error)

    def _begun(self, wanted: Wanted) -> Row:
        memory = self._recalled(wanted.prompt, wanted.max_tokens)
        new = len(wanted.prompt) - len(memory.tokens)
        left = min(wanted.max_tokens, memory.capacity - len(wanted.prompt))
        return Row(wanted, memory, Run(self._graph, memory.state), self.end_ids, new, left)

    def _recalled(self, prompt: list[int], max_tokens: int) -> Memory:
        """As much of the prompt as is known, with room for the rest and the reply."""
        needed = min(MAX_POSITIONS, len(prompt) + max_tokens)
        capacity = -(-needed // _GROWS_BY) * _GROWS_BY
        state = self._graph.facts.room(1, capacity)
        known, shared = self._kept.longest(prompt)
        shared = min(shared, len(prompt) - 1)  # what comes after the last token is wanted
        if known is not None:
            state[..., :shared, :] = known.state[..., :shared, :]
        return Memory(prompt[:shared], state)

    def _embed(self, ids: list[int]) -> Floats:
        quants = self._embedding[ids].astype(np.float32) - 128.0
        values: Floats = (quants * self._embedding_scales[ids][:, :, None]).reshape(len(ids), -1)
        return values

    def _id(self, token: str) -> int:
        found: int | None = self._tokenizer.token_to_id(token)
        if found is None:
            raise EngineError("bad_weights", f"the tokenizer has no token {token}")
        return found

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _shared(one: list[int], other: list[int]) -> int:
    """How many tokens they begin with alike."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
