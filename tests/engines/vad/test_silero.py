"""The batching around the Silero model, with a stand-in model whose state shows any mix-up between calls."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engines.api import EngineError, Pcm16
from engines.vad.silero import (
    CONTEXT_SAMPLES,
    GATHER_S,
    GATHERED,
    MANY_CALLS,
    MAX_BATCH,
    WINDOW_SAMPLES,
    Floats,
    SileroVad,
)

WAIT_S = 10.0


class StandIn:
    """Its state counts a row's windows; its probability tells the window's mean, and it keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.inputs: list[Floats] = []
        self.held = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()
        self.fail_next = False

    def load(self, path: Path) -> Callable[[Floats, Floats], tuple[Floats, Floats]]:
        assert path == Path("dir/silero_vad.onnx")
        return self.run

    def run(self, inputs: Floats, state: Floats) -> tuple[Floats, Floats]:
        self.batches.append(len(inputs))
        self.inputs.append(inputs.copy())
        self.held.set()
        assert self.let_go.wait(WAIT_S)
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("bad luck")
        mean = inputs[:, CONTEXT_SAMPLES:].mean(axis=1, keepdims=True)
        return state[0, :, :1] + mean, state + np.float32(10.0)

    def hold(self) -> None:
        self.held.clear()
        self.let_go.clear()


@asynccontextmanager
async def started(model: StandIn) -> AsyncIterator[SileroVad]:
    vad = SileroVad(Path("dir"), load=model.load)
    await vad.start()
    model.batches.clear()
    model.inputs.clear()
    try:
        yield vad
    finally:
        model.let_go.set()
        await vad.close()


class Heard:
    """Collects a call's scores and lets a test wait for so many."""

    def __init__(self) -> None:
        self.scores: list[tuple[float, int]] = []
        self._more = asyncio.Event()

    def __call__(self, probability: float, end_samples: int) -> None:
        self.scores.append((probability, end_samples))
        self._more.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.scores) < count:
                self._more.clear()
                await self._more.wait()


def level(fraction: float, windows: float = 1.0) -> Pcm16:
    return np.full(int(windows * WINDOW_SAMPLES), round(fraction * 32768), np.int16)


async def test_audio_of_any_length_is_cut_in_windows_with_positions_and_context() -> None:
    model = StandIn()
    async with started(model) as vad:
        heard = Heard()
        stream = vad.open(heard)
        ramp = np.arange(3 * WINDOW_SAMPLES + 100, dtype=np.int16)
        for start, end in ((0, 0), (0, 1), (1, 700), (700, 701), (701, len(ramp))):
            stream.feed(ramp[start:end])
        await heard.wait_for(3)
        assert [end for _, end in heard.scores] == [512, 1024, 1536]
        assert stream.backlog_samples == 100
        rows = [row for inputs in model.inputs for row in inputs]
        assert not rows[0][:CONTEXT_SAMPLES].any()
        for n, row in enumerate(rows):
            np.testing.assert_array_equal(row[CONTEXT_SAMPLES:] * 32768, ramp[n * 512 : (n + 1) * 512])
        for before, row in itertools.pairwise(rows):
            np.testing.assert_array_equal(row[:CONTEXT_SAMPLES], before[-CONTEXT_SAMPLES:])


async def test_each_call_keeps_its_own_state_in_a_shared_batch() -> None:
    model = StandIn()
    async with started(model) as vad:
        heard = [Heard() for _ in range(3)]
        streams = [vad.open(one) for one in heard]
        model.hold()
        streams[0].feed(level(0.0))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        for n, stream in enumerate(streams):
            stream.feed(level(n / 4, windows=2))
        model.let_go.set()
        await asyncio.gather(heard[0].wait_for(3), heard[1].wait_for(2), heard[2].wait_for(2))
    assert heard[0].scores == [(0.0, 512), (10.0, 1024), (20.0, 1536)]
    assert heard[1].scores == [(0.25, 512), (10.25, 1024)]
    assert heard[2].scores == [(0.5, 512), (10.5, 1024)]
    assert model.batches == [1, 3, 3]


async def test_a_batch_holds_64_calls_at_most() -> None:
    model = StandIn()
    async with started(model) as vad:
        first = Heard()
        model.hold()
        vad.open(first).feed(level(0.0))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        heard = [Heard() for _ in range(MAX_BATCH + 6)]
        for one in heard:
            vad.open(one).feed(level(0.25))
        model.let_go.set()
        await asyncio.gather(*(one.wait_for(1) for one in heard))
        assert model.batches == [1, MAX_BATCH, 6]
        shot = vad.snapshot()
    assert (shot.windows, shot.batches, shot.largest_batch) == (MAX_BATCH + 7, 3, MAX_BATCH)


