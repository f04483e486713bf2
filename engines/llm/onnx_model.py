"""SmolLM2's weights on onnxruntime, with the keys and values of recent prompts kept: prompt ids in, reply ids out, on
the calling thread.

A step is memory-bound: int8 weights read once, 9 ms of a core where CTranslate2 takes 23 (presumably it packs
them anew for each product). A prompt is computed from the first token on that none of the kept prompts begins with: a
turn computes its new words, and all calls share one reading of a system prompt.
"""

from __future__ import annotations

import json
import mmap
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.api import EngineError
from engines.lane import CpuLane
from engines.llm.chatml import END, START, ChatMl
from engines.llm.ctranslate2 import CTranslate2LanguageModel
from engines.llm.onnx_convert import BLOCK, FACTS_NAME, GRAPH_NAME, MAX_POSITIONS, WEIGHTS_NAME
from engines.onnx import open_session

REPETITION_PENALTY = 1.1
"""Without it a model of this size says one sentence over and over."""

KEPT_TOKENS = 4096
"""There is room for in all kept prompts together: 46 kB each, so 190 MB."""
HISTORY_STEP = 4
"""Turns leave a long conversation so many at a time: each cut has the rest read again."""

_GROWS_BY = 64

_SAMPLED_FROM = 40
_END_OF_TEXT = "<|endoftext|>"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Facts:
    layers: int
    kv_heads: int
    head_size: int
    hidden_size: int
    vocabulary: int
    embedding_at: int
    embedding_scales_at: int


@dataclass(eq=False, slots=True)
class _Memory:
    """Keys and values of ``tokens``, float32 (layers, 2, 1, heads, capacity, size)."""

    tokens: list[int]
    state: Floats

    @property
    def capacity(self) -> int:
        return int(self.state.shape[-2])


