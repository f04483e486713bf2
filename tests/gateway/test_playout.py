"""One call's audio on its way out, in virtual time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.playout import MAX_MARKS_KNOWN, MAX_UNANSWERED, Playout, Wire
from streaming.jobs import SynthesisChunk
from tests.virtual_time import VirtualLoop, virtual

FRAME = 480
"""20 ms at 24 kHz."""


class Sink:
    def __init__(self, lead_ms: int) -> None:
        self.lead_ms = lead_ms
        self.congested = False
        self.full_after: int | None = None
        self.played: list[tuple[float, str, Pcm16]] = []
        self.fails = 0

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        if self.fails:
            self.fails -= 1
            raise ZeroDivisionError("a frame that cannot be sent")
        self.played.append((asyncio.get_running_loop().time(), response_id, pcm))
        self.congested = self.congested or len(self.played) == self.full_after

    @property
    def samples(self) -> int:
        return sum(len(pcm) for _, _, pcm in self.played)


class Rig:
    def __init__(
        self, *, whole_frames: bool = False, marks: bool = False, lead_ms: int = 300, clocked: bool = False
    ) -> None:
        self.sink = Sink(lead_ms)
        self.sent: list[tuple[int, int]] = []
        self.left: list[tuple[int, int]] = []
        """How late in ms, and how many frames."""
        self.loop = asyncio.get_running_loop()
        self.marks: list[str] = []
        self.marked: list[tuple[int, int, int]] = []
        self.playout = Playout(
            self.loop,
            self.sink,
            lambda epoch, position: self.sent.append((epoch, position)),
            marked=lambda *mark: self.marked.append(mark),
            wire=Wire(whole_frames, self.marks.append if marks else None, clocked),
            left=lambda late_s, frames, ahead_s: self.left.append((round(late_s * 1000), frames)),
        )

    def audio(self, epoch: int, ms: int, *, value: int = 100, rate_hz: int = 24_000, last: bool = True) -> int | None:
        pcm = np.full(rate_hz * ms // 1000, value, "<i2").tobytes()
        return self.playout.append(SynthesisChunk(epoch, 0, pcm, rate_hz, last=last))

    def start(self, epoch: int, ms: int = 1_000) -> None:
        self.playout.expect(epoch, 24_000)
        self.audio(epoch, ms, value=epoch)
        self.playout.open(epoch, f"resp_{epoch}", f"item_{epoch}")


@virtual
async def test_a_lead_at_once_and_then_in_real_time() -> None:
    rig = Rig()
    begun = rig.loop.time()
    rig.start(1)
    await asyncio.sleep(0.001)
    assert rig.sink.samples == 300 * 24
    await asyncio.sleep(2)
    assert rig.sink.samples == 1_000 * 24
    assert rig.sink.played[-1][0] == pytest.approx(begun + 0.7, abs=0.021)
    assert rig.sent[-1] == (1, 1_000 * 24)
    assert {response for _, response, _ in rig.sink.played} == {"resp_1"}


@virtual
async def test_a_few_frames_go_together_once_the_far_end_has_most_of_its_lead() -> None:
    rig = Rig()
    begun = rig.loop.time()
    rig.start(1, 620)
    await asyncio.sleep(1)
    moments = [round((at - begun) * 1000) for at, _, _ in rig.sink.played]
    assert moments == [0] * 15 + [60] * 3 + [120] * 3 + [180] * 3 + [240] * 3 + [300] * 3 + [320]
    assert rig.sent == [(1, frames * FRAME) for frames in (15, 18, 21, 24, 27, 30, 31)]


@virtual
async def test_a_frame_at_a_time_where_each_is_heard_as_it_comes() -> None:
    rig = Rig(lead_ms=40)
    begun = rig.loop.time()
    rig.start(1, 100)
    await asyncio.sleep(1)
    assert [round((at - begun) * 1000) for at, _, _ in rig.sink.played] == [0, 0, 20, 40, 60]


@virtual
async def test_what_a_frame_leads_to_may_be_that_no_more_go() -> None:
    rig = Rig()
    rig.start(1)
    rig.sink.full_after = 4
    await asyncio.sleep(1)
    assert len(rig.sink.played) == 4
    assert rig.sent == [(1, 4 * FRAME)]


@virtual
async def test_a_dead_epoch_has_nowhere_to_put_its_audio() -> None:
    rig = Rig()
    assert rig.audio(7, 200) is None
    rig.start(1)
    await asyncio.sleep(0.1)
    before = rig.sink.samples
    assert rig.playout.drop(1)
    assert rig.audio(1, 200) is None
    await asyncio.sleep(1)
    assert rig.sink.samples == before
    assert not rig.playout.drop(1)


@virtual
async def test_an_epoch_that_waits_is_not_heard_before_it_is_opened() -> None:
    rig = Rig()
    rig.playout.expect(2, 24_000)
    rig.audio(2, 500)
    await asyncio.sleep(1)
    assert rig.sink.samples == 0
    assert not rig.playout.drop(2)
    rig.playout.open(2, "resp_2", "item_2")
    await asyncio.sleep(1)
    assert rig.sink.samples == 0


@virtual
async def test_of_an_epoch_that_was_sent_the_far_end_may_have_some() -> None:
    rig = Rig()
    rig.start(1, 200)
    await asyncio.sleep(0.1)
    rig.playout.end(1)
    rig.playout.expect(2, 24_000)
    assert not rig.playout.drop(2)
    assert rig.playout.drop(1)


@virtual
async def test_hold_and_release() -> None:
    rig = Rig()
    rig.start(1)
    await asyncio.sleep(0.5)
    rig.playout.hold(1, 12_000)
    before = rig.sink.samples
    rig.audio(1, 500)
    rig.playout.open(1, "resp_1", "item_1")
    await asyncio.sleep(2)
    assert rig.sink.samples == before
    position = rig.playout.release(1)
    assert position is not None
    assert 12_000 - 300 * 24 <= position <= 12_000
    await asyncio.sleep(3)
    assert rig.sink.samples == before + 1_500 * 24 - position


@virtual
async def test_a_hold_before_there_is_audio() -> None:
    rig = Rig()
    rig.playout.open(1, "resp_1", "item_1")
    rig.playout.hold(1, 0)
    rig.playout.expect(1, 24_000)
    rig.audio(1, 500)
    await asyncio.sleep(1)
    assert rig.sink.samples == 0
    assert rig.playout.release(1) == 0
    await asyncio.sleep(1)
    assert rig.sink.samples == 500 * 24


@virtual
async def test_a_release_of_nothing() -> None:
    rig = Rig()
    rig.playout.open(1, "resp_1", "item_1")
    rig.playout.hold(1, 0)
    assert rig.playout.release(1) is None
    rig.start(1, 200)
    await asyncio.sleep(1)
    assert rig.sink.samples == 200 * 24


@virtual
async def test_a_congested_far_end_is_waited_for_and_gets_no_burst() -> None:
    rig = Rig()
    rig.start(1, 2_000)
    await asyncio.sleep(0.2)
    rig.sink.congested = True
    await asyncio.sleep(0.1)
    before = rig.sink.samples
    rig.audio(1, 500)
    await asyncio.sleep(10)
    assert rig.sink.samples == before
    rig.sink.congested = False
    rig.playout.wake()
    await asyncio.sleep(0.001)
    assert rig.sink.samples == before + 300 * 24
    await asyncio.sleep(10)
    assert rig.sink.samples == 2_500 * 24


@virtual
async def test_resampling_is_seamless_and_fresh_for_each_segment() -> None:
    rig = Rig()
    rig.playout.expect(1, 8_000)
    rig.playout.open(1, "resp_1", "item_1")
    lengths = [rig.audio(1, 200, rate_hz=22_050, last=index % 3 == 2) for index in range(9)]
    assert sum(length or 0 for length in lengths) == 3 * 600 * 8
    await asyncio.sleep(3)
    heard = np.concatenate([pcm for _, _, pcm in rig.sink.played])
    assert len(heard) == 3 * 600 * 8
    inner = heard[100:4_700]
    assert int(inner.min()) == int(inner.max()) == 100, "a click at a chunk's edge"


@virtual
async def test_audio_that_is_none_is_refused_and_leaves_the_track_as_it_was() -> None:
    rig = Rig()
    rig.start(1, 200)
    with pytest.raises(ValueError, match="buffer size"):
        rig.playout.append(SynthesisChunk(1, 0, b"odd", 24_000, last=False))
    with pytest.raises(ValueError, match="resample"):
        rig.playout.append(SynthesisChunk(1, 0, b"even", 3, last=False))
    await asyncio.sleep(1)
    assert rig.sink.samples == 200 * 24


@virtual
async def test_a_frame_that_cannot_be_sent_does_not_silence_the_rest() -> None:
    rig = Rig()
    faults: list[object] = []
    rig.loop.set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    rig.sink.fails = 2
    rig.start(1, 200)
    await asyncio.sleep(1)
    assert len(faults) == 2
    assert rig.sink.samples == 200 * 24 - 2 * FRAME


@virtual
async def test_closed_it_is_silent_and_holds_nothing() -> None:
    rig = Rig()
    rig.start(1)
    rig.playout.hold(1, 0)
    rig.playout.close()
    rig.playout.wake()
    assert rig.playout.release(1) is None
    assert rig.audio(1, 200) is None
    await asyncio.sleep(1)
    assert rig.sink.samples == 0
    assert not rig.playout._tracks


@virtual
async def test_each_segment_may_have_a_rate_of_its_own() -> None:
    rig = Rig()
    rig.playout.expect(1, 24_000)
    lengths = [rig.audio(1, 400, rate_hz=rate) for rate in (24_000, 22_050, 16_000, 24_000)]
    assert all(length is not None and abs(length - 9_600) <= 1 for length in lengths)


# --- marks ------------------------------------------------------------------------------------------------------


@virtual
async def test_marks_every_200_ms_and_at_the_end_of_a_segment() -> None:
    rig = Rig(whole_frames=True, marks=True)
    rig.start(1, 510)
    await asyncio.sleep(1)
    assert [position for _, _, position in rig.marked] == [4_800, 9_600, 510 * 24]
    assert rig.sink.samples == 520 * 24
    assert rig.marks == ["m1", "m2", "m3"]
    assert [rig.playout.mark_returned(name) for name in rig.marks] == [(1, 1), (1, 2), (1, 3)]
    assert rig.playout.mark_returned("m1") is None


@virtual
async def test_a_frame_that_turns_out_to_be_the_last_is_marked_once_that_is_known() -> None:
    rig = Rig(marks=True)
    rig.playout.expect(1, 24_000)
    rig.playout.open(1, "resp_1", "item_1")
    rig.audio(1, 100, last=False)
    await asyncio.sleep(1)
    assert not rig.marks
    rig.audio(1, 0)
    assert rig.marked == [(1, 1, 2_400)]
    rig.audio(1, 0)
    assert len(rig.marked) == 1


@virtual
async def test_what_is_held_or_not_heard_yet_is_not_marked() -> None:
    rig = Rig(marks=True)
    rig.playout.expect(1, 24_000)
    rig.playout.open(1, "resp_1", "item_1")
    rig.audio(1, 100, last=False)
    rig.playout.expect(2, 24_000)
    rig.audio(2, 0)
    await asyncio.sleep(1)
    rig.playout.hold(1, 2_400)
    rig.audio(1, 0)
    assert not rig.marks


@virtual
async def test_after_a_release_marks_are_counted_from_where_it_goes_on() -> None:
    rig = Rig(marks=True)
    rig.start(1)
    await asyncio.sleep(0.5)
    rig.playout.hold(1, 12_000)
    before = len(rig.marked)
    position = rig.playout.release(1)
    assert position is not None
    await asyncio.sleep(0.001)
    assert rig.marked[before][2] == position + 4_800


@virtual
async def test_a_far_end_that_returns_none_is_sent_no_more_until_it_does() -> None:
    rig = Rig(marks=True)
    rig.start(1, 10_000)
    await asyncio.sleep(11)
    assert len(rig.marks) == MAX_UNANSWERED
    assert rig.playout.mark_returned("m3") == (1, 3)
    rig.start(2, 1_000)
    await asyncio.sleep(2)
    assert len(rig.marks) == MAX_UNANSWERED + 5


@virtual
async def test_old_marks_are_forgotten() -> None:
    rig = Rig(marks=True)
    rig.start(1, 90_000)
    while len(rig.marks) < MAX_MARKS_KNOWN + 10:
        await asyncio.sleep(1)
        if rig.playout.mark_returned(rig.marks[-1]) is None:
            break
    assert len(rig.playout._marks) <= MAX_MARKS_KNOWN


def stall(seconds: float) -> None:
    """In which the loop is busy."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._jumping.now_s += seconds


