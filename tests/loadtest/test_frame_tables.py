from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from loadtest.frame_tables import Encoding, FrameTables, each_frame, lines_of
from loadtest.script import Backchannel, HangUp, Interrupt, Line, Pause, Press, Repeat, Say, WaitAgent
from tests.virtual_time import virtual

RATE_HZ = 1_000


def line(ms: int, level: int = 1) -> Line:
    return Line(None, np.full(ms, level, dtype=np.int16), float(ms))


class Coder:
    """Counts the lines it writes."""

    def __init__(self, name: str = "plain") -> None:
        self.lines = 0
        self.encoding = Encoding(name, RATE_HZ, self._line)

    def _line(self, frames: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.int16]]]) -> Sequence[bytes]:
        self.lines += 1
        return each_frame(lambda frame: frame.tobytes())(frames)


@virtual
async def test_a_line_is_in_frames_of_20_ms_and_the_last_is_filled_up() -> None:
    said = line(50)
    voice = await FrameTables().voice(Coder().encoding, [Say(said)])
    table = voice.lines[said]
    assert table.sounds.shape == (3, 20)
    assert table.sounds.sum() == 50
    assert [len(frame) for frame in table.frames] == [40, 40, 40]
    assert b"".join(table.frames) == table.sounds.tobytes()
    assert voice.silence == bytes(40)


@virtual
async def test_calls_that_say_the_same_share_one_table() -> None:
    tables, coder, said = FrameTables(), Coder(), line(40)
    first, *others = await asyncio.gather(*(tables.voice(coder.encoding, [Say(said)]) for _ in range(5)))
    assert coder.lines == 2  # silence, and the line
    assert all(other.lines[said] is first.lines[said] for other in others)
    await tables.voice(coder.encoding, [Say(line(40))])  # as loud and as long, and another
    assert coder.lines == 3
    await tables.voice(Coder("other").encoding, [Say(said)])
    assert coder.lines == 3


@virtual
async def test_what_was_not_said_for_longest_makes_room() -> None:
    tables, coder = FrameTables(kept_bytes=2 * 80), Coder()
    first, second, third = line(20, 1), line(20, 2), line(20, 3)
    held = await tables.voice(coder.encoding, [Say(first)])
    await tables.voice(coder.encoding, [Say(second)])
    await tables.voice(coder.encoding, [Say(first)])
    await tables.voice(coder.encoding, [Say(third)])  # the second goes
    assert coder.lines == 1 + 3
    await tables.voice(coder.encoding, [Say(first), Say(third)])
    assert coder.lines == 1 + 3
    await tables.voice(coder.encoding, [Say(second)])
    assert coder.lines == 1 + 4
    assert held.lines[first].frames  # a call keeps what it says


def test_the_lines_of_a_script_are_those_in_all_its_steps() -> None:
    a, b, c, d = (line(20) for _ in range(4))
    inner = Repeat((Interrupt(c, 100), Interrupt(Press("1"), 100), Say(a)), times=2)
    steps = (WaitAgent(), Say(a), Backchannel(b, 300), Repeat((inner, Pause(5), Say(d))), Press("2"), HangUp())
    assert list(lines_of(steps)) == [a, b, c, a, d]
