"""The executor against FIFO and a global lock on the real thread: same models, same load, in one process.

``python -m engines.bench.gpu --shape 3b --json FILE`` on a CUDA GPU or a Mac, ``--shape tiny`` on a CPU. The load is
that of the scheduler's benchmark (:mod:`engines.bench.real_load`). The levels are climbed with all policies in turn;
one that fails clearly climbs no further. What was measured is in the file after every level.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines.bench.neighbour import beside
from engines.bench.real_engines import SHAPES, RealEngines, real_engines
from engines.bench.real_load import Callers, RealTurn
from engines.bench.stalls import Stall, in_words
from engines.bench.turns import Talk
from engines.bench.watched import POLICIES, Ledger
from engines.executor.load import (
    CLAUSE_AUDIO_MS,
    FIRST_AUDIO_S,
    GOOD_TURNS,
    LATEST_S,
    MAX_UNDERRUN,
    TURN_EVERY_S,
    Grade,
)

LEVELS = (8, 16, 24, 32, 48, 64)
PHONEMES = (45, 105)
"""Of the two segments: three and seven seconds, as in the simulator's load."""
GOODPUT = 0.99
CLEARLY = 1.5
"""A level at which first audio's p95 is so many times what it may be ends a policy's climb, as giving up early does."""
REHEARSED = (1, 2, 4, 8, 16)
"""Turns at the same moment, before anything is measured: shapes that no engine's own warm-up meets."""
STORM_CALLS, STORM_EVERY_S, STORM_S = 24, 0.2, 15.0
"""Then turns that end others at any stage, so that what only happens when rows leave a running batch is compiled."""
OTHERS = (1, 4, 16)
MOST_STALLS = 20
_MARGIN_S = 15.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """``within_s`` bounds the whole run: no level is begun that could not end by then.
    ``storm_s`` is 15 by default where kernels are compiled, 0 for tiny models on a CPU."""

    shape: str = "3b"
    calls: tuple[int, ...] = LEVELS
    policies: tuple[str, ...] = POLICIES
    seconds: float = 30.0
    seed: int = 1
    phonemes: tuple[int, int] = PHONEMES
    within_s: float | None = None
    neighbour: bool = True
    rehearsed: tuple[int, ...] = REHEARSED
    storm_s: float | None = None
    every_level: bool = False
    """Climb on whatever happened."""


