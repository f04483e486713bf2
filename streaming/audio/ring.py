"""The last seconds of a call's caller audio, addressed by position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]


class PcmRing:
    """Keeps the newest ``capacity_samples``. Positions count from the call's first sample."""

    def __init__(self, capacity_samples: int) -> None:
        self._buffer = np.zeros(capacity_samples, np.int16)
        self.end_samples = 0

    @property
    def start_samples(self) -> int:
        """The oldest position still held."""
        return max(0, self.end_samples - len(self._buffer))

    def close(self) -> None:
        """Keep nothing, and take no more: whoever holds the ring on holds no audio by it."""
        self._buffer = np.empty(0, np.int16)

    def append(self, pcm: Pcm16) -> None:
        """Add a block, shape (n,), any n."""
        capacity = len(self._buffer)
        if not capacity:
            return
        end = self.end_samples + len(pcm)
        kept = pcm[-capacity:]
        first = (end - len(kept)) % capacity
        head = min(len(kept), capacity - first)
        self._buffer[first : first + head] = kept[:head]
        self._buffer[: len(kept) - head] = kept[head:]
        self.end_samples = end

    def read(self, start_samples: int, end_samples: int) -> Pcm16:
        """A copy of what is held between the positions: shorter than asked where they reach beyond it."""
        start = max(start_samples, self.start_samples)
        end = min(end_samples, self.end_samples)
        if end <= start:
            return np.empty(0, np.int16)
        capacity = len(self._buffer)
        first, last = start % capacity, end % capacity
        if first < last:
            return self._buffer[first:last].copy()
        return np.concatenate((self._buffer[first:], self._buffer[:last]))
