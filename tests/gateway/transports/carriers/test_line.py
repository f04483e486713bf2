"""A carrier's line by itself: marks, clears, congestion, ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.transports.carriers.dialect import Audio, Cleared, Dialect, Flow, Key, MarkPlayed, RestRequest, Stopped
from gateway.transports.carriers.dialect import Started as StartedEvent
from gateway.transports.carriers.freeswitch import FreeswitchDialect
from gateway.transports.carriers.line import MAX_MARKS, CarrierLine
from gateway.transports.carriers.plivo import PlivoDialect
from gateway.transports.carriers.rest import RestFailed
from gateway.transports.carriers.send_queue import CONGESTED_BYTES, MAX_MESSAGES
from gateway.transports.carriers.telnyx import TelnyxDialect
from gateway.transports.carriers.twilio import TwilioDialect
from gateway.transports.carriers.vonage import VonageDialect
from gateway.transports.phone.line import LineError
from gateway.transports.phone.phone_call import CONTROL_S
from streaming.effects import SendDtmf
from tests.gateway.transports.carriers import test_plivo_call, test_twilio_call
from tests.virtual_time import virtual

FRAME = np.zeros(160, np.int16)


class Events:
    """What the call was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        self.told.append(("audio", len(pcm), rate_hz, at_ms))

    def dtmf(self, digit: str) -> None:
        self.told.append(("dtmf", digit))

    def mark_played(self, name: str, *, cleared: bool = False) -> None:
        self.told.append(("mark", name, cleared))

    def held(self, on: bool) -> None:
        self.told.append(("held", on))

    def writable(self) -> None:
        self.told.append(("writable",))

    def hung_up(self, cause: str) -> None:
        self.told.append(("hung_up", cause))


