"""Whether a peer sends more than any phone does: then it is broken or hostile, and takes the place of other callers."""

from __future__ import annotations

MAX_AHEAD_S = 5.0
"""Audio faster than the clock, by so much. What a network held back and then brings at once is not ahead of it."""
MESSAGES_PER_S = 200


class Flooding:
    """One peer's, from ``begun_at`` (seconds). ``messages_ahead``: so many more than :data:`MESSAGES_PER_S` at once."""

    def __init__(self, begun_at: float, *, messages_ahead: int) -> None:
        self._begun_at = begun_at
        self._messages_ahead = messages_ahead
        self._messages = 0
        self._audio_s = 0.0

    def message(self, now: float) -> bool:
        """One more. Returns whether that is too many."""
        self._messages += 1
        return self._messages > MESSAGES_PER_S * (now - self._begun_at) + self._messages_ahead

    def audio(self, seconds: float, now: float) -> bool:
        """So much more. Returns whether that is too far ahead; then it does not count."""
        if self._audio_s + seconds > now - self._begun_at + MAX_AHEAD_S:
            return True
        self._audio_s += seconds
        return False
