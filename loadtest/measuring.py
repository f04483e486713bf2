"""``python -m loadtest.measuring``: a generator's calls are measured in a process beside it.

In the generator's own, measuring would hold the interpreter while the ticker is due, and a run in which many calls end
at once would be void by that. This process is nice to everything else, keeps the audio of the worst calls, and ends
when its input does.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from loadtest.call import CallTape
from loadtest.measured_call import Expectations, OfferedCall, badness, measure_call
from loadtest.outcome import CallOutcome
from streaming.audio.wav import encode_wav

NICENESS = 10
COMMAND = (sys.executable, "-m", "loadtest.measuring")

_COUNT = struct.Struct("!I")
_LENGTH = struct.Struct("!Q")


class MeasuringError(Exception):
    """The process that measures is gone."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What the process is told first."""

    expect: Expectations
    folder: Path
    keep: int


class Measuring:
    """The process, from the generator's side: blocks, so it is called in a thread, in one at a time."""

    def __init__(self, expect: Expectations, folder: Path, keep: int, command: Sequence[str] = COMMAND) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._ask(_Order(expect, folder, keep))
        except MeasuringError:
            self.close()
            raise

    def measure(self, offered: OfferedCall, tape: CallTape) -> CallOutcome:
        """Raises :class:`MeasuringError`."""
        return cast(CallOutcome, self._ask((offered, tape)))

    def kept(self) -> tuple[dict[int, str], str | None]:
        """Of the worst calls by number: the name of the WAV in the folder; and why it is not of all of them, if it is
        not. Raises :class:`MeasuringError`."""
        return cast("tuple[dict[int, str], str | None]", self._ask(None))

    def close(self) -> None:
        """It ends with its input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _ask(self, asked: object) -> object:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            _write(cast(BinaryIO, stdin), asked)
            return _read(cast(BinaryIO, stdout))
        except (OSError, EOFError) as error:
            raise MeasuringError("the process that measures calls is gone") from error


class WorstCalls:
    """Keeps the audio of the worst few calls as files in ``folder``. A disk that is full costs the audio and nothing
    else."""

    def __init__(self, folder: Path, most: int) -> None:
        self.problem: str | None = None
        """Why a call that should have been was not kept."""
        self._folder = folder
        self._most = most
        self._calls: list[tuple[float, int]] = []  # a heap, the best of them first

    def offer(self, outcome: CallOutcome, tape: CallTape) -> None:
        """Keeps this call's audio if it is worse than what is kept, in the place of the best of those."""
        entry = (badness(outcome), -outcome.number)  # of equals the first
        if self._most < 1 or not len(tape.agent) or (len(self._calls) >= self._most and entry <= self._calls[0]):
            return
        try:
            self._path(outcome.number).write_bytes(encode_wav([tape.caller, tape.agent], tape.rate_hz))
        except OSError as error:
            self.problem = error.strerror or type(error).__name__
            self._drop(outcome.number)
            return
        heapq.heappush(self._calls, entry)
        if len(self._calls) > self._most:
            _, number = heapq.heappop(self._calls)
            self._drop(-number)

    def kept(self) -> dict[int, str]:
        """Names of files by the calls' numbers."""
        return {-number: self._path(-number).name for _, number in self._calls}

    def _drop(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"call-{number}.wav"


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    told, heard = os.fdopen(os.dup(sys.stdout.fileno()), "wb"), sys.stdin.buffer
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anything prints is no answer
    with contextlib.suppress(EOFError, BrokenPipeError):
        order = cast(_Order, _read(heard))
        worst = WorstCalls(order.folder, order.keep)
        _write(told, None)
        while True:
            asked = cast("tuple[OfferedCall, CallTape] | None", _read(heard))
            if asked is None:
                _write(told, (worst.kept(), worst.problem))
                continue
            offered, tape = asked
            outcome = measure_call(tape, offered, order.expect)
            worst.offer(outcome, tape)
            _write(told, outcome)


def _write(pipe: BinaryIO, value: object) -> None:
    """Arrays go as they are: they are not copied on their way into the pipe."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    pipe.write(_COUNT.pack(len(parts)))
    for part in parts:
        pipe.write(_LENGTH.pack(part.nbytes))
        pipe.write(part)
    pipe.flush()


def _read(pipe: BinaryIO) -> object:
    """Raises :class:`EOFError`."""
    (count,) = _COUNT.unpack(_exactly(pipe, _COUNT.size))
    body, *buffers = [_exactly(pipe, _LENGTH.unpack(_exactly(pipe, _LENGTH.size))[0]) for _ in range(count)]
    return pickle.loads(body, buffers=buffers)  # only our own other half writes here


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


if __name__ == "__main__":
    main()
