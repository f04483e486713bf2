"""Keys pressed on a phone's keypad, collected into what the caller meant by them."""

from __future__ import annotations

from streaming.config import KeypadRules

MAX_KEYS = 32


class Keypad:
    """One entry at a time: ended by its end key (which alone is an entry too), a pause, or its greatest length."""

    def __init__(self, rules: KeypadRules = KeypadRules()) -> None:  # noqa: B008 (it never changes)
        self.rules = rules
        self._keys = ""
        self._last_at = 0.0

    @property
    def open(self) -> bool:
        """Whether an entry has begun and not ended."""
        return bool(self._keys)

    def press(self, key: str, now: float) -> str | None:
        """One of ``0-9*#A-D``. Returns the entry if it is whole now."""
        if key == self.rules.end_key:
            return self._take() or key
        self._keys += key
        self._last_at = now
        return self._take() if len(self._keys) >= MAX_KEYS else None

    def deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called at the latest."""
        return self._last_at + self.rules.pause_ms / 1000 if self._keys else None

    def on_time(self, now: float) -> str | None:
        """Returns the entry if the pause after it was long enough."""
        due = self.deadline()
        return self._take() if due is not None and now >= due else None

    def clear(self) -> None:
        self._keys = ""

    def _take(self) -> str:
        keys, self._keys = self._keys, ""
        return keys
