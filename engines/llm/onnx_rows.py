"""The replies that are said at once, one token each a step: a step reads all weights, for one row or for four.

A row that joins is copied beside the others. One that leaves takes what it said back to where its prompt is, and no
other moves but the last, into its place. Nothing is padded: each row says how long it is, and no more of it is read.
A row that is alone stays where it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from engines.llm.onnx_convert import GRAPH_NAME
from engines.llm.text_model import Offer, Wanted
from engines.onnx import open_session
from streaming.jobs import Priority

_log = structlog.get_logger(__name__)

REPETITION_PENALTY = 1.1
"""Without it a model of this size says one sentence over and over."""

ROOM_KEPT_TOKENS = 2048
"""Room for rows side by side is kept for the next of them up to this size, 94 MB: new memory costs 6 ms a row."""

_SAMPLED_FROM = 40
_AT_ONCE = (Priority.FINAL, 0.0)
"""Where the steps belong while a row that nobody wants holds its place."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Facts:
    layers: int
    kv_heads: int
    head_size: int
    hidden_size: int
    vocabulary: int
    embedding_at: int
    embedding_scales_at: int

    def room(self, rows: int, capacity: int) -> Floats:
        """For keys and values."""
        return np.empty((self.layers, 2, rows, self.kv_heads, capacity, self.head_size), np.float32)


@dataclass(eq=False, slots=True)
class Memory:
    """Keys and values of ``tokens``, float32 (layers, 2, 1, heads, capacity, size)."""

    tokens: list[int]
    state: Floats

    @property
    def capacity(self) -> int:
        return int(self.state.shape[-2])


class Graph:
    """The weights: any number of threads may compute with them at once."""

    def __init__(self, folder: Path, facts: Facts, embed: Callable[[list[int]], Floats]) -> None:
        self.facts = facts
        self.embed = embed
        self.session: Any = open_session(folder / GRAPH_NAME)

    def close(self) -> None:
        self.session = None


class Run:
    """Rows that are computed together, ``state`` (layers, 2, rows, heads, capacity, size): keys and values are written
    where it has room for them, never copied."""

    def __init__(self, graph: Graph, state: Floats) -> None:
        import onnxruntime

        self._graph = graph
        self._state = state  # the binding has its address only
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy
        self._binding: Any = graph.session.io_binding()
        for layer in range(graph.facts.layers):
            for index, kind in enumerate(("key", "value")):
                room = state[layer, index]
                where = ("cpu", 0, np.float32, room.shape, room.ctypes.data)
                self._binding.bind_input(f"past_{kind}_{layer}", *where)
                self._binding.bind_output(f"present_{kind}_{layer}", *where)
        self._logits: Floats = np.empty((state.shape[2], graph.facts.vocabulary), np.float32)
        self._binding.bind_output("logits", "cpu", 0, np.float32, self._logits.shape, self._logits.ctypes.data)

    def advance(self, ids: Sequence[list[int]], memories: Sequence[Memory]) -> Floats:
        """Compute these tokens too, a row as many as the other; the logits (rows, vocabulary) of what comes next, valid
        until the next call."""
        totals = [len(memory.tokens) + len(new) for memory, new in zip(memories, ids, strict=True)]
        embedded = self._graph.embed([token for row in ids for token in row])
        inputs = {
            "x": embedded.reshape(len(ids), -1, embedded.shape[-1]),
            "last": np.array(totals, np.int32) - 1,
            "total": np.array(max(totals), np.int32),
        }
        values = {name: self._value(value) for name, value in inputs.items()}
        for name, value in values.items():
            self._binding.bind_ortvalue_input(name, value)
        self._graph.session.run_with_iobinding(self._binding)
        for memory, new in zip(memories, ids, strict=True):
            memory.tokens += new
        return self._logits


@dataclass(eq=False, slots=True)
class Row:
    """One reply. ``place``: where it is beside others; what it had when it joined, ``at_home`` tokens, is in its memory
    too. ``alone`` computes in its memory."""

    wanted: Wanted
    memory: Memory
    alone: Run
    ends: frozenset[int]
    prefilled: int
    left: int
    said: list[int] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    place: int | None = None
    at_home: int = 0

    def say(self, logits: Floats) -> bool:
        """Choose the next token (``logits`` is changed) and tell it; True: it was the last."""
        token = chosen(logits, self.said, self.wanted.temperature, self.random)
        self.said.append(token)
        self.left -= 1
        return self.wanted.on_token(token) or token in self.ends or self.left <= 0


