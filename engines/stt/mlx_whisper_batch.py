"""The clips of all calls decoding as one batch: rows join with their encoded window and leave with a hypothesis.

A decode step costs nearly the same for one row and for thirty. Rows begin at different times, so their own keys are
aligned at the right: a row that joins late has columns before its first token, which its mask hides. Windows differ
in length, so what was heard is padded at the right, and masked likewise. Decoding is greedy.

Everything here is for the executor's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engines.stt.mlx_whisper_model import Keys, WhisperModel
from engines.stt.whisper_decoder import Hypothesis

_COLUMNS = 32
"""Room for the rows' own keys grows by this, so that few shapes exist."""


@dataclass(eq=False, slots=True)
class Row:
    """One clip on its way through the decoder. ``most_tokens`` is where it is stopped."""

    heard: Keys
    prompt: Sequence[int]
    most_tokens: int
    repetition_penalty: float = 1.0
    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    no_speech: float = 0.0
    ended: bool = False

    def take(self, token: int, log_probability: float, end: int) -> None:
        if self.ended:
            return
        self.log_probability += log_probability
        if token != end:
            self.tokens.append(token)
        self.ended = token == end or len(self.tokens) >= self.most_tokens


class DecodeBatch:
    """Rows keep their order; the last one to join is the last."""

    def __init__(self, model: WhisperModel) -> None:
        import mlx.core as mx

        self._model = model
        self._suppressed = mx.array(model.vocabulary.suppressed)
        self._suppressed_first = mx.array(model.vocabulary.suppressed_first)
        self.reset()

    def reset(self) -> None:
        """Forget every row."""
        self._rows: list[Row] = []
        self._own: list[tuple[Any, Any]] = []
        self._heard: list[tuple[Any, Any]] = []
        self._heard_lengths: list[int] = []
        self._pads: list[int] = []
        """Columns before each row's first."""
        self._used = 0
        """Columns in use, the same for all rows."""
        self._seen: Any = None
        """Which tokens each row has said, shape (rows, vocabulary)."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: Row) -> bool:
        return row in self._rows

    def hypothesis(self, row: Row) -> Hypothesis:
        """By CTranslate2's measure: the log probability of all tokens with the end's, over the tokens without it."""
        average = row.log_probability / max(1, len(row.tokens))
        return Hypothesis(self._model.text(row.tokens), row.no_speech, average)

    def join(self, rows: Sequence[Row]) -> None:
        """Read the prompts of new rows, each of which then has its first token. All prompts have one length."""
        import mlx.core as mx

        if not rows:
            return
        count, width = len(rows), len(rows[0].prompt)
        lengths = [row.heard[0][0].shape[2] for row in rows]
        most = max(lengths)
        heard = [
            _stacked([[_lengthen(side, most) for side in row.heard[layer]] for row in rows])
            for layer in range(len(rows[0].heard))
        ]
        own: list[tuple[Any, Any]] = []

        def keep(layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
            own.append((keys, values))
            return keys, values

        tokens = mx.array([list(row.prompt) for row in rows])
        causal = mx.arange(width)[:, None] >= mx.arange(width)[None, :]
        logits = self._model.decode(
            tokens, mx.arange(width)[None], keep, causal, heard, _mask_of(lengths, most)
        ).astype(mx.float32)
        no_speech = mx.softmax(logits[:, 0], axis=-1)[:, self._model.vocabulary.no_speech]
        seen = mx.zeros((count, logits.shape[-1]), dtype=mx.bool_)
        scores = logits[:, -1] + self._suppressed_first
        self._admit(rows, own, heard, lengths, width, seen)
        self._choose(scores, rows, slice(len(self._rows) - count, None), no_speech)

    def step(self) -> None:
        """One token more for every row; what an ended row gets is ignored."""
        import mlx.core as mx

        self._make_room()
        count, column = len(self._rows), self._used
        last = [[row.tokens[-1] if row.tokens else self._model.vocabulary.end] for row in self._rows]
        # A row that ended goes along until it leaves, and must not run off the table of positions.
        most = self._model.dims.n_text_ctx - 1
        positions = [[min(most, column - pad)] for pad in self._pads]
        columns = mx.arange(self._own[0][0].shape[2])[None, :]
        visible = (columns >= mx.array(self._pads)[:, None]) & (columns <= column)

        def keep(layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
            all_keys, all_values = self._own[layer]
            all_keys[:, :, column : column + 1] = keys
            all_values[:, :, column : column + 1] = values
            return all_keys, all_values

        mask = None if len(set(self._heard_lengths)) == 1 else _mask_of(self._heard_lengths, max(self._heard_lengths))
        logits = self._model.decode(
            mx.array(last), mx.array(positions), keep, visible[:, None, None, :], self._heard, mask
        )
        self._used += 1
        scores = logits[:, -1].astype(mx.float32)
        self._choose(self._penalized(scores) + self._suppressed, self._rows, slice(0, count))

    def leave(self, rows: Collection[Row]) -> None:
        """Take rows out, and the columns and positions that only they needed."""
        import mlx.core as mx

        stay = [index for index, row in enumerate(self._rows) if row not in rows]
        if len(stay) == len(self._rows):
            return
        if not stay:
            self.reset()
            return
        unused = min(self._pads[index] for index in stay)
        positions = max(self._heard_lengths[index] for index in stay)
        index = mx.array(stay)
        self._own = [(keys[index][:, :, unused:], values[index][:, :, unused:]) for keys, values in self._own]
        self._heard = [(keys[index][:, :, :positions], values[index][:, :, :positions]) for keys, values in self._heard]
        self._seen = self._seen[index]
        self._rows = [self._rows[at] for at in stay]
        self._pads = [self._pads[at] - unused for at in stay]
        self._heard_lengths = [self._heard_lengths[at] for at in stay]
        self._used -= unused
        mx.eval(self._own, self._heard, self._seen)

    def _admit(
        self,
        rows: Sequence[Row],
        own: list[tuple[Any, Any]],
        heard: Sequence[Any],
        lengths: list[int],
        width: int,
        seen: Any,
    ) -> None:
        import mlx.core as mx

        used = max(self._used, width)
        before = self._own
        if not before:
            self._own, self._heard, self._seen = list(own), list(heard), seen
        else:
            most = max(*lengths, *self._heard_lengths)
            self._own = [
                _stacked(
                    [[_widen(side[:, :, : self._used], used) for side in old], [_widen(side, used) for side in new]]
                )
                for old, new in zip(before, own, strict=True)
            ]
            self._heard = [
                _stacked([[_lengthen(side, most) for side in layer] for layer in (old, new)])
                for old, new in zip(self._heard, heard, strict=True)
            ]
            self._seen = mx.concatenate([self._seen, seen])
        self._pads = [pad + used - self._used for pad in self._pads] + [used - width] * len(rows)
        self._heard_lengths += lengths
        self._rows += rows
        self._used = used

    def _make_room(self) -> None:
        import mlx.core as mx

        room = self._own[0][0].shape[2]
        if self._used >= room:
            more = -(-(self._used + 1) // _COLUMNS) * _COLUMNS
            self._own = [(_lengthen(keys, more), _lengthen(values, more)) for keys, values in self._own]
            mx.eval(self._own)

    def _penalized(self, scores: Any) -> Any:
        """The repetition penalty of CTRL (Keskar et al., 2019), for the rows that have one."""
        import mlx.core as mx

        if all(row.repetition_penalty == 1.0 for row in self._rows):
            return scores
        penalty = mx.array([[row.repetition_penalty] for row in self._rows])
        return mx.where(self._seen, mx.where(scores < 0, scores * penalty, scores / penalty), scores)

    def _choose(self, scores: Any, rows: Iterable[Row], at: slice, no_speech: Any = None) -> None:
        """The best token of each row, read back; everything the next step needs is evaluated with it."""
        import mlx.core as mx

        tokens = mx.argmax(scores, axis=-1)
        chosen = mx.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0] - mx.logsumexp(scores, axis=-1)
        vocabulary = mx.arange(scores.shape[-1])[None, :]
        self._seen[at] = self._seen[at] | (vocabulary == tokens[:, None])
        mx.eval(tokens, chosen, self._own, self._heard, self._seen, *([] if no_speech is None else [no_speech]))
        end = self._model.vocabulary.end
        for row, token, log_probability in zip(rows, np.array(tokens), np.array(chosen), strict=True):
            row.take(int(token), float(log_probability), end)
        if no_speech is not None:
            for row, probability in zip(rows, np.array(no_speech), strict=True):
                row.no_speech = float(probability)


def _lengthen(x: Any, positions: int) -> Any:
    """Zeros after the last position, up to so many."""
    import mlx.core as mx

    missing = positions - x.shape[2]
    return x if missing == 0 else mx.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0)])


def _widen(x: Any, columns: int) -> Any:
    """Zeros before the first column, up to so many."""
    import mlx.core as mx

    missing = columns - x.shape[2]
    return x if missing == 0 else mx.pad(x, [(0, 0), (0, 0), (missing, 0), (0, 0)])


def _stacked(pairs: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
    """Pairs of keys and values as one pair, row under row."""
    import mlx.core as mx

    return mx.concatenate([keys for keys, _ in pairs]), mx.concatenate([values for _, values in pairs])


def _mask_of(lengths: Sequence[int], most: int) -> Any:
    """Which positions each row may attend to, shape (batch, 1, 1, positions)."""
    import mlx.core as mx

    return (mx.arange(most)[None, :] < mx.array(list(lengths))[:, None])[:, None, None, :]
