"""What a gateway remembers of the calls it placed: what may still be, and which requests were answered already."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.outbound_policy import OutboundPolicy
from gateway.outbound_settings import OutboundSettings

KEYS_KEPT_S = 86_400.0
MAX_KEYS = 10_000
MAX_KEY_CHARS = 255


class KeyConflict(Exception):  # noqa: N818 (an answer, not a defect)
    """``code`` is ``idempotency_key_reused`` (for another call) or ``idempotency_key_in_use`` (by a request that is not
    answered yet)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class IdempotencyKeys:
    """So that a request that is sent again, because its answer was lost, places no second call. A key is known for a
    day, and the oldest of too many is forgotten first. Refused requests leave none. ``now_s`` is monotonic."""

    def __init__(self, now_s: Callable[[], float], *, most: int = MAX_KEYS) -> None:
        self._now_s = now_s
        self._most = most
        self._known: OrderedDict[str, tuple[float, bytes, str | None]] = OrderedDict()

    def begin(self, key: str, request: bytes) -> str | None:
        """The id of the call that this very request placed before; None: it is new, and must be settled or dropped.
        Raises :class:`KeyConflict`."""
        now = self._now_s()
        while self._known and next(iter(self._known.values()))[0] <= now - KEYS_KEPT_S:
            self._known.popitem(last=False)
        known = self._known.get(key)
        if known is None:
            self._known[key] = (now, request, None)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return None
        _, before, call_id = known
        if before != request:
            raise KeyConflict("idempotency_key_reused", "this Idempotency-Key was used for another request")
        if call_id is None:
            raise KeyConflict("idempotency_key_in_use", "a request with this Idempotency-Key is being answered")
        return call_id

    def settle(self, key: str, call_id: str) -> None:
        if key in self._known:
            at, request, _ = self._known[key]
            self._known[key] = (at, request, call_id)

    def drop(self, key: str) -> None:
        self._known.pop(key, None)


OUTBOUND_OFF = OutboundSettings()


@dataclass(frozen=True, slots=True)
class OutboundBook:
    """One a gateway."""

    policy: OutboundPolicy
    keys: IdempotencyKeys

    @classmethod
    def of(cls, settings: OutboundSettings = OUTBOUND_OFF, now_s: Callable[[], float] = time.monotonic) -> OutboundBook:
        return cls(OutboundPolicy(settings, now_s), IdempotencyKeys(now_s))
