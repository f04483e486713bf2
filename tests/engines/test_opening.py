"""Engines are fetched, made in their place, started together, and closed in reverse."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import fetch, registry
from engines.api import Engine, EngineError, EngineHealth, EngineSet, Overload
from engines.lane import CpuLane, LaneFull
from engines.memory import MemoryGuard, Reading
from engines.opening import InProcess, open_engines, open_preset
from engines.registry import KINDS, BackendSpec, Folder, PresetSpec
from streaming.jobs import Generate, Generation, GenerationFailed, Priority, Token

happened: list[str] = []
failing: set[str] = set()


class FakeEngine:
    """Logs what happens to it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments = arguments
        self.options = options
        self.name = type(self).__name__
        happened.append(f"make {self.name}")

    async def start(self) -> None:
        happened.append(f"start {self.name}")
        await asyncio.sleep(0)
        if self.name in failing:
            raise EngineError("load_failed", f"{self.name} is broken")
        happened.append(f"ready {self.name}")

    async def close(self) -> None:
        happened.append(f"close {self.name}")
        if f"{self.name} close" in failing:
            raise RuntimeError("cannot close")


class Vad(FakeEngine): ...


class Turn(FakeEngine): ...


class Stt(FakeEngine): ...


class Llm(FakeEngine): ...


class Tts(FakeEngine): ...


HERE = __name__


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    happened.clear()
    failing.clear()
    yield
    happened.clear()
    failing.clear()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, BackendSpec]:
    """A preset "fake" of one fake backend a stage; change the returned specs through :func:`change`."""
    backends = {f"fake-{kind}": BackendSpec(f"fake-{kind}", kind, f"{HERE}:{kind.capitalize()}") for kind in KINDS}
    monkeypatch.setattr(registry, "BACKENDS", backends)
    preset = PresetSpec("fake", "fake-vad", "fake-turn", ("fake-stt",), ("fake-llm",), ("fake-tts",))
    monkeypatch.setattr(registry, "PRESETS", {"fake": preset})
    return backends


def change(backends: dict[str, BackendSpec], kind: Any, **fields: Any) -> None:
    backends[f"fake-{kind}"] = BackendSpec(f"fake-{kind}", kind, f"{HERE}:{kind.capitalize()}", **fields)


async def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(EngineError, match="embedded") as caught:
        async with open_preset("nope"):
            pass
    assert caught.value.code == "unknown_preset"


async def test_the_null_preset_opens_and_closes() -> None:
    async with open_preset("null") as engines:
        assert isinstance(engines, EngineSet)
        assert engines.tts.voices


async def test_engines_start_at_once_and_close_in_reverse(fakes: dict[str, BackendSpec]) -> None:
    names = ["Vad", "Turn", "Stt", "Llm", "Tts"]
    async with open_preset("fake"):
        assert happened == [f"{verb} {name}" for verb in ("make", "start", "ready") for name in names]
        happened.clear()
    assert happened == [f"close {name}" for name in reversed(names)]


async def test_after_a_failed_start_everything_is_closed(fakes: dict[str, BackendSpec]) -> None:
    failing.update({"Stt", "Tts"})
    with pytest.raises(EngineError, match="Stt is broken"):
        async with open_preset("fake"):
            pytest.fail("opened although an engine is broken")
    # The others were let finish before anything was closed.
    assert happened.index("ready Llm") < happened.index("close Tts")
    assert [line for line in happened if line.startswith("close")] == [
        f"close {name}" for name in ("Tts", "Llm", "Stt", "Turn", "Vad")
    ]


