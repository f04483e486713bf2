"""The line between a call, its signalling and its media, each of them a fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.transports.phone.line import Ability, LineError, Quality
from gateway.transports.sip import line as line_module
from gateway.transports.sip.address import Uri
from gateway.transports.sip.asking import Done, Outcome
from gateway.transports.sip.line import SipLine

FRAME = np.zeros(160, np.int16)


@dataclass
class FakeDialog:
    remote_uri: Uri = field(default_factory=lambda: Uri("sip", "caller", "192.0.2.9", 5070))
    target: str = "sip:192.0.2.7:5080;transport=tcp"


@dataclass
class FakeAgent:
    counted: list[str] = field(default_factory=list)

    def count(self, name: str) -> None:
        self.counted.append(name)


@dataclass
class FakeSession:
    line: SipLine
    ua: FakeAgent = field(default_factory=FakeAgent)
    outcome: Outcome | None = field(default_factory=lambda: Outcome(200))
    takes_refer: bool = True
    gone_at_once: bool = True
    asked: list[str] = field(default_factory=list)
    dialog: FakeDialog = field(default_factory=FakeDialog)

    def _do(self, what: str, done: Done) -> None:
        self.asked.append(what)
        if self.outcome is not None:
            done(self.outcome)
            done(self.outcome)

    def refer(self, target: str, done: Done) -> None:
        self._do(f"refer {target}", done)

    def reoffer(self, done: Done) -> None:
        self._do("reoffer", done)

    def inform(self, key: str, done: Done) -> None:
        self._do(f"inform {key}", done)

    def hang_up(self, reason: str = "") -> None:
        self.asked.append(f"hang up {reason}")
        if self.gone_at_once:
            self.line.closed()


@dataclass
class FakeMedia:
    rate_hz: int = 16_000
    congested: bool = False
    error: LineError | None = None
    did: list[str] = field(default_factory=list)

    def play(self, pcm: Pcm16) -> None:
        self.did.append(f"play {len(pcm)}")

    def clear(self) -> bool:
        self.did.append("clear")
        return True

    def start(self) -> None:
        self.did.append("start")

    async def send_dtmf(self, digits: str) -> None:
        if self.error is not None:
            raise self.error
        self.did.append(f"keys {digits}")

    async def hold(self, on: bool) -> None:
        self.did.append(f"hold {on}")

    def quality(self) -> Quality:
        return Quality(frames_in=7)

    async def close(self) -> None:
        self.did.append("close")


class FakeCall:
    def __init__(self) -> None:
        self.told: list[str] = []

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        self.told.append(f"audio {len(pcm)} {rate_hz} {at_ms}")

    def dtmf(self, digit: str) -> None:
        self.told.append(f"key {digit}")

    def mark_played(self, name: str, *, cleared: bool = False) -> None:
        raise AssertionError

    def held(self, on: bool) -> None:
        self.told.append(f"held {on}")

    def writable(self) -> None:
        self.told.append("writable")

    def hung_up(self, cause: str) -> None:
        self.told.append(f"hung up {cause}")


class Rig:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.line = SipLine(lambda: self.now_s)
        self.session = FakeSession(self.line)
        self.media = FakeMedia()
        self.call = FakeCall()
        self.line.session = self.session  # type: ignore[assignment]
        self.line.media = self.media  # type: ignore[assignment]
        self.line.agreed()
        self.line.connect(self.call)


@pytest.fixture
def rig() -> Rig:
    """A call that is up."""
    rig = Rig()
    rig.line.established()
    rig.media.did.clear()
    return rig


def test_without_media_there_is_nothing_to_do() -> None:
    line = SipLine()
    line.established()
    line.play(FRAME)
    line.mark("x")
    line.audio(FRAME, 8_000)
    line.dtmf("1")
    line.pressed("1")
    assert not line.clear()
    assert not line.congested
    assert line.rate_hz == 8_000
    assert line.quality() == Quality()


async def test_what_passes_through(rig: Rig) -> None:
    rig.line.play(FRAME)
    rig.line.audio(FRAME, 8_000, 20.0)
    rig.line.dtmf("5")
    rig.line.suspect(True)
    assert rig.line.clear()
    assert rig.line.rate_hz == 16_000
    assert rig.line.quality().frames_in == 7
    assert rig.media.did == ["play 160", "clear"]
    assert rig.call.told == ["audio 160 8000 20.0", "key 5"]
    rig.media.congested = True
    assert rig.line.congested


def test_hold_by_the_far_end(rig: Rig) -> None:
    for on in (True, True, False):
        rig.line.held(on)
    assert rig.call.told == ["held True", "held False", "writable"]


def test_what_happened_before_there_was_a_call_is_told() -> None:
    line, call = SipLine(), FakeCall()
    line.held(True)
    line.hung_up("caller_hung_up")
    line.hung_up("connection_lost")
    line.connect(call)
    assert call.told == ["held True", "hung up caller_hung_up"]
    assert line.congested


def test_a_key_by_both_ways_is_heard_once(rig: Rig) -> None:
    rig.line.pressed("1")
    rig.line.dtmf("2")
    rig.line.pressed("2")
    assert rig.call.told == ["key 1", "key 2"]


def test_keys_by_info_whose_rtp_comes_after_are_heard_once(rig: Rig) -> None:
    for key in "1123":
        rig.line.pressed(key)
    rig.now_s += 0.4
    for key in "112":
        rig.line.dtmf(key)
    assert rig.call.told == ["key 1", "key 1", "key 2", "key 3"]
    rig.line.dtmf("1")
    rig.now_s += 0.2
    rig.line.dtmf("3")
    assert rig.call.told[4:] == ["key 1", "key 3"], "pressed once more"


async def test_keys_are_sent_as_rtp_events(rig: Rig) -> None:
    await rig.line.send_dtmf("12#")
    assert rig.media.did == ["keys 12#"]
    assert rig.call.told == ["writable"]


async def test_keys_are_sent_by_info_where_there_are_no_rtp_events(rig: Rig) -> None:
    rig.media.error = LineError("no_keys", "none")
    await rig.line.send_dtmf("1a")
    assert rig.session.asked == ["inform 1", "inform A"]
    rig.session.outcome = Outcome(415)
    for digits, code in (("1", "not_supported"), ("x", "bad_keys"), ("1" * 33, "bad_keys")):
        with pytest.raises(LineError) as caught:
            await rig.line.send_dtmf(digits)
        assert caught.value.code == code
    rig.media.error = LineError("busy", "other keys")
    with pytest.raises(LineError, match="other keys"):
        await rig.line.send_dtmf("1")


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        ("+1 (555) 123-4567", "sip:+15551234567@192.0.2.9:5070"),
        ("200", "sip:200@192.0.2.9:5070"),
        ("*67#", "sip:*67%23@192.0.2.9:5070"),
        ("sip:sales@example.com", "sip:sales@example.com"),
        ("tel:+15551234567", "tel:+15551234567"),
    ],
)
async def test_transfer(rig: Rig, target: str, uri: str) -> None:
    await rig.line.transfer(target)
    assert rig.session.asked == [f"refer {uri}"]


async def test_transfer_goes_to_the_caller_s_own_domain(rig: Rig) -> None:
    rig.session.dialog.remote_uri = Uri("sip", "x", "2001:db8::1")
    await rig.line.transfer("200")
    assert rig.session.asked == ["refer sip:200@[2001:db8::1]"]


async def test_a_number_goes_to_where_the_call_came_from_whatever_the_caller_hides(rig: Rig) -> None:
    rig.session.dialog.remote_uri = Uri("sip", "anonymous", "Anonymous.Invalid")
    await rig.line.transfer("200")
    rig.line.trunk_domain = "trunk.example.com"
    await rig.line.transfer("200")
    await rig.line.transfer("sip:sales@example.com")
    assert rig.session.asked == [
        "refer sip:200@192.0.2.7:5080",
        "refer sip:200@trunk.example.com",
        "refer sip:sales@example.com",
    ]


@pytest.mark.parametrize("target", ["mailto:x@y", "sales", "sip:a b", "sip:", ""])
async def test_transfer_to_what_is_no_address(rig: Rig, target: str) -> None:
    with pytest.raises(LineError) as caught:
        await rig.line.transfer(target)
    assert caught.value.code == "bad_target"


@pytest.mark.parametrize(
    ("status", "code"), [(486, "busy"), (603, "declined"), (500, "transfer_failed"), (408, "no_answer")]
)
async def test_a_transfer_that_fails(rig: Rig, status: int, code: str) -> None:
    rig.session.outcome = Outcome(status)
    with pytest.raises(LineError) as caught:
        await rig.line.transfer("200")
    assert caught.value.code == code


async def test_a_peer_that_takes_no_transfers(rig: Rig) -> None:
    rig.session.takes_refer = False
    rig.line.agreed()
    assert rig.line.abilities == {Ability.SEND_DTMF, Ability.HOLD}
    with pytest.raises(LineError) as caught:
        await rig.line.transfer("200")
    assert caught.value.code == "not_supported"


async def test_hold_of_ours_and_its_refusal(rig: Rig) -> None:
    await rig.line.hold(True)
    assert rig.media.did == ["hold True"]
    rig.session.outcome = Outcome(488)
    with pytest.raises(LineError) as caught:
        await rig.line.hold(False)
    assert caught.value.code == "hold_failed"
    assert rig.media.did == ["hold True", "hold False", "hold True"]


async def test_a_hold_that_nobody_waits_for_any_more_is_taken_back(rig: Rig) -> None:
    rig.session.outcome = None
    answers: list[Callable[[Outcome], None]] = []
    rig.session.reoffer = answers.append  # type: ignore[method-assign,assignment]
    for late in (Outcome(488), Outcome(200)):
        holding = asyncio.create_task(rig.line.hold(True))
        await asyncio.sleep(0)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert rig.media.did[-2:] == ["hold True", "hold False"]
        answers[-1](late)
    assert len(answers) == 3, "who agreed to be held too late is offered to be taken back"
    answers[-1](Outcome(488))
    assert len(answers) == 3


async def test_a_hold_that_is_answered_as_its_wait_ends_is_taken_back(rig: Rig) -> None:
    rig.session.outcome = None
    answers: list[Callable[[Outcome], None]] = []
    rig.session.reoffer = answers.append  # type: ignore[method-assign,assignment]
    holding = asyncio.create_task(rig.line.hold(True))
    await asyncio.sleep(0)
    answers[0](Outcome(200))
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert rig.media.did == ["hold True", "hold False"]
    assert len(answers) == 2


async def test_hung_up_here(rig: Rig) -> None:
    await rig.line.hang_up("agent_hung_up")
    await rig.line.hang_up("agent_hung_up")
    assert rig.session.asked[0] == "hang up agent_hung_up"
    assert rig.media.did == ["close", "close"]
    assert rig.call.told == []
    rig.line.play(FRAME)
    assert rig.media.did == ["close", "close"]
    with pytest.raises(LineError) as caught:
        await rig.line.hold(True)
    assert caught.value.code == "not_connected"


async def test_a_hang_up_that_is_not_answered_holds_nothing_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "BYE_S", 0.0)
    rig.session.gone_at_once = False
    await rig.line.hang_up("agent_hung_up")
    assert rig.media.did == ["close"]
    rig.line.closed()
    assert rig.line.gone.is_set()


def test_media_that_is_lost_ends_the_call_at_both_ends(rig: Rig) -> None:
    rig.line.lost("media_timeout")
    rig.line.lost("media_timeout")
    assert rig.call.told == ["hung up media_timeout"]
    assert rig.session.asked == ["hang up media_timeout"]


def test_keys_are_not_heard_while_it_rings() -> None:
    rig = Rig()
    rig.line.dtmf("1")
    rig.line.pressed("2")
    rig.line.dtmf("3")
    assert rig.session.ua.counted == ["sip_early_keys"] * 2
    assert rig.call.told == []
    rig.line.established()
    rig.line.dtmf("4")
    assert rig.call.told == ["key 4"]


def test_established_wakes_who_waits_and_starts_the_media() -> None:
    rig = Rig()
    assert not rig.line.answered.is_set()
    rig.line.established()
    assert rig.media.did == ["start"]
    assert rig.line.answered.is_set()
    assert not rig.line.over.is_set()
