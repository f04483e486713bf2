"""What simulated callers cost: the share of a core that one takes, talking and listening.

    python -m scripts.bench_callers ws://127.0.0.1:8080/v1/realtime --calls 100 --for 20

The calls come up one after another, talk and listen, and are measured together from the moment the last is up. The
server is whoever listens there (``offhook serve --preset null`` costs least), best on other cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter

from loadtest.address import call_address
from loadtest.call import CallOver, CallPlan, CallTape, PhoneOptions
from loadtest.holding import hold_call
from loadtest.placing import dial
from loadtest.script import Line, Repeat, Say, Step, WaitAgent
from loadtest.ticker import Ticker, ticking
from loadtest.voice import say_line

_LINES = ("What are your opening hours?", "Where are you located?", "How much does it cost?")


def steps_at(rate_hz: int) -> tuple[Step, ...]:
    """Questions, one after another, until the call's planned end."""
    steps: list[Step] = []
    for text in _LINES:
        pcm = say_line(text, rate_hz)
        steps += [WaitAgent(), Say(Line(text, pcm, len(pcm) * 1000 / rate_hz))]
    return (Repeat(tuple(steps)),)


async def measure(plan: CallPlan, *, calls: int, seconds: float, gap_s: float) -> str:
    """Hold so many calls for so long, and say what that took."""
    abandon = asyncio.Event()
    async with ticking() as ticker, asyncio.TaskGroup() as tasks:
        held = []
        for _ in range(calls):
            held.append(tasks.create_task(_call(plan, ticker, abandon)))
            await asyncio.sleep(gap_s)
        await asyncio.sleep(2)
        up, began_s, began_cpu_s = ticker.size, time.monotonic(), time.process_time()
        ticks, worst_ms = ticker.lateness.ticks, ticker.lateness.take_worst_ms()
        await asyncio.sleep(seconds)
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        late = ticker.lateness
        told = f"{late.ticks - ticks} ticks, worst {late.take_worst_ms():.1f} ms late, p99 of all {late.p99_ms} ms"
        left = ticker.size
        abandon.set()
    share = cpu_s / took_s
    tapes = [task.result() for task in held]
    ends = Counter(str(tape.end_cause) if isinstance(tape, CallTape) else str(tape) for tape in tapes)
    heard = [tape for tape in tapes if isinstance(tape, CallTape)]
    due = sum(tape.heard.frames_due for tape in heard)
    frames_late = sum(tape.heard.frames_late for tape in heard)
    turns = sum(len(tape.marks) for tape in heard)
    each = 100 * share / max(1, up)
    return (
        f"{up} calls up, {left} at the end: {100 * share:.1f} % of a core, {each:.3f} % a caller\n"
        f"{told} (before: {worst_ms:.1f})\n"
        f"{turns} turns, {due} frames due, {frames_late} late; ends {dict(ends)}"
    )


async def _call(plan: CallPlan, ticker: Ticker, abandon: asyncio.Event) -> CallTape | CallOver:
    try:
        return await hold_call(plan, await dial(plan), ticker, abandon)
    except CallOver as over:
        return over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--key")
    parser.add_argument("--auth-token", help="Twilio: signs the stream's upgrade")
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--for", type=float, default=20.0, dest="seconds", metavar="SECONDS")
    parser.add_argument("--gap", type=float, default=0.03, metavar="SECONDS", help="between two calls; 0: all at once")
    parser.add_argument("--asyncio", action="store_true", help="asyncio's own loop, though uvloop is there")
    options = parser.parse_args()
    address = call_address(options.url, None)
    length_s = options.calls * options.gap + options.seconds + 5
    plan = CallPlan(
        options.url,
        steps_at(address.rate_hz),
        key=options.key,
        max_seconds=length_s + 30,
        rate_hz=address.rate_hz,
        length_ms=length_s * 1000,
        phone=PhoneOptions(auth_token=options.auth_token),
    )
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    try:
        if options.asyncio:
            raise ImportError
        import uvloop

        run, loop = uvloop.run, "uvloop"
    except ImportError:
        run, loop = asyncio.run, "asyncio"
    told = run(measure(plan, calls=options.calls, seconds=options.seconds, gap_s=options.gap))
    after = " ".join(f"{value:.2f}" for value in os.getloadavg())
    sys.stdout.write(f"{told}\n{loop}; {os.cpu_count()} cores, load before {load}, after {after}\n")


if __name__ == "__main__":
    main()
