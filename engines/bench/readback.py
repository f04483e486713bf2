"""Speech of each text-to-speech variant, read back by speech-to-text: errors, speed and memory side by side.

``offhook bench tts-readback --tts piper-joe --tts mlx-kokoro=mlx-community/Kokoro-82M-4bit``. A variant is a backend of
the registry; ``=MODEL`` takes other weights for it (a name, a folder, ``owner/name[@revision]`` of a hub),
``,voice=NAME`` another voice, and ``,NAME=VALUE`` is an option of the engine, in JSON. Every variant speaks in a
process of its own, one sentence after another, so that memory is its own; then one ear hears them all. Errors are of
that ear too: compare variants, don't read them as truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from engines.api import Engine, EngineError, Pcm16, TextToSpeech
from engines.opening import InProcess
from engines.registry import BackendSpec, Kind, check_installed, weights_name
from engines.selection import Choice, select
from engines.weights import fetch_weights
from streaming.audio.resample import Resampler
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    Priority,
    Synthesis,
    SynthesisChunk,
    SynthesisFailed,
    Synthesize,
    Transcript,
    TranscriptionFailed,
)
from streaming.text.speakable import speakable

T = TypeVar("T")

DEFAULT = ("piper-joe",)
SENTENCES = (
    "Hello, this is Blue Door Bakery. How can I help you?",
    "We are open Monday to Saturday, from eight in the morning to six in the evening.",
    "Your total comes to $42.95, including delivery.",
    "I can book you in on Thursday, March 14th, at half past three in the afternoon.",
    "Could you spell your last name for me, please?",
    "Thank you, Mister Anderson. Is Katherine coming along as well?",
    "The parcel will go to 18 Maple Street, apartment 12.",
    "Your order is number 270, and it is ready now.",
    "Please call us back before noon, and ask for extension 42.",
    "There are 230 seats left on the evening train to Chicago.",
    "It takes about twenty five minutes on foot, or ten by bus.",
    "I'm sorry, we have no gluten free bread left today.",
    "The doctor can see you next Tuesday at a quarter past nine.",
    "Doctor Patel works at our office on Washington Avenue.",
    "Sure, one moment.",
    "The first night costs $129, and every further night is $99.",
    "Would you like the window seat, or the one by the aisle?",
    "That room has a view of the lake and holds 16 people.",
    "If it still does not work, turn the router off, wait for thirty seconds, and turn it on again.",
    "Have a lovely weekend, and say hello to Robert and Elizabeth!",
)
"""What an agent on the telephone says: names, numbers, addresses, times, prices. No codes or telephone numbers: an ear
writes them in too many ways to count its errors."""
_WARMED_BY = "Good morning."
_ANSWERED_WITHIN_S = 600.0
_TAIL_S = 0.3
"""Silence after each sentence, as an ear gets it at the end of a turn."""
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Variant:
    """As named on the command line."""

    text: str
    backend: str
    model: str = ""
    voice: str = ""
    options: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Variant:
        """``BACKEND[=MODEL][,voice=NAME][,OPTION=JSON]``. Raises ValueError."""
        named, *rest = text.split(",")
        backend, _, model = named.partition("=")
        if not backend:
            raise ValueError(f"{text!r} names no backend")
        voice, options = "", {}
        for option in rest:
            name, _, value = option.partition("=")
            if not name or not value:
                raise ValueError(f"{text}: what follows a comma is NAME=VALUE")
            if name == "voice":
                voice = value
            else:
                options[name] = json.loads(value)
        return cls(text, backend, model, voice, options)

    @property
    def label(self) -> str:
        """For a table: of a folder its name only."""
        return self.text.replace(self.model, Path(self.model).name) if Path(self.model).is_dir() else self.text

    def spec(self, kind: Kind) -> BackendSpec:
        """Raises :class:`EngineError` for what the registry does not know."""
        spec = select("embedded", {kind: Choice(backends=(self.backend,), model=self.model)}).chains[kind][0]
        options = {**spec.options, **self.options}
        if self.voice and "kokoro" in spec.factory:  # it loads the voices that it offers, English ones if none is named
            options["voices"] = (self.voice,)
        return replace(spec, options=options)


@dataclass(frozen=True, slots=True)
class Said:
    """One sentence, spoken. ``pcm`` is at 16 kHz."""

    text: str
    pcm: Pcm16
    audio_s: float
    first_chunk_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Speech:
    """All of a variant. ``memory_mb`` is what its process grew by at most, ``device_mb`` what MLX held at most on a
    device with memory of its own."""

    sentences: list[Said]
    started_s: float
    memory_mb: float
    device_mb: float


# --- in the variant's own process -----------------------------------------------------------------------------


def speak(variant: Variant, sentences: Sequence[str]) -> Speech:
    """Fetch, load and speak. Raises RuntimeError."""
    return _answer(_speak(variant, sentences))


def listen(variant: Variant, clips: Sequence[Pcm16]) -> list[str]:
    """What an ear makes of each clip. Raises RuntimeError."""
    return _answer(_listen(variant, clips))


def _answer(work: Coroutine[Any, Any, T]) -> T:
    _log_to_stderr()
    try:
        return asyncio.run(work)
    except EngineError as error:  # it has no way back through a pickle
        raise RuntimeError(f"{error} ({error.code})") from None
    except TimeoutError:
        raise RuntimeError(f"no answer within {_ANSWERED_WITHIN_S:.0f} s") from None
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


async def _speak(variant: Variant, sentences: Sequence[str]) -> Speech:
    spec = variant.spec("tts")
    bare_mb = _peak_mb()
    async with _opened(spec) as (engine, place, started_s):
        voice = variant.voice or engine.voices[0]
        await _say(engine, 0, _WARMED_BY, voice)
        said = [await _say(engine, number, text, voice) for number, text in enumerate(sentences, start=1)]
        return Speech(said, started_s, _peak_mb() - bare_mb, await _device_mb(place))


async def _listen(variant: Variant, clips: Sequence[Pcm16]) -> list[str]:
    async with _opened(variant.spec("stt")) as (engine, _, _):
        return [await _hear(engine, number, pcm) for number, pcm in enumerate(clips)]


@contextlib.asynccontextmanager
async def _opened(spec: BackendSpec) -> AsyncIterator[tuple[Any, InProcess, float]]:
    check_installed(spec)
    folders = await asyncio.to_thread(fetch_weights, [spec])
    began = time.monotonic()
    place = InProcess()
    try:
        engine: Engine = place.engine(spec, [folders[weights_name(weights)] for weights in spec.weights])
        try:
            await engine.start()
            yield engine, place, time.monotonic() - began
        finally:
            await engine.close()
    finally:
        await place.close()


async def _say(engine: TextToSpeech, number: int, text: str, voice: str) -> Said:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pieces: list[bytes] = []
    times: list[float] = []
    rate_hz = engine.rate_hz

    def deliver(result: Synthesis) -> None:
        times.append(time.monotonic())
        match result:
            case SynthesisChunk(pcm=pcm, last=last):
                pieces.append(pcm)
                if last and not done.done():
                    done.set_result(None)
            case SynthesisFailed(code=code, message=message):
                if not done.done():
                    done.set_exception(EngineError(code, f"{text!r}: {message}"))

    began = time.monotonic()
    engine.synthesize(
        Synthesize("readback", number, 0, speakable(text).text, voice, Priority.FIRST_AUDIO, began), deliver
    )
    await asyncio.wait_for(done, _ANSWERED_WITHIN_S)
    pcm = np.frombuffer(b"".join(pieces), np.int16)
    return Said(text, _at_input_rate(pcm, rate_hz), pcm.size / rate_hz, times[0] - began, times[-1] - began)


async def _hear(engine: Any, number: int, pcm: Pcm16) -> str:
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def deliver(result: Transcript) -> None:
        match result:
            case FinalTranscript(text=text) if not done.done():
                done.set_result(text)
            case TranscriptionFailed(code=code, message=message) if not done.done():
                done.set_exception(EngineError(code, message))

    stream = engine.open(OpenTranscription("readback", number, 0, partials=False), deliver)
    stream.feed(np.concatenate([pcm, np.zeros(int(_TAIL_S * INPUT_RATE_HZ), np.int16)]))
    stream.finalize(FinalizeTranscription(number, 0, Priority.FINAL, time.monotonic()))
    try:
        return await asyncio.wait_for(done, _ANSWERED_WITHIN_S)
    finally:
        stream.close()


def _at_input_rate(pcm: Pcm16, rate_hz: int) -> Pcm16:
    if rate_hz == INPUT_RATE_HZ:
        return pcm
    resampler = Resampler(rate_hz, INPUT_RATE_HZ)
    return np.concatenate((resampler.process(pcm), resampler.flush()))


def _peak_mb() -> float:
    """Of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MB if sys.platform == "darwin" else peak / 1024