async def test_with_many_calls_a_batch_gathers_what_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    model = StandIn()
    async with started(model) as vad:
        loop = asyncio.get_running_loop()
        waits: list[Callable[..., object]] = []

        def call_later(delay_s: float, callback: Callable[..., object], *_: object) -> asyncio.Handle:
            assert delay_s == GATHER_S
            waits.append(callback)
            return asyncio.Handle(callback, (), loop)

        patched = SimpleNamespace(call_later=call_later, call_soon_threadsafe=loop.call_soon_threadsafe)
        monkeypatch.setattr(vad, "_loop", patched)
        heard = [Heard() for _ in range(2 * GATHERED + 2)]
        streams = [vad.open(one) for one in heard]
        for stream in streams[:3]:
            stream.feed(level(0.25))
        assert model.batches == []
        assert len(waits) == 1, "one wait a batch"
        waits.pop()()
        await asyncio.gather(*(one.wait_for(1) for one in heard[:3]))
        assert model.batches == [3]

        for stream in streams[:GATHERED]:
            stream.feed(level(0.25))
        await heard[0].wait_for(2)
        assert model.batches[1:] == [GATHERED], "so many wait for no more"

        for stream in streams[6:]:
            stream.close()
        waits.clear()
        for stream in streams[:3]:
            stream.feed(level(0.25))
        await heard[0].wait_for(3)
        assert model.batches[2:] == [3], "half of all calls wait for no more"

        for stream in [*streams[MANY_CALLS:6], streams[0]]:
            stream.close()
        waits.clear()
        streams[1].feed(level(0.25))
        await heard[1].wait_for(4)
        assert not waits, "a few calls wait for nobody"


async def test_a_call_that_is_behind_waits_for_nobody() -> None:
    model = StandIn()
    async with started(model) as vad:
        heard = Heard()
        streams = [vad.open(heard if not number else Heard()) for number in range(2 * MANY_CALLS)]
        model.hold()
        for stream in streams[:MANY_CALLS]:
            stream.feed(level(0.0))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        streams[0].feed(level(0.0, windows=50))
        model.let_go.set()
        await heard.wait_for(51)
        assert model.batches == [MANY_CALLS, *[1] * 50]
        assert vad._gathering is None


async def test_what_came_meanwhile_is_gathered_when_a_batch_is_done() -> None:
    model = StandIn()
    async with started(model) as vad:
        heard = Heard()
        streams = [vad.open(heard if number == 7 else Heard()) for number in range(2 * MANY_CALLS)]
        model.hold()
        for stream in streams[:MANY_CALLS]:
            stream.feed(level(0.0))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        streams[7].feed(level(0.5))
        assert vad._gathering is None, "the worker may see to it"
        model.let_go.set()
        await heard.wait_for(1)
        assert model.batches == [MANY_CALLS, 1]


async def test_who_closes_while_a_batch_gathers_is_not_in_it() -> None:
    model = StandIn()
    async with started(model) as vad:
        gone, other = Heard(), Heard()
        leaver = vad.open(gone)
        streams = [vad.open(other) for _ in range(MANY_CALLS + 1)]
        leaver.feed(level(0.25))
        leaver.close()
        streams[0].feed(level(0.5))
        await other.wait_for(1)
        assert (model.batches, gone.scores, other.scores) == ([1], [], [(0.5, 512)])

        streams[0].feed(level(0.5))
        streams[0].close()
        streams[1].feed(level(0.25))
        await other.wait_for(2)
        assert model.batches == [1, 1]


async def test_a_gathering_of_those_who_left_runs_nothing() -> None:
    model = StandIn()
    async with started(model) as vad:
        streams = [vad.open(Heard()) for _ in range(MANY_CALLS + 2)]
        streams[0].feed(level(0.25))
        streams[0].close()
        vad._wake()
        other = Heard()
        vad.open(other).feed(level(0.5))
        await other.wait_for(1)
        assert model.batches == [1]


async def test_closing_while_a_batch_gathers_runs_none() -> None:
    model = StandIn()
    async with started(model) as vad:
        streams = [vad.open(Heard()) for _ in range(MANY_CALLS + 1)]
        streams[0].feed(level(0.25))
        await vad.close()
        assert vad._gathering is None
        assert model.batches == []


async def test_a_call_with_minutes_of_backlog_gets_one_window_a_batch() -> None:
    model = StandIn()
    async with started(model) as vad:
        hoarder, other = Heard(), Heard()
        model.hold()
        stream = vad.open(hoarder)
        stream.feed(level(0.0, windows=500))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        at_delivery: list[int] = []

        def deliver(probability: float, end_samples: int) -> None:
            at_delivery.append(len(hoarder.scores))
            other(probability, end_samples)

        vad.open(deliver).feed(level(0.5, windows=2))
        model.let_go.set()
        await other.wait_for(2)
        # Its windows were in the second and third batch, beside the hoarder's second and third.
        assert model.batches[:3] == [1, 2, 2]
        assert at_delivery[0] <= 3
        await hoarder.wait_for(500)
        assert stream.backlog_samples == 0


