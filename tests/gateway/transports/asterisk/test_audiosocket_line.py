"""An AudioSocket line in virtual time: a frame every 20 ms, whatever the call does, and an end with a cause."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.transports.asterisk import audiosocket_wire as wire
from gateway.transports.asterisk.audiosocket_line import AudioSocketLine
from gateway.transports.phone.line import Ability, LineError
from tests.virtual_time import virtual


class Wire(asyncio.Transport):
    """What was written, one entry a write, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[float, bytes]] = []
        self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append((asyncio.get_running_loop().time(), bytes(data)))

    def is_closing(self) -> bool:
        return self.aborted

    def write_eof(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Told:
    """A call that writes down what its line tells it."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.keys = ""
        self.ends: list[str] = []
        self.wakes = 0

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        self.heard.append((len(pcm), rate_hz))

    def dtmf(self, digit: str) -> None:
        self.keys += digit

    def mark_played(self, name: str, *, cleared: bool = False) -> None:
        raise AssertionError("AudioSocket has no marks")

    def held(self, on: bool) -> None:
        raise AssertionError("AudioSocket has no hold")

    def writable(self) -> None:
        self.wakes += 1

    def hung_up(self, cause: str) -> None:
        self.ends.append(cause)


class Rig:
    def __init__(self, **given: object) -> None:
        self.wire, self.told, self.counted = Wire(), Told(), Counter[str]()
        self.line = AudioSocketLine(self.wire, lambda name: self.counted.update([name]), **given)  # type: ignore[arg-type]

    async def up(self, rate_hz: int = 8_000) -> None:
        self.line.received(wire.Audio(bytes(rate_hz // 25), rate_hz))
        await self.line.rate_heard(0.5)
        self.line.attach(self.told)

    def hear(self) -> None:
        self.line.received(wire.Audio(bytes(320), 8_000))

    async def talk(self, seconds: float) -> None:
        """The caller's audio goes on for so long."""
        for _ in range(round(seconds * 50)):
            await asyncio.sleep(0.02)
            self.hear()

    async def over(self) -> None:
        self.line.lost(None)
        await self.line.hang_up("test_over")

    def spoken(self) -> list[tuple[float, bytes]]:
        return [(at, data) for at, data in self.wire.writes if any(data[3:])]


def frame(value: int = 1_000, rate_hz: int = 8_000) -> Pcm16:
    return np.full(rate_hz // 50, value, np.int16)


@virtual
async def test_silence_goes_out_without_end_one_whole_message_every_20_ms() -> None:
    rig = Rig()
    await rig.up()
    begun = asyncio.get_running_loop().time()
    await rig.talk(3)
    times = [at - begun for at, _ in rig.wire.writes]
    assert len(times) == 151
    assert max(b - a for a, b in itertools.pairwise(times)) == pytest.approx(0.02)
    assert {data for _, data in rig.wire.writes} == {b"\x10\x01\x40" + bytes(320)}
    await rig.over()


@virtual
async def test_speech_takes_the_place_of_silence_and_the_beat_stays() -> None:
    rig = Rig()
    await rig.up()
    await asyncio.sleep(0.105)
    rig.line.play(frame(1))
    rig.line.play(frame(2))
    await asyncio.sleep(0.1)
    spoken = rig.spoken()
    assert [int.from_bytes(data[3:5], "little") for _, data in spoken] == [1, 2]
    assert spoken[1][0] - spoken[0][0] == pytest.approx(0.02)
    assert len(rig.wire.writes) == 11
    await rig.over()


@virtual
async def test_a_clear_leaves_nothing_to_say() -> None:
    rig = Rig()
    await rig.up()
    await asyncio.sleep(0.001)
    assert rig.line.clear() is False
    rig.line.play(frame())
    rig.line.play(frame())
    assert rig.line.clear() is True
    await asyncio.sleep(0.1)
    assert rig.spoken() == []
    await rig.over()


@virtual
async def test_more_speech_than_it_may_hold_is_dropped_and_counted() -> None:
    rig = Rig()
    await rig.up()
    for _ in range(10):
        rig.line.play(frame())
    assert rig.counted["audiosocket_speech_dropped"] == 6
    await asyncio.sleep(0.2)
    spoken = [data for _, data in rig.spoken()]
    assert len(spoken) == 5
    assert all(data[3:] == frame().tobytes() for data in spoken[:4])
    assert not any(spoken[4][3 + 2 * 40 :]), "their end fades"
    await rig.over()


@virtual
async def test_the_rate_is_that_of_the_first_audio() -> None:
    rig = Rig()
    await rig.up(16_000)
    assert rig.line.rate_hz == 16_000
    rig.line.play(frame(rate_hz=16_000))
    await asyncio.sleep(0.02)
    assert {data[:3] for _, data in rig.wire.writes} == {b"\x12\x02\x80"}
    assert rig.told.heard == [(320, 16_000)]
    await rig.over()


@virtual
async def test_a_channel_that_sends_nothing_yet_is_answered_at_8_khz() -> None:
    rig = Rig()
    await rig.line.rate_heard(0.5)
    rig.line.attach(rig.told)
    assert rig.line.rate_hz == 8_000
    assert rig.counted == {"audiosocket_rate_unheard": 1}
    assert rig.wire.writes[0][1] == b"\x10\x01\x40" + bytes(320)
    await rig.over()


@virtual
async def test_what_was_said_before_the_call_was_there_is_heard_by_it_in_order() -> None:
    rig = Rig()
    rig.hear()
    rig.line.received(wire.Digit("4"))
    rig.line.received(wire.Digit("2"))
    await rig.up()
    assert rig.told.heard == [(160, 8_000), (160, 8_000)]
    assert rig.told.keys == "42"
    await rig.over()


@virtual
async def test_a_caller_who_hung_up_before_the_call_was_there_is_told_of() -> None:
    rig = Rig()
    rig.hear()
    rig.line.received(wire.HangUp())
    await rig.line.rate_heard(0.5)
    rig.line.attach(rig.told)
    assert rig.told.ends == ["caller_hung_up"]
    assert rig.wire.writes == []
    await rig.over()


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (wire.HangUp(), "caller_hung_up"),
        (wire.Failed(wire.CALLER_GONE), "caller_hung_up"),
        (wire.Failed(2), "protocol_error"),
        (wire.Failed(None), "protocol_error"),
    ],
)
def test_the_far_end_hangs_up(message: wire.Message, cause: str) -> None:
    @virtual
    async def play_it() -> None:
        rig = Rig()
        await rig.up()
        rig.line.received(message)
        sent = len(rig.wire.writes)
        await asyncio.sleep(0.1)
        assert rig.told.ends == [cause]
        assert len(rig.wire.writes) == sent
        rig.line.lost(None)
        assert rig.told.ends == [cause]
        await rig.line.hang_up("too_late")

    play_it()


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, "caller_hung_up"),
        (ConnectionResetError(), "caller_hung_up"),
        (TimeoutError(), "connection_lost"),
    ],
)
def test_the_connection_is_gone(error: Exception | None, cause: str) -> None:
    @virtual
    async def play_it() -> None:
        rig = Rig()
        await rig.up()
        rig.line.lost(error)
        assert rig.told.ends == [cause]
        await rig.line.hang_up("too_late")

    play_it()


