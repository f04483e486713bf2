"""What a tape says was sent. On a busy machine the ticker comes too late at times, and skips."""

from __future__ import annotations

import numpy as np

from loadtest.call import SLOT_MS, CallTape, Pcm16


def sent(tape: CallTape) -> Pcm16:
    """The caller's frames that were sent, one after another."""
    slots = tape.caller.reshape(-1, tape.rate_hz * SLOT_MS // 1000)
    return np.delete(slots, [slot for slot in tape.skipped_slots if slot < len(slots)], axis=0).reshape(-1)