async def test_one_loop_callback_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = StandIn()
    async with started(model) as vad:
        loop = asyncio.get_running_loop()
        wakes: list[object] = []
        real = loop.call_soon_threadsafe

        def counted(callback: Callable[..., object], *args: object, **named: object) -> object:
            if threading.current_thread().name == "silero-vad":
                wakes.append(callback)
            return real(callback, *args, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        model.hold()
        heard = [Heard() for _ in range(11)]
        vad.open(heard[0]).feed(level(0.0))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        for one in heard[1:]:
            vad.open(one).feed(level(0.0))
        model.let_go.set()
        await asyncio.gather(*(one.wait_for(1) for one in heard))
        assert len(wakes) == len(model.batches) == 2


async def test_nothing_is_delivered_after_close_and_queued_windows_are_dropped() -> None:
    model = StandIn()
    async with started(model) as vad:
        gone, other = Heard(), Heard()
        model.hold()
        stream = vad.open(gone)
        stream.feed(level(0.0, windows=3.5))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        stream.close()
        stream.close()
        stream.feed(level(0.0, windows=3))
        vad.open(other).feed(level(0.25))
        model.let_go.set()
        await other.wait_for(1)
        assert gone.scores == []
        assert model.batches == [1, 1]
        assert vad.snapshot().dropped_windows == 2


async def test_a_defect_in_one_call_costs_the_others_nothing() -> None:
    model = StandIn()
    async with started(model) as vad:

        def broken(probability: float, end_samples: int) -> None:
            raise RuntimeError("a defect in a call")

        other = Heard()
        model.hold()
        vad.open(broken).feed(level(0.0))
        assert await asyncio.to_thread(model.held.wait, WAIT_S)
        vad.open(broken).feed(level(0.0))
        vad.open(other).feed(level(0.25))
        model.let_go.set()
        await other.wait_for(1)


async def test_a_failed_run_loses_its_windows_and_no_more() -> None:
    model = StandIn()
    async with started(model) as vad:
        heard = Heard()
        stream = vad.open(heard)
        model.fail_next = True
        stream.feed(level(0.25, windows=2))
        await heard.wait_for(1)
        assert heard.scores == [(0.25, 1024)]
        assert stream.backlog_samples == 0
        shot = vad.snapshot()
        assert (shot.windows, shot.dropped_windows) == (1, 1)


async def test_the_callers_buffer_may_be_used_again() -> None:
    model = StandIn()
    async with started(model) as vad:
        heard = Heard()
        stream = vad.open(heard)
        buffer = level(0.25, windows=0.5)
        stream.feed(buffer)
        buffer[:] = 0
        stream.feed(buffer)
        await heard.wait_for(1)
        assert heard.scores == [(0.125, 512)]


async def test_close_joins_drops_what_waits_and_may_come_twice() -> None:
    model = StandIn()
    vad = SileroVad(Path("dir"), load=model.load)
    await vad.start()
    thread = vad._thread
    assert thread is not None
    stream = vad.open(lambda probability, end_samples: None)
    stream.feed(level(0.0, windows=1000))
    await vad.close()
    assert not thread.is_alive()
    await vad.close()
    stream.feed(level(0.0))
    stream.close()


async def test_closing_after_a_failed_start_is_safe(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "silero_vad.onnx").write_bytes(b"not a model")
    vad = SileroVad(tmp_path)
    with pytest.raises(EngineError) as caught:
        await vad.start()
    assert caught.value.code == "model_load_failed"
    await vad.close()


async def test_scores_for_a_loop_that_has_ended_are_nobodys() -> None:
    vad = SileroVad(Path("dir"), load=StandIn().load)
    vad._loop = asyncio.new_event_loop()
    vad._loop.close()
    vad._hand_over([])


async def test_without_onnxruntime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EngineError, match=r"\.\[embedded\]") as caught:
        await SileroVad(tmp_path).start()
    assert caught.value.code == "missing_extra"


async def test_a_thread_that_waits_holds_no_call() -> None:
    model = StandIn()
    async with started(model) as vad:
        heard = Heard()
        stream = vad.open(heard)
        stream.feed(level(0.5))
        await heard.wait_for(1)
        stream.close()
        gone = weakref.ref(heard)
        del stream, heard
        async with asyncio.timeout(WAIT_S):
            while gone() is not None:
                gc.collect()
                await asyncio.sleep(0.01)