@virtual
async def test_hanging_up_says_so_and_waits_for_the_far_end_to_close() -> None:
    rig = Rig()
    await rig.up()
    begun = asyncio.get_running_loop().time()
    asyncio.get_running_loop().call_later(0.3, rig.line.lost, None)
    await rig.line.hang_up("agent_hung_up")
    assert rig.wire.writes[-1][1] == wire.HANG_UP
    assert rig.wire.closed
    assert not rig.wire.aborted
    assert asyncio.get_running_loop().time() - begun == pytest.approx(0.3)
    await rig.line.hang_up("again")
    assert [data for _, data in rig.wire.writes].count(wire.HANG_UP) == 1


@virtual
async def test_a_far_end_that_does_not_close_is_cut() -> None:
    rig = Rig()
    await rig.up()
    await rig.line.hang_up("agent_hung_up")
    assert rig.wire.aborted


@virtual
async def test_10_s_without_the_callers_audio_end_the_call() -> None:
    rig = Rig()
    await rig.up()
    await rig.talk(1)
    await asyncio.sleep(9.9)
    assert rig.told.ends == []
    await asyncio.sleep(0.2)
    assert rig.told.ends == ["media_timeout"]
    await rig.over()


@virtual
async def test_a_far_end_that_does_not_read_gets_nothing_more_and_is_hung_up_after_5_s() -> None:
    rig = Rig()
    await rig.up()
    rig.line.pause()
    congested = [rig.line.congested]
    sent = len(rig.wire.writes)
    await rig.talk(1)
    assert len(rig.wire.writes) == sent
    rig.line.resume()
    congested.append(rig.line.congested)
    assert congested == [True, False]
    assert rig.told.wakes == 1
    await rig.talk(1)
    assert len(rig.wire.writes) == sent + 50
    rig.line.pause()
    await rig.talk(5.1)
    assert rig.told.ends == ["peer_not_reading"]
    await rig.over()


