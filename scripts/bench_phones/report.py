"""What is printed and saved: the table, and whether the aims were met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scripts.bench_phones.measure import Case, Measured, Window

AIMS = {True: 120, False: 250}
"""Calls that a core shall hold, with the echo: Silero listening, or nobody."""


def aim_met(measured: Measured, case: Case) -> bool | None:
    """None: it has no aim, or was not climbed."""
    held = measured.held(case)
    return None if held is None or case.subject != "echo" else held >= AIMS[case.vad]


def report(measured: Measured, cases: Sequence[Case]) -> str:
    """Markdown."""
    levels = sorted({window.calls for window in measured.windows})
    lines = ["| wire | behind it | VAD | " + " | ".join(f"{calls} calls" for calls in levels) + " | calls held | aim |"]
    lines.append("|---" * (5 + len(levels)) + "|")
    for case in cases:
        costs = [_percent(measured.share_per_call(case, calls)) for calls in levels]
        cells = [case.wire, case.subject, "on" if case.vad else "off", *costs, _held(measured, case)]
        lines.append(f"| {' | '.join(cells)} | {_aim(measured, case)} |")
    late = sum(window.frames.late for window in measured.windows)
    frames = sum(window.frames.frames for window in measured.windows)
    lines += ["", "Share of a core a call: median of the windows' getrusage. Calls held: at most 0.1 % of frames late."]
    lines.append(f"Late frames in the windows of the table: {late} of {frames}.")
    for words, void in (
        ("the callers being late themselves: use a quieter machine", [w for w in measured.windows if w.callers_late]),
        ("the gateway having heard, judged or said too little: not counted", [w for w in measured.windows if w.idle]),
    ):
        if void:
            lines.append(f"{len(void)} of {len(measured.windows)} windows VOID, {words}.")
    return "\n".join(lines)


def as_json(measured: Measured, cases: Sequence[Case], machine: str) -> dict[str, Any]:
    """Everything that was read, and what was made of it."""
    return {
        "machine": machine,
        "aims": {"vad_on": AIMS[True], "vad_off": AIMS[False]},
        "cases": [
            asdict(case)
            | {
                "held": measured.held(case),
                "aim_met": aim_met(measured, case),
                "climb": [_window(window) for window in measured.climbs.get(case, ())],
            }
            for case in cases
        ],
        "windows": [_window(window) for window in measured.windows],
    }


def _window(window: Window) -> dict[str, Any]:
    return asdict(window) | {"share_per_call": window.share_per_call, "in_time": window.in_time, "idle": window.idle}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.2f} %"


def _held(measured: Measured, case: Case) -> str:
    climb = measured.climbs.get(case)
    if climb is None:
        return "-"
    held = measured.held(case)
    if not climb:
        return "none could be set up"
    last = climb[-1]
    if last.in_time:
        return f"{held}, as far as the climb went"
    void = "; VOID, callers late" if last.callers_late else ""
    starved = "; starved" if last.idle else ""
    return f"{held} (at {last.calls}: {last.late_share:.2%} late, {last.cpu_share:.0%} of the core{void}{starved})"


def _aim(measured: Measured, case: Case) -> str:
    if case.subject != "echo":
        return "-"
    met = aim_met(measured, case)
    return f"{AIMS[case.vad]}" + ("" if met is None else ": met" if met else ": MISSED")
