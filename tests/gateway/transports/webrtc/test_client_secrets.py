"""Client secrets over HTTP: what one is made of, what it opens, and once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from openai.types.realtime import ClientSecretCreateResponse
from pydantic import SecretStr

from gateway.media_settings import MediaSettings
from gateway.settings import Settings
from gateway.transports.webrtc.peers import media_policy
from tests.gateway.transports.fake_peer import Peer
from tests.gateway.transports.webrtc.browser_rig import ANNA, SECRETS, Rig, browser_rig, code_of, hang_up
from tests.virtual_time import virtual

KEYED = Settings(preset="null", max_calls=4, key=SecretStr("full"), page_key=SecretStr("page"), agents={"anna": ANNA})
SESSION: dict[str, Any] = {"type": "realtime", "model": "gpt-realtime", "instructions": "Rhyme."}


async def finish(rig: Rig) -> None:
    for browser in rig.browsers:
        if browser.closed_at is None:
            await hang_up(rig, browser)


@virtual
async def test_nothing_asked_for_gives_what_is_usual() -> None:
    async with browser_rig() as rig:
        for response in (await rig.client.post(SECRETS), await rig.mint()):
            assert response.status_code == 200
            assert response.headers["cache-control"] == "no-store"
            made = response.json()
            ClientSecretCreateResponse.model_validate(made)
            assert made["value"].startswith("ek_")
            assert abs(made["expires_at"] - time.time() - 600) < 5
            assert made["session"]["type"] == "realtime"
            assert made["session"]["id"].startswith("sess_")
            assert made["ice_servers"] == []


@virtual
async def test_its_session_is_what_the_call_begins_with_over_either_transport() -> None:
    async with browser_rig(settings=KEYED) as rig:
        wanted = {**SESSION, "audio": {"output": {"speed": 1.2}, "input": {"turn_detection": None}}}
        made = [
            (await rig.mint("full", session=wanted, expires_after={"anchor": "created_at", "seconds": 10})).json()
            for _ in range(2)
        ]
        assert abs(made[0]["expires_at"] - time.time() - 10) < 5
        assert made[0]["session"]["instructions"] == "Rhyme."
        browser = await rig.dial(authorization=f"Bearer {made[0]['value']}")
        browser.come()
        peer = Peer(
            rig.app, headers={"sec-websocket-protocol": f"realtime, openai-insecure-api-key.{made[1]['value']}"}
        )
        for session in (
            (await browser.expect("session.created"))["session"],
            (await peer.expect("session.created"))["session"],
        ):
            assert (session["instructions"], session["model"]) == ("Rhyme.", "gpt-realtime")
            assert session["audio"]["output"]["speed"] == 1.2
            assert session["audio"]["input"]["turn_detection"] is None
        assert "session.updated" not in browser.types
        again = Peer(rig.app, headers={"authorization": f"Bearer {made[1]['value']}"})
        await again.ended()
        assert (again.denied, json.loads(again.denial)["error"]["code"]) == (401, "ephemeral_token_already_used")
        peer.hang_up()
        await peer.ended()
        await finish(rig)


@virtual
async def test_a_form_s_session_goes_on_top() -> None:
    async with browser_rig() as rig:
        value = await rig.secret(session={**SESSION, "max_output_tokens": 7})
        body = (
            b'--x\r\nContent-Disposition: form-data; name="sdp"\r\n\r\nv=0\r\n'
            b'--x\r\nContent-Disposition: form-data; name="session"\r\n\r\n{"type":"realtime","instructions":"Hum."}'
            b"\r\n--x--"
        )
        headers = {"content-type": "multipart/form-data; boundary=x", "authorization": f"Bearer {value}"}
        assert (await rig.client.post("/v1/realtime/calls", content=body, headers=headers)).status_code == 201
        rig.browsers[0].come()
        session = (await rig.browsers[0].expect("session.created"))["session"]
        assert (session["instructions"], session["max_output_tokens"]) == ("Hum.", 7)
        await finish(rig)


@virtual
async def test_it_opens_one_call() -> None:
    async with browser_rig(settings=KEYED) as rig:
        value = (await rig.mint("full")).json()["value"]
        bearer = f"Bearer {value}"
        await rig.dial(authorization=bearer)
        assert code_of(await rig.offer(authorization=bearer)) == (401, "ephemeral_token_already_used")
        for path in ("/v1/calls", "/metrics", "/v1/calls/x"):
            response = await rig.client.get(path, headers={"authorization": bearer})
            assert response.status_code == 403
        assert code_of(await rig.offer(authorization="Bearer ek_guess")) == (401, "invalid_client_secret")
        await finish(rig)
    async with browser_rig(settings=KEYED.model_copy(update={"client_secrets_reusable": True})) as rig:
        bearer = f"Bearer {(await rig.mint('full')).json()['value']}"
        for _ in range(3):
            (await rig.dial(authorization=bearer)).connect()
        await finish(rig)


@virtual
async def test_it_may_be_bound_to_an_agent() -> None:
    async with browser_rig(settings=KEYED) as rig:
        for body in ({"agent": "anna"}, {"session": {"type": "realtime", "agent": "anna"}}):
            made = (await rig.mint("full", **body)).json()
            assert made["session"]["agent"] == "anna"
            bearer = f"Bearer {made['value']}"
            assert code_of(await rig.offer("?agent=default", authorization=bearer)) == (403, "agent_mismatch")
            other = Peer(rig.app, "agent=default", headers={"authorization": bearer})
            await other.ended()
            assert (other.denied, json.loads(other.denial)["error"]["code"]) == (403, "agent_mismatch")
            (await rig.dial("?agent=anna", authorization=bearer)).connect()
        free = (await rig.mint("full")).json()["value"]
        await rig.dial("?agent=anna", authorization=f"Bearer {free}")
        assert {record.agent for record in rig.gateway.switchboard.calls()} == {"anna"}
        await finish(rig)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "invalid_value", "expires_after.seconds"),
        ({"expires_after": {"seconds": 7_201}}, "invalid_value", "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "invalid_value", "expires_after.anchor"),
        ({"agent": 3}, "invalid_value", "agent"),
        ({"locked": "yes"}, "invalid_value", "locked"),
        ({"session": []}, "invalid_type", "session"),
        ({"session": {}}, "missing_required_parameter", "session.type"),
        ({"session": {"type": "transcription"}}, "transcription_sessions_not_supported", "session.type"),
        ({"session": {"type": "realtime", "instrctions": ""}}, "unknown_parameter", "session.instrctions"),
        ({"session": {**SESSION, "audio": {"output": {"voice": "x"}}}}, "unknown_voice", "session.audio.output.voice"),
    ],
)
@virtual
async def test_what_a_call_would_refuse_is_refused_when_the_secret_is_made(
    body: dict[str, Any], code: str, param: str
) -> None:
    async with browser_rig() as rig:
        response = await rig.mint(**body)
        assert code_of(response) == (400, code)
        assert response.json()["error"]["param"] == param
        assert len(rig.app.state.guard.secrets) == 0


@virtual
async def test_the_body_is_json_and_bounded() -> None:
    async with browser_rig() as rig:
        assert code_of(await rig.client.post(SECRETS, content=b"{")) == (400, "invalid_json")
        assert code_of(await rig.client.post(SECRETS, content=b'{"session":' + b"[" * 100_000)) == (400, "invalid_json")
        assert code_of(await rig.client.post(SECRETS, content=bytes(600_000))) == (413, "request_too_large")


@virtual
async def test_the_key_of_the_page_opens_calls_to_agents_and_nothing_else() -> None:
    async with browser_rig(settings=KEYED) as rig:
        include = {"type": "realtime", "include": ["offhook"]}
        for body, agent in (({}, "default"), ({"agent": "anna", "session": include}, "anna")):
            made = (await rig.mint("page", **body)).json()
            assert (made["session"]["agent"], made["locked"]) == (agent, True)
            assert "instructions" not in made["session"]
        for wanted, param in (({"session": SESSION}, "session"), ({"locked": False}, "locked")):
            response = await rig.mint("page", **wanted)
            assert code_of(response) == (403, "session_not_allowed")
            assert response.json()["error"]["param"] == param
        assert code_of(await rig.mint("wrong")) == (401, "invalid_api_key")
        assert code_of(await rig.mint()) == (401, "missing_api_key")
        assert code_of(await rig.offer(authorization="Bearer page")) == (403, "key_out_of_scope")
        for _ in range(9):
            await rig.mint("wrong")
        limited = await rig.mint("page")
        assert code_of(limited) == (429, "too_many_attempts")
        assert int(limited.headers["retry-after"]) >= 1
        assert (await rig.mint("full")).status_code == 200


@virtual
async def test_there_is_an_end_to_how_many_wait_to_be_used() -> None:
    async with browser_rig() as rig:
        rig.app.state.guard.secrets._max_secrets = 2
        await rig.secret()
        await rig.secret()
        full = await rig.mint()
        assert code_of(full) == (503, "too_many_client_secrets")
        assert "retry-after" in full.headers


def test_turn_credentials_are_those_of_the_turn_rest_api() -> None:
    media = MediaSettings(
        ice_servers=("stun:stun.example:3478", "turn:turn.example?transport=udp", "turns:turn.example"),
        turn_secret=SecretStr("hush"),
        advertised_ip="203.0.113.7",
        port_range="40000-40100",
    )
    settings = Settings(media=media, max_call_s=100, host="0.0.0.0")
    policy = media_policy(settings)
    stun, turn = policy.ice_servers
    assert (stun.urls, stun.username, stun.credential) == (("stun:stun.example:3478",), None, None)
    assert turn.urls == ("turn:turn.example?transport=udp", "turns:turn.example")
    assert turn.username is not None
    expiry, _, name = turn.username.partition(":")
    assert (name, abs(int(expiry) - time.time() - 115) < 5) == ("gateway", True)
    digest = hmac.new(b"hush", turn.username.encode(), hashlib.sha1).digest()
    assert turn.credential == base64.b64encode(digest).decode()
    assert (policy.advertised_ip, policy.port_range) == ("203.0.113.7", (40_000, 40_100))
    assert (policy.allow_private, policy.allow_loopback) == (False, False)
    home = media_policy(Settings())
    assert (home.allow_private, home.allow_loopback, home.ice_servers) == (True, True, ())
    said = Settings(media=MediaSettings(private_candidates=False, loopback_candidates=False))
    assert (media_policy(said).allow_private, media_policy(said).allow_loopback) == (False, False)


@virtual
async def test_the_page_gets_its_servers_with_credentials_for_as_long_as_its_call_can_last() -> None:
    media = MediaSettings(ice_servers=("turn:turn.example",), turn_secret=SecretStr("hush"))
    async with browser_rig(settings=Settings(preset="null", media=media, max_call_s=100)) as rig:
        made = (await rig.mint(expires_after={"seconds": 60})).json()
        (server,) = made["ice_servers"]
        assert server["urls"] == ["turn:turn.example"]
        expiry, _, name = server["username"].partition(":")
        assert int(expiry) == made["expires_at"] + 100
        assert len(name) == 16
        assert name not in made["value"]