@pytest.mark.parametrize("own", [False, True])
async def test_weights_that_cannot_be_loaded_are_named_with_what_to_delete(
    fakes: dict[str, BackendSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr(fetch, "ensure", lambda name, progress: tmp_path / name)
    change(fakes, "stt", weights=(Folder(tmp_path) if own else "model-a",))
    failing.add("Stt")
    with pytest.raises(EngineError, match="Stt is broken") as caught:
        async with open_preset("fake"):
            pass
    assert caught.value.code == "load_failed"
    assert (f"delete its folder to have it made anew: {tmp_path / 'model-a'}" in str(caught.value)) is not own
    assert ("delete" in str(caught.value)) is not own, "what the user made is not ours to fetch"


async def test_one_engine_that_cannot_close_keeps_no_other_open(fakes: dict[str, BackendSpec]) -> None:
    failing.add("Llm close")
    with pytest.raises(RuntimeError, match="cannot close"):
        async with open_preset("fake"):
            pass
    assert happened[-5:] == [f"close {name}" for name in ("Tts", "Llm", "Stt", "Turn", "Vad")]


async def test_the_lane_is_shared_and_closed_last(fakes: dict[str, BackendSpec]) -> None:
    change(fakes, "stt", shares="lane")
    change(fakes, "tts", shares="lane")
    async with open_preset("fake", cores=3) as engines:
        assert isinstance(engines.stt, Stt)
        assert isinstance(engines.tts, Tts)
        (lane,) = engines.stt.arguments
        assert engines.tts.arguments == (lane,)
        assert isinstance(lane, CpuLane)
        assert lane.slots == 3
    with pytest.raises(LaneFull):
        lane.submit(Priority.FINAL, 0.0, lambda slot: None, abandoned=lambda: False)


async def test_a_preset_may_have_no_turn_model(fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    preset = PresetSpec("fake", "fake-vad", None, ("fake-stt",), ("fake-llm",), ("fake-tts",))
    monkeypatch.setattr(registry, "PRESETS", {"fake": preset})
    async with open_preset("fake") as engines:
        assert engines.turn is None
    assert "make Turn" not in happened


async def test_a_factory_gets_folders_then_what_is_shared_then_options() -> None:
    spec = BackendSpec("fake-llm", "llm", f"{HERE}:Llm", shares="lane", options={"threads": 2})
    place = InProcess(1)
    first = place.engine(spec, [Path("/a"), Path("/b")])
    *folders, lane = first.arguments
    assert folders == [Path("/a"), Path("/b")]
    assert isinstance(lane, CpuLane)
    assert first.options == {"threads": 2}
    assert place.engine(spec, []).arguments == (lane,)
    await place.close()
    await place.close()


async def test_backends_of_a_host_run_in_its_place(fakes: dict[str, BackendSpec]) -> None:
    class Elsewhere:
        async def close(self) -> None:
            happened.append("close Elsewhere")

        def engine(self, spec: BackendSpec, weights: Sequence[Path]) -> Engine:
            happened.append(f"place {spec.name}")
            return Llm()

        def health(self) -> EngineHealth:
            return EngineHealth(healthy=False, reason="so it says")

    change(fakes, "llm", host="cpu")
    async with open_engines(registry.find_lineup("fake"), place=Elsewhere()) as engines:
        assert engines.health().reason == "so it says"
        assert "make Stt" in happened
    assert [line for line in happened if line.startswith("place")] == ["place fake-llm"]
    assert happened[-1] == "close Elsewhere"


async def test_a_missing_package_is_told_before_anything_is_fetched(
    fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(fakes, "llm", extra="mlx", imports=("no_such_package_at_all",), weights=("silero-vad",))
    monkeypatch.setattr(fetch, "ensure", None)
    with pytest.raises(EngineError, match=r"no_such_package_at_all: pip install -e '\.\[mlx\]'") as caught:
        async with open_preset("fake"):
            pass
    assert caught.value.code == "missing_extra"
    assert happened == []


def test_a_hidden_package_counts_as_missing(fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    change(fakes, "llm", extra="embedded", imports=("json",))
    monkeypatch.setitem(sys.modules, "json", None)
    with pytest.raises(EngineError) as caught:
        registry.check_installed(fakes["fake-llm"])
    assert caught.value.code == "missing_extra"


def test_an_import_that_fails_in_the_factory_names_the_extra(fakes: dict[str, BackendSpec]) -> None:
    fakes["fake-llm"] = BackendSpec("fake-llm", "llm", "no_such_module_at_all:Llm", "mlx")
    with pytest.raises(EngineError, match=r"\.\[mlx\]"):
        InProcess(1).engine(fakes["fake-llm"], [])
    fakes["fake-llm"] = BackendSpec("fake-llm", "llm", "no_such_module_at_all:Llm")
    with pytest.raises(ModuleNotFoundError):
        InProcess(1).engine(fakes["fake-llm"], [])


def test_another_platform_is_refused(fakes: dict[str, BackendSpec]) -> None:
    change(fakes, "llm", platforms=("vms",))
    with pytest.raises(EngineError) as caught:
        registry.check_installed(fakes["fake-llm"])
    assert caught.value.code == "unsupported_platform"


async def test_cancelling_the_opening_stops_the_download(
    fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(fakes, "vad", weights=("silero-vad",))
    began, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def ensure(name: str, progress: fetch.Progress) -> Path:
        progress(name, 0, 10)
        began.set()
        assert cancelled.wait(10)
        try:
            progress(name, 5, 10)
        finally:
            ended.set()
        pytest.fail("went on although nobody waits")

    monkeypatch.setattr(fetch, "ensure", ensure)
    told: list[int] = []

    async def opening() -> None:
        async with open_preset("fake", progress=lambda name, done_bytes, total_bytes: told.append(done_bytes)):
            pytest.fail("opened")

    task = asyncio.create_task(opening())
    assert await asyncio.to_thread(began.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert told == [0]


async def test_the_mlx_executor_is_made_only_for_a_preset_that_shares_it(
    fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = pytest.importorskip("engines.executor.thread")

    class Executor(FakeEngine): ...

    monkeypatch.setattr(thread, "MlxExecutor", Executor)
    async with open_preset("fake"):
        assert "make Executor" not in happened
    change(fakes, "llm", shares="mlx")
    async with open_preset("fake") as engines:
        assert isinstance(engines.llm, Llm)
        (executor,) = engines.llm.arguments
        assert isinstance(executor, Executor)
    # Models on the executor are closed before the thread they live on.
    assert happened[-1] == "close Executor"


@pytest.fixture
def chained(fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch) -> dict[str, BackendSpec]:
    """The preset "fake" with the engine of :class:`Spare` to stand in for its language model."""
    fakes["spare"] = BackendSpec("spare", "llm", f"{HERE}:Spare", memory_mb=10)
    preset = PresetSpec("fake", "fake-vad", None, ("fake-stt",), ("fake-llm", "spare"), ("fake-tts",))
    monkeypatch.setattr(registry, "PRESETS", {"fake": preset})
    return fakes


class Failing(FakeEngine):
    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        failed = GenerationFailed(request.epoch, "engine_error", "broken")
        asyncio.get_running_loop().call_soon(deliver, failed)


class Spare(FakeEngine):
    def cancel(self, call: str, epoch: int) -> None:
        happened.append(f"cancel {call} {epoch}")

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        asyncio.get_running_loop().call_soon(deliver, Token(request.epoch, "hello"))


HELLO = Generate("c", 1, (), Priority.DECODE, 0.0)


async def test_a_fallback_is_opened_by_the_request_that_needs_it(chained: dict[str, BackendSpec]) -> None:
    chained["fake-llm"] = BackendSpec("fake-llm", "llm", f"{HERE}:Failing")
    got: asyncio.Queue[Any] = asyncio.Queue()
    async with open_preset("fake") as engines:
        assert "make Spare" not in happened
        engines.llm.generate(HELLO, got.put_nowait)
        assert await got.get() == Token(1, "hello")
        assert happened[-3:] == ["make Spare", "start Spare", "ready Spare"]
    assert "cancel c 1" in happened
    assert [line for line in happened if line.startswith("close")] == [
        f"close {name}" for name in ("Tts", "Spare", "Failing", "Stt", "Vad")
    ]


async def test_a_fallback_that_does_not_start_is_closed_again(chained: dict[str, BackendSpec]) -> None:
    chained["fake-llm"] = BackendSpec("fake-llm", "llm", f"{HERE}:Failing")
    failing.add("Spare")
    got: asyncio.Queue[Any] = asyncio.Queue()
    async with open_preset("fake") as engines:
        engines.llm.generate(HELLO, got.put_nowait)
        assert (await got.get()).code == "load_failed"
        assert happened[-1] == "close Spare"


async def test_what_cannot_stand_in_is_left_out(chained: dict[str, BackendSpec]) -> None:
    chained["spare"] = BackendSpec("spare", "llm", f"{HERE}:Spare", "mlx", ("no_such_package_at_all",))
    async with open_preset("fake") as engines:
        assert isinstance(engines.llm, Llm)


async def test_whether_every_stage_has_somebody(chained: dict[str, BackendSpec]) -> None:
    class Down:
        available = False

        async def start(self) -> None: ...

        async def close(self) -> None: ...

    class Elsewhere:
        async def close(self) -> None: ...

        def engine(self, spec: BackendSpec, weights: Sequence[Path]) -> Engine:
            return Down()

    change(chained, "llm", host="cpu")
    async with open_engines(registry.find_lineup("fake"), place=Elsewhere()) as engines:
        assert engines.health().takes_calls, "another may be loaded"
        assert {stage for stage, _ in engines.health().failed_requests} == {"llm"}, (
            "only where another stands behind it"
        )
        assert set(engines.health().failed_requests.values()) == {0}
    change(chained, "tts", host="cpu")
    async with open_engines(registry.find_lineup("fake"), place=Elsewhere()) as engines:
        assert not engines.health().takes_calls


async def test_a_model_without_room_is_refused_before_it_is_loaded(fakes: dict[str, BackendSpec]) -> None:
    change(fakes, "llm", memory_mb=3072)
    guard = MemoryGuard(lambda: Reading(2048))
    with pytest.raises(EngineError, match=r"fake-llm: needs 3\.0 GB \+ 1\.5 GB reserve") as caught:
        async with open_engines(registry.find_lineup("fake"), memory=guard):
            pytest.fail("opened")
    assert caught.value.code == "not_enough_memory"
    assert "start Llm" not in happened


async def test_a_device_without_room_is_told_by_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    mx = pytest.importorskip("mlx.core")
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "a GPU", "total_memory": 1 << 30})
    spec = BackendSpec("big", "llm", f"{HERE}:Llm", shares="mlx", memory_mb=4096)
    place = InProcess(1)
    engine = place.engine(spec, [])
    with pytest.raises(EngineError, match=r"not enough memory for big: needs 4\.0 GB, .* on a GPU"):
        await engine.start()
    assert "start Llm" not in happened
    assert engine.options == {}
    await engine.close()
    await place.close()


async def test_a_users_own_weights_tell_their_need(fakes: dict[str, BackendSpec], tmp_path: Path) -> None:
    change(fakes, "llm", weights=(Folder(tmp_path),))
    with pytest.raises(EngineError, match=r"fake-llm: needs 0\.2 GB"):
        async with open_engines(registry.find_lineup("fake"), memory=MemoryGuard(lambda: Reading(0))):
            pytest.fail("opened")
    change(fakes, "llm", weights=(Folder(tmp_path / "nowhere"),))
    with pytest.raises(EngineError, match="there is no model folder"):
        async with open_preset("fake"):
            pytest.fail("opened")


async def test_backends_are_told_of(chained: dict[str, BackendSpec]) -> None:
    chained["fake-llm"] = BackendSpec("fake-llm", "llm", f"{HERE}:Failing", host="cpu")
    async with open_preset("fake") as engines:

        def states() -> dict[str, str]:
            return {one.name: one.state for one in engines.health().backends}

        assert states() == {name: "standing_by" if name == "spare" else "up" for name in chained if name != "fake-turn"}
        assert {one.host for one in engines.health().backends} == {None}, "all run in this process"
        got: asyncio.Queue[Any] = asyncio.Queue()
        engines.llm.generate(HELLO, got.put_nowait)
        await got.get()
        assert (states()["fake-llm"], states()["spare"]) == ("paused", "up")


async def test_a_lane_of_this_process_is_told_of(fakes: dict[str, BackendSpec]) -> None:
    change(fakes, "stt", shares="lane")
    async with open_preset("fake", cores=2) as engines:
        lane = engines.health().lanes["cpu"]
        assert (lane.slots, lane.waiting, lane.running, lane.overload) == (2, 0, 0, Overload.NONE)