class KeptPrompts:
    """What was computed of recent prompts, with room for at most ``max_tokens`` in all; the longest unused goes first.
    Thread-safe."""

    def __init__(self, max_tokens: int = KEPT_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._kept: deque[_Memory] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, prompt: list[int]) -> tuple[_Memory | None, int]:
        """The memory that begins with most of ``prompt``, and how many tokens of it."""
        with self._lock:
            best: _Memory | None = None
            length = 0
            for memory in self._kept:
                shared = _shared(memory.tokens, prompt)
                if shared > length:
                    best, length = memory, shared
            if best is not None:
                self._kept.remove(best)
                self._kept.append(best)
            return best, length

    def keep(self, memory: _Memory) -> None:
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
    """A :class:`engines.llm.ctranslate2.TextModel`. Any number of threads may generate at once."""

    def __init__(self, model_dir: Path, _workers: int = 0) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Any = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
            self._facts = facts = _Facts(**json.loads((model_dir / FACTS_NAME).read_text(encoding="utf-8")))
            with (model_dir / WEIGHTS_NAME).open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except Exception as error:  # the tokenizers extension raises bare types
            raise EngineError("bad_weights", f"{model_dir} holds no language model: {error}") from error
        blocks = facts.hidden_size // BLOCK
        shape = (facts.vocabulary, blocks, BLOCK)
        self._embedding = np.ndarray(shape, np.uint8, self._mapped, facts.embedding_at)
        self._embedding_scales = np.ndarray(shape[:2], np.float32, self._mapped, facts.embedding_scales_at)
        self._session: Any = open_session(model_dir / GRAPH_NAME)
        self._kept = KeptPrompts()
        # A caller who says "<|im_end|>" says seven characters, and ends nothing.
        self._tokenizer.encode_special_tokens = True
        self.end_ids = frozenset((self._id(END), self._id(_END_OF_TEXT)))
        self.chat = ChatMl(self._encode, self._id(START), self._id(END))

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def generate(self, prompt: list[int], max_tokens: int, temperature: float, on_token: Callable[[int], bool]) -> int:
        memory = self._recalled(prompt, max_tokens)
        recalled = len(memory.tokens)
        run = _Run(self._session, self._facts, self._embed, memory)
        random = np.random.default_rng()
        said: list[int] = []
        try:
            logits = run.advance(prompt[recalled:])
            for left in range(min(max_tokens, memory.capacity - len(prompt)) - 1, -1, -1):
                token = _chosen(logits, said, temperature, random)
                said.append(token)
                if on_token(token) or token in self.end_ids or not left:
                    break
                logits = run.advance([token])
        finally:
            self._kept.keep(memory)
        return len(prompt) - recalled

    def close(self) -> None:
        self._session = None
        self._kept = KeptPrompts(0)

    def _recalled(self, prompt: list[int], max_tokens: int) -> _Memory:
        """As much of the prompt as is known, with room for the rest and the reply."""
        facts = self._facts
        needed = min(MAX_POSITIONS, len(prompt) + max_tokens)
        capacity = -(-needed // _GROWS_BY) * _GROWS_BY
        state = np.empty((facts.layers, 2, 1, facts.kv_heads, capacity, facts.head_size), np.float32)
        known, shared = self._kept.longest(prompt)
        shared = min(shared, len(prompt) - 1)  # what comes after the last token is wanted
        if known is not None:
            state[..., :shared, :] = known.state[..., :shared, :]
        return _Memory(prompt[:shared], state)

    def _embed(self, ids: list[int]) -> Floats:
        quants = self._embedding[ids].astype(np.float32) - 128.0
        values: Floats = (quants * self._embedding_scales[ids][:, :, None]).reshape(1, len(ids), -1)
        return values

    def _id(self, token: str) -> int:
        found: int | None = self._tokenizer.token_to_id(token)
        if found is None:
            raise EngineError("bad_weights", f"the tokenizer has no token {token}")
        return found

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class _Run:
    """One reply under way. Keys and values are written where ``memory`` has room for them, never copied."""

    def __init__(self, session: Any, facts: _Facts, embed: Callable[[list[int]], Floats], memory: _Memory) -> None:
        import onnxruntime

        self._memory = memory
        self._session = session
        self._embed = embed
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy
        self._binding: Any = session.io_binding()
        for layer in range(facts.layers):
            for index, kind in enumerate(("key", "value")):
                room = memory.state[layer, index]
                where = ("cpu", 0, np.float32, room.shape, room.ctypes.data)
                self._binding.bind_input(f"past_{kind}_{layer}", *where)
                self._binding.bind_output(f"present_{kind}_{layer}", *where)
        self._logits: Floats = np.empty((1, facts.vocabulary), np.float32)
        self._binding.bind_output("logits", "cpu", 0, np.float32, self._logits.shape, self._logits.ctypes.data)

    def advance(self, ids: list[int]) -> Floats:
        """Compute these tokens too; the logits of what comes next, valid until the next call."""
        total = len(self._memory.tokens) + len(ids)
        inputs = {
            "x": self._embed(ids),
            "last": np.array([total - 1], np.int32),
            "total": np.array(total, np.int32),
        }
        values = {name: self._value(value) for name, value in inputs.items()}
        for name, value in values.items():
            self._binding.bind_ortvalue_input(name, value)
        self._session.run_with_iobinding(self._binding)
        self._memory.tokens += ids
        logits: Floats = self._logits[0]
        return logits


def _chosen(logits: Floats, said: list[int], temperature: float, random: np.random.Generator) -> int:
    """The next token; ``logits`` is changed."""
    if said:
        again = np.unique(said)
        scores = logits[again]
        logits[again] = np.where(scores > 0, scores / REPETITION_PENALTY, scores * REPETITION_PENALTY)
    if temperature <= 0:
        return int(logits.argmax())
    likeliest = np.argpartition(logits, -_SAMPLED_FROM)[-_SAMPLED_FROM:]
    weights = np.exp((logits[likeliest] - logits[likeliest].max()).astype(np.float64) / temperature)
    return int(random.choice(likeliest, p=weights / weights.sum()))


def _shared(one: list[int], other: list[int]) -> int:
    """How many tokens they begin with alike."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
