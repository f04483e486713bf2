"""Backends and presets: lazily imported, checked before anything is fetched, opened together, closed in reverse."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines import fetch, registry
from engines.api import EngineError, EngineSet
from engines.catalogue import MODELS
from engines.lane import CpuLane, LaneFull
from engines.registry import BACKENDS, KINDS, PRESETS, BackendSpec, BuildContext, Derived, PresetSpec, open_preset
from streaming.jobs import Priority

happened: list[str] = []
failing: set[str] = set()


class FakeEngine:
    """Logs what happens to it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
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


def recipe(source: Path, into: Path) -> None:
    (into / "converted").write_text(source.name)


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
    preset = PresetSpec("fake", "fake-vad", "fake-turn", "fake-stt", "fake-llm", "fake-tts")
    monkeypatch.setattr(registry, "PRESETS", {"fake": preset})
    return backends


def change(backends: dict[str, BackendSpec], kind: Any, **fields: Any) -> None:
    backends[f"fake-{kind}"] = BackendSpec(f"fake-{kind}", kind, f"{HERE}:{kind.capitalize()}", **fields)


@pytest.mark.parametrize("spec", BACKENDS.values(), ids=list(BACKENDS))
def test_every_backend_names_things_that_are_there(spec: BackendSpec) -> None:
    for weights in spec.weights:
        assert (weights.source if isinstance(weights, Derived) else weights) in MODELS
    assert spec.extra or not spec.imports, "a package of no extra cannot be asked for"
    for package in spec.imports:
        pytest.importorskip(package)
    references = [spec.factory, *(weights.recipe for weights in spec.weights if isinstance(weights, Derived))]
    for reference in references:
        module, _, attribute = reference.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_every_preset_has_a_backend_of_the_right_kind_a_stage(preset: PresetSpec) -> None:
    assert [spec.kind for spec in preset.backends()] == [kind for kind in KINDS if getattr(preset, kind)]


def test_importing_the_registry_imports_no_engine() -> None:
    heavy = "onnxruntime ctranslate2 faster_whisper mlx mlx_lm gguf torch transformers huggingface_hub"
    code = f"import sys, engines.registry; print([m for m in {heavy.split()} if m in sys.modules])"
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert out.stdout.strip() == "[]"


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
    preset = PresetSpec("fake", "fake-vad", None, "fake-stt", "fake-llm", "fake-tts")
    monkeypatch.setattr(registry, "PRESETS", {"fake": preset})
    async with open_preset("fake") as engines:
        assert engines.turn is None
    assert "make Turn" not in happened


def test_build_hands_out_folders_then_what_is_shared(fakes: dict[str, BackendSpec]) -> None:
    derived = Derived("made-1", "silero-vad", f"{HERE}:recipe")
    change(fakes, "llm", weights=("silero-vad", derived), shares="lane")
    lane = CpuLane(1)
    context = BuildContext(lane, weights={"silero-vad": Path("/a"), "made-1": Path("/b")})
    engines = registry.build(registry.find_preset("fake"), context)
    assert isinstance(engines.llm, Llm)
    assert engines.llm.arguments == (Path("/a"), Path("/b"), lane)


async def test_a_missing_package_is_told_before_anything_is_fetched(
    fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(fakes, "llm", extra="mlx", imports=("no_such_package_at_all",), weights=("silero-vad",))
    monkeypatch.setattr(fetch, "ensure", None)
    with pytest.raises(EngineError, match=r"no_such_package_at_all: pip install 'offhook\[mlx\]'") as caught:
        async with open_preset("fake"):
            pass
    assert caught.value.code == "missing_extra"
    assert happened == []


def test_a_hidden_package_counts_as_missing(fakes: dict[str, BackendSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    change(fakes, "llm", extra="embedded", imports=("json",))
    monkeypatch.setitem(sys.modules, "json", None)
    with pytest.raises(EngineError) as caught:
        registry.check_installed(registry.find_preset("fake"))
    assert caught.value.code == "missing_extra"


def test_an_import_that_fails_in_the_factory_names_the_extra(fakes: dict[str, BackendSpec]) -> None:
    fakes["fake-llm"] = BackendSpec("fake-llm", "llm", "no_such_module_at_all:Llm", "mlx")
    with pytest.raises(EngineError, match=r"offhook\[mlx\]"):
        registry.build(registry.find_preset("fake"), BuildContext(CpuLane(1)))
    fakes["fake-llm"] = BackendSpec("fake-llm", "llm", "no_such_module_at_all:Llm")
    with pytest.raises(ModuleNotFoundError):
        registry.build(registry.find_preset("fake"), BuildContext(CpuLane(1)))


def test_another_platform_is_refused(fakes: dict[str, BackendSpec]) -> None:
    change(fakes, "llm", platforms=("vms",))
    with pytest.raises(EngineError) as caught:
        registry.check_installed(registry.find_preset("fake"))
    assert caught.value.code == "unsupported_platform"


def test_weights_are_fetched_and_converted_once(
    fakes: dict[str, BackendSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path))
    fetched: list[str] = []

    def ensure(name: str, progress: object) -> Path:
        fetched.append(name)
        return tmp_path / name

    monkeypatch.setattr(fetch, "ensure", ensure)
    change(fakes, "vad", weights=("silero-vad",))
    change(fakes, "llm", weights=(Derived("made-1", "smollm2-gguf", f"{HERE}:recipe"),))
    preset = registry.find_preset("fake")
    folders = registry.fetch_weights(preset)
    assert set(folders) == {"silero-vad", "made-1"}
    assert (folders["made-1"] / "converted").read_text() == "smollm2-gguf"
    assert registry.fetch_weights(preset) == folders
    # The source of a converted model is not needed, and not fetched, once the conversion is there.
    assert fetched == ["silero-vad", "smollm2-gguf", "silero-vad"]


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
