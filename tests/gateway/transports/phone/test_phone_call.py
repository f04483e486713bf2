"""A phone call on a scripted line, in virtual time."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from gateway.agents.agent import UnknownAgent
from gateway.phone_settings import PhoneSettings
from gateway.settings import AgentSettings, Settings
from gateway.transports.phone.line import Incoming, PlayoutOwner
from gateway.transports.phone.phone_call import PhoneCall
from gateway.transports.phone.routing import choose_agent
from tests.gateway.transports.fake_peer import ANNA, LONG, causes, gateway_with, replying
from tests.gateway.transports.phone.fake_line import FakeLine, phoned
from tests.virtual_time import virtual

PHONE = ANNA.model_copy(update={"phone": PhoneSettings(agent="anna", numbers={"+1 555-1234": "default"})})
OWNERS = pytest.mark.parametrize("owner", list(PlayoutOwner))


@OWNERS
@virtual
async def test_a_greeting_a_turn_and_a_hang_up_by_the_caller(owner: PlayoutOwner) -> None:
    async with gateway_with(settings=PHONE) as (_, gateway):
        line = FakeLine(owner, latency_s=0.05)
        incoming = Incoming("twilio", caller="+15550001", dialled="+15550002", wire_id="CA1")
        async with phoned(gateway, line, incoming) as call:
            await line.hush(2_000)
            assert len(line.heard_pcm) > 8_000 * 0.4, "the greeting"
            await line.speak(800)
            await line.until(lambda: len(call.call.record.turns) == 2)
            view = call.call.record.view()
            assert [entry["role"] for entry in view["transcript"]] == ["assistant", "user", "assistant"]
            assert (view["caller"], view["dialled"], view["wire_id"]) == ("+15550001", "+15550002", "CA1")
            assert (view["transport"], view["agent"], view["direction"]) == ("twilio", "anna", "inbound")
            assert view["quality"]["frames_out"] > 20
        assert line.names("hang_up") == ["caller_hung_up"], "it is freed"
        assert causes(gateway) == ["caller_hung_up"]


@OWNERS
@virtual
async def test_no_more_is_sent_ahead_than_the_owner_of_the_playout_allows(owner: PlayoutOwner) -> None:
    async with gateway_with(replying(LONG), PHONE) as (_, gateway):
        line = FakeLine(owner)
        async with phoned(gateway, line):
            await line.hush(2_000)
            line.sent.clear()
            await line.speak(800)
            await line.until(lambda: len(line.sent) > 100)
            begun = line.sent[0][0]
            lead_s = 0.04 if owner is PlayoutOwner.OURS else 0.3
            ahead = [number * 0.02 - (at - begun) for number, (at, _) in enumerate(line.sent)]
            assert max(ahead) <= lead_s + 1e-6
            assert max(ahead) >= lead_s - 0.021


@virtual
async def test_a_barge_in_clears_the_far_end_and_the_context_holds_what_its_marks_say() -> None:
    """The far end plays everything 700 ms late: by the clock alone four words more would count as heard."""
    async with gateway_with(replying(LONG), PHONE) as (_, gateway):
        line = FakeLine(latency_s=0.1, slow_s=0.5)
        async with phoned(gateway, line) as call:
            await line.until(lambda: len(call.call.record.turns) == 1)
            line.heard.clear()
            await line.speak(800)
            await line.until(lambda: len(line.heard) >= 100)
            cleared = len(line.names("clear"))
            await line.speak(800)
            await line.until(lambda: any(entry.cut for entry in call.call.record.transcript))
            assert len(line.names("clear")) > cleared
            cut = next(entry for entry in call.call.record.transcript if entry.cut)
            heard_words = sum(1 for at, _ in line.heard if at < line.names("clear")[cleared] + 0.1) * 20 / 250
            said = len(cut.text.split())
            assert heard_words - 2 <= said <= heard_words + 0.5


@virtual
async def test_a_stopping_server_says_goodbye_and_hangs_the_line_up() -> None:
    async with gateway_with(settings=PHONE) as (_, gateway):
        line = FakeLine()
        async with phoned(gateway, line):
            await line.hush(2_000)
            heard = len(line.heard)
            await gateway.switchboard.drain(0.0)
            assert len(line.heard) > heard + 25
        assert line.names("hang_up") == ["server_drain"]


@virtual
async def test_who_answers() -> None:
    agents = {"anna": AgentSettings(), "sales": AgentSettings()}
    phone = PhoneSettings(agent="anna", numbers={"+1 (555) 123-4567": "sales", "helpdesk": "default"})
    async with gateway_with(settings=Settings(preset="null", agents=agents, phone=phone)) as (_, gateway):

        def agent(name: str = "", dialled: str = "") -> str:
            return choose_agent(gateway, Incoming("sip", agent=name, dialled=dialled))

        assert agent() == "anna"
        assert agent("sales", "+15551234567") == "sales"
        assert agent(dialled="+15551234567") == agent(dialled="1-555-123-4567") == "sales"
        assert agent(dialled="Helpdesk") == "default"
        assert agent(dialled="sales") == "sales"
        assert agent(dialled="+1999") == "anna"
        with pytest.raises(UnknownAgent):
            agent("nobody", "+15551234567")


@virtual
async def test_a_line_that_is_down_before_its_call_runs_is_filed_and_freed() -> None:
    async with gateway_with(settings=PHONE) as (_, gateway):
        line = FakeLine()
        with await gateway.switchboard.admit() as admission:
            call = PhoneCall(gateway, admission, Incoming("sip"), line)
            call.audio(np.zeros(160, np.int16), 8_000)
            line.events = call
            line.drop("media_timeout")
            assert await call.run() == "media_timeout"
        assert (line.sent, line.names("hang_up")) == ([], ["media_timeout"])
        assert causes(gateway) == ["media_timeout"]


@virtual
async def test_a_caller_whose_name_is_no_text_breaks_no_list_of_calls() -> None:
    """SIP carries any bytes; an end of ours must be able to write them down."""
    async with gateway_with(settings=PHONE) as (app, gateway):
        incoming = Incoming("sip", dialled="\x1b[2J\u202e", caller="a\udcffb", wire_id="w" * 9_000)
        async with phoned(gateway, FakeLine(), incoming):
            pass
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            (row,) = (await client.get("/v1/calls")).json()["data"]
            assert (await client.get(f"/v1/calls/{row['id']}")).is_success
        assert (row["caller"], row["dialled"], len(row["wire_id"])) == ("a\ufffdb", "\ufffd[2J\ufffd", 256)