@virtual
async def test_frames_on_time_are_told_of_as_such() -> None:
    rig = Rig(lead_ms=40)
    rig.start(1, 100)
    await asyncio.sleep(1)
    assert rig.left == [(0, 2), (0, 1), (0, 1), (0, 1)]


@virtual
async def test_what_a_busy_loop_made_late_is_told_of() -> None:
    rig = Rig(lead_ms=40)
    rig.start(1, 200)
    await asyncio.sleep(0.01)
    stall(0.045)
    await asyncio.sleep(0.001)
    assert rig.left[1] == (35, 2)  # due at 20 ms, sent at 55: with the one of 40 ms, for as much as the lead holds


@virtual
async def test_a_frame_stays_late_though_something_else_wakes_the_playout_first() -> None:
    rig = Rig(lead_ms=40)
    rig.start(1, 100)
    await asyncio.sleep(0.01)
    stall(0.03)
    rig.audio(1, 100)
    await asyncio.sleep(0.001)
    assert rig.left[1] == (20, 2)


@virtual
async def test_audio_that_comes_late_or_a_far_end_that_takes_none_makes_no_frame_late() -> None:
    rig = Rig(lead_ms=40)
    rig.start(1, 40)
    await asyncio.sleep(0.5)
    rig.audio(1, 100)
    await asyncio.sleep(0.001)
    rig.sink.congested = True
    await asyncio.sleep(0.2)
    rig.sink.congested = False
    rig.playout.wake()
    await asyncio.sleep(0.2)
    assert sum(frames for _, frames in rig.left) == 7
    assert {late_ms for late_ms, _ in rig.left} == {0}


@virtual
async def test_where_the_leg_has_a_clock_of_its_own_that_one_tells() -> None:
    rig = Rig(lead_ms=40, clocked=True)
    rig.start(1, 100)
    await asyncio.sleep(1)
    assert rig.sink.samples == 100 * 24
    assert rig.left == []