@virtual
async def test_slots_that_a_busy_loop_missed_are_skipped_not_made_up_for() -> None:
    rig = Rig()
    await rig.up()
    loop = asyncio.get_running_loop()
    before = len(rig.wire.writes)
    loop._jumping.now_s += 0.5  # type: ignore[attr-defined]
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.001)
    assert len(rig.wire.writes) == before + 1
    assert rig.counted["audiosocket_slots_missed"] == 1
    await asyncio.sleep(0.1)
    assert len(rig.wire.writes) == before + 6
    await rig.over()


@virtual
async def test_audio_faster_than_the_clock_is_no_phone() -> None:
    rig = Rig()
    await rig.up()
    for _ in range(6):
        rig.line.received(wire.Audio(bytes(16_000), 8_000))
    assert rig.told.ends == ["peer_flooding"]
    await rig.over()


@virtual
async def test_messages_without_end_are_no_phone_either() -> None:
    rig = Rig()
    await rig.up()
    for _ in range(1_100):
        rig.line.received(wire.Ignored("audiosocket_unknown_type"))
    assert rig.told.ends == ["peer_flooding"]
    await rig.over()


@virtual
async def test_a_long_message_reaches_the_call_a_second_at_a_time() -> None:
    rig = Rig()
    await rig.up()
    rig.line.received(wire.Audio(bytes(2 * 18_000), 8_000))
    assert rig.told.heard[1:] == [(8_000, 8_000), (8_000, 8_000), (2_000, 8_000)]
    await rig.over()


@virtual
async def test_without_a_dialplan_that_asks_there_is_no_transfer() -> None:
    rig = Rig()
    await rig.up()
    assert rig.line.abilities == frozenset()
    with pytest.raises(LineError, match="dialplan"):
        await rig.line.transfer("+15551234")
    with pytest.raises(LineError, match="one way"):
        await rig.line.send_dtmf("1")
    with pytest.raises(LineError, match="hold"):
        await rig.line.hold(True)
    assert rig.told.ends == []
    await rig.over()


@virtual
async def test_a_transfer_leaves_the_target_for_the_dialplan_and_ends_the_application() -> None:
    targets: list[str] = []
    rig = Rig(hand_over=targets.append)
    await rig.up()
    assert rig.line.abilities == {Ability.TRANSFER}
    await rig.line.transfer("+15551234")
    assert targets == ["+15551234"]
    assert rig.wire.writes[-1][1] == wire.HANG_UP
    assert rig.told.ends == []
    await rig.over()
    with pytest.raises(LineError, match="hung up"):
        await rig.line.transfer("+15551234")
