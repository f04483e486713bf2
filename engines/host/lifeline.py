"""A host lives no longer than its parent, however either of them ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

GRACE_S = 10.0
"""How long closing in order may take once the parent is gone."""
ORPHANED = 75
"""Exit code of a host that could not close in order after its parent had gone."""

_PR_SET_PDEATHSIG = 1


def hold(grace_s: float = GRACE_S) -> None:
    """Tie this process to its parent, which holds the other end of our standard input and never writes to it.

    At its end of file (whoever killed the parent) a thread waits for the orderly end, then ends the process, even when
    the main thread is stuck in a model. On Linux the kernel kills us besides, in case that thread cannot run either
    (native code that keeps the interpreter's lock).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_watch, args=(grace_s,), name="lifeline", daemon=True).start()


def _watch(grace_s: float) -> None:
    while os.read(0, 1):
        pass
    time.sleep(grace_s)
    os._exit(ORPHANED)
