"""A model of a client's playout buffer: what is heard, slot by slot, of audio that came over a network.

Sans-IO: every method takes ``now_s``, seconds on one monotonic clock. Slots of 20 ms lie on a fixed grid from
``origin_s``. The first audio after silence waits ``prebuffer_ms`` (60 ms, what browsers and SIP phones begin with), and
plays from the first slot after that. When the buffer runs dry before the agent said that its audio is over, the slots
until sound comes back are *late*, and the buffer fills again before it plays. Audio that arrives at ``now_s`` can't be
heard in a slot that began earlier, however late the caller of these methods was woken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from loadtest.ear import EARLY_S, Ear, Pcm16

PREBUFFER_MS = 60
"""What a client gathers before it begins to play."""

MAX_QUEUED_S = 600
"""A gateway may send a whole reply at once; more than this is dropped and counted."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An item whose audio was thrown away before it was all heard; ``played_ms`` of it was."""

    item_id: str
    played_ms: int


class Playout(Ear):
    """One call's buffer. Audio is mono int16 at ``rate_hz``, pushed per conversation item."""

    def __init__(
        self,
        origin_s: float | None = None,
        *,
        rate_hz: int = 24_000,
        slot_ms: int = 20,
        prebuffer_ms: int = PREBUFFER_MS,
    ) -> None:
        super().__init__(origin_s, rate_hz, slot_ms)
        self.dropped_samples = 0
        self._prebuffer_s = prebuffer_ms / 1000
        self._queue: deque[tuple[str, Pcm16]] = deque()
        self._queued_samples = 0
        self._played_samples: dict[str, int] = {}
        self._open_item: str | None = None
        self._play_from_s: float | None = None
        self._starving = False
        self._missed: list[int] = []

    @property
    def busy(self) -> bool:
        """Sound is queued and not yet heard."""
        return self._queued_samples > 0

    def push(self, item_id: str, pcm: Pcm16, now_s: float) -> None:
        """Audio of an item arrived. Opens the item; it stays open until :meth:`finish` or :meth:`flush`."""
        self.advance(now_s)
        room = max(0, MAX_QUEUED_S * self._rate_hz - self._queued_samples)
        self.dropped_samples += max(0, len(pcm) - room)
        pcm = pcm[:room]
        if len(pcm) == 0:
            return
        continues = item_id == self._open_item
        if self._starving and continues:
            self._were_late(self._missed)  # more came, so these slots were holes in the reply and not its end
        elif self._starving:
            self._starving = False
        self._missed.clear()
        self._came(now_s, len(pcm) / self._rate_hz, continues=continues)
        if self._queued_samples == 0:
            self._play_from_s = now_s + self._prebuffer_s
        self._open_item = item_id
        self._queue.append((item_id, pcm))
        self._queued_samples += len(pcm)
        self._played_samples.setdefault(item_id, 0)

    def finish(self, item_id: str, now_s: float) -> None:
        """The agent said that this item's audio is all sent: running dry is no fault from here on."""
        self.advance(now_s)
        if item_id == self._open_item:
            self._open_item = None
            if self._queued_samples == 0:
                self._starving = False
                self._missed.clear()

    def flush(self, now_s: float) -> tuple[Cut, ...]:
        """Throw away what is queued (the caller began to speak, or the agent cleared its output).

        Returns the items that were cut, in order: those queued, and the one still open if its end was not reached.
        """
        self.advance(now_s)
        cut = list(dict.fromkeys(item_id for item_id, _ in self._queue))
        if self._open_item is not None and self._open_item not in cut:
            cut.append(self._open_item)
        self._queue.clear()
        self._queued_samples = 0
        self._open_item = None
        self._play_from_s = self._runs_out_s = None
        self._starving = False
        self._missed.clear()
        return tuple(Cut(item_id, self._played_samples[item_id] * 1000 // self._rate_hz) for item_id in cut)

    def _play_slot(self, start_s: float) -> None:
        index = self.recording.slots
        waiting = self._play_from_s is not None and start_s < self._play_from_s - EARLY_S
        if waiting or self._queued_samples == 0:
            self._hear_nothing()
            if waiting and self._starving:
                self.late_slots.append(index)
            elif not waiting and self._open_item is not None:
                self._starving = True
                self._missed.append(index)
            return
        self._play_from_s = None
        self._starving = False
        samples = self._take()
        self._hear(samples)
        if len(samples) < self.slot_samples and self._open_item is not None:
            self._starving = True
            self._missed.append(index)

    def _take(self) -> Pcm16:
        """Up to one slot of samples off the queue."""
        parts: list[Pcm16] = []
        wanted = self.slot_samples
        while wanted and self._queue:
            item_id, pcm = self._queue.popleft()
            if len(pcm) > wanted:
                self._queue.appendleft((item_id, pcm[wanted:]))
                pcm = pcm[:wanted]
            parts.append(pcm)
            wanted -= len(pcm)
            self._queued_samples -= len(pcm)
            self._played_samples[item_id] += len(pcm)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