async def _device_mb(place: InProcess) -> float:
    executor = place._executor
    return await executor.run(_device_peak_mb) if executor is not None else 0.0


def _device_peak_mb() -> float:
    import mlx.core as mx

    return 0.0 if mx.default_device() == mx.cpu else mx.get_peak_memory() / _MB


def _log_to_stderr() -> None:
    """Standard output is the result's."""
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


# --- what was heard -------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Words alone, small letters, numbers spelled out: however an ear writes them."""
    spoken = speakable(text).text.lower().replace("-", " ").replace("'", "")
    return " ".join("".join(letter if letter.isalnum() else " " for letter in spoken).split())


def edits(said: Sequence[str], heard: Sequence[str]) -> int:
    """Levenshtein's distance."""
    row = list(range(len(heard) + 1))
    for at, one in enumerate(said, 1):
        above, row = row, [at]
        for column, other in enumerate(heard, 1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (one != other)))
    return row[-1]


def report(variant: Variant, speech: Speech, heard: Sequence[str]) -> dict[str, Any]:
    """A variant's row, with every sentence."""
    pairs = [(plain(said.text), plain(text)) for said, text in zip(speech.sentences, heard, strict=True)]
    characters = sum(len(said) for said, _ in pairs)
    words = sum(len(said.split()) for said, _ in pairs)
    audio_s = sum(said.audio_s for said in speech.sentences)
    took_s = sum(said.took_s for said in speech.sentences)
    return {
        "variant": variant.label,
        "sentences": len(pairs),
        "cer": round(sum(edits(said, text) for said, text in pairs) / characters, 4),
        "wer": round(sum(edits(said.split(), text.split()) for said, text in pairs) / words, 4),
        "real_time_factor": round(took_s / audio_s, 3) if audio_s else None,
        "first_chunk_ms": round(statistics.median(said.first_chunk_s for said in speech.sentences) * 1000),
        "memory_mb": round(speech.memory_mb),
        "device_mb": round(speech.device_mb),
        "start_s": round(speech.started_s, 1),
        "heard": [
            {"said": said.text, "heard": text, "edits": edits(*pair)}
            for said, text, pair in zip(speech.sentences, heard, pairs, strict=True)
        ],
    }


