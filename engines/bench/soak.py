"""Simulated turns on the real executor for minutes, and what grew meanwhile: ``python -m engines.bench.soak``.

Calls come and go: turns of random length, a third of them cut short (barge-in), some speculative, a few hang up in
mid-reply. Every second a sample is taken: MLX's active and cache memory, the process's resident memory, threads and
open files. Reported are the slopes over the second half (least squares), in bytes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.bench.random_llama import SHAPES
from engines.bench.turns import Talk, talking
from engines.executor.thread import MlxExecutor
from streaming.jobs import Message, Priority

_SYSTEM_WORDS = 40
_TURNS_A_CALL = 6
_SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    active_bytes: int
    cache_bytes: int
    kv_bytes: int
    resident_bytes: int
    objects: int
    threads: int
    files: int


def take_sample(executor: MlxExecutor, begun: float) -> Sample:
    """Of this process, now. The memory figures are at most a beat old."""
    snapshot = executor.snapshot
    kv = sum(
        value for counts in snapshot.workloads.values() for name, value in counts.items() if name.endswith("_kv_bytes")
    )
    return Sample(
        at_s=time.monotonic() - begun,
        active_bytes=snapshot.active_bytes,
        cache_bytes=snapshot.cache_bytes,
        kv_bytes=kv,
        resident_bytes=_resident_bytes(),
        objects=len(gc.get_objects()),
        threads=threading.active_count(),
        files=_open_files(),
    )


def slope_a_minute(samples: Sequence[Sample], name: str) -> float:
    """Least squares over the samples, in units a minute."""
    times = [sample.at_s / 60 for sample in samples]
    values = [float(getattr(sample, name)) for sample in samples]
    if len(samples) < 2:
        return 0.0
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    return sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True)) / spread if spread else 0.0


class Soak:
    """Keeps a number of calls going until told to stop."""

    def __init__(self, talk: Talk, calls: int, pause_s: float) -> None:
        self._talk = talk
        self._calls = calls
        self._pause_s = pause_s
        self._names = 0
        self.turns = self.cut = self.failed = self.tokens = 0
        self.first_token_s: list[float] = []

    async def run(self, until: float) -> None:
        await asyncio.gather(*(self._line(until) for _ in range(self._calls)))

    async def _line(self, until: float) -> None:
        """One call after another."""
        systems = [Message("system", self._talk.words(_SYSTEM_WORDS)) for _ in range(2)]
        while time.monotonic() < until:
            self._names += 1
            name = f"call{self._names}"
            messages = [self._talk.rng.choice(systems)]
            for _ in range(self._talk.rng.randint(1, _TURNS_A_CALL)):
                if time.monotonic() >= until:
                    break
                await self._turn(name, messages)
                await asyncio.sleep(self._talk.rng.expovariate(1 / self._pause_s))
            self._talk.model.forget(name)

    async def _turn(self, call: str, messages: list[Message]) -> None:
        rng = self._talk.rng
        messages.append(Message("user", self._talk.words(rng.randint(2, 30))))
        priority = Priority.SPECULATIVE if rng.random() < 0.2 else Priority.FIRST_AUDIO
        epoch, reply = self._talk.ask(call, messages, rng.randint(5, 80), priority)
        self.turns += 1
        if priority is Priority.SPECULATIVE:
            self._talk.model.prioritize(call, epoch)
        if rng.random() < 0.33:
            await reply.tokens(rng.randint(0, 20))
            self._talk.model.cancel(call, epoch)
            self.cut += 1
        else:
            await reply.end()
            self.failed += bool(reply.failure)
        if reply.times:
            self.first_token_s.append(reply.times[0] - reply.asked)
            del self.first_token_s[:-1000]
        self.tokens += len(reply.times)
        heard = reply.text.split()[: rng.randint(1, 40)]
        messages.append(Message("assistant", " ".join(heard)))


async def soak(shape: str, minutes: float, calls: int, pause_s: float, cache_bytes: int) -> dict[str, Any]:
    """The figures of a run. ``cache_bytes`` is the limit of MLX's buffer cache: it fills up to that and no further."""
    async with talking(shape, cache_bytes) as (executor, talk):
        begun = time.monotonic()
        run = Soak(talk, calls, pause_s)
        samples: list[Sample] = []

        async def watch() -> None:
            while True:
                await asyncio.sleep(_SAMPLE_S)
                samples.append(take_sample(executor, begun))

        watching = asyncio.create_task(watch())
        await run.run(begun + minutes * 60)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await asyncio.sleep(2 * _SAMPLE_S)
        rest = take_sample(executor, begun)
        snapshot = executor.snapshot
        late = samples[len(samples) // 2 :]
        firsts = sorted(run.first_token_s) or [0.0]
        return {
            "shape": shape,
            "minutes": minutes,
            "calls": calls,
            "cache_limit_bytes": cache_bytes,
            "turns": run.turns,
            "cut": run.cut,
            "failed": run.failed,
            "tokens": run.tokens,
            "first_token_p50_ms": round(firsts[len(firsts) // 2] * 1e3, 1),
            "first_token_p95_ms": round(firsts[int(len(firsts) * 0.95)] * 1e3, 1),
            "slope_a_minute": {
                name: round(slope_a_minute(late, name), 1)
                for name in (
                    "active_bytes",
                    "cache_bytes",
                    "kv_bytes",
                    "resident_bytes",
                    "objects",
                    "threads",
                    "files",
                )
            },
            "first": _plain(samples[0]) if samples else {},
            "middle": _plain(late[0]) if late else {},
            "last": _plain(samples[-1]) if samples else {},
            "at_rest": _plain(rest),
            "overruns": snapshot.overruns,
            "clear_cache": [snapshot.clear_cache_requests, snapshot.clear_cache_served],
            "quanta": {
                name: {"count": kind.count, "mean_ms": round(kind.seconds / kind.count * 1e3, 2)}
                for name, kind in snapshot.quanta.items()
            },
        }


def _plain(sample: Sample) -> dict[str, float]:
    return {name: round(getattr(sample, name), 1) for name in Sample.__slots__}


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _open_files() -> int:
    folder = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--pause-s", type=float, default=0.3, help="mean pause between the turns of a call")
    parser.add_argument("--cache-mb", type=int, default=48, help="limit of MLX's buffer cache")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--json", action="store_true", help="as one line")
    arguments = parser.parse_args()
    result = asyncio.run(
        soak(arguments.shape, arguments.minutes, arguments.calls, arguments.pause_s, arguments.cache_mb * 2**20)
    )
    sys.stdout.write(json.dumps(result, indent=None if arguments.json else 1) + "\n")


if __name__ == "__main__":
    main()
