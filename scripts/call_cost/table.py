"""What is printed of a measurement: what a call costs each server, and what ours costs beside the others. Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from scripts.call_cost.windows import Window


@dataclass(frozen=True, slots=True)
class Typical:
    """Medians of windows that count. CPU and memory are of one call, frames and turns of all together; of turns None
    where they are not judged."""

    cpu_share: float
    resident_bytes: float
    frames: float
    turns: float | None


def typical(windows: Iterable[Window]) -> Typical | None:
    """Of one server with one number of calls: a window in which calls did not stay never counts, one in which the
    callers were late only if all are. None without a window."""
    served = [each for each in windows if each.served]
    counted = [each for each in served if not each.void] or served
    if not counted:
        return None
    turns = [each.turns for each in counted if each.turns is not None]
    return Typical(
        median(each.cpu_per_call for each in counted),
        median(each.bytes_per_call for each in counted),
        median(each.frames for each in counted),
        median(turns) if turns else None,
    )


def costs(windows: Sequence[Window]) -> str:
    """A row for each server, what was asked of it, and how many calls."""
    names = ("server", "asked", "calls", "CPU a call", "memory a call", "frames", "late", "turns", "sound windows")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for key in dict.fromkeys(map(_key, windows)):
        these = [window for window in windows if _key(window) == key]
        found = typical(these)
        late, due = (sum(getattr(window.report.media, name) for window in these) for name in ("late", "due"))
        cpu, memory, frames, turns = ("-",) * 4
        if found is not None:
            cpu, memory = f"{found.cpu_share:.2%}", f"{found.resident_bytes / 2**20:.2f} MiB"
            frames, turns = f"{found.frames:.0f}", "-" if found.turns is None else f"{found.turns:.0f}"
        sound = sum(window.served and not window.void for window in these)
        cells = [*map(str, key), cpu, memory, frames, f"{late / max(1, due):.3%}", turns, f"{sound} of {len(these)}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ratios(windows: Sequence[Window], ours: str, aims: Mapping[tuple[str, str], float]) -> str:
    """Ours to each of the others, a line each. ``aims``: at most this share of another's CPU a call, by its name and
    what was asked. More turns and frames than another's were more work: the ratio of CPU then flatters the other."""
    lines = []
    for subject, asked, calls in dict.fromkeys(map(_key, windows)):
        our = typical(w for w in windows if _key(w) == (ours, asked, calls))
        their = typical(w for w in windows if _key(w) == (subject, asked, calls))
        if subject == ours or our is None or their is None:
            continue
        cpu, aim = our.cpu_share / their.cpu_share, aims.get((subject, asked))
        judged = "" if aim is None else f" (aim {aim:.2f}: {'met' if cpu <= aim else 'MISSED'})"
        told = [f"CPU a call {cpu:.2f}{judged}", f"memory a call {our.resident_bytes / their.resident_bytes:.2f}"]
        told.append(f"frames {our.frames / max(1.0, their.frames):.2f}")
        if our.turns is not None and their.turns:
            told.append(f"turns {our.turns / their.turns:.2f}")
        lines.append(f"- {asked}, {calls} calls, {ours} to {subject}: {', '.join(told)}")
    return "\n".join(lines)


def _key(window: Window) -> tuple[str, str, int]:
    return window.subject, window.asked, window.calls
