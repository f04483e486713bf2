"""What a caller does: when to speak, when to interrupt, when to hang up. Sans-IO, one tick a playout slot.

Every wait is bounded (:class:`Patience`): an agent that never greets, never answers, never stops or never finishes
delays the caller and can't hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streaming.audio.keypad_tones import KEYS

Pcm16 = npt.NDArray[np.int16]

_GAP_MS = 200.0  # a shorter pause is inside the agent's speech


"""What can be pressed (RFC 4733 section 3.2, events 0 to 15)."""

KEY_MS = 100.0
"""How long a key is down: what PBXs send, and well over the 40 ms that receivers must know (RFC 4733, ITU-T Q.24)."""

KEY_PAUSE_MS = 100.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing the caller says, or the ``keys`` it presses (then there is no text, and ``pcm`` is empty). ``pcm`` is
    mono int16 at the call's rate.

    ``barge_in_after_ms`` makes it an interruption: it begins that long after agent audio was first heard since the
    caller's last turn (or since the call began: then it cuts the greeting). Otherwise it waits for the agent to finish.
    """

    text: str | None
    pcm: Pcm16 = field(repr=False)
    duration_ms: float
    barge_in_after_ms: float | None = None
    keys: str = ""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the caller waits, all in ms."""

    greeting_ms: float = 1_500.0
    """For a greeting's first sound; when the agent has begun a response, :attr:`answer_ms` instead."""
    answer_ms: float = 15_000.0
    pause_ms: float = 500.0
    """From the agent's last sound to the caller's next word."""
    stalled_ms: float = 5_000.0
    """Of silence, when the agent has not said that its response is over."""
    agent_turn_ms: float = 60_000.0
    """Of an agent that goes on talking."""


def press(keys: str, barge_in_after_ms: float | None = None) -> Turn:
    """A turn that presses keys one after another. Raises :class:`ValueError` for what is on no keypad."""
    keys = keys.replace(" ", "").upper()
    if not keys or not KEYS.issuperset(keys):
        raise ValueError("keys are 0 to 9, *, # and A to D")
    pcm = np.zeros(0, dtype=np.int16)
    return Turn(None, pcm, len(keys) * (KEY_MS + KEY_PAUSE_MS), barge_in_after_ms, keys)


class CallScript:
    """Steps through ``turns``; ``finished`` once the answer to the last was heard or waited for."""

    def __init__(self, turns: tuple[Turn, ...], patience: Patience | None = None) -> None:
        self.finished = False
        self._turns = turns
        self._patience = patience or Patience()
        self._next = 0
        self._spoke_from_ms = 0.0
        self._speaking_until_ms = 0.0
        self._onset_ms = 0.0
        self._last_voiced_ms: float | None = None
        self._first_heard_ms: float | None = None

    @property
    def turn(self) -> int:
        """Index of the turn last begun; -1 before the first."""
        return self._next - 1

    def tick(self, now_ms: float, *, voiced: bool, busy: bool) -> Turn | None:
        """Returns the turn to begin speaking now, if any.

        ``voiced``: agent speech was heard in the slot that just ended. ``busy``: agent audio is still queued, or a
        response is in progress.
        """
        self._listen(now_ms, voiced)
        if self.finished or now_ms < self._speaking_until_ms or not self._may_go_on(now_ms, busy):
            return None
        if self._next == len(self._turns):
            self.finished = True
            return None
        turn = self._turns[self._next]
        self._next += 1
        self._spoke_from_ms = now_ms
        self._speaking_until_ms = now_ms + turn.duration_ms
        self._first_heard_ms = None
        return turn

    def _listen(self, now_ms: float, voiced: bool) -> None:
        if not voiced:
            return
        if self._last_voiced_ms is None or now_ms - self._last_voiced_ms > _GAP_MS:
            self._onset_ms = now_ms
        self._last_voiced_ms = now_ms
        # The tail of a reply that the caller talked over is not the answer to what it said.
        if self._first_heard_ms is None and now_ms >= self._speaking_until_ms and self._onset_ms >= self._spoke_from_ms:
            self._first_heard_ms = now_ms

    def _may_go_on(self, now_ms: float, busy: bool) -> bool:
        patience = self._patience
        first_ms, last_ms = self._first_heard_ms, self._last_voiced_ms
        if first_ms is None or last_ms is None:
            bound_ms = patience.greeting_ms if self._next == 0 and not busy else patience.answer_ms
            return now_ms - self._speaking_until_ms >= bound_ms
        upcoming = self._turns[self._next] if self._next < len(self._turns) else None
        if upcoming is not None and upcoming.barge_in_after_ms is not None:
            return now_ms - first_ms >= upcoming.barge_in_after_ms
        quiet_ms = now_ms - last_ms
        if quiet_ms >= patience.stalled_ms or now_ms - first_ms >= patience.agent_turn_ms:
            return True
        return quiet_ms >= patience.pause_ms and not busy
