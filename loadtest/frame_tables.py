"""A caller's lines as a wire carries them, frame by frame: made once for all calls of a process that say them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.script import Backchannel, Interrupt, Line, Repeat, Say, Step

Pcm16 = npt.NDArray[np.int16]

KEPT_BYTES = 128 * 1024 * 1024
"""Of tables that no call has need of now; the ones that were not used for longest go first."""

_FRAMES_PER_S = 50


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """One line: ``sounds[n]`` (rows of int16, 20 ms each, the last filled up with silence) is what ``frames[n]``
    carries."""

    frames: tuple[bytes, ...]
    sounds: Pcm16

    @property
    def size_bytes(self) -> int:
        return self.sounds.nbytes + sum(map(len, self.frames))


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a wire writes frames. ``encode_line`` gets all frames of a line, in order and with nothing before them; the
    same ``name`` means the same bytes."""

    name: str
    rate_hz: int
    encode_line: Callable[[Sequence[Pcm16]], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Voice:
    """What a call's lines are on its wire, and a frame of silence."""

    lines: Mapping[Line, FrameTable]
    silence: bytes


def each_frame(encode: Callable[[Pcm16], bytes]) -> Callable[[Sequence[Pcm16]], Sequence[bytes]]:
    """Of a wire whose frames know nothing of each other."""
    return lambda frames: [encode(frame) for frame in frames]


def lines_of(steps: Sequence[Step]) -> Iterator[Line]:
    """Every line that is said in the steps; one that is said twice comes twice."""
    for step in steps:
        match step:
            case Say(line=line) | Backchannel(line=line) | Interrupt(what=Line() as line):
                yield line
            case Repeat(steps=repeated):
                yield from lines_of(repeated)


class FrameTables:
    """The tables of a process, by encoding and line."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._tables: OrderedDict[tuple[str, Line], FrameTable] = OrderedDict()
        self._silences: dict[str, bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()  # calls that say the same wait for the first to have encoded it

    async def voice(self, encoding: Encoding, steps: Sequence[Step]) -> Voice:
        """Encodes what is missing, off the loop."""
        lines = dict.fromkeys(lines_of(steps))
        tables = {line: self._tables.get((encoding.name, line)) for line in lines}
        silence = self._silences.get(encoding.name)
        known = {line: table for line, table in tables.items() if table is not None}
        if silence is None or len(known) < len(lines):
            return await asyncio.to_thread(self._voice, encoding, tuple(lines))
        for line in lines:
            with contextlib.suppress(KeyError):  # it made room meanwhile
                self._tables.move_to_end((encoding.name, line))
        return Voice(known, silence)

    def _voice(self, encoding: Encoding, lines: Sequence[Line]) -> Voice:
        with self._lock:
            if encoding.name not in self._silences:
                silent = np.zeros(encoding.rate_hz // _FRAMES_PER_S, dtype=np.int16)
                self._silences[encoding.name] = encoding.encode_line([silent] * 3)[-1]  # what settled to silence
            tables = {line: self._table(encoding, line) for line in lines}
        return Voice(tables, self._silences[encoding.name])

    def _table(self, encoding: Encoding, line: Line) -> FrameTable:
        key = encoding.name, line
        table = self._tables.get(key)
        if table is None:
            samples = encoding.rate_hz // _FRAMES_PER_S
            sounds = np.pad(line.pcm, (0, -len(line.pcm) % samples)).reshape(-1, samples)
            table = self._tables[key] = FrameTable(tuple(encoding.encode_line(list(sounds))), sounds)
            self._bytes += table.size_bytes
            while self._bytes > self._kept_bytes and len(self._tables) > 1:
                _, oldest = self._tables.popitem(last=False)
                self._bytes -= oldest.size_bytes
        return table


frame_tables = FrameTables()
"""Of this process."""
