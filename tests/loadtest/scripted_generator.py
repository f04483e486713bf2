"""Generators that follow a script of their own instead of calling anybody."""

from __future__ import annotations

import sys

_PRELUDE = """
import sys
from loadtest.generator_messages import *
from loadtest.outcome import *
def hear():
    line = sys.stdin.buffer.readline()
    return decode_order(line) if line else None
def say(word):
    sys.stdout.buffer.write(encode_line(word))
    sys.stdout.buffer.flush()
def count(at_s=1.0, up=0, offered=0):
    say(Counted(at_s=at_s, offered=offered, up=up, cpu_share=0.25, rss_bytes=None, ticks=50, late_p99_ms=1.0,
                late_worst_ms=2.0, measuring=0))
def end(number, fate=Fate.COMPLETED, faults=()):
    say(Ended(CallOutcome(number=number, transport="websocket", fate=fate, offered_s=0.0, ended_s=1.0,
                          end_cause="hangup", call_id=f"call_{number}", faults=faults)))
def finish(**known):
    say(Done(**{"late_p99_ms": 1.5, "late_worst_ms": 2.5, "ticks": 100, "ticks_skipped": 1, "cpu_s": 0.1,
                "kept": {}} | known))
job = hear()
"""


def scripted(script: str) -> tuple[str, ...]:
    """The command of a generator that runs ``script`` after it heard its ``job``. It may ``hear()`` orders, ``say()``
    words, ``count()``, ``end()`` calls and ``finish()``."""
    return (sys.executable, "-c", _PRELUDE + script)
