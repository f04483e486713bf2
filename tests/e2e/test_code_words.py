"""A caller says a code word to the null preset, and hears it again: over every wire, as an operator would run it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.settings import Settings
from streaming.audio.code_words import code_word, find, phrase_word, speak
from streaming.audio.wav import encode_wav, read_wav
from tests.serving import Served, served

pytestmark = pytest.mark.e2e

RATE_HZ = 16_000
WIRES = ("websocket", "webrtc", "sip", "twilio", "audiosocket")
UUID = "0c2f4f6e-2f0b-4a68-9a50-5d2c1e6c9a11"


def free_port() -> int:
    with socket.socket() as udp_too, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        udp_too.bind(("127.0.0.1", 0))
        port: int = udp_too.getsockname()[1]
        taken.bind(("127.0.0.1", port))
        return port


def settings() -> Settings:
    return Settings.model_validate(
        {
            "preset": "null",
            "agents": {"anna": {"greeting": "Hello."}},
            "sip": {"enabled": True, "port": free_port()},
            "twilio": {"enabled": True, "allow_unsigned": True},
            "audiosocket": {"enabled": True, "port": free_port(), "uuids": {UUID: "anna"}},
            "admission": {"by_load": False},
        }
    )


def url(here: Served, wire: str) -> str:
    tables = here.gateway.settings
    return {
        "websocket": here.ws,
        "webrtc": here.url,
        "sip": f"sip:127.0.0.1:{tables.sip.port}",
        "twilio": f"twilio+{here.url.replace('http', 'ws', 1)}/v1/carriers/twilio/stream",
        "audiosocket": f"audiosocket://127.0.0.1:{tables.audiosocket.port}/{UUID}",
    }[wire]


def sung(*words: str) -> bytes:
    pause = np.zeros(RATE_HZ // 10, np.int16)
    sounds = [part for word in words for part in (speak(word, RATE_HZ), pause)]
    return encode_wav([np.concatenate(sounds)], RATE_HZ)


async def call(here: Served, wire: str, said: Path, recording: Path) -> tuple[Pcm16, int]:
    """The agent's side of a call that plays one file, as ``offhook call`` records it."""
    agent = [] if wire == "audiosocket" else ["--agent", "anna"]
    files = ["--wav", str(said), "--record", str(recording)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "call", url(here, wire), *agent, *files, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    return read_wav(await asyncio.to_thread(recording.read_bytes))


@pytest.mark.parametrize(("number", "wire"), list(enumerate(WIRES, start=77)))
async def test_a_code_word_comes_back(tmp_path: Path, number: int, wire: str) -> None:
    word = code_word(number)
    said = tmp_path / "said.wav"
    said.write_bytes(sung(word))
    async with served(settings=settings()) as here:
        pcm, rate_hz = await call(here, wire, said, tmp_path / "heard.wav")
        await here.empty()
        (record,) = here.gateway.recent
    # Caller and agent in one: they do not talk at the same time.
    assert [found.word for found in find(pcm, rate_hz)] == [word, word]
    assert [line.text for line in record.transcript] == ["Hello.", f"my code word is {word}", f"I heard {word}."]


async def test_who_asks_for_more_hears_its_word_first_and_last(tmp_path: Path) -> None:
    word = code_word(5)
    said = tmp_path / "said.wav"
    said.write_bytes(sung(word, phrase_word("tell me more")))
    async with served(settings=settings()) as here:
        pcm, rate_hz = await call(here, "sip", said, tmp_path / "heard.wav")
        await here.empty()
    found = find(pcm, rate_hz)
    assert [heard.word for heard in found] == [word, phrase_word("tell me more"), word, word]
    starts_s = [heard.start_sample / rate_hz for heard in found]
    assert max(later - sooner for sooner, later in itertools.pairwise(starts_s)) > 12
