"""A spoken turn by phone with the embedded preset's real models: what was said arrived as words, both ways."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.settings import AgentSettings
from loadtest.call import PhoneOptions
from loadtest.command import CallOptions, Press, Say, place_call
from loadtest.report import CallReport
from loadtest.script import Patience
from tests.e2e.test_offhook_call_phones import free_port
from tests.models.heard import was_heard
from tests.models.live import LiveGateway, hearing_model, live_gateway

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

HOURS = "What are your opening hours?"
ASSISTANT = "You are a helpful assistant. Answer in one short sentence."
TOKEN = "an auth token of Twilio's"
CALL = uuid.uuid4()
SIP_PORT, AUDIOSOCKET_PORT = free_port(), free_port()
PATIENCE = Patience(greeting_ms=15_000, answer_ms=45_000, pause_ms=2_000)


@pytest.fixture(autouse=True)
def no_leaks(no_leaked_tasks: None) -> None:
    """Engines start threads when they have work, not when they start: they are counted when the gateway ends."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    agents = {
        "desk": AgentSettings(instructions=ASSISTANT, greeting="Hello, how can I help you?", max_output_tokens=24)
    }
    with live_gateway(
        "embedded",
        agents,
        sip={"enabled": True, "port": SIP_PORT},
        twilio={"enabled": True, "auth_token": TOKEN, "api_url": "http://127.0.0.1:9"},
        audiosocket={"enabled": True, "port": AUDIOSOCKET_PORT, "uuids": {str(CALL): "desk"}},
    ) as served:
        yield served


async def ring_phone(gateway: LiveGateway, phone: str, *lines: Say | Press, record: Path) -> CallReport:
    url = {
        "sip": f"sip:desk@127.0.0.1:{SIP_PORT}",
        "pcma": f"sip:desk@127.0.0.1:{SIP_PORT};transport=tcp",
        "twilio": f"twilio+{gateway.http.replace('http', 'ws', 1)}/v1/carriers/twilio/stream",
        "audiosocket": f"audiosocket://127.0.0.1:{AUDIOSOCKET_PORT}/{CALL}",
    }[phone]
    options = CallOptions(
        url,
        lines,
        agent="desk" if phone == "twilio" else None,
        record=record,
        hearing_model=hearing_model,
        patience=PATIENCE,
        phone=PhoneOptions(auth_token=TOKEN, codec="pcma" if phone == "pcma" else None),
    )
    return await place_call(options)


@pytest.mark.parametrize("phone", ["sip", "pcma", "twilio", "audiosocket"])
async def test_a_question_is_heard_and_answered(gateway: LiveGateway, phone: str, tmp_path: Path) -> None:
    report = await ring_phone(gateway, phone, Say(HOURS), record=tmp_path / "call.wav")
    assert (report.answered, report.end_cause, report.errors) == (True, "hangup", [])
    record = await asyncio.to_thread(gateway.phone_call, report.call_id)
    greeting, asked, answer = record["transcript"]
    assert [entry["role"] for entry in (greeting, asked, answer)] == ["assistant", "user", "assistant"]
    assert was_heard(HOURS, asked["text"])  # at 8 kHz "your" may be "you"
    assert report.greeting is not None
    assert was_heard(greeting["text"], report.greeting.agent_text)
    assert was_heard(answer["text"], report.turns[0].agent_text)
    assert not answer["cut"]
