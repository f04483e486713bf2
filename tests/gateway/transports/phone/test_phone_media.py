"""What a line carries, in virtual time: no clicks, no drift, marks that are the truth, and holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import ScriptedTts
from gateway.phone_settings import PhoneSettings
from gateway.playout import MAX_UNANSWERED
from gateway.settings import AgentSettings, Settings
from gateway.state import Gateway
from gateway.transports.phone.line import PlayoutOwner
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize
from tests.gateway.call_rig import Engines
from tests.gateway.transports.fake_peer import LONG, causes, gateway_with, replying
from tests.gateway.transports.phone.fake_line import FakeLine, phoned
from tests.virtual_time import virtual

OWNERS = pytest.mark.parametrize("owner", list(PlayoutOwner))
HZ = 400.0


def settings(**agent: object) -> Settings:
    agents = {"anna": AgentSettings(**{"apology": "", "silence_ms": 300, **agent})}  # type: ignore[arg-type]
    return Settings(preset="null", agents=agents, phone=PhoneSettings(agent="anna"))


def counted(gateway: Gateway, name: str) -> int:
    return int(gateway.metrics._registry.get_sample_value("offhook_events_total", {"name": name}) or 0)


class ToneTts(ScriptedTts):
    """One tone through all segments, in phase, each as long as its text says: 100 ms a character but odd by some
    samples, in chunks that come as fast as they are asked for."""

    def __init__(self, ms_a_char: int = 100, chunk_ms: int = 70) -> None:
        super().__init__()
        self.ms_a_char, self.chunk_ms, self.at = ms_a_char, chunk_ms, 0

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        self.requests.append(request)
        if request.segment == 0:
            self.at = 0
        left = len(request.text) * self.ms_a_char * self.rate_hz // 1000 + 7

        def hand_over(left: int) -> None:
            size = min(left, self.rate_hz * self.chunk_ms // 1000)
            phase = 2 * np.pi * HZ * np.arange(self.at, self.at + size) / self.rate_hz
            self.at += size
            pcm = np.round(np.sin(phase) * 8_000).astype("<i2").tobytes()
            deliver(SynthesisChunk(request.epoch, request.segment, pcm, self.rate_hz, last=size == left))
            if size < left:
                asyncio.get_running_loop().call_later(0.001, hand_over, left - size)

        asyncio.get_running_loop().call_later(0.01, hand_over, left)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000])
@OWNERS
@virtual
async def test_a_reply_at_another_rate_has_no_clicks(owner: PlayoutOwner, rate_hz: int) -> None:
    """8 s in one segment, with a short last frame."""
    engines = Engines(llm=ScriptedLlm(lambda messages: "A" * 80), tts=ToneTts())
    async with gateway_with(engines, settings()) as (_, gateway):
        line = FakeLine(owner, rate_hz=rate_hz)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: call.call.record.turns)
            pcm = line.heard_pcm.astype(int)
            whole = np.round(np.sin(2 * np.pi * HZ * np.arange(8 * rate_hz) / rate_hz) * 8_000)
            got = pcm[: len(whole)]
            assert len(pcm) - 8 * rate_hz <= rate_hz // 50, "nothing but the last frame was filled up"
            assert np.corrcoef(got, whole[: len(got)])[0, 1] > 0.9999
            assert np.abs(got - whole[: len(got)])[100:-100].max() < 60
            assert len(line.heard) > 2
            times = [at for at, _ in line.heard]
            assert max(np.diff(times)) < 0.0201, "the caller's ear ran dry"


@OWNERS
@virtual
async def test_segments_follow_each_other_without_a_hole(owner: PlayoutOwner) -> None:
    engines = Engines(llm=ScriptedLlm(lambda messages: "One two three. " * 6), tts=ToneTts(ms_a_char=40))
    async with gateway_with(engines, settings()) as (_, gateway):
        line = FakeLine(owner)
        engines.tts.requests.clear()  # phrases
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: call.call.record.turns)
            assert len(engines.tts.requests) >= 3
            samples = sum(-(-(len(r.text) * 40 * 24 + 7) // 3) for r in engines.tts.requests)
            frames = [pcm for _, pcm in line.heard]
            assert len(frames) == -(-samples // 160), "only the last frame was short"
            assert max(np.diff([at for at, _ in line.heard])) < 0.0201


@OWNERS
@virtual
async def test_ten_minutes_do_not_drift(owner: PlayoutOwner) -> None:
    engines = Engines(llm=ScriptedLlm(lambda messages: "A" * 60), tts=ToneTts(ms_a_char=10_000, chunk_ms=200))
    async with gateway_with(engines, settings(max_output_tokens=4_096)) as (_, gateway):
        line = FakeLine(owner, rate_hz=24_000)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await asyncio.sleep(605)
            begun = line.sent[0][0]
            assert len(line.sent) >= 600 * 50
            lead_s, together = (0.04, 1) if owner is PlayoutOwner.OURS else (0.3, 3)
            late = [at - begun + lead_s - number * 0.02 for number, (at, _) in enumerate(line.sent, 1)]
            due_s = together * 0.02
            assert all(-1e-6 <= drift < due_s for drift in late[15:-1]), "but for the last, which waits for more"
            heard_late = line.heard[-1][0] - line.heard[0][0] - (len(line.heard) - 1) * 0.02
            assert abs(heard_late) < 0.02
            assert not call.call.finished.is_set()


@virtual
async def test_marks_come_every_200_ms_and_at_the_end() -> None:
    async with gateway_with(replying("One two three four five.", word_ms=250), settings()) as (_, gateway):
        line = FakeLine()
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: call.call.record.turns)
            order = [len(line.names("mark")), len(line.sent)]
            assert order == [7, 63], "1,250 ms: at 200, 400, … 1,200 and at the end, which is a filled up frame"


@virtual
async def test_a_far_end_that_returns_no_marks_is_believed_to_play_and_is_sent_no_more_of_them() -> None:
    async with gateway_with(replying(LONG, word_ms=500), settings()) as (_, gateway):
        line = FakeLine(marks=False)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: len(call.call.record.turns) == 1)
            marks = len(line.names("mark"))
            assert marks == MAX_UNANSWERED
            assert counted(gateway, "mark_given_up") >= MAX_UNANSWERED - 10
            assert not call.call.record.transcript[-1].cut
            await line.speak(800)
            await line.until(lambda: len(call.call.record.turns) == 2)
            assert len(line.names("mark")) == marks


@virtual
async def test_a_mark_that_nobody_sent_is_counted() -> None:
    async with gateway_with(settings=settings(greeting="Hello there.")) as (_, gateway):
        line = FakeLine()
        async with phoned(gateway, line) as call:
            await line.hush(1_000)
            assert line.names("mark")
            call.mark_played("m1")
            call.mark_played("nobody's")
            assert counted(gateway, "unknown_mark") == 2


@pytest.mark.parametrize(("latency_s", "slow_s"), [(0.0, 0.0), (0.1, 0.0), (0.05, 0.6), (0.1, 1.5)])
@virtual
async def test_the_context_holds_what_the_marks_say_was_heard(latency_s: float, slow_s: float) -> None:
    """The far end plays late, by its network and its buffer. A word is 250 ms: no word is kept that was not heard, and
    none that was is missing but for what a mark and a network's way may hide."""
    engines = replying(LONG, word_ms=250)
    async with gateway_with(engines, settings()) as (_, gateway):
        line = FakeLine(latency_s=latency_s, slow_s=slow_s)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: len(line.heard) >= 130)
            await line.speak(1_000)
            await line.until(lambda: any(entry.cut for entry in call.call.record.transcript))
            cleared_at = line.names("clear")[0] + latency_s
            heard_ms = 20 * sum(1 for at, _ in line.heard if at < cleared_at and at > line.heard[0][0] - 1)
            first = [at for at, _ in line.heard].index(line.heard[0][0])
            assert first == 0
            cut = next(entry for entry in call.call.record.transcript if entry.cut)
            kept_ms = len(cut.text.split()) * 250
            assert kept_ms <= heard_ms + 125 + 20
            assert kept_ms >= heard_ms - 250 - 200 - 2_000 * latency_s
            await line.hush(500)
            said = [m.content for m in engines.llm.requests[-1].messages if m.role == "assistant"]
            assert said[-1].removesuffix("…") == cut.text