def compare(variants: Sequence[Variant], ear: Variant, sentences: Sequence[str]) -> dict[str, Any]:
    """Each variant's :func:`report`; one that can't be had has an ``error`` instead."""
    rows = []
    for variant in variants:
        try:
            speech = _apart(speak, variant, sentences)
            heard = _apart(listen, ear, [said.pcm for said in speech.sentences])
        except RuntimeError as error:
            rows.append({"variant": variant.label, "error": f"{error}"})
            continue
        rows.append(report(variant, speech, heard))
    return {"machine": platform.platform(), "stt": ear.label, "variants": rows}


def _apart(act: Callable[..., T], *arguments: Any) -> T:
    """In a fresh process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(act, *arguments).result()


_COLUMNS = (
    ("variant", "{}"),
    ("cer", "{:.1%}"),
    ("wer", "{:.1%}"),
    ("real_time_factor", "{:.2f}"),
    ("first_chunk_ms", "{}"),
    ("memory_mb", "{}"),
    ("device_mb", "{}"),
    ("start_s", "{}"),
)


def table(result: dict[str, Any]) -> str:
    """In Markdown."""
    lines = ["| " + " | ".join(name.replace("_", " ") for name, _ in _COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for row in result["variants"]:
        if "error" in row:
            lines.append(f"| {row['variant']} | {row['error']} |" + " |" * (len(_COLUMNS) - 2))
        else:
            cells = [layout.format(row[name]) if row[name] is not None else "-" for name, layout in _COLUMNS]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(tts: Sequence[str], stt: str, count: int | None, *, as_json: bool) -> int:
    """Measure and tell. Returns how many variants could not be had."""
    variants, ear = [Variant.parse(text) for text in tts], Variant.parse(stt)
    for variant in variants:
        variant.spec("tts")
    ear.spec("stt")
    result = compare(variants, ear, SENTENCES[:count])
    sys.stdout.write((json.dumps(result, indent=2, ensure_ascii=False) if as_json else table(result)) + "\n")
    return sum("error" in row for row in result["variants"])
