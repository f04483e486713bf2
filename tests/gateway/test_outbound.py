from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import structlog

from engines.api import Overload
from gateway.call_setup import CallNotSetUp
from gateway.outbound import Asked, DialFailed, place_call
from gateway.settings import Settings
from gateway.state import Gateway
from tests.gateway.fake_dialler import FakeDialler
from tests.serving import eventually, served

KEY = {"Authorization": "Bearer sesame"}
SETTINGS: dict[str, Any] = {
    "preset": "null",
    "max_calls": 4,
    "key": "sesame",
    "agents": {"sales": {}},
    "sip": {"trunks": {"carrier": {"server": "10.0.0.9:5070", "domain": "trunk.example.com", "user": "us"}}},
    "outbound": {
        "enabled": True,
        "allow": ["+1", "pbx.example.com"],
        "callers": ["+15550001111", "desk"],
    },
}


@dataclass
class Rig:
    client: httpx.AsyncClient
    gateway: Gateway
    dialler: FakeDialler

    async def post(self, to: str = "sip:bob@pbx.example.com", *, key: str | None = None, **body: Any) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key is not None else {}
        return await self.client.post("/v1/calls", json={"to": to, **body}, headers=headers)

    async def dial(self, to: str = "sip:bob@pbx.example.com", **body: Any) -> str:
        """Placed, and the dialler at work."""
        response = await self.post(to, **body)
        assert response.status_code == 201, response.text
        await eventually(lambda: len(self.dialler.outcomes) == len(self.dialler.dialled) and self.dialler.outcomes)
        call_id: str = response.json()["id"]
        await eventually(lambda: self.dialler.admissions[-1].call_id == call_id)
        return call_id

    async def show(self, call_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = (await self.client.get(f"/v1/calls/{call_id}")).json()
        return shown

    async def over(self) -> None:
        await eventually(lambda: not self.gateway.switchboard.live)


@contextlib.asynccontextmanager
async def rig(**outbound: Any) -> AsyncIterator[Rig]:
    settings = Settings.model_validate({**SETTINGS, "outbound": {**SETTINGS["outbound"], **outbound}})
    dialled_by: dict[int, FakeDialler] = {}
    async with (
        served(settings=settings, dialler=lambda gateway: dialled_by.setdefault(0, FakeDialler(gateway))) as here,
        httpx.AsyncClient(base_url=here.url, headers=KEY) as client,
    ):
        yield Rig(client, here.gateway, dialled_by.setdefault(0, FakeDialler(here.gateway)))


async def test_a_call_is_placed_rings_is_answered_and_ends() -> None:
    async with rig() as here:
        response = await here.post("+1 555 123 4567", agent="sales")
        placed = response.json()
        assert response.status_code == 201
        assert response.headers["location"] == f"/v1/calls/{placed['id']}"
        assert (placed["state"], placed["direction"], placed["agent"]) == ("dialling", "outbound", "sales")
        await eventually(lambda: here.dialler.outcomes)
        assert here.dialler.dialled == [("sip:+15551234567@trunk.example.com", "+15550001111", "sales", 30.0)]
        here.dialler.admissions[0].rings()
        assert (await here.show(placed["id"]))["state"] == "ringing"
        here.dialler.outcomes[0].set_result(None)
        await eventually(lambda: here.dialler.calls)
        shown = await here.show(placed["id"])
        assert (shown["state"], shown["direction"]) == ("answered", "outbound")
        here.dialler.calls[0].hang_up("caller_hung_up")
        await here.over()
        shown = await here.show(placed["id"])
        assert (shown["state"], shown["cause"], shown["direction"]) == ("ended", "caller_hung_up", "outbound")
        listed = (await here.client.get("/v1/calls")).json()["data"]
        assert [row["id"] for row in listed] == [placed["id"]]


@pytest.mark.parametrize("code", ["busy", "no_answer", "declined", "unreachable", "not_found", "forbidden", "failed"])
async def test_why_nobody_answered_is_the_cause(code: str) -> None:
    async with rig() as here:
        call_id = await here.dial()
        here.dialler.outcomes[0].set_result(DialFailed(code, 486))
        await here.over()
        shown = await here.show(call_id)
        assert (shown["state"], shown["cause"], shown["answered_ms"]) == ("ended", code, None)
        assert here.gateway.outbound.policy.left_s == 3_600


@pytest.mark.parametrize(
    ("error", "cause"), [(ZeroDivisionError(), "internal_error"), (CallNotSetUp(), "engine_failed")]
)
async def test_a_dialler_that_breaks_ends_its_call(error: Exception, cause: str) -> None:
    async with rig() as here:
        with structlog.testing.capture_logs() as logs:
            call_id = await here.dial()
            here.dialler.outcomes[0].set_result(error)
            await here.over()
        assert (await here.show(call_id))["cause"] == cause
        said = [line["event"] for line in logs if line["log_level"] == "error"]
        assert said == (["a placed call broke down"] if cause == "internal_error" else [])


async def test_a_defect_at_the_end_of_an_answered_call_is_logged() -> None:
    async with rig() as here:
        here.dialler.breaks = ZeroDivisionError()
        with structlog.testing.capture_logs() as logs:
            call_id = await here.dial()
            here.dialler.outcomes[0].set_result(None)
            await eventually(lambda: here.dialler.calls)
            here.dialler.calls[0].hang_up("caller_hung_up")
            await here.over()
        assert (await here.show(call_id))["cause"] == "caller_hung_up"
        assert "a placed call broke down" in [line["event"] for line in logs]


async def test_a_dialler_that_returns_nothing_is_no_answer() -> None:
    async with rig() as here:
        here.dialler.registers = False
        call_id = await here.dial()
        here.gateway.switchboard.load_changed(Overload.NONE)
        here.dialler.outcomes[0].set_result(None)
        await here.over()
        assert (await here.show(call_id))["cause"] == "internal_error"


async def test_what_is_hung_up_before_it_was_dialled_is_not_dialled() -> None:
    async with rig() as here:
        record = await place_call(here.gateway, here.dialler, Asked("sip:bob@pbx.example.com", "default"))
        placed = here.gateway.switchboard.find(record.id)
        assert placed is not None
        placed.hang_up("operator_hung_up")
        await here.over()
        assert here.dialler.dialled == []
        assert (record.cause, here.gateway.outbound.policy.left_s) == ("operator_hung_up", 3_600)


@pytest.mark.parametrize("path", ["/v1/calls/{}", "/v1/realtime/calls/{}"])
async def test_it_is_hung_up_while_it_rings(path: str) -> None:
    async with rig() as here:
        call_id = await here.dial()
        here.dialler.admissions[0].rings()
        response = await here.client.delete(path.format(call_id))
        assert response.status_code == 200
        await here.over()
        assert here.dialler.cancelled == 1
        cause = "operator_hung_up" if path == "/v1/calls/{}" else "caller_hung_up"
        assert (await here.show(call_id))["cause"] == cause
        again = await here.client.delete(f"/v1/calls/{call_id}")
        assert (again.status_code, again.json()["state"]) == (200, "ended")
        assert (await here.client.delete("/v1/calls/out_0_none")).status_code == 404


async def test_it_is_hung_up_once_it_is_answered() -> None:
    async with rig() as here:
        call_id = await here.dial()
        here.dialler.outcomes[0].set_result(None)
        await eventually(lambda: here.dialler.calls)
        await here.client.delete(f"/v1/calls/{call_id}")
        await here.over()
        assert here.dialler.cancelled == 0
        assert (await here.show(call_id))["cause"] == "operator_hung_up"


async def test_who_answers_in_the_moment_of_the_hang_up_is_hung_up_too() -> None:
    async with rig() as here:
        here.dialler.answers_anyway = True
        call_id = await here.dial()
        await here.client.delete(f"/v1/calls/{call_id}")
        await here.over()
        assert [call.record.cause for call in here.dialler.calls] == ["operator_hung_up"]
        assert (await here.show(call_id))["cause"] == "operator_hung_up"


async def test_its_time_is_limited() -> None:
    async with rig() as here:
        call_id = await here.dial()
        placed: Any = here.gateway.switchboard.find(call_id)
        placed._ticket.limit_s = 0.05
        here.dialler.outcomes[0].set_result(None)
        await here.over()
        assert (await here.show(call_id))["cause"] == "outbound_limit"
        assert here.gateway.outbound.policy.left_s < 3_600


async def test_a_drain_ends_what_rings() -> None:
    async with rig() as here:
        call_id = await here.dial()
        await here.gateway.switchboard.drain(5)
        assert here.dialler.cancelled == 1
        assert (await here.show(call_id))["cause"] == "server_drain"
        refused = await here.post("sip:carol@pbx.example.com")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert len(here.gateway.outbound.policy._begun) == 1


async def test_the_server_that_stops_ends_what_rings() -> None:
    async with rig() as here:
        await here.dial()
        await here.gateway.desk.close()
        assert here.dialler.cancelled == 1
        assert next(iter(here.gateway.recent)).cause == "server_stop"


async def test_the_server_that_stops_ends_who_answered() -> None:
    async with rig() as here:
        await here.dial()
        here.dialler.outcomes[0].set_result(None)
        await eventually(lambda: here.dialler.calls)
        await here.gateway.desk.close()
        assert next(iter(here.gateway.recent)).cause == "server_stop"


async def test_no_place_is_no_call_and_costs_nothing() -> None:
    async with rig() as here, contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            stack.enter_context(await here.gateway.switchboard.admit())
        response = await here.post()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
        assert response.headers["retry-after"] == "5"
        assert not here.gateway.outbound.policy._begun


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"to": "sip:bob@elsewhere.example.com"}, 403, "destination_not_allowed"),
        ({"to": "+19005551234"}, 403, "premium_rate"),
        ({"to": "bob"}, 400, "bad_destination"),
        ({"to": "5551234567"}, 400, "bad_destination"),
        ({"to": "tel:5551234567"}, 400, "not_e164"),
        ({"to": "sip:bob@pbx.example.com", "agent": "nobody"}, 404, "unknown_agent"),
        ({"to": "sip:bob@pbx.example.com", "caller": "+15559999999"}, 403, "caller_not_allowed"),
        ({"to": "sip:bob@pbx.example.com", "ring_s": 0}, 400, "invalid_value"),
        ({"to": "sip:bob@pbx.example.com", "agnet": "sales"}, 400, "invalid_value"),
        ({"to": ""}, 400, "invalid_value"),
        ({}, 400, "invalid_value"),
        ([], 400, "invalid_value"),
    ],
)
async def test_every_refusal_has_a_code(body: Any, status: int, code: str) -> None:
    async with rig() as here:
        response = await here.client.post("/v1/calls", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert here.gateway.switchboard.live == 0
        assert here.dialler.dialled == []


async def test_what_is_no_request_is_refused() -> None:
    async with rig() as here:
        bad = await here.client.post("/v1/calls", content=b"{")
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_json")
        large = await here.client.post("/v1/calls", content=b" " * 9_000)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        long = await here.post(key="k" * 256)
        assert long.json()["error"]["code"] == "invalid_idempotency_key"
        unknown = await here.client.post("/v1/calls", json={"to": "x"}, headers={"Authorization": "Bearer no"})
        assert unknown.status_code == 401


async def test_a_bound_says_when_to_come_again() -> None:
    async with rig(max_calls=1) as here:
        call_id = await here.dial()
        response = await here.post("sip:carol@pbx.example.com")
        assert (response.status_code, response.json()["error"]["code"]) == (429, "outbound_busy")
        assert response.headers["retry-after"] == "5"
        await here.client.delete(f"/v1/calls/{call_id}")


async def test_it_is_off_by_default_and_needs_sip_and_a_key() -> None:
    for settings, code in (
        ({"key": "sesame"}, "outbound_disabled"),
        ({"outbound": SETTINGS["outbound"]}, "outbound_needs_key"),
        ({"key": "sesame", "outbound": SETTINGS["outbound"]}, "sip_disabled"),
    ):
        async with (
            served(settings=Settings.model_validate({"preset": "null", **settings}), dialler=lambda _: None) as here,
            httpx.AsyncClient(base_url=here.url, headers=KEY) as client,
        ):
            response = await client.post("/v1/calls", json={"to": "sip:bob@pbx.example.com"})
            assert (response.status_code, response.json()["error"]["code"]) == (403, code)


async def test_who_calls_may_be_chosen_among_those_allowed_and_ringing_be_cut_short() -> None:
    async with rig() as here:
        await here.dial(caller="desk", ring_s=1)
        assert here.dialler.dialled == [("sip:bob@pbx.example.com", "desk", "default", 1)]
        await here.over()
        assert next(iter(here.gateway.recent)).cause == "no_answer"


async def test_a_request_sent_again_places_no_second_call() -> None:
    async with rig() as here:
        first, again = await asyncio.gather(here.post(key="a"), here.post(key="a"))
        assert sorted((first.status_code, again.status_code)) in ([201, 201], [201, 409])
        once_more = await here.post(key="a")
        assert once_more.status_code == 201
        assert once_more.headers["idempotency-replayed"] == "true"
        await eventually(lambda: here.dialler.outcomes)
        assert len(here.dialler.dialled) == 1
        other = await here.post("sip:carol@pbx.example.com", key="a")
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
        here.dialler.outcomes[0].set_result(DialFailed("busy", 486))
        await here.over()
        ended = await here.post(key="a")
        assert (ended.json()["state"], ended.json()["cause"]) == ("ended", "busy")


async def test_a_refused_request_may_be_sent_again() -> None:
    async with rig(max_calls=1) as here:
        call_id = await here.dial()
        assert (await here.post("sip:carol@pbx.example.com", key="b")).status_code == 429
        await here.client.delete(f"/v1/calls/{call_id}")
        await here.over()
        assert (await here.post("sip:carol@pbx.example.com", key="b")).status_code == 201
        await eventually(lambda: len(here.dialler.outcomes) == 2)
        here.dialler.outcomes[1].set_result(DialFailed("busy"))


async def test_the_audit_log_says_what_was_done_and_no_number_in_clear() -> None:
    async with rig() as here:
        with structlog.testing.capture_logs() as logs:
            await here.dial("+15551234567")
            here.dialler.outcomes[0].set_result(None)
            await eventually(lambda: here.dialler.calls)
            here.dialler.calls[0].hang_up("caller_hung_up")
            await here.over()
            await here.post("+19005551234")
        events = {line["event"]: line for line in logs}
        placed, ended = events["a call is placed"], events["a placed call ended"]
        assert (placed["destination"], placed["shown_as"], placed["source"]) == ("+155…67", "+155…11", "127.0.0.1")
        assert (ended["cause"], ended["answered"]) == ("caller_hung_up", True)
        assert events["a call is not placed"]["code"] == "premium_rate"
        metrics = (await here.client.get("/metrics")).text
        assert 'offhook_calls_refused_total{reason="premium_rate"} 1.0' in metrics
        assert 'offhook_events_total{name="outbound_placed"} 1.0' in metrics
        assert "5551234" not in str(logs)
        assert "5550001111" not in str(logs)


async def test_the_log_has_the_status_that_a_call_was_refused_with() -> None:
    async with rig() as here:
        with structlog.testing.capture_logs() as logs:
            await here.dial()
            here.dialler.outcomes[0].set_result(DialFailed("failed", 488))
            await here.over()
        (ended,) = [line for line in logs if line["event"] == "a placed call ended"]
        assert (ended["cause"], ended["status"], ended["answered"]) == ("failed", 488, False)
