"""Dialogues as tokens, and what is said of a runtime that read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.llm.chatml import ChatMl
from streaming.jobs import Message

Floats = npt.NDArray[np.float32]


class Reads(Protocol):
    """A runtime with its weights."""

    def logits(self, ids: list[int], wanted: list[int]) -> Floats:
        """What is thought to follow each of the ``wanted`` positions of ``ids``: (wanted, vocabulary)."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A dialogue in the model's own form. ``wanted``: the positions that a token of an answer, or its end, follows."""

    ids: list[int]
    wanted: list[int]

    @property
    def answers(self) -> list[int]:
        return [self.ids[position + 1] for position in self.wanted]


@dataclass(frozen=True, slots=True)
class Score:
    """Of all answers' tokens. Nats; ``kl`` is from the reference's distribution to the runtime's."""

    tokens: int
    nll: float
    worse: float
    """By how much the answers are less likely than to the reference, a token; ``worse_error`` is its standard error."""
    worse_error: float
    same_first: float
    """Share of positions with the reference's likeliest token."""
    kl: float
    kl_most: float

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nll))


def dialogues() -> list[tuple[Message, ...]]:
    """Instructions, then caller and agent in turn."""
    read = json.loads(Path(__file__).with_name("dialogues.json").read_text(encoding="utf-8"))
    return [
        (
            Message("system", one["instructions"]),
            *(Message("assistant" if number % 2 else "user", said) for number, said in enumerate(one["turns"])),
        )
        for one in read
    ]


def passage(chat: ChatMl, dialogue: Sequence[Message]) -> Passage:
    ids: list[int] = []
    wanted: list[int] = []
    opening = len(chat.reply_ids)
    for message in dialogue:
        said = chat.message_ids(message)
        if message.role == "assistant":
            end = said.index(chat.end_id)
            wanted += range(len(ids) + opening - 1, len(ids) + end)
        ids += said
    return Passage(ids, wanted)


def read(runtime: Reads, passages: Sequence[Passage]) -> list[Floats]:
    """Log probabilities, passage by passage."""
    return [log_probabilities(runtime.logits(one.ids, one.wanted)) for one in passages]


def log_probabilities(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted.astype(np.float64)).sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def divergence(reference: Floats, runtime: Floats) -> npt.NDArray[np.float64]:
    """Kullback-Leibler, row by row of log probabilities."""
    found: npt.NDArray[np.float64] = (np.exp(reference.astype(np.float64)) * (reference - runtime)).sum(axis=1)
    return found


def score(passages: Sequence[Passage], reference: Sequence[Floats], runtime: Sequence[Floats]) -> Score:
    answers = np.concatenate([one.answers for one in passages])
    true, found = np.concatenate(reference), np.concatenate(runtime)
    rows = np.arange(len(answers))
    nll = -found[rows, answers].astype(np.float64)
    worse = nll + true[rows, answers]
    kl = divergence(true, found)
    return Score(
        tokens=len(answers),
        nll=float(nll.mean()),
        worse=float(worse.mean()),
        worse_error=float(worse.std() / np.sqrt(len(answers))),
        same_first=float((true.argmax(axis=1) == found.argmax(axis=1)).mean()),
        kl=float(kl.mean()),
        kl_most=float(kl.max()),
    )
