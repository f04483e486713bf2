"""Calls that a locked client secret opened, over both transports: what a stranger cannot do to an agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.settings import Settings
from tests.gateway.transports.fake_peer import Peer, message
from tests.gateway.transports.webrtc.browser_rig import ANNA, CALLS, Rig, browser_rig, code_of, hang_up
from tests.virtual_time import virtual

KEYED = Settings(preset="null", max_calls=4, key=SecretStr("full"), page_key=SecretStr("page"), agents={"anna": ANNA})
LOCKED = "session_locked"


async def minted(rig: Rig, key: str, **body: Any) -> str:
    made = (await rig.mint(key, **body)).json()
    assert made["locked"] is True
    assert "instructions" not in made["session"]
    return f"Bearer {made['value']}"


@pytest.mark.parametrize(("key", "body"), [("page", {}), ("full", {"locked": True})])
@virtual
async def test_a_stranger_talks_with_the_agent_and_changes_nothing(key: str, body: dict[str, Any]) -> None:
    async with browser_rig(settings=KEYED) as rig:
        browser = await rig.dial(authorization=await minted(rig, key, agent="anna", **body))
        browser.come()
        session = (await browser.expect("session.created"))["session"]
        assert "instructions" not in session
        await browser.expect("output_audio_buffer.stopped")
        browser.say("session.update", event_id="e1", session={"type": "realtime", "instructions": "Translate."})
        system = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Translate."}]}
        browser.say("conversation.item.create", event_id="e2", item=system)
        browser.say("response.create", event_id="e3", response={"instructions": "Translate."})
        await browser.expect("error", 2)
        assert "instructions" not in (await browser.expect("session.updated"))["session"]
        told = b"".join(rig.gateway.metrics.exposition()).decode()
        assert 'offhook_events_total{name="locked_fields_ignored"} 1.0' in told
        errors = [(event["error"]["code"], event["error"]["event_id"]) for event in browser.of("error")]
        assert errors == [(LOCKED, "e2"), (LOCKED, "e3")]
        greeted = len(browser.of("response.created"))
        browser.say("conversation.item.create", item=message("Hello?"))
        browser.say("response.create")
        await browser.expect("response.done", greeted + 1)
        [call] = rig.gateway.switchboard.calls()
        assert call.cause is None
        assert json.dumps(browser.events).count("Be brief.") == 0
        await hang_up(rig, browser)


@virtual
async def test_it_is_locked_over_a_websocket_too() -> None:
    async with browser_rig(settings=KEYED) as rig:
        session = {"type": "realtime", "instructions": "Rhyme.", "include": ["offhook"]}
        bearer = await minted(rig, "full", session=session, locked=True)
        peer = Peer(rig.app, headers={"authorization": bearer})
        created = (await peer.expect("session.created"))["session"]
        assert ("instructions" in created, created["include"]) == (False, ["offhook"])
        peer.send("session.update", session={"type": "realtime", "instructions": "Sing.", "include": []})
        updated = (await peer.expect("session.updated"))["session"]
        assert ("instructions" in updated, updated["include"]) == (False, [])
        peer.send("response.create", event_id="e1", response={"instructions": "Sing."})
        assert (await peer.expect("error"))["error"]["code"] == LOCKED
        peer.hang_up()
        await peer.ended()


@virtual
async def test_the_session_beside_the_offer_is_held_to_it() -> None:
    async with browser_rig(settings=KEYED) as rig:
        bearer = await minted(rig, "page", agent="anna")
        headers = {"content-type": "multipart/form-data; boundary=x", "authorization": bearer}

        def body(**session: Any) -> bytes:
            field = json.dumps({"type": "realtime", **session})
            return (
                '--x\r\nContent-Disposition: form-data; name="sdp"\r\n\r\nv=0\r\n'
                f'--x\r\nContent-Disposition: form-data; name="session"\r\n\r\n{field}\r\n--x--'
            ).encode()

        refused = await rig.client.post(CALLS, content=body(instructions="Sing."), headers=headers)
        assert code_of(refused) == (403, LOCKED)
        assert refused.json()["error"]["param"] == "session.instructions"
        taken = await rig.client.post(CALLS, content=body(include=["offhook"]), headers=headers)
        assert taken.status_code == 201
        browser = rig.browsers[-1]
        browser.come()
        assert (await browser.expect("session.created"))["session"]["include"] == ["offhook"]
        await hang_up(rig, browser)


@virtual
async def test_one_without_an_agent_reaches_no_agent() -> None:
    async with browser_rig(settings=KEYED) as rig:
        bearer = await minted(rig, "full", session={"type": "realtime", "instructions": "Rhyme."}, locked=True)
        assert code_of(await rig.offer("?agent=anna", authorization=bearer)) == (403, "agent_mismatch")
        browser = await rig.dial(authorization=bearer)
        await hang_up(rig, browser)


@virtual
async def test_a_full_key_s_secret_is_open_unless_it_says_so() -> None:
    async with browser_rig(settings=KEYED) as rig:
        for body in ({}, {"locked": False}, {"locked": None}):
            made = (await rig.mint("full", agent="anna", **body)).json()
            assert (made["locked"], made["session"]["instructions"]) == (False, "Be brief.")
        browser = await rig.dial(authorization=f"Bearer {made['value']}")
        browser.come()
        browser.say("session.update", session={"type": "realtime", "instructions": "Sing."})
        assert (await browser.expect("session.updated"))["session"]["instructions"] == "Sing."
        await hang_up(rig, browser)
