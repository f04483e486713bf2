"""The calls of one generator: each begun when the plan says so, held on the common ticker, measured when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from loadtest.address import CallAddress, call_address
from loadtest.arrivals import MAX_CALLS, Arrival
from loadtest.call import CallOver, CallPlan, CallTape, EndCause, Transport, no_call
from loadtest.code_pool import CodePool
from loadtest.generator_messages import Counted, Done, Ended, FromGenerator, Job, Ready
from loadtest.holding import hold_call
from loadtest.measured_call import OfferedCall
from loadtest.measuring import Measuring
from loadtest.network import call_network
from loadtest.placing import dial
from loadtest.scenario import load_scenario
from loadtest.ticker import Ticker

OVERTIME_S = 30.0
"""After a call's planned length: it is hung up then, whatever its script waits for."""

LEAD_S = 3.0
"""Before its time a caller is made: its words are spoken, in a thread."""

P = ParamSpec("P")
T = TypeVar("T")


class GeneratorCalls:
    """Off the loop, one at a time each, callers are made in ``making``, and calls handed to the process that measures
    in ``measuring``. Blocks while that starts; close it."""

    def __init__(self, job: Job, *, making: Executor, measuring: Executor) -> None:
        self._job = job
        self._making = making
        self._measuring = measuring
        self._addresses = [call_address(url, job.agent) for url in job.urls]
        self._scenario = load_scenario(job.scenario)
        self._network = self._scenario.packets()
        self._ticker = Ticker(time.monotonic)
        self._abandon = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._unmeasured: set[asyncio.Task[None]] = set()
        """Of these, those whose call is over."""
        self._defect: BaseException | None = None
        self._lines: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._words = CodePool(job.generator, job.generators, job.words_begin)
        self._wordless = 0
        self._plans: dict[int, tuple[CallPlan, str | None]] = {}
        """Of callers that are made, with their code words."""
        self._measurer = Measuring(self._scenario.expect, Path(job.recordings), job.keep)
        self._start_s = 0.0
        self._offered = 0
        self._offered_late_s = 0.0
        self._broken: Counter[str] = Counter()
        self._cpu_s = time.process_time()

    def close(self) -> None:
        """Blocks until the process that measures has ended."""
        self._measurer.close()

    async def prepare(self) -> Ready:
        """Speak every line that will be needed, and make the callers that come first."""
        notes = await _within(self._making, self._prepared)
        for arrival in self._job.arrivals:
            if arrival.at_s > LEAD_S:
                break
            self._plans[arrival.number] = await self._made(arrival)
        return Ready(notes)

    async def run(self, start_s: float, say: Callable[[FromGenerator], None]) -> None:
        """Until every call is over and measured. ``start_s`` is the moment 0, on :func:`time.monotonic`. Raises what
        kept a caller from being made, or a call from being measured; then no more are offered."""
        self._start_s = start_s
        ticking = asyncio.create_task(self._ticker.run(), name="ticker")
        try:
            for arrival in self._job.arrivals:
                if not await self._wait_until(start_s + arrival.at_s - LEAD_S):
                    break
                task = asyncio.create_task(self._call(arrival, say), name=f"call {arrival.number}")
                self._calls.add(task)
                task.add_done_callback(self._ended)
            while self._calls:
                await asyncio.wait(self._calls)
            if self._defect is not None:
                raise self._defect
        finally:
            for task in (ticking, *self._calls):
                task.cancel()
            await asyncio.gather(ticking, *self._calls, return_exceptions=True)

    def stop(self, *, at_once: bool) -> None:
        """No more calls, and those that are up are hung up; ``at_once``: or left."""
        self._abandon.set()
        if at_once:
            for task in self._calls - self._unmeasured:
                task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._defect = self._defect or defect
            self._abandon.set()

    def counted(self, at_s: float, cpu_share: float, rss_bytes: int | None) -> Counted:
        lateness = self._ticker.lateness
        return Counted(
            at_s=at_s,
            offered=self._offered,
            up=self._ticker.size,
            cpu_share=cpu_share,
            rss_bytes=rss_bytes,
            ticks=lateness.ticks,
            late_p99_ms=lateness.p99_ms,
            late_worst_ms=lateness.take_worst_ms(),
            measuring=len(self._unmeasured),
        )

    async def done(self) -> Done:
        kept, unkept = await _within(self._measuring, self._measurer.kept)
        lateness = self._ticker.lateness
        return Done(
            late_p99_ms=lateness.p99_ms,
            late_worst_ms=lateness.worst_ms,
            ticks=lateness.ticks,
            ticks_skipped=lateness.skipped,
            cpu_s=time.process_time() - self._cpu_s,
            offered_late_ms=self._offered_late_s * 1000,
            kept=kept,
            unkept=unkept,
            wordless=self._wordless,
            broken=dict(self._broken.most_common(10)),
        )

    async def _wait_until(self, at_s: float) -> bool:
        """False once no more calls are wanted."""
        if not self._abandon.is_set() and (wait_s := at_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._abandon.wait()
        return not self._abandon.is_set()

    async def _call(self, arrival: Arrival, say: Callable[[FromGenerator], None]) -> None:
        """Begun :data:`LEAD_S` before its time."""
        made = self._plans.pop(arrival.number) if arrival.number in self._plans else await self._made(arrival)
        plan, code = made
        try:
            finished = await self._finished(arrival, plan)
        finally:
            if code is not None:
                self._words.give_back(code, time.monotonic())
        if finished is None:
            return
        task = asyncio.current_task()
        assert task is not None
        self._unmeasured.add(task)
        try:
            outcome = await _within(self._measuring, self._measurer.measure, *finished)
        finally:
            self._unmeasured.discard(task)
        say(Ended(outcome))

    async def _made(self, arrival: Arrival) -> tuple[CallPlan, str | None]:
        """The caller, and the code word that is its own until it is given back."""
        code = self._words.take(time.monotonic()) if self._job.codes else None
        self._wordless += self._job.codes and code is None
        return await _within(self._making, self._plan, arrival, code), code

    async def _finished(self, arrival: Arrival, plan: CallPlan) -> tuple[OfferedCall, CallTape] | None:
        """The call, once it is over; None if it is not wanted any more when its time comes."""
        due_s = self._start_s + arrival.at_s
        async with contextlib.AsyncExitStack() as line:
            if arrival.line is not None:
                lock = self._lines[arrival.line]
                taken = lock.locked()
                await line.enter_async_context(lock)
                due_s = max(due_s, time.monotonic()) if taken else due_s
            if not await self._wait_until(due_s):
                return None
            self._offered_late_s = max(self._offered_late_s, time.monotonic() - due_s)
            return await self._place(arrival, plan)

    async def _place(self, arrival: Arrival, plan: CallPlan) -> tuple[OfferedCall, CallTape]:
        offered_s = time.monotonic() - self._start_s
        self._offered += 1
        try:
            tape = await self._hold(arrival, plan)
        except CallOver as over:
            tape = no_call(over, plan.rate_hz)
        except asyncio.CancelledError:  # by :meth:`stop`; or the run is gone, and nobody will hear of it
            tape = no_call(CallOver(EndCause.ABANDONED), plan.rate_hz)
        except Exception as error:  # noqa: BLE001 (a caller's defect is no fault of the server's, and no other caller's)
            self._broken[f"{type(error).__name__}: {error}"] += 1
            tape = no_call(CallOver(EndCause.ABANDONED, f"the caller broke down: {error}"), plan.rate_hz)
        ended_s = time.monotonic() - self._start_s
        transport = self._address(arrival).transport
        return OfferedCall(arrival.number, transport, offered_s, ended_s, self._job.codes), tape

    async def _hold(self, arrival: Arrival, plan: CallPlan) -> CallTape:
        """On the scenario's network."""
        seed = self._job.seed * MAX_CALLS + arrival.number
        async with call_network(self._network, self._address(arrival), seed) as network:
            plan = replace(plan, via=network.via, route=network.route, rtp_route=network.rtp_route)
            return await hold_call(plan, await dial(plan), self._ticker, self._abandon)

    def _address(self, arrival: Arrival) -> CallAddress:
        return self._addresses[arrival.number % len(self._addresses)]

    def _prepared(self) -> tuple[str, ...]:
        if any(address.transport is Transport.WEBRTC for address in self._addresses):
            import loadtest.webrtc_call  # noqa: F401 (it takes half a second, which no ticker may be late)
        rates = {address.rate_hz for address in self._addresses}
        notes = [note for rate_hz in sorted(rates) for note in self._scenario.prepare(rate_hz, codes=self._job.codes)]
        return tuple(dict.fromkeys(notes))

    def _plan(self, arrival: Arrival, code: str | None) -> CallPlan:
        job, address = self._job, self._address(arrival)
        caller = self._scenario.caller(arrival.number, job.seed, address.rate_hz, address.transport, code=code)
        return CallPlan(
            job.urls[arrival.number % len(job.urls)],
            caller.steps,
            agent=job.agent,
            key=job.key,
            max_seconds=arrival.length_s + OVERTIME_S,
            patience=caller.patience,
            rate_hz=address.rate_hz,
            phone=replace(job.phone, caller=job.phone.caller or f"+1555{arrival.number % 10_000_000:07d}"),
            sound=caller.sound,
            length_ms=arrival.length_s * 1000,
            linger_s=self._scenario.linger_s,
        )


def _within(executor: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(executor, functools.partial(function, *args, **kwargs))
