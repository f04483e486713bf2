"""The clips of all calls decoding as one batch: rows join with their encoded window and leave with a hypothesis.

A decode step costs nearly the same for one row and for thirty. Rows begin at different times, so their own keys are
aligned at the right: a row that joins late has columns before its first token, which its mask hides. Windows differ
in length, so what was heard is padded at the right, and masked likewise. Decoding is greedy.

Everything here is for the executor's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engines.executor.rows_kv import power_of_two
from engines.stt.mlx_whisper_model import Keys, WhisperModel
from engines.stt.whisper_decoder import Hypothesis

_COLUMNS = 32
"""Room for the rows' own keys grows by this."""
PADDED_COLUMNS = (64, 128, 256, 512)
PADDED_POSITIONS = (400, 800, 1500)
"""Windows of 8, 16 and 30 s."""
_JOIN_TOGETHER = 8


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
    """Rows keep their order; the last one to join is the last.

    ``pad`` (on by default on a GPU) rounds the number of rows and all lengths up to a few values, with dead rows after
    the last and masks everywhere, so that few shapes have to be compiled and all can be run before the first call.
    """

    def __init__(self, model: WhisperModel, *, pad: bool | None = None) -> None:
        import mlx.core as mx

        self._model = model
        self.pad = not model.on_cpu if pad is None else pad
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
        together = _JOIN_TOGETHER if self.pad else max(1, len(rows))
        for at in range(0, len(rows), together):
            self._join(rows[at : at + together])

    def _join(self, rows: Sequence[Row]) -> None:
        import mlx.core as mx

        count, width = len(rows), len(rows[0].prompt)
        padded = [*rows, *[rows[0]] * (self._width(count) - count)]
        lengths = [row.heard[0][0].shape[2] for row in padded]
        most = self._positions(max(lengths))
        heard = [
            _stacked([[_lengthen(side, most) for side in row.heard[layer]] for row in padded])
            for layer in range(len(rows[0].heard))
        ]
        if self.pad:  # cuDNN plans for strides too, and one row that needed no padding is as its encoder left it
            heard = [(mx.contiguous(keys), mx.contiguous(values)) for keys, values in heard]
        own: list[tuple[Any, Any]] = []

        def keep(layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
            own.append((keys, values))
            return keys, values

        tokens = mx.array([list(row.prompt) for row in padded])
        causal = mx.arange(width)[:, None] >= mx.arange(width)[None, :]
        logits = self._model.decode(
            tokens, mx.arange(width)[None], keep, causal, heard, _mask_of(lengths, most)
        ).astype(mx.float32)
        no_speech = mx.softmax(logits[:, 0], axis=-1)[:, self._model.vocabulary.no_speech]
        best, chosen, said = _best(logits[:, -1] + self._suppressed_first)
        self._admit(rows, own, heard, lengths[:count], width, said)
        mx.eval(best, chosen, no_speech, self._own, self._heard, self._seen)
        self._take(rows, best, chosen)
        for row, probability in zip(rows, np.array(no_speech), strict=False):
            row.no_speech = float(probability)

    def step(self) -> None:
        """One token more for every row; what an ended row gets is ignored."""
        import mlx.core as mx

        self._make_room()
        column, dead = self._used, self._width(len(self._rows)) - len(self._rows)
        end = self._model.vocabulary.end
        last = [[row.tokens[-1] if row.tokens else end] for row in self._rows] + [[end]] * dead
        # A row that ended goes along until it leaves, and must not run off the table of positions.
        most = self._model.dims.n_text_ctx - 1
        pads = self._pads + [0] * dead
        positions = [[min(most, column - pad)] for pad in pads]
        columns = mx.arange(self._own[0][0].shape[2])[None, :]
        visible = (columns >= mx.array(pads)[:, None]) & (columns <= column)

        def keep(layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
            all_keys, all_values = self._own[layer]
            all_keys[:, :, column : column + 1] = keys
            all_values[:, :, column : column + 1] = values
            return all_keys, all_values

        heard = self._heard_lengths + [1] * dead
        even = not self.pad and len(set(heard)) == 1
        mask = None if even else _mask_of(heard, self._heard[0][0].shape[2])
        logits = self._model.decode(
            mx.array(last), mx.array(positions), keep, visible[:, None, None, :], self._heard, mask
        )
        self._used += 1
        scores = logits[:, -1].astype(mx.float32)
        best, chosen, said = _best(self._penalized(scores, dead) + self._suppressed)
        self._seen = self._seen | said
        mx.eval(best, chosen, self._own, self._seen)
        self._take(self._rows, best, chosen)

    def skip_to(self, column: int) -> None:
        """Go on as if the rows had said so much: for warming."""
        self._used = max(self._used, column)

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
        positions = self._positions(max(self._heard_lengths[index] for index in stay))
        index = mx.array(stay + [stay[0]] * (self._width(len(stay)) - len(stay)))
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
        said: Any,
    ) -> None:
        """The first rows of these arrays, after those that are here."""
        import mlx.core as mx

        before, count = len(self._rows), len(rows)
        used = max(self._used, width)
        if before:
            most = self._positions(max(*lengths, *self._heard_lengths))
            self._own = [
                _stacked(
                    [
                        [_widen(side[:before, :, : self._used], used) for side in old],
                        [_widen(side[:count], used) for side in new],
                    ]
                )
                for old, new in zip(self._own, own, strict=True)
            ]
            self._heard = [
                _stacked(
                    [
                        [_lengthen(side[:rows_of], most) for side in layer]
                        for layer, rows_of in ((old, before), (new, count))
                    ]
                )
                for old, new in zip(self._heard, heard, strict=True)
            ]
            self._seen = mx.concatenate([self._seen[:before], said[:count]])
            dead = self._width(before + count) - before - count
            self._own, self._heard = _deadened(self._own, dead), _deadened(self._heard, dead)
            self._seen = mx.pad(self._seen, [(0, dead), (0, 0)]) if dead else self._seen
        else:
            self._own, self._heard, self._seen = list(own), list(heard), said
        self._pads = [pad + used - self._used for pad in self._pads] + [used - width] * count
        self._heard_lengths += lengths
        self._rows += rows
        self._used = used

    def _make_room(self) -> None:
        import mlx.core as mx

        room = self._own[0][0].shape[2]
        if self.pad:
            wanted = next((size for size in PADDED_COLUMNS if size > self._used), 2 * self._used)
        else:
            wanted = room if self._used < room else (self._used // _COLUMNS + 1) * _COLUMNS
        if wanted != room:
            self._own = [
                (_lengthen(keys[:, :, :wanted], wanted), _lengthen(values[:, :, :wanted], wanted))
                for keys, values in self._own
            ]
            mx.eval(self._own)

    def _width(self, rows: int) -> int:
        return power_of_two(rows) if self.pad else rows

    def _positions(self, most: int) -> int:
        return next((size for size in PADDED_POSITIONS if size >= most), most) if self.pad else most

    def _penalized(self, scores: Any, dead: int) -> Any:
        """The repetition penalty of CTRL (Keskar et al., 2019), for the rows that have one."""
        import mlx.core as mx

        if all(row.repetition_penalty == 1.0 for row in self._rows):
            return scores
        penalty = mx.array([[row.repetition_penalty] for row in self._rows] + [[1.0]] * dead)
        return mx.where(self._seen, mx.where(scores < 0, scores * penalty, scores / penalty), scores)

    def _take(self, rows: Sequence[Row], best: Any, chosen: Any) -> None:
        """Dead rows come last."""
        end = self._model.vocabulary.end
        for row, token, log_probability in zip(rows, np.array(best), np.array(chosen), strict=False):
            row.take(int(token), float(log_probability), end)


def _best(scores: Any) -> tuple[Any, Any, Any]:
    """The best token of each row, its log probability, and the same as a row of the vocabulary (true where it is)."""
    import mlx.core as mx

    tokens = mx.argmax(scores, axis=-1)
    chosen = mx.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0] - mx.logsumexp(scores, axis=-1)
    return tokens, chosen, mx.arange(scores.shape[-1])[None, :] == tokens[:, None]


def _deadened(pairs: Sequence[tuple[Any, Any]], dead: int) -> list[tuple[Any, Any]]:
    """With so many rows of zeros after the last."""
    import mlx.core as mx

    if not dead:
        return list(pairs)
    more = [(0, dead), (0, 0), (0, 0), (0, 0)]
    return [(mx.pad(keys, more), mx.pad(values, more)) for keys, values in pairs]


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