class Rig:
    def __init__(self, dialect: Dialect, start: str = "{}") -> None:
        (started,) = dialect.decode(start)
        assert isinstance(started, StartedEvent)
        self.events = Events()
        self.counts: list[str] = []
        self.requests: list[RestRequest] = []
        self.fails = False
        self.line = CarrierLine(dialect, started, self._rest, self.counts.append)
        self.line.attach(self.events)
        self.sent: list[str] = []

    async def _rest(self, request: RestRequest) -> None:
        self.requests.append(request)
        await asyncio.sleep(1)
        if self.fails:
            raise RestFailed("refused", 500)

    async def flush(self) -> list[str]:
        """What has left since."""
        sent: list[str] = []

        async def send(message: str | bytes) -> None:
            sent.append(str(message))

        sending = asyncio.create_task(self.line.queue.send_by(send, gone=(OSError,)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait({sending})
        return sent


def twilio() -> Rig:
    return Rig(TwilioDialect(), test_twilio_call.START)


def plivo() -> Rig:
    return Rig(PlivoDialect(lambda reply: "https://x/1", account="MA"), test_plivo_call.START)


def telnyx() -> Rig:
    start = {"call_control_id": "v3:abcdefgh", "media_format": {"encoding": "PCMU"}}
    return Rig(TelnyxDialect(), json.dumps({"event": "start", "stream_id": "s", "start": start}))


def vonage() -> Rig:
    call = "63f61863-4a51-4f6b-86e1-46edebcf9356"
    return Rig(VonageDialect(), json.dumps({"event": "websocket:connected", "uuid": call}))


@virtual
async def test_marks_that_come_back_of_a_clear_are_told_as_cleared() -> None:
    rig = twilio()
    rig.line.mark("a")
    rig.line.mark("b")
    await rig.flush()
    rig.line.take(MarkPlayed("a"))
    assert not rig.line.clear(), "nothing was left to drop here"
    rig.line.mark("c")
    rig.line.take(MarkPlayed("b"))
    rig.line.take(MarkPlayed("c"))
    rig.line.take(MarkPlayed("c"))
    assert rig.events.told == [("mark", "a", False), ("mark", "b", True), ("mark", "c", False)]
    assert rig.counts == ["carrier_unknown_mark"]


@virtual
async def test_where_a_clear_swallows_marks_those_that_come_were_played_and_the_rest_are_cleared() -> None:
    rig = plivo()
    for name in "abc":
        rig.line.mark(name)
    await rig.flush()
    rig.line.clear()
    rig.line.mark("d")
    rig.line.take(MarkPlayed("a"))  # on its way when the clear left
    rig.line.take(Cleared())
    rig.line.take(MarkPlayed("d"))
    assert rig.events.told == [("mark", "a", False), ("mark", "b", True), ("mark", "c", True), ("mark", "d", False)]
    rig.line.take(Cleared())
    assert len(rig.events.told) == 4


@virtual
async def test_a_clear_takes_back_what_has_not_left() -> None:
    rig = twilio()
    rig.line.play(FRAME)
    await rig.flush()
    rig.line.play(FRAME)
    rig.line.mark("a")
    rig.line.play(FRAME)
    assert rig.line.clear()
    assert rig.events.told == [("mark", "a", True)]
    (sent,) = await rig.flush()
    assert '"clear"' in sent


@virtual
async def test_only_so_many_marks_are_out() -> None:
    rig = twilio()
    for number in range(MAX_MARKS + 5):
        rig.line.mark(str(number))
    assert rig.counts == ["carrier_mark_not_sent"] * 5
    assert len(await rig.flush()) == MAX_MARKS


@virtual
async def test_audio_waits_while_the_carrier_does_not_take_it() -> None:
    rig = twilio()

    def congested() -> bool:
        return rig.line.congested

    while not congested():
        rig.line.play(FRAME)
    assert rig.line.quality().frames_out * 250 > CONGESTED_BYTES / 2
    await rig.flush()
    assert not congested()
    assert ("writable",) in rig.events.told
    rig.line.take(Flow(False))
    assert congested()
    rig.events.told.clear()
    rig.line.take(Flow(True))
    assert rig.events.told == [("writable",)]


@virtual
async def test_a_carrier_that_takes_nothing_at_all_is_gone() -> None:
    rig = twilio()
    for _ in range(MAX_MESSAGES + 1):
        rig.line.clear()
    assert rig.events.told == [("hung_up", "peer_not_reading")]
    assert rig.line.queue.broken
    assert not rig.line.congested


@virtual
async def test_audio_keeps_its_media_time_and_comes_by_the_second() -> None:
    rig = twilio()
    rig.line.take(Audio(bytes(12_000), 500.0))
    rig.line.take(Audio(b""))
    rig.line.take(Audio(bytes(16_001)))
    assert rig.events.told == [("audio", 8_000, 8_000, 500.0), ("audio", 4_000, 8_000, 1_500.0)]
    assert rig.counts == ["carrier_audio_too_long"]
    assert rig.line.quality().frames_in == 3


@virtual
async def test_nothing_is_done_nor_told_once_the_line_is_down() -> None:
    rig = twilio()
    rig.line.mark("a")
    rig.line.take(Stopped())
    assert rig.line.down
    rig.line.take(Key("1"))
    rig.line.take(MarkPlayed("a"))
    rig.line.take(Audio(bytes(160)))
    rig.line.lost("connection_lost")
    rig.line.play(FRAME)
    rig.line.mark("b")
    assert not rig.line.clear()
    await rig.line.hang_up("caller_hung_up")
    assert rig.events.told == [("hung_up", "caller_hung_up")]
    assert not rig.requests


@virtual
async def test_a_stream_that_ends_while_it_is_handed_over_ends_the_call_only_if_that_fails() -> None:
    for fails in (False, True):
        rig = plivo()
        rig.fails = fails
        handing = asyncio.create_task(rig.line.transfer("+1"))
        await asyncio.sleep(0.5)
        rig.line.lost("caller_hung_up")
        assert rig.events.told == []
        if fails:
            with pytest.raises(LineError):
                await handing
        else:
            await handing
        assert rig.events.told == ([("hung_up", "caller_hung_up")] if fails else [])
        await rig.line.hang_up("transferred")
        assert len(rig.requests) == 1


@virtual
async def test_a_handover_that_is_given_up_leaves_no_trace() -> None:
    rig = plivo()
    handing = asyncio.create_task(rig.line.transfer("+1"))
    await asyncio.sleep(0.5)
    handing.cancel()
    await asyncio.wait({handing})
    assert not rig.line.down
    rig.line.lost("connection_lost")
    assert rig.events.told == [("hung_up", "connection_lost")]


@virtual
async def test_hanging_up_twice_asks_once() -> None:
    rig = twilio()
    await rig.line.hang_up("max_duration")
    await rig.line.hang_up("max_duration")
    assert len(rig.requests) == 1
    with pytest.raises(LineError):
        await rig.line.hold(True)


@pytest.mark.parametrize("cause", ["connection_lost", "media_timeout", "peer_flooding", "peer_not_reading"])
def test_a_call_whose_stream_is_lost_is_hung_up_all_the_same(cause: str) -> None:
    @virtual
    async def call() -> None:
        rig = telnyx()
        rig.line.lost(cause)
        await rig.line.hang_up(cause)
        await rig.line.hang_up(cause)
        assert [request.path for request in rig.requests] == ["/v2/calls/v3:abcdefgh/actions/hangup"]
        assert rig.events.told == [("hung_up", cause)]

    call()


@virtual
async def test_who_hung_up_is_not_hung_up_even_if_the_stream_is_lost_next() -> None:
    rig = telnyx()
    rig.line.take(Stopped())
    rig.line.lost("connection_lost")
    await rig.line.hang_up("caller_hung_up")
    assert not rig.requests


@pytest.mark.parametrize(("cause", "sent"), [("media_timeout", ['{"type":"hangup"}']), ("connection_lost", [])])
def test_a_hang_up_that_is_a_message_is_sent_if_the_stream_is_open(cause: str, sent: list[str]) -> None:
    @virtual
    async def call() -> None:
        rig = Rig(FreeswitchDialect(8_000))
        rig.line.lost(cause)
        await rig.line.hang_up(cause)
        assert await rig.flush() == sent

    call()


@virtual
async def test_a_caller_who_may_be_with_somebody_else_by_now_is_not_hung_up() -> None:
    rig = plivo()
    rig.fails = True
    handing = asyncio.create_task(rig.line.transfer("+1"))
    await asyncio.sleep(0.5)
    rig.line.lost("connection_lost")
    with pytest.raises(LineError):
        await handing
    await rig.line.hang_up("connection_lost")
    assert len(rig.requests) == 1


@pytest.mark.parametrize("made", [telnyx, vonage])
def test_keys_that_a_vendor_sends_by_itself_are_waited_for(made: Callable[[], Rig]) -> None:
    @virtual
    async def call() -> None:
        loop = asyncio.get_running_loop()
        rig = made()
        begun = loop.time()
        pressing = asyncio.create_task(rig.line.send_dtmf("12#"))
        await asyncio.sleep(1.5)
        assert len(rig.requests) == 1
        assert not pressing.done(), "they are not sent yet"
        rig.line.clear()
        (sent,) = await rig.flush()
        assert "clear" in sent, "no clear swallows these"
        await pressing
        assert 1.75 <= loop.time() - begun <= 2.5
        await rig.line.send_dtmf("1" * 32)
        assert loop.time() - begun < CONTROL_S[SendDtmf]

    call()
