"""What a caller hears, slot by slot of 20 ms, whatever buffer it comes from: the recording, and what it says of media.

Sans-IO: the subclasses model the buffers of clients, every method takes ``now_s``, seconds on one monotonic clock.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.line_noise import LineNoise

Pcm16 = npt.NDArray[np.int16]

SLOW_MS = 20.0
"""Sound that comes so long after what was sent before has run out is slow: no buffer would have room for less."""

GAP_MS = 60.0
"""Sound that comes so long after is behind a gap: most buffers are dry by then."""

EARLY_S = 1e-6
"""Float noise in slot times must not cost a whole slot."""

_BLOCK_SLOTS = 500


@dataclass(frozen=True, slots=True)
class HeardMedia:
    """What became of the agent's sound on its way to the caller's ear, counted alike on every wire.

    ``frames_due`` are slots in which a voice was heard and those that were late (silent though more of the same speech
    was to come); ``underruns`` is how often the buffer ran dry so. ``frames_lost`` are RTP packets that were not there
    at their time. The rest is about arrival, before any buffer: of sound that continues what came before it, how long
    it came after that had run out (never before it came). ``slow`` counts waits of more than :data:`SLOW_MS`, ``gaps``
    those of more than :data:`GAP_MS`, ``longest_gap_ms`` is the longest of all.
    """

    frames_due: int = 0
    frames_late: int = 0
    frames_lost: int = 0
    underruns: int = 0
    slow: int = 0
    gaps: int = 0
    longest_gap_ms: float = 0.0


def power_of(pcm: Pcm16) -> float:
    """Mean square of one sample or more."""
    samples = pcm.astype(np.float32)
    return float(samples.dot(samples)) / len(pcm)


class Recording:
    """One side of a call, slot by slot. Silence takes no time, and hardly memory."""

    def __init__(self, slot_samples: int) -> None:
        self.slots = 0
        self._slot_samples = slot_samples
        self._blocks: list[Pcm16] = []
        self._sounds = bytearray()
        """Of each slot, whether something was added."""

    def add(self, pcm: Pcm16 | None) -> None:
        """The next slot: up to ``slot_samples`` of sound, then silence."""
        index = self.slots % _BLOCK_SLOTS
        if index == 0:
            self._blocks.append(np.zeros(_BLOCK_SLOTS * self._slot_samples, dtype=np.int16))
        if pcm is not None:
            start = index * self._slot_samples
            self._blocks[-1][start : start + len(pcm)] = pcm
        self._sounds.append(pcm is not None)
        self.slots += 1

    def slot(self, index: int) -> Pcm16:
        block, within = divmod(range(self.slots)[index], _BLOCK_SLOTS)
        return self._blocks[block][within * self._slot_samples : (within + 1) * self._slot_samples]

    def whole(self, slots: int | None = None) -> Pcm16:
        """A copy, cut to so many slots. Silence is left as it was made, so that no memory is there for it: at the end
        of a run all calls are copied at once."""
        size = self._slot_samples
        sounds = bytes(self._sounds[:slots])
        whole = np.zeros(len(sounds) * size, dtype=np.int16)
        at = 0
        while (at := sounds.find(1, at)) >= 0:
            silent = sounds.find(0, at)
            block, within = divmod(at, _BLOCK_SLOTS)
            count = min((silent if silent >= 0 else len(sounds)) - at, _BLOCK_SLOTS - within)
            whole[at * size : (at + count) * size] = self._blocks[block][within * size : (within + count) * size]
            at += count
        return whole


class Ear(abc.ABC):
    """One caller's. Slots lie on a grid from ``origin_s``, which :meth:`start` may tell later: what comes before waits.
    ``late_slots`` were silent because sound came late."""

    def __init__(self, origin_s: float | None, rate_hz: int, slot_ms: int) -> None:
        self.slot_samples = rate_hz * slot_ms // 1000
        self.late_slots: list[int] = []
        self.recording = Recording(self.slot_samples)
        self.voiced = False
        """The agent's voice was heard in the last slot."""
        self.noise = LineNoise(slot_ms)
        self.underruns = 0
        self._origin_s = origin_s
        self._rate_hz = rate_hz
        self._slot_s = slot_ms / 1000
        self._voiced_slots = 0
        self._runs_out_s: float | None = None
        self._slow = self._gaps = 0
        self._longest_gap_s = 0.0

    @property
    @abc.abstractmethod
    def busy(self) -> bool:
        """The agent will be heard for longer than the buffer's own delay."""

    @property
    def lost(self) -> int:
        """Packets that were not there at their time."""
        return 0

    @property
    def slots_played(self) -> int:
        return self.recording.slots

    def start(self, origin_s: float) -> None:
        """The first slot begins at that moment. To be told before any was played."""
        self._origin_s = origin_s

    def advance(self, now_s: float) -> None:
        """Play every slot that began before ``now_s`` with what was there at its time."""
        if self._origin_s is None:
            return
        while (start_s := self._origin_s + self.recording.slots * self._slot_s) < now_s - EARLY_S:
            self._play_slot(start_s)

    def slot(self, index: int) -> Pcm16:
        """What was heard in a slot that is over; -1 is the last."""
        return self.recording.slot(index)

    def heard(self) -> Pcm16:
        """Everything heard so far, shape (slots * slot samples,)."""
        return self.recording.whole()

    def heard_media(self) -> HeardMedia:
        late = len(self.late_slots)
        return HeardMedia(
            frames_due=self._voiced_slots + late,
            frames_late=late,
            frames_lost=self.lost,
            underruns=self.underruns,
            slow=self._slow,
            gaps=self._gaps,
            longest_gap_ms=round(self._longest_gap_s * 1000, 3),
        )

    @abc.abstractmethod
    def _play_slot(self, start_s: float) -> None:
        """Add one slot to the recording."""

    def _came(self, now_s: float, length_s: float, *, continues: bool, lost_s: float = 0.0) -> None:
        """Sound arrived; ``continues``: it goes on with the speech that came before, but for what was lost."""
        runs_out_s = None if self._runs_out_s is None else self._runs_out_s + lost_s
        if runs_out_s is None or runs_out_s < now_s:
            if continues and runs_out_s is not None:
                self._waited(now_s - runs_out_s)
            runs_out_s = now_s
        self._runs_out_s = runs_out_s + length_s

    def _hear(self, pcm: Pcm16) -> None:
        self.recording.add(pcm)
        self.voiced = self.noise.hear(power_of(pcm))
        self._voiced_slots += self.voiced

    def _hear_nothing(self) -> None:
        self.recording.add(None)
        self.noise.hear_nothing()
        self.voiced = False

    def _waited(self, wait_s: float) -> None:
        self._longest_gap_s = max(self._longest_gap_s, wait_s)
        self._slow += wait_s * 1000 > SLOW_MS
        self._gaps += wait_s * 1000 > GAP_MS

    def _were_late(self, slots: list[int]) -> None:
        """Slots that were silent together belong to speech that went on after them."""
        if slots:
            self.late_slots += slots
            self.underruns += 1
            slots.clear()
