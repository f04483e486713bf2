"""Calls to the gateway from a real phone, baresip: what both sides hear, keys, hold, encryption, and who hangs up."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.settings import AgentSettings
from gateway.transports.sip.answering import Answering
from gateway.transports.sip.transaction import TransportName
from streaming.audio import g711
from tests.e2e.baresip_peer import Certificates, Phone, at_8_khz, needs_baresip, phone
from tests.e2e.sip_rig import RATE_HZ, Line, in_parts, likeness, media_of, sip_line
from tests.gateway.transports.sip.media_rig import click, speech

pytestmark = [pytest.mark.e2e, needs_baresip]

GREETS = AgentSettings(greeting="Hello.", silence_ms=300)
SAID, ANSWERED = speech(6.0), speech(6.0)[16_000:][::-1].copy()
TURN_SAMPLES = 16_000
"""Two seconds at 8 kHz."""


def tone(hertz: float, seconds: float) -> Pcm16:
    """Its level rises and falls slowly, so that each place in it is like no other."""
    at = np.arange(int(seconds * 8_000)) / 8_000
    wave = np.sin(2 * np.pi * hertz * at) * (6_000 + 3_000 * np.sin(2 * np.pi * 0.21 * at))
    pcm: Pcm16 = wave.astype(np.int16)
    return pcm


async def dial(caller: Phone, line: Line, transport: TransportName = "udp") -> None:
    where = "" if transport == "udp" else f";transport={transport}"
    await caller.do("dial", f"sip:default@127.0.0.1:{line.sip.ports[transport]}{where}")
    await caller.until("CALL_ESTABLISHED")


async def heard_enough(line: Line, seconds: float = 2.5) -> None:
    await line.until(lambda: line.ears.calls and len(line.ears.heard()) > seconds * RATE_HZ)


VOICES = [(SAID, ANSWERED), (tone(440, 6), tone(1_000, 4))]


@pytest.mark.parametrize("codec", ["pcmu", "pcma"])
@pytest.mark.parametrize(("said", "answered"), VOICES, ids=["speech", "tone"])
async def test_the_line_is_transparent_both_ways(tmp_path: Path, codec: str, said: Pcm16, answered: Pcm16) -> None:
    """What the agent says arrives to the last bit of G.711, without a click; what the caller says, but for G.711 and
    the way to 16 kHz."""
    async with (
        sip_line(agent=GREETS, says=answered, deaf=True, codecs=[codec]) as line,
        phone(tmp_path, said, codec) as caller,
    ):
        await dial(caller, line)
        await heard_enough(line, 3.0)
        await caller.do("hangup")
        await line.here.empty()
        hears = at_8_khz(line.ears.heard(), RATE_HZ)
        assert line.ears.same_as(said[4_000 : 4_000 + TURN_SAMPLES])
        assert click(hears[1_000:-1_000]) <= 1.2 * click(said) + 300
        heard = caller.heard()
        assert exactly(companded(answered, codec)[:TURN_SAMPLES], heard)
        (record,) = line.records
        assert media_of(record)["lost"] == 0


def companded(pcm: Pcm16, codec: str) -> Pcm16:
    if codec == "pcmu":
        return g711.decode_mulaw(g711.encode_mulaw(pcm))
    return g711.decode_alaw(g711.encode_alaw(pcm))


def exactly(said: Pcm16, heard: Pcm16) -> bool:
    """Whether ``said`` is in ``heard``, sample by sample. (baresip takes mu-law's negative zero for 2.)"""
    whole = plain(heard)
    return in_parts(said, lambda part: plain(part) in whole)


def plain(pcm: Pcm16) -> bytes:
    return np.where(np.abs(pcm) <= 2, 0, pcm).astype("<i2").tobytes()


@pytest.mark.parametrize(("codec", "least"), [("g722", 0.99), ("opus", 0.85)])
async def test_wideband(tmp_path: Path, codec: str, least: float) -> None:
    async with (
        sip_line(agent=GREETS, says=ANSWERED, deaf=True, codecs=[codec, "pcmu"]) as line,
        phone(tmp_path, SAID, codec) as caller,
    ):
        await dial(caller, line)
        await heard_enough(line, 3.0)
        await caller.do("hangup")
        await line.here.empty()
        assert likeness(SAID[4_000:12_000], at_8_khz(line.ears.heard(), RATE_HZ)) >= least
        assert likeness(ANSWERED[4_000:12_000], caller.heard()) >= least


async def test_keys_and_hold_and_the_phone_hangs_up(tmp_path: Path) -> None:
    silence = np.zeros(16_000, np.int16)
    async with sip_line() as line, phone(tmp_path, silence) as caller:
        await dial(caller, line)
        for key in "42#":
            await caller.do("sndcode", key)
        await line.until(lambda: line.live and line.live[0].transcript)
        await caller.do("hold")
        await line.until(lambda: line.counted("line_held"))
        await caller.do("resume")
        await line.until(lambda: line.counted("line_resumed"))
        await caller.do("hangup")
        await line.here.empty()
        (record,) = line.records
        assert record.cause == "caller_hung_up"
        assert line.said_by_caller() == ["(keypad: 42)"]


async def test_the_agent_hangs_up(tmp_path: Path) -> None:
    async with sip_line(agent=GREETS) as line, phone(tmp_path, SAID) as caller:
        await dial(caller, line)
        line.hang_up(line.live[0])
        closed = await caller.until("CALL_CLOSED")
        assert "direction" in closed
        await line.here.empty()
        assert [record.cause for record in line.records] == ["agent_hung_up"]


async def test_a_phone_that_vanishes_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Answering.media_policy
    monkeypatch.setattr(Answering, "media_policy", lambda of: dataclasses.replace(policy(of), lost_after_s=1.0))
    async with sip_line() as line, phone(tmp_path, SAID) as caller:
        await dial(caller, line)
        await heard_enough(line, 0.5)
        caller.kill()
        await line.here.empty()
        line.let_time_pass()  # its BYE is answered by nobody
        assert [record.cause for record in line.records] == ["media_timeout"]


async def test_a_password(tmp_path: Path) -> None:
    async with sip_line(users={"alice": "secret"}) as line:
        async with phone(tmp_path, SAID, password=("alice", "secret")) as caller:
            await dial(caller, line)
            await caller.do("hangup")
        await line.here.empty()
        assert len(line.records) == 1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``gateway`` and ``phone``, each signed by itself: NAME.crt, NAME.key, and NAME.pem that is both."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("gateway", "phone"):
        key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        made += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        (folder / f"{name}.pem").write_text(key.read_text() + certificate.read_text())
    return folder


def tls(certificates: Path) -> dict[str, Any]:
    return {
        "transports": ["udp", "tls"],
        "tls_port": 0,
        "tls_cert": certificates / "gateway.crt",
        "tls_key": certificates / "gateway.key",
    }


@pytest.mark.parametrize("who", ["caller", "agent"])
async def test_tls_and_srtp(tmp_path: Path, certificates: Path, who: str) -> None:
    ours = Certificates(certificates / "gateway.crt", certificates / "phone.pem")
    async with (
        sip_line(agent=GREETS, says=ANSWERED, deaf=True, srtp="required", **tls(certificates)) as line,
        phone(tmp_path, SAID, "pcmu", "srtp-mand", certificates=ours) as caller,
    ):
        await dial(caller, line, "tls")
        await heard_enough(line, 3.0)
        await caller.do("hold")
        await line.until(lambda: line.counted("line_held"))
        await caller.do("resume")
        await line.until(lambda: line.counted("line_resumed"))
        if who == "caller":
            await caller.do("hangup")
        else:
            line.hang_up(line.live[0])
            await caller.until("CALL_CLOSED")
        await line.here.empty()
        assert [record.cause for record in line.records] == [f"{who}_hung_up"]
        assert line.ears.same_as(SAID[4_000 : 4_000 + TURN_SAMPLES])
        assert exactly(companded(ANSWERED, "pcmu")[:TURN_SAMPLES], caller.heard())


async def test_media_in_clear_is_refused_where_it_must_be_encrypted(tmp_path: Path) -> None:
    async with sip_line(srtp="required") as line, phone(tmp_path, SAID) as caller:
        await caller.do("dial", f"sip:default@127.0.0.1:{line.port}")
        assert "488" in (await caller.until("CALL_CLOSED"))["param"]
        assert line.records == []