class Batch:
    """The rows that are stepped together, at most ``width``. For one thread at a time."""

    def __init__(self, graph: Graph, width: int) -> None:
        self._graph = graph
        self._width = width
        self._rows: list[Row] = []
        self._room: Floats | None = None
        self._together: dict[int, Run] = {}
        """By the number of rows."""
        self._run: Run | None = None
        """Of the rows as they are, or to be found."""

    def join(self, row: Row) -> None:
        self._rows.append(row)
        self._run = None

    def leave(self, row: Row) -> None:
        """What it holds is in its memory then."""
        self._take_home(row)
        self._rows.remove(row)
        self._run = None
        if not self._rows and self._room is not None and self._width * self._room.shape[-2] > ROOM_KEPT_TOKENS:
            self._room = None
            self._together.clear()

    def step(self) -> list[tuple[Row, Floats]]:
        """Compute the last token of every row; the logits of what comes next, valid until the next step."""
        if self._run is None:
            self._run = self._arranged()
        logits = self._run.advance([row.said[-1:] for row in self._rows], [row.memory for row in self._rows])
        return list(zip(self._rows, logits, strict=True))

    def _arranged(self) -> Run:
        """Where all rows are, in their order."""
        rows = self._rows
        if len(rows) == 1:
            self._take_home(rows[0])
            return rows[0].alone
        room = self._roomy(max(row.memory.capacity for row in rows))
        for row in rows:
            if row.place is not None and row.place >= len(rows):
                self._take_home(row)
        free = iter(sorted(set(range(len(rows))) - {row.place for row in rows}))
        for row in rows:
            if row.place is None:
                row.place, row.at_home = next(free), len(row.memory.tokens)
                room[:, :, row.place, :, : row.at_home] = row.memory.state[:, :, 0, :, : row.at_home]
        rows.sort(key=lambda row: row.place or 0)
        if len(rows) not in self._together:
            self._together[len(rows)] = Run(self._graph, room[:, :, : len(rows)])
        return self._together[len(rows)]

    def _roomy(self, capacity: int) -> Floats:
        if self._room is None or self._room.shape[-2] < capacity:
            for row in self._rows:
                self._take_home(row)
            self._room = self._graph.facts.room(self._width, capacity)
            self._together.clear()
        return self._room

    def _take_home(self, row: Row) -> None:
        if row.place is not None:
            assert self._room is not None
            new = slice(row.at_home, len(row.memory.tokens))
            row.memory.state[:, :, 0, :, new] = self._room[:, :, row.place, :, new]
            row.place = None


class Stepper:
    """Says all replies whose prompts are read, on the thread of the one that came when there was none: its lane slot
    is held for all of them, at the place in the order of the most urgent. The others' threads are free.

    ``ended`` is called for each row when it has left.
    """

    def __init__(self, batch: Batch, ended: Callable[[Row, Exception | None], None]) -> None:
        self._batch = batch
        self._ended = ended
        self._lock = threading.Lock()
        self._slot: Offer | None = None
        self._rows: list[Row] = []
        self._joining: list[Row] = []

    def add(self, row: Row, slot: Offer) -> None:
        """Returns when the row is another thread's, or when nobody has anything to say any more."""
        with self._lock:
            self._rows.append(row)
            self._joining.append(row)
            if self._slot is not None:
                self._reorder(self._slot)
                return
            self._slot = slot
        while self._goes_on(slot):
            self._step(slot.yield_if_needed())

    def reorder(self) -> None:
        with self._lock:
            if self._slot is not None and self._rows:  # the last may just have left
                self._reorder(self._slot)

    def _reorder(self, slot: Offer) -> None:
        slot.reprioritize(*min(row.wanted.urgency() or _AT_ONCE for row in self._rows))

    def _goes_on(self, slot: Offer) -> bool:
        with self._lock:
            if not self._rows:
                self._slot = None
                return False
            self._reorder(slot)
            return True

    def _step(self, may_go_on: bool) -> None:
        with self._lock:
            rows, joining, self._joining = list(self._rows), self._joining, []
        for row in joining:
            self._batch.join(row)
        left = [row for row in rows if not may_go_on or row.wanted.urgency() is None]
        for row in left:
            self._leave(row)
        if left:  # those that remain may be less urgent
            return
        try:
            stepped = self._batch.step()
        except Exception as error:  # noqa: BLE001 (which of them it was can't be told)
            for row in rows:
                self._leave(row, error)
            return
        for row, logits in stepped:
            try:
                last = row.say(logits)
            except Exception as error:  # noqa: BLE001 (the row's own)
                self._leave(row, error)
            else:
                if last:
                    self._leave(row)

    def _leave(self, row: Row, error: Exception | None = None) -> None:
        self._batch.leave(row)
        with self._lock:
            self._rows.remove(row)
        try:
            self._ended(row, error)
        except Exception:  # noqa: BLE001 (one reply's defect: the slot is not given up with others in it)
            _log.exception("the end of a reply could not be told")


def chosen(logits: Floats, said: list[int], temperature: float, random: np.random.Generator) -> int:
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
