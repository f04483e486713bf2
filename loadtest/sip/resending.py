"""What is sent again until it is answered (RFC 3261 section 17.1): over UDP ever more rarely, over TCP never. Pure."""

from __future__ import annotations

from dataclasses import dataclass

T1_S = 0.5
T2_S = 4.0


@dataclass(slots=True)
class _Sent:
    data: bytes
    interval_s: float
    next_s: float | None
    until_s: float
    unbounded: bool


class Resending:
    """By keys of the owner's choice."""

    def __init__(self, *, reliable: bool) -> None:
        self._reliable = reliable
        self._sent: dict[str, _Sent] = {}

    @property
    def next_s(self) -> float | None:
        """When :meth:`due` has something to say."""
        times = [
            sent.until_s if sent.next_s is None else min(sent.next_s, sent.until_s) for sent in self._sent.values()
        ]
        return min(times, default=None)

    def start(self, key: str, data: bytes, now_s: float, within_s: float, *, unbounded: bool = False) -> None:
        """``data`` was sent. ``unbounded``: the intervals double without end (INVITE)."""
        self._sent[key] = _Sent(data, T1_S, None if self._reliable else now_s + T1_S, now_s + within_s, unbounded)

    def wait(self, key: str, until_s: float) -> None:
        """It is not sent again: what answers it is on its way."""
        self._sent[key] = _Sent(b"", T1_S, None, until_s, unbounded=False)

    def hurry(self, key: str, until_s: float) -> None:
        """It has no longer than that."""
        sent = self._sent[key]
        sent.until_s = min(sent.until_s, until_s)

    def __contains__(self, key: str) -> bool:
        return key in self._sent

    def stop(self, key: str) -> None:
        self._sent.pop(key, None)

    def clear(self) -> None:
        self._sent.clear()

    def due(self, now_s: float) -> tuple[list[bytes], list[str]]:
        """What to send again now, and the keys that nobody answered in time."""
        again: list[bytes] = []
        unanswered: list[str] = []
        for key, sent in list(self._sent.items()):
            if now_s >= sent.until_s:
                del self._sent[key]
                unanswered.append(key)
            elif sent.next_s is not None and now_s >= sent.next_s:
                again.append(sent.data)
                sent.interval_s = sent.interval_s * 2 if sent.unbounded else min(T2_S, sent.interval_s * 2)
                sent.next_s = now_s + sent.interval_s
        return again, unanswered
