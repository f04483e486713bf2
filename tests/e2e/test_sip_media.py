"""Media with a phone that is not ours: each codec both ways, keys both ways, hold, and SRTP by SDES."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.transports.sip.media import RtpMedia
from gateway.transports.sip.media_policy import RtpPolicy
from gateway.transports.sip.offer_answer import Srtp
from streaming.audio.resample import Resampler
from tests.e2e.baresip_peer import WAIT_S, Phone, at_8_khz, needs_baresip, phone
from tests.e2e.media_peers import Signalling, signalling
from tests.gateway.transports.sip.media_rig import place_of, speech

pytestmark = [pytest.mark.e2e, needs_baresip]

SAID = speech(6.0)
ANSWERED = speech(9.0)[24_000:][::-1].copy()
PIECE = 4000


class Ear:
    def __init__(self) -> None:
        self.blocks: list[Pcm16] = []
        self.rate_hz = 8000
        self.keys: asyncio.Queue[str] = asyncio.Queue()
        self.log: list[object] = []

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float) -> None:
        self.blocks.append(pcm)
        self.rate_hz = rate_hz

    def dtmf(self, digit: str) -> None:
        self.keys.put_nowait(digit)

    def suspect(self, silent: bool) -> None:
        self.log.append(("suspect", silent))

    def lost(self, cause: str) -> None:
        self.log.append(cause)

    def heard(self) -> Pcm16:
        return at_8_khz(np.concatenate(self.blocks), self.rate_hz)


async def answer(media: RtpMedia, seconds: float) -> None:
    """Say it at the pace of time, two frames ahead."""
    loop = asyncio.get_running_loop()
    up = Resampler(8000, media.rate_hz)
    pcm, frame = up.process(ANSWERED), media.rate_hz // 50
    began_s = loop.time()
    for n in range(int(seconds * 50)):
        await asyncio.sleep(max(0.0, began_s + 0.02 * (n - 1) - loop.time()))
        media.play(pcm[n * frame : (n + 1) * frame])


def likeness(one: Pcm16, whole: Pcm16) -> float:
    """Of half a second early on in one to that place in the other where it is most alike."""
    piece = one[PIECE : 2 * PIECE]
    at = place_of(piece, whole)
    return float(np.corrcoef(piece, whole[at : at + PIECE])[0, 1])


async def talk(media: RtpMedia, ear: Ear, talks: Signalling, caller: Phone, least: float) -> None:
    async with asyncio.timeout(WAIT_S):
        await talks.established.wait()
    await answer(media, 2.0)
    await caller.do("sndcode", "4")
    async with asyncio.timeout(WAIT_S):
        assert await ear.keys.get() == "4"
    await media.send_dtmf("79")
    await caller.do("hangup")
    async with asyncio.timeout(WAIT_S):
        await talks.ended.wait()
    assert likeness(SAID, ear.heard()) >= least
    assert likeness(ANSWERED, caller.heard()) >= least
    assert ear.log == []
    assert ear.keys.empty(), "each key once"
    quality = media.quality()
    assert (quality.lost, quality.late) == (0, 0)


@pytest.mark.parametrize(("codec", "least"), [("pcmu", 0.999), ("pcma", 0.999), ("g722", 0.999), ("opus", 0.85)])
async def test_a_phone_calls(tmp_path: Path, codec: str, least: float) -> None:
    ear = Ear()
    media = await RtpMedia.open(RtpPolicy(bind_ip="127.0.0.1", codecs=(codec,)), ear)
    async with signalling(media) as talks, phone(tmp_path, SAID, codec) as caller:
        await caller.do("dial", f"sip:us@127.0.0.1:{talks.port}")
        await talk(media, ear, talks, caller, least)
    await media.close()


@pytest.mark.parametrize("secure", ["srtp", "srtp-mand", "srtp-mandf"])
async def test_a_phone_calls_over_srtp_holds_and_comes_back(tmp_path: Path, secure: str) -> None:
    ear = Ear()
    media = await RtpMedia.open(RtpPolicy(bind_ip="127.0.0.1", codecs=("pcma",), srtp=Srtp.REQUIRED), ear)
    async with signalling(media) as talks, phone(tmp_path, SAID, "pcma", secure) as caller:
        await caller.do("dial", f"sip:us@127.0.0.1:{talks.port}")
        async with asyncio.timeout(WAIT_S):
            await talks.established.wait()
        await answer(media, 1.5)
        await caller.do("hold")
        await _until(lambda: media.remote_hold)
        await caller.do("resume")
        await _until(lambda: not media.remote_hold)
        assert talks.offers == 3
        assert media.secured
        ear.blocks.clear()
        await answer(media, 1.5)
        await caller.do("hangup")
        async with asyncio.timeout(WAIT_S):
            await talks.ended.wait()
        assert likeness(ear.heard(), SAID) >= 0.999
        assert likeness(ANSWERED, caller.heard()) >= 0.999
        assert ear.log == []
    await media.close()


@pytest.mark.parametrize(("srtp", "secure"), [(Srtp.ACCEPTED, ""), (Srtp.REQUIRED, "srtp-mand")])
async def test_a_phone_is_called(tmp_path: Path, srtp: Srtp, secure: str) -> None:
    ear = Ear()
    media = await RtpMedia.open(RtpPolicy(bind_ip="127.0.0.1", srtp=srtp), ear)
    async with signalling(media) as talks, phone(tmp_path, SAID, "pcmu", secure) as callee:
        talks.invite(callee.port)
        await talk(media, ear, talks, callee, 0.999)
        assert media.secured == bool(secure)
    await media.close()


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.02)