async def bench(options: Options, say: Say, write: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Everything, told to ``write`` as far as it is known after every step."""
    if options.shape == "tiny":
        os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # on a CPU each new kernel costs a run of the C++ compiler
    began = time.monotonic()
    end = began + options.within_s if options.within_s is not None else float("inf")
    ms_a_phoneme = sum(CLAUSE_AUDIO_MS) / sum(PHONEMES)
    lengths = [(count, round(count * ms_a_phoneme)) for count in options.phonemes]
    result: dict[str, Any] = {"options": asdict(options), "load": _load_in_words(lengths), "levels": []}
    async with real_engines(options.shape, lengths, say, max_calls=max(options.calls)) as engines:
        result |= {"device": engines.device, "started_s": engines.started_s}
        say(engines.device)
        result["rehearsal_s"] = await _rehearse(engines, options, say)
        result["speeds"] = [[round(phrase.speed, 2) for phrase in of] for of in engines.tts.phrases]
        say(
            f"warm: loading and warming took {sum(engines.started_s.values()):.0f} s, a rehearsal "
            f"{result['rehearsal_s']:.0f} s"
        )
        write(result)
        climbing = list(options.policies)
        for calls in options.calls:
            for policy in list(climbing):
                if time.monotonic() + options.seconds + _MARGIN_S > end:
                    say("no time is left for another level")
                    result["cut_short"] = True
                    climbing.clear()
                    break
                level = await _level(engines, policy, calls, options)
                result["levels"].append(level)
                result["max_calls"] = most_calls(result["levels"], options.policies)
                write(result)
                say(row_in_words(level))
                failed = level["stopped_early"] or level["first_audio_p95_ms"] > CLEARLY * FIRST_AUDIO_S * 1000
                if failed and not options.every_level:
                    climbing.remove(policy)
        if options.neighbour and time.monotonic() + _MARGIN_S < end:
            await engines.schedule_by("edf")
            rows = await beside(Talk(engines.llm, random.Random(options.seed)), list(OTHERS), 3)
            longest = (await engines.ledger()).quanta
            result["neighbour"] = {
                "rows": rows,
                "longest_quanta_ms": {f"{stage} {kind}": _ms(one.longest_s) for (stage, kind), one in longest.items()},
            }
            write(result)
        result["stalls"] = [asdict(stall) for stall in engines.stalls.longest(MOST_STALLS)]
    result["took_s"] = round(time.monotonic() - began, 1)
    write(result)
    return result


async def _rehearse(engines: RealEngines, options: Options, say: Say) -> float:
    began = time.monotonic()
    await engines.schedule_by("edf")
    for count in options.rehearsed:
        callers = Callers(engines, count, f"rehearsal-{count}", options.seed)
        await callers.together(count)
        callers.end()
        await engines.quiet()
    storm_s = options.storm_s if options.storm_s is not None else 0.0 if options.shape == "tiny" else STORM_S
    for policy in ("edf", "fifo", "edf") if storm_s else ():
        await engines.schedule_by(policy)
        callers = Callers(engines, STORM_CALLS, f"storm-{policy}", options.seed)
        stormed = time.monotonic()
        await callers.storm(storm_s, STORM_EVERY_S)
        callers.end()
        await engines.quiet()
        profile = _profile(await engines.ledger(), time.monotonic() - stormed)
        longest = {row["what"]: row["longest_ms"] for row in profile if "longest_ms" in row}
        say(f"storm, {policy}; longest ms: {longest}")
    return round(time.monotonic() - began, 1)


async def _level(engines: RealEngines, policy: str, calls: int, options: Options) -> dict[str, Any]:
    await engines.schedule_by(policy)
    callers = Callers(engines, calls, f"{policy}-{calls}", options.seed)
    await callers.run(options.seconds, options.seed)
    await engines.quiet()
    ledger = await engines.ledger()
    return graded(policy, calls, callers, ledger)


def graded(policy: str, calls: int, callers: Callers, ledger: Ledger) -> dict[str, Any]:
    """One level's row."""
    turns = callers.turns
    grades = [Grade() for _ in range(calls)]
    for turn in turns:
        grades[turn.call].add(turn)
    counted = [turn for turn in turns if turn.counts]
    waits = sorted(turn.wait_s * 1000 for turn in counted) or [0.0]
    total = Grade()
    for turn in counted:
        total.add(turn)
    spoken_s = sum(sum(turn.audio_s) for turn in counted)
    of_time = max(callers.elapsed_s, 1e-9)
    good = sum(grade.good for grade in grades)
    return {
        "policy": policy,
        "calls": calls,
        "begun": len(turns),
        "turns": len(counted),
        "complete": sum(turn.complete for turn in turns),
        "superseded": sum(turn.superseded for turn in turns),
        "failed": _counts(turn.failure for turn in turns if turn.failure),
        "stopped_early": callers.stopped_early,
        "good_calls": round(good / calls, 4),
        "in_time": round(total.in_time / max(1, total.turns), 4),
        "too_late": total.too_late,
        "first_audio_p50_ms": round(statistics.median(waits)),
        "first_audio_p95_ms": round(waits[math.ceil(0.95 * len(waits)) - 1]),
        "first_audio_worst_ms": round(waits[-1]),
        "underrun": round(total.underrun_s / spoken_s, 5) if spoken_s else 0.0,
        "turns_per_s": round(len(counted) / of_time, 3),
        "decode_rows": round(ledger.rows("llm", "decode"), 2),
        "transcribe_rows": round(ledger.rows("stt", "transcribe"), 2),
        "speak_rows": round(ledger.rows("kokoro", "speak"), 2),
        "busy": round(ledger.busy_s / of_time, 4),
        "seconds": round(callers.elapsed_s, 1),
        "late_start_ms": _ms(callers.latest_start_s),
        "stages_ms": _stages(turns),
        "profile": _profile(ledger, of_time),
        "passed": bool(good / calls >= GOODPUT and not callers.stopped_early),
        "passed_p95": _in_time(waits, total, spoken_s) and not callers.stopped_early,
    }


def _in_time(waits: Sequence[float], total: Grade, spoken_s: float) -> bool:
    """The grade of one call, for the turns of all calls together: a short run has few turns a call."""
    return (
        total.in_time >= GOOD_TURNS * total.turns
        and waits[-1] <= LATEST_S * 1000
        and total.underrun_s <= MAX_UNDERRUN * spoken_s
    )


def _stages(turns: Sequence[RealTurn]) -> dict[str, int]:
    """Medians since the end-of-turn decision."""
    medians = {}
    for name in ("transcript", "first_token", "first_clause", "first_audio"):
        times = [at - turn.at for turn in turns if (at := getattr(turn, f"{name}_at")) is not None]
        medians[name] = round(statistics.median(times) * 1000) if times else 0
    return medians


def _profile(ledger: Ledger, of_time: float) -> list[dict[str, Any]]:
    """Where the thread's time went, most first; the last rows are not quanta."""
    rows = [
        {
            "what": f"{stage} {kind}",
            "quanta": quanta.count,
            "rows": round(quanta.jobs / quanta.count, 2),
            "mean_ms": _ms(quanta.seconds / quanta.count),
            "longest_ms": _ms(quanta.longest_s),
            "share": round(quanta.seconds / of_time, 4),
        }
        for (stage, kind), quanta in sorted(ledger.quanta.items(), key=lambda item: -item[1].seconds)
    ]
    rows.append({"what": "choosing", "share": round(ledger.choosing_s / of_time, 4)})
    between = {"what": "between quanta", "longest_ms": _ms(ledger.longest_between_s)}
    rows.append(between | {"share": round(ledger.between_s / of_time, 4)})
    for stage, settling in ledger.settling.items():
        of_stage = {"what": f"of it {stage} rows leave", "longest_ms": _ms(settling.longest_s)}
        rows.append(of_stage | {"share": round(settling.seconds / of_time, 4)})
    return rows


def most_calls(levels: Sequence[dict[str, Any]], policies: Sequence[str]) -> dict[str, dict[str, int]]:
    """By policy: the highest level at which calls were good, and at which all turns together were."""
    return {
        policy: {
            "good_calls": _highest(levels, policy, "passed"),
            "p95": _highest(levels, policy, "passed_p95"),
        }
        for policy in policies
    }


def _highest(levels: Sequence[dict[str, Any]], policy: str, passed: str) -> int:
    return max((level["calls"] for level in levels if level["policy"] == policy and level[passed]), default=0)


def _load_in_words(lengths: Sequence[tuple[int, int]]) -> str:
    segments = " and ".join(f"{count} phonemes ({ms / 1000:.1f} s)" for count, ms in lengths)
    return (
        f"a turn every {TURN_EVERY_S:.0f} s a call (Poisson), 4 s of speech to transcribe, 60 new tokens, 40 tokens of "
        f"reply, {segments}"
    )


# --- for people -----------------------------------------------------------------------------------------------

_COLUMNS = (
    ("policy", "policy"),
    ("calls", "calls"),
    ("turns", "turns"),
    ("good calls", "good_calls"),
    ("p50 ms", "first_audio_p50_ms"),
    ("p95 ms", "first_audio_p95_ms"),
    ("worst ms", "first_audio_worst_ms"),
    ("underrun", "underrun"),
    ("decode rows", "decode_rows"),
    ("speak rows", "speak_rows"),
    ("busy", "busy"),
    ("turns/s", "turns_per_s"),
)
_SHARES = {"good_calls": "{:.0%}", "underrun": "{:.2%}", "busy": "{:.0%}", "turns_per_s": "{:.2f}"}


def table(result: dict[str, Any], *, profile: bool) -> str:
    """The result in Markdown."""
    lines = [f"{result['device']}: {result['load']}.", ""]
    lines += ["| " + " | ".join(name for name, _ in _COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for level in sorted(result["levels"], key=lambda level: POLICIES.index(level["policy"])):
        mark = " (given up)" if level["stopped_early"] else ""
        cells = [_SHARES.get(key, "{}").format(level[key]) for _, key in _COLUMNS]
        lines.append("| " + " | ".join([cells[0] + mark, *cells[1:]]) + " |")
    lines.append("")
    for policy, most in result.get("max_calls", {}).items():
        lines.append(
            f"{policy}: {most['good_calls']} calls with {GOODPUT:.0%} of them good, {most['p95']} with all "
            f"turns together good"
        )
    if "neighbour" in result:
        lines += ["", "| long replies beside | first token ms | 40 tokens ms | slowdown |", "|---|---|---|---|"]
        for row in result["neighbour"]["rows"]:
            lines.append("| " + " | ".join(str(value) for value in row.values()) + " |")
    if profile:
        for level in result["levels"]:
            lines += ["", profile_in_words(level)]
        lines += ["", in_words([Stall(**stall) for stall in result.get("stalls", [])])]
    return "\n".join(lines)


def row_in_words(level: dict[str, Any]) -> str:
    return "  ".join(f"{name} {_SHARES.get(key, '{}').format(level[key])}" for name, key in _COLUMNS) + (
        "  given up" if level["stopped_early"] else ""
    )


def profile_in_words(level: dict[str, Any]) -> str:
    lines = [f"{level['policy']}, {level['calls']} calls; medians in ms: {level['stages_ms']}", ""]
    lines += ["| what | quanta | rows | mean ms | longest ms | share |", "|---|---|---|---|---|---|"]
    for row in level["profile"]:
        cells = [str(row.get(key, "")) for key in ("what", "quanta", "rows", "mean_ms", "longest_ms")]
        lines.append("| " + " | ".join([*cells, f"{row['share']:.1%}"]) + " |")
    return "\n".join(lines)


def _counts(names: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Whole or not at all: a run that is stopped leaves what was measured before."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(path)


def run(options: Options, json_file: Path | None, *, profile: bool) -> None:
    """Measure and tell. Progress goes to standard error."""

    def say(line: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()

    def write(result: dict[str, Any]) -> None:
        if json_file is not None:
            write_json(json_file, result)

    result = asyncio.run(bench(options, say, write))
    sys.stdout.write(table(result, profile=profile) + "\n")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if unknown := set(chosen) - set(POLICIES):
        raise ValueError(f"no policy {', '.join(sorted(unknown))}")
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engines.bench.gpu", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="3b")
    parser.add_argument("--calls", type=numbers, default=LEVELS, help="levels, separated by commas")
    parser.add_argument("--policies", type=names, default=POLICIES, help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each level")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phonemes", type=numbers, default=PHONEMES, help="of the two segments")
    parser.add_argument("--within", type=float, default=None, help="seconds for everything")
    parser.add_argument("--storm", type=float, default=None, help="seconds of each of three storms before measuring")
    parser.add_argument("--every-level", action="store_true", help="climb on whatever happened")
    parser.add_argument("--no-neighbour", action="store_true")
    parser.add_argument("--json", type=Path, default=None, help="a file, written after every level")
    parser.add_argument("--profile", action="store_true", help="where the thread's time goes")
    arguments = parser.parse_args()
    first, second = arguments.phonemes
    options = Options(
        arguments.shape,
        arguments.calls,
        arguments.policies,
        arguments.seconds,
        arguments.seed,
        (first, second),
        arguments.within,
        not arguments.no_neighbour,
        storm_s=arguments.storm,
        every_level=arguments.every_level,
    )
    run(options, arguments.json, profile=arguments.profile)


if __name__ == "__main__":
    main()
