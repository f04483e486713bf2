"""What is printed and saved: the table, the ratios, and whether the aims were met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scripts.bench_media.measure import Measured, Window, levels

# Ours against stock: no more than this share of its cost.
AIMS = {"full": 0.65, "half": 0.50}
LOADS = {"full": "talks all the time", "half": "talks half the time"}
OURS, STOCK = "ours", "stock"


def ratio(measured: Measured, load: str, calls: int, other: str) -> float | None:
    """Our cost a call, as a share of another's. None if either was not measured."""
    ours = measured.share_per_call(OURS, load, calls)
    theirs = measured.share_per_call(other, load, calls)
    return ours / theirs if ours is not None and theirs else None


def aims_met(measured: Measured) -> bool | None:
    """Whether ours kept to every aim at every number of calls. None if there is nothing to compare."""
    ratios = [
        (found, aim)
        for load, aim in AIMS.items()
        for calls in levels(measured.windows)
        if (found := ratio(measured, load, calls, STOCK)) is not None
    ]
    return all(found <= aim for found, aim in ratios) if ratios else None


def report(measured: Measured, servers: Sequence[str]) -> str:
    """Markdown: one table of costs, one line a comparison, and how many calls a core held."""
    counts = levels(measured.windows)
    others = [server for server in servers if server != OURS]
    lines = ["| the agent | calls | " + " | ".join(servers) + " | " + " | ".join(f"ours/{o}" for o in others) + " |"]
    lines.append("|---" * (2 + len(servers) + len(others)) + "|")
    for load, words in LOADS.items():
        for calls in counts:
            costs = [_percent(measured.share_per_call(server, load, calls), 2) for server in servers]
            ratios = [_percent(ratio(measured, load, calls, other), 0) for other in others]
            lines.append(f"| {words} | {calls} | " + " | ".join(costs + ratios) + " |")
    lines += ["", "Share of a core a call: median of the windows' getrusage.", *_verdicts(measured, counts)]
    if measured.climbs:
        lines += ["", "Calls on one core with at most 0.1 % of the frames over 20 ms late, talk all the time:"]
        lines += [f"- {server}: {_climbed(measured, server)}" for server in servers if server in measured.climbs]
    lines += ["", _lateness_line(measured.windows), *_void_line(measured.windows)]
    return "\n".join(lines)


def as_json(measured: Measured, servers: Sequence[str], machine: str) -> dict[str, Any]:
    """Everything that was read, and what was made of it."""
    counts = levels(measured.windows)
    return {
        "machine": machine,
        "share_per_call": {
            server: {
                load: {str(calls): measured.share_per_call(server, load, calls) for calls in counts} for load in LOADS
            }
            for server in servers
        },
        "ratios": {
            other: {load: {str(calls): ratio(measured, load, calls, other) for calls in counts} for load in LOADS}
            for other in servers
            if other != OURS
        },
        "aims": AIMS,
        "aims_met": aims_met(measured),
        "calls_per_core": {server: measured.calls_per_core(server) for server in servers},
        "windows": [_window(window) for window in measured.windows],
        "climbs": {server: [_window(window) for window in found] for server, found in measured.climbs.items()},
    }


def _window(window: Window) -> dict[str, Any]:
    return asdict(window) | {"share_per_call": window.share_per_call, "void": window.void}


def _percent(share: float | None, digits: int) -> str:
    return "-" if share is None else f"{share * 100:.{digits}f} %"


def _verdicts(measured: Measured, counts: Sequence[int]) -> list[str]:
    lines = []
    for load, aim in AIMS.items():
        for calls in counts:
            found = ratio(measured, load, calls, STOCK)
            if found is not None:
                verdict = "met" if found <= aim else "MISSED"
                lines.append(f"- {LOADS[load]}, {calls} calls: ours/stock {found:.0%}, aim {aim:.0%}: {verdict}")
    return lines


def _climbed(measured: Measured, server: str) -> str:
    climb = measured.climbs[server]
    held = measured.calls_per_core(server)
    if not climb:
        return "none could be set up"
    last = climb[-1]
    if last.in_time:
        return f"{held}, as far as the climb went"
    why = f"{last.late_share:.2%} late, worst {last.frames.worst_ms:.0f} ms, {last.cpu_share:.0%} of the core used"
    void = "; VOID, the callers were late themselves" if last.callers_late else ""
    return f"{held} ({last.calls}: {why}{void})"


def _lateness_line(windows: Sequence[Window]) -> str:
    late = sum(window.frames.late for window in windows)
    frames = sum(window.frames.frames for window in windows)
    return (
        f"Late frames in the windows of the table: {late} of {frames}. Late: at the caller more than 20 ms after the "
        "frame's place in its spurt of talk."
    )


def _void_line(windows: Sequence[Window]) -> list[str]:
    late, idle = sum(window.callers_late for window in windows), sum(window.idle for window in windows)
    lines = []
    if late:
        lines.append(
            f"{late} of {len(windows)} windows VOID, the callers being late themselves: use a quieter machine."
        )
    if idle:
        lines.append(f"{idle} of {len(windows)} windows VOID, the server having heard or said too little: not counted.")
    return lines
