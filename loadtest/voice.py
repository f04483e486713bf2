"""The caller's lines as sound: shipped recordings, a WAV of the user's, or an installed synthesiser.

The shipped lines (``lines/index.json``: text -> voice -> file) were made with flite's CMU ARCTIC voices (slt: US
female, rms: US male, awb: Scottish male), so they work where nothing is installed. No agent speaks with these voices.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streaming.audio.resample import Resampler
from streaming.audio.wav import WavError, read_wav

Pcm16 = npt.NDArray[np.int16]

LINES = Path(__file__).with_name("lines")
DEFAULT_VOICE = "slt"
MAX_LINE_SECONDS = 600
MAX_TEXT_CHARACTERS = 2_000

_SYNTHESIS_S = 30.0


class VoiceError(Exception):
    """A line can't be spoken; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Synthesiser:
    """A program that turns a text file into a WAV file. ``arguments`` are for a text file, a WAV file and a voice;
    without a ``default_voice`` it is only used where a voice of it is asked for."""

    program: str
    install: str
    default_voice: str | None
    arguments: Callable[[str, str, str], list[str]]
    reads_input: bool = False
    """The text goes to its standard input."""


SYNTHESISERS = (
    Synthesiser("flite", "apt install flite", "slt", lambda text, wav, voice: ["-voice", voice, "-f", text, "-o", wav]),
    Synthesiser(
        "espeak-ng",
        "apt or brew install espeak-ng",
        "en-us+f3",
        lambda text, wav, voice: ["-v", voice, "-f", text, "-w", wav],
    ),
    Synthesiser(
        "say",
        "part of macOS",
        "Samantha",
        lambda text, wav, voice: [
            "-v",
            voice,
            "--file-format=WAVE",
            "--data-format=LEI16@22050",
            "-f",
            text,
            "-o",
            wav,
        ],
    ),
    Synthesiser(
        "piper",
        "pip install piper-tts (GPL), and a model",
        None,
        lambda _text, wav, voice: ["--model", voice, "--output_file", wav],
        reads_input=True,
    ),
)
"""In order of preference; each in a female voice, as the default agent has a male one."""


@functools.cache
def _index() -> dict[str, dict[str, str]]:
    return msgspec.json.decode((LINES / "index.json").read_bytes(), type=dict[str, dict[str, str]])


def shipped_texts() -> tuple[str, ...]:
    return tuple(_index())


def shipped_line(text: str, voice: str = DEFAULT_VOICE) -> Path | None:
    """The recording of a text (case, spaces and the closing mark don't matter), in ``voice`` if there is one."""
    wanted = _spoken_form(text)
    for known, voices in _index().items():
        if _spoken_form(known) == wanted:
            return LINES / (voices.get(voice) or next(iter(voices.values())))
    return None


def shipped_voices() -> tuple[str, ...]:
    """Who speaks the shipped lines; not every voice speaks every line."""
    return tuple(dict.fromkeys(voice for voices in _index().values() for voice in voices))


def say_line(
    text: str, rate_hz: int, voice: str = DEFAULT_VOICE, which: Callable[[str], str | None] = shutil.which
) -> Pcm16:
    """Samples of a spoken text, shape (n,), at ``rate_hz``. Blocks, up to 30 s: run it off the event loop.

    ``voice`` is one of :func:`shipped_voices`, wanted where a line has it; or ``PROGRAM:VOICE``, which always asks that
    program (``flite:kal16``, ``espeak-ng:en-gb+m2``, ``say:Daniel``, ``piper:/path/model.onnx``). Raises
    :class:`VoiceError` if the text is not shipped and no synthesiser is installed, or none can speak it.
    """
    tool, name = parse_voice(voice)
    if tool is not None:
        return _resampled(*_synthesise(text, which, tool, name), rate_hz)
    path = shipped_line(text, voice)
    return read_line(path, rate_hz) if path else _resampled(*_synthesise(text, which), rate_hz)


def parse_voice(voice: str) -> tuple[Synthesiser | None, str]:
    """The program of a voice and its name there; None for a voice of the shipped lines. Raises :class:`VoiceError` for
    a program that is not known, and for what would be an option of it."""
    program, colon, name = voice.partition(":")
    if not colon:
        return None, voice
    tool = next((tool for tool in SYNTHESISERS if tool.program == program), None)
    if tool is None or not name or name.startswith("-"):
        known = ", ".join(f"{tool.program}:VOICE" for tool in SYNTHESISERS)
        raise VoiceError(f"not a voice: {voice!r}. Known: {', '.join(shipped_voices())}, {known}")
    return tool, name


def read_line(path: Path, rate_hz: int) -> Pcm16:
    """Samples of a WAV file, shape (n,), at ``rate_hz``. Blocks. Raises :class:`VoiceError`."""
    try:
        pcm, from_hz = read_wav(path.read_bytes())
    except (OSError, WavError) as error:
        raise VoiceError(f"{path}: {error}") from error
    if len(pcm) > MAX_LINE_SECONDS * from_hz:
        raise VoiceError(f"{path}: longer than {MAX_LINE_SECONDS} s")
    return _resampled(pcm, from_hz, rate_hz)


def _synthesise(
    text: str, which: Callable[[str], str | None], wanted: Synthesiser | None = None, voice: str = ""
) -> tuple[Pcm16, int]:
    """By the one that is wanted, or by the first that can."""
    if not text.strip() or len(text) > MAX_TEXT_CHARACTERS:
        raise VoiceError(f"a line to say must have 1 to {MAX_TEXT_CHARACTERS} characters")
    tools = [(tool, tool.default_voice) for tool in SYNTHESISERS] if wanted is None else [(wanted, voice)]
    found = [(tool, name, program) for tool, name in tools if name and (program := which(tool.program))]
    if not found and wanted is not None:
        raise VoiceError(f"{wanted.program} is not installed ({wanted.install})")
    if not found:
        raise VoiceError(_nothing_installed())
    failures: list[str] = []
    for tool, name, program in found:
        try:
            return _run(tool, program, name, text)
        except (OSError, subprocess.SubprocessError, WavError) as error:
            failures.append(f"{tool.program}: {error}")
    raise VoiceError("no installed synthesiser could say the line: " + "; ".join(failures))


def _run(tool: Synthesiser, program: str, voice: str, text: str) -> tuple[Pcm16, int]:
    with tempfile.TemporaryDirectory(prefix="offhook-line-") as folder:
        source, wav = Path(folder, "line.txt"), Path(folder, "line.wav")
        source.write_text(text, encoding="utf-8")
        with source.open("rb") as spoken:
            subprocess.run(  # the text goes by file: it may look like an option
                [program, *tool.arguments(str(source), str(wav), voice)],
                check=True,
                timeout=_SYNTHESIS_S,
                stdin=spoken if tool.reads_input else subprocess.DEVNULL,
                capture_output=True,
            )
        return read_wav(wav.read_bytes())


def _nothing_installed() -> str:
    tools = "; ".join(f"{tool.program} ({tool.install})" for tool in SYNTHESISERS if tool.default_voice)
    lines = "\n".join(f"  {text}" for text in shipped_texts())
    return f"no synthesiser found for this text. Install one of: {tools}. Or say one of the shipped lines:\n{lines}"


def _resampled(pcm: Pcm16, from_hz: int, to_hz: int) -> Pcm16:
    try:
        resampler = Resampler(from_hz, to_hz)
    except ValueError as error:
        raise VoiceError(str(error)) from error
    return np.concatenate((resampler.process(pcm), resampler.flush()))


def _spoken_form(text: str) -> str:
    return " ".join(text.split()).casefold().rstrip(" .?!")