@virtual
async def test_keys_reach_the_conversation_and_odd_ones_are_counted() -> None:
    async with gateway_with(settings=settings()) as (_, gateway):
        line = FakeLine()
        async with phoned(gateway, line) as call:
            for digit in ("1", "2", "x", "12", "", "d", "#"):
                call.dtmf(digit)
            await line.until(lambda: call.call.record.turns)
            said = call.call.record.transcript[0].text
            assert said == "12D" or "1" in said
            assert counted(gateway, "key_unknown") == 3


# --- on hold ----------------------------------------------------------------------------------------------------


@OWNERS
@virtual
async def test_on_hold_audio_waits_and_nobody_is_prompted(owner: PlayoutOwner) -> None:
    async with gateway_with(replying(LONG), settings(greeting="Hello there.", idle_timeout_ms=2_000)) as (_, gateway):
        line = FakeLine(owner)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: len(line.sent) > 50)
            call.held(True)
            call.held(True)
            sent, cleared = len(line.sent), len(line.names("clear"))
            await line.speak(10_000)  # music on hold
            assert len(line.sent) <= sent + 1
            assert len(line.names("clear")) == cleared
            assert len(call.call.record.turns) <= 1
            call.held(False)
            await line.until(lambda: len(call.call.record.turns) >= 2)
            assert not any(entry.cut for entry in call.call.record.transcript)
            sent = len(line.sent)
            call.held(True)
            await line.hush(30_000)
            assert len(line.sent) == sent, "nobody asks a caller on hold whether they are there"
            call.held(False)
            await line.hush(1_500)
            assert len(line.sent) == sent, "the silence is counted from now on"
            await line.until(lambda: len(line.sent) > sent, within_s=3)


@virtual
async def test_a_peer_that_takes_nothing_makes_audio_wait() -> None:
    async with gateway_with(settings=settings(greeting="Hello there.")) as (_, gateway):
        line = FakeLine()
        line.congested = True
        async with phoned(gateway, line) as call:
            await line.hush(1_000)
            assert not line.sent
            line.congested = False
            call.writable()
            await line.hush(1_000)
            assert len(line.sent) == 25
            call.call.hang_up("operator_hung_up")
            call.writable()
            call.audio(np.zeros(160, np.int16), 8_000)
            call.held(True)
            call.dtmf("1")
            call.mark_played("m3")
            call.hung_up("caller_hung_up")
        assert causes(gateway) == ["operator_hung_up"]


@virtual
async def test_audio_with_holes_and_odd_rates_is_heard_all_the_same() -> None:
    async with gateway_with(settings=settings()) as (_, gateway):
        line = FakeLine()
        async with phoned(gateway, line) as call:
            await line.speak(800, at_ms=0.0)
            call.audio(np.zeros(160, np.int16), 7)
            await asyncio.sleep(0.5)
            await line.speak(20, 0, at_ms=1_300.0)
            await line.until(lambda: call.call.record.turns)
            assert counted(gateway, "caller_audio_unusable") == 1
            assert counted(gateway, "caller_audio_gap") == 1
            assert call.call.record.transcript[0].role == "user"
