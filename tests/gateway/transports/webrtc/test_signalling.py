"""Calls over HTTP: every way to ask for one, every answer, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import structlog
from pydantic import SecretStr

from engines.api import EngineHealth, Overload
from gateway.http_body import BODY_S
from gateway.settings import Settings
from gateway.transports.webrtc.call_task import ANSWER_S
from gateway.transports.webrtc.offer import MAX_SDP_BYTES, BadOffer
from gateway.transports.webrtc.peer import NoMediaPort
from gateway.transports.webrtc.signalling import MAX_FORM_BYTES
from tests.gateway.call_rig import Engines
from tests.gateway.transports.webrtc.browser_rig import (
    ANNA,
    ANSWER,
    CALLS,
    OFFER,
    SDP,
    Browser,
    Rig,
    browser_rig,
    code_of,
    hang_up,
)
from tests.virtual_time import virtual

KEYED = Settings(preset="null", max_calls=4, key=SecretStr("full"), page_key=SecretStr("page"), agents={"anna": ANNA})
SESSION = {"type": "realtime", "instructions": "Rhyme."}


def form(boundary: str = "xyz", **parts: str) -> tuple[bytes, dict[str, str]]:
    """As ``fetch`` sends a ``FormData`` of strings."""
    body = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in parts.items()
    )
    return f"{body}--{boundary}--\r\n".encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


async def session_of(browser: Browser) -> dict[str, Any]:
    browser.come()
    session: dict[str, Any] = (await browser.expect("session.created"))["session"]
    return session


async def finish(rig: Rig) -> None:
    for browser in rig.browsers:
        if browser.closed_at is None:
            await hang_up(rig, browser)


@virtual
async def test_an_offer_alone() -> None:
    async with browser_rig() as rig:
        response = await rig.offer("?model=gpt-realtime&agent=anna")
        assert (response.status_code, response.text) == (201, ANSWER)
        assert response.headers["content-type"] == "application/sdp"
        assert response.headers["location"] == f"{CALLS}/{next(iter(rig.gateway.switchboard.calls())).id}"
        assert rig.browsers[0].offer == OFFER
        session = await session_of(rig.browsers[0])
        assert (session["model"], session["instructions"]) == ("gpt-realtime", "Be brief.")
        await finish(rig)


@virtual
async def test_a_form_of_offer_and_session() -> None:
    async with browser_rig() as rig:
        body, headers = form(sdp=OFFER, session=json.dumps({**SESSION, "model": "m", "agent": "anna"}))
        assert (await rig.client.post(CALLS, content=body, headers=headers)).status_code == 201
        # As the openai package sends it: with content types, and a quoted boundary.
        body = (
            b"--a b\r\nContent-Disposition: form-data; name=sdp\r\nContent-Type: application/sdp\r\n\r\n"
            + OFFER.encode()
        ) + b'\r\n--a b\r\ncontent-disposition: form-data;name="session"\r\n\r\n{"type":"realtime"}\r\n--a b--'
        headers = {"content-type": 'multipart/form-data; boundary="a b"'}
        assert (await rig.client.post(CALLS, content=body, headers=headers)).status_code == 201
        body, headers = form(sdp=OFFER)
        assert (await rig.client.post(CALLS + "?model=q", content=body, headers=headers)).status_code == 201
        assert [browser.offer for browser in rig.browsers] == [OFFER] * 3
        sessions = [await session_of(browser) for browser in rig.browsers]
        assert [(s["model"], s["instructions"]) for s in sessions[:1]] == [("m", "Rhyme.")]
        assert [s["model"] for s in sessions[1:]] == ["offhook", "q"]
        agents = {record.agent for record in rig.gateway.switchboard.calls()}
        assert agents == {"anna", None}
        await finish(rig)


@pytest.mark.parametrize(
    ("body", "kind", "answer"),
    [
        (OFFER, "", (415, "unsupported_media_type")),
        (OFFER, "text/plain", (415, "unsupported_media_type")),
        (OFFER, "application/json", (415, "unsupported_media_type")),
        (OFFER, "multipart/form-data", (415, "unsupported_media_type")),
        ("x" * (MAX_SDP_BYTES + 1), "application/sdp", (413, "request_too_large")),
        ("x" * (MAX_FORM_BYTES + 1), "multipart/form-data; boundary=x", (413, "request_too_large")),
        (b"v=0\xff", "application/sdp", (400, "bad_sdp")),
        (OFFER, "multipart/form-data; boundary=x", (400, "invalid_form")),
        ("--x\r\n--x--", "multipart/form-data; boundary=x", (400, "invalid_form")),
        ("--x\r\n\r\n\r\nhm\r\n--x--", "multipart/form-data; boundary=x", (400, "invalid_form")),
        (form("x", **{f"p{n}": "" for n in range(9)})[0], "multipart/form-data; boundary=x", (400, "invalid_form")),
        (form("x", session="{}")[0], "multipart/form-data; boundary=x", (400, "missing_required_parameter")),
        (form("x", sdp=OFFER, session="{")[0], "multipart/form-data; boundary=x", (400, "invalid_json")),
        (form("x", sdp=OFFER, session="[1]")[0], "multipart/form-data; boundary=x", (400, "invalid_type")),
        (form("x", sdp=OFFER, session="{}")[0], "multipart/form-data; boundary=x", (400, "missing_required_parameter")),
        (
            form("x", sdp=OFFER, session='{"type":"realtime","agent":1}')[0],
            "multipart/form-data; boundary=x",
            (400, "invalid_type"),
        ),
        (
            form("x", sdp=OFFER, session='{"type":"realtime","voice":"x"}')[0],
            "multipart/form-data; boundary=x",
            (400, "unknown_parameter"),
        ),
    ],
)
@virtual
async def test_what_is_no_offer(body: str | bytes, kind: str, answer: tuple[int, str]) -> None:
    async with browser_rig() as rig:
        headers = {"content-type": kind} if kind else {}
        response = await rig.client.post(CALLS, content=body, headers=headers)
        assert code_of(response) == answer
        assert rig.causes == []


@virtual
async def test_a_body_without_a_length_is_bounded_while_it_is_read() -> None:
    async with browser_rig() as rig:
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            while True:
                sent += 1
                yield b"x" * 10_000

        response = await rig.client.post(CALLS, content=endless(), headers=SDP)
        assert code_of(response) == (413, "request_too_large")
        assert sent < 10


@virtual
async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with browser_rig() as rig:

        async def slow() -> Any:
            while True:
                yield b"x"
                await asyncio.sleep(1)

        begun = Browser.now()
        response = await rig.client.post(CALLS, content=slow(), headers=SDP)
        assert code_of(response) == (408, "request_timeout")
        assert Browser.now() - begun == pytest.approx(BODY_S)


@pytest.mark.parametrize(
    ("fails", "answer"),
    [
        (lambda: BadOffer("no_opus", "no Opus"), (400, "no_opus")),
        (lambda: BadOffer("too_large", "too many lines"), (413, "too_large")),
        (lambda: NoMediaPort("none is left"), (503, "no_media_port")),
        (TimeoutError, (503, "answer_timeout")),
    ],
)
@virtual
async def test_an_offer_that_cannot_be_answered_costs_neither_place_nor_secret(
    fails: Callable[[], Exception], answer: tuple[int, str]
) -> None:
    async with browser_rig(settings=Settings(preset="null", max_calls=1)) as rig:
        value = await rig.secret()
        rig.fault = fails()
        begun = Browser.now()
        response = await rig.offer(authorization=f"Bearer {value}")
        assert code_of(response) == answer
        assert ("retry-after" in response.headers) == (answer[0] == 503)
        assert Browser.now() - begun == (ANSWER_S if fails is TimeoutError else 0)
        await rig.browsers[0].gone()
        rig.fault = None
        await rig.dial(authorization=f"Bearer {value}")
        await finish(rig)
        assert len(rig.causes) == 1


@virtual
async def test_who_is_not_there_cannot_be_called() -> None:
    async with browser_rig() as rig:
        assert code_of(await rig.offer("?agent=nobody")) == (404, "unknown_agent")
        assert code_of(await rig.mint(agent="nobody")) == (404, "unknown_agent")


@virtual
async def test_no_place_no_call() -> None:
    engines = Engines()
    async with browser_rig(engines, Settings(preset="null", max_calls=1)) as rig:
        await rig.dial()
        value = await rig.secret()
        for _ in range(3):
            response = await rig.offer(authorization=f"Bearer {value}")
            assert (code_of(response), response.headers["retry-after"]) == ((503, "busy"), "5")
        await finish(rig)
        board = rig.gateway.switchboard
        healths: list[tuple[str, EngineHealth]] = [
            ("overloaded", EngineHealth(healthy=True, overload=Overload.REFUSE_CALLS)),
            ("engines_down", EngineHealth(healthy=False, takes_calls=False)),
        ]
        known = board._health
        for code, health in healths:
            board._health = lambda health=health: health  # type: ignore[misc]
            response = await rig.offer(authorization=f"Bearer {value}")
            assert (code_of(response), response.headers["retry-after"]) == ((503, code), "5")
        board._health = known
        opens, engines.vad.open = engines.vad.open, None
        with structlog.testing.capture_logs():
            assert code_of(await rig.offer(authorization=f"Bearer {value}")) == (503, "engine_failed")
        engines.vad.open = opens
        await rig.browsers[-1].gone()
        await rig.dial(authorization=f"Bearer {value}")
        await finish(rig)
        await board.drain(0)
        response = await rig.offer()
        assert (code_of(response), response.headers["retry-after"]) == ((503, "draining"), "30")


@virtual
async def test_who_opened_a_call_may_end_it_and_no_other() -> None:
    async with browser_rig(settings=KEYED) as rig:
        mine, other = [(await rig.mint("page", agent="anna")).json()["value"] for _ in range(2)]
        bearer = {"authorization": f"Bearer {mine}"}
        for way in ("bearer", "beacon", "delete"):
            rig.client.headers["authorization"] = "Bearer full"
            mine = await rig.secret()
            del rig.client.headers["authorization"]
            bearer = {"authorization": f"Bearer {mine}"}
            location = (await rig.offer(**bearer)).headers["location"]
            browser = rig.browsers[-1]
            browser.come()
            await browser.expect("session.created")
            where = f"{location}/hangup"
            assert code_of(await rig.client.post(where)) == (401, "missing_api_key")
            assert code_of(await rig.client.post(where, content=b"{nonsense")) == (401, "missing_api_key")
            assert code_of(await rig.client.post(where, json={"client_secret": "full"})) == (401, "missing_api_key")
            assert code_of(await rig.client.post(where, content=bytes(5_000))) == (413, "request_too_large")
            assert code_of(await rig.client.post(where, json={"client_secret": other})) == (404, "call_not_found")
            assert code_of(await rig.client.post(where, headers={"authorization": "Bearer page"}))[0] == 403
            assert rig.gateway.switchboard.live == 1
            match way:
                case "bearer":
                    ended = await rig.client.post(where, headers=bearer)
                case "beacon":
                    ended = await rig.client.post(where, content=json.dumps({"client_secret": mine}))
                case _:
                    ended = await rig.client.delete(location, headers=bearer)
            assert (ended.status_code, ended.content) == (200, b"")
            await browser.gone()
            assert (await rig.client.post(where, headers=bearer)).status_code == 200
            assert (await rig.client.post(where, json={"client_secret": mine})).status_code == 200
            assert (await rig.client.post(where, headers={"authorization": "Bearer full"})).status_code == 200
            assert code_of(await rig.client.post(where)) == (401, "missing_api_key")
            assert code_of(await rig.client.post(where, json={"client_secret": other})) == (404, "call_not_found")
            assert code_of(await rig.client.post(where, headers={"authorization": "Bearer page"}))[0] == 403
        unknown = f"{CALLS}/rtc_0_none/hangup"
        assert code_of(await rig.client.post(unknown, headers=bearer)) == (404, "call_not_found")
        assert rig.causes == ["caller_hung_up"] * 3


@virtual
async def test_the_key_ends_any_call() -> None:
    async with browser_rig(settings=KEYED) as rig:
        rig.client.headers["authorization"] = "Bearer full"
        response = await rig.offer()
        assert (await rig.client.post(response.headers["location"] + "/hangup")).status_code == 200
        await rig.browsers[0].gone()
        assert (await rig.client.delete(response.headers["location"])).status_code == 200
        assert code_of(await rig.client.post(f"{CALLS}/rtc_0_none/hangup")) == (404, "call_not_found")
        assert code_of(await rig.client.delete(f"{CALLS}/rtc_0_none")) == (404, "call_not_found")
        assert code_of(await rig.client.get(CALLS)) == (405, "method_not_allowed")


@virtual
async def test_a_client_that_leaves_before_its_answer_leaves_nothing() -> None:
    async with browser_rig(settings=Settings(preset="null", max_calls=1)) as rig:
        rig.fault = TimeoutError()
        value = await rig.secret()
        asking = asyncio.create_task(rig.offer(authorization=f"Bearer {value}"))
        await asyncio.sleep(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await rig.browsers[0].gone()
        rig.fault = None
        await rig.dial(authorization=f"Bearer {value}")
        await finish(rig)


# --- pages of another origin ----------------------------------------------------------------------------------

FRIEND = "https://friend.example"


@virtual
async def test_a_page_of_an_allowed_origin_can_call() -> None:
    settings = Settings(preset="null", max_calls=2, key=SecretStr("full"), allowed_origins=(FRIEND,))
    async with browser_rig(settings=settings) as rig:
        asked = {
            "origin": FRIEND,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-openai-agents-sdk",
        }
        for path in (CALLS, f"{CALLS}/rtc_1/hangup", f"{CALLS}/rtc_1", "/v1/realtime/client_secrets"):
            response = await rig.client.options(path, headers=asked)
            assert response.status_code == 204
            assert response.headers["access-control-allow-origin"] == FRIEND
            assert response.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
            assert "DELETE" in response.headers["access-control-allow-methods"]
        placed = await rig.offer(origin=FRIEND, authorization="Bearer full")
        assert placed.headers["access-control-allow-origin"] == FRIEND
        assert "Location" in placed.headers["access-control-expose-headers"]
        assert "Origin" in placed.headers["vary"]
        refused = await rig.offer(origin=FRIEND)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, FRIEND)
        strange = await rig.client.options(CALLS, headers={**asked, "access-control-request-headers": "a\x0bb"})
        assert "access-control-allow-headers" not in strange.headers
        await finish(rig)


@virtual
async def test_a_page_of_another_origin_can_not() -> None:
    settings = Settings(preset="null", max_calls=2, allowed_origins=(FRIEND,))
    async with browser_rig(settings=settings) as rig:
        evil = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        responses: list[httpx.Response] = [
            await rig.client.options(CALLS, headers=evil),
            await rig.offer(origin="https://evil.example"),
            await rig.client.options("/v1/calls", headers={**evil, "origin": FRIEND}),
            await rig.client.get("/v1/calls", headers={"origin": FRIEND}),
        ]
        assert [response.status_code for response in responses] == [403, 403, 405, 200]
        assert not any("access-control-allow-origin" in response.headers for response in responses)
