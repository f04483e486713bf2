"""What a console is told, by whose leave, and what an operator may do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import SecretStr

from gateway import console as console_module
from gateway.records.call_record import CallRecord, turn_view
from gateway.settings import Settings
from streaming.turn_times import TurnTimes
from tests.gateway.console_rig import calling, console
from tests.serving import Served, eventually, served

NULL = Settings(preset="null", max_calls=8)
LOCKED = Settings(
    preset="null", key=SecretStr("full"), page_key=SecretStr("page"), console_key=SecretStr("console"), max_calls=8
)
PATHS = [
    ("GET", "/console/events"),
    ("GET", "/console/calls"),
    ("GET", "/console/calls/call_1"),
    ("POST", "/console/calls/call_1/hangup"),
    ("POST", "/console/drain"),
]


@contextlib.asynccontextmanager
async def serving(settings: Settings = NULL) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    async with served(settings=settings) as here, httpx.AsyncClient(base_url=here.url, timeout=20) as client:
        yield here, client


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# --- who comes in -----------------------------------------------------------------------------------------------


async def test_the_page_is_open_and_what_it_shows_is_not() -> None:
    async with serving(LOCKED) as (here, client):
        assert (await client.get("/console")).status_code == 200
        for method, path in PATHS:
            assert code(await client.request(method, path)) == (401, "missing_api_key"), path
            for key, answer in (("wrong", (401, "invalid_api_key")), ("page", (403, "key_out_of_scope"))):
                headers = {"Authorization": f"Bearer {key}"}
                assert code(await client.request(method, path, headers=headers)) == answer, path
        assert not here.gateway.switchboard.draining


@pytest.mark.parametrize("key", ["console", "full"])
async def test_either_key_opens_it(key: str) -> None:
    async with serving(LOCKED) as (here, client):
        client.headers["authorization"] = f"Bearer {key}"
        async with calling(here.gateway) as call, console(client) as stream:
            assert (await stream.next())[0] == "snapshot"
            assert (await client.get(f"/console/calls/{call.id}")).status_code == 200
            assert (await client.get("/console/calls")).status_code == 200
            assert (await client.post(f"/console/calls/{call.id}/hangup")).status_code == 200


async def test_a_client_secret_opens_nothing_here() -> None:
    async with serving(LOCKED) as (_, client):
        client.headers["authorization"] = "Bearer full"
        secret = (await client.post("/v1/realtime/client_secrets", json={})).json()["value"]
        client.headers["authorization"] = f"Bearer {secret}"
        for method, path in PATHS:
            assert code(await client.request(method, path)) == (403, "client_secret_out_of_scope")


async def test_a_page_that_may_call_is_no_console() -> None:
    elsewhere = "https://shop.example"
    async with serving(Settings(preset="null", allowed_origins=(elsewhere,))) as (here, client):
        for method, path in PATHS:
            answer = await client.request(method, path, headers={"Origin": elsewhere})
            assert code(answer) == (403, "origin_not_allowed"), path
            answer = await client.request(method, path, headers={"Host": "rebound.example"})
            assert answer.status_code == 421, path
        assert not here.gateway.switchboard.draining
        assert (await client.get("/console/calls", headers={"Origin": here.url})).status_code == 200


# --- what is told -----------------------------------------------------------------------------------------------


async def test_first_all_then_what_changes() -> None:
    async with serving() as (here, client), calling(here.gateway) as call:
        call.record.say("i1", "user", "When are you open?", at_ms=800.0)
        async with console(client) as stream:
            event, told = await stream.next()
            assert event == "snapshot"
            assert told["server"] == {
                "stage": "open",
                "status": "ready",
                "reason": "",
                "live": 1,
                "limit": 8,
                "overload": 0,
                "preset": "null",
                "notice": here.gateway.notice,
                "drain_s": 30.0,
            }
            (row,) = told["calls"]
            assert (row["id"], row["state"], row["agent"]) == (call.id, "answered", "bakery")
            assert row["entries"][0]["text"] == "When are you open?"
            assert {backend["stage"] for backend in told["engines"]["backends"]} >= {"stt", "llm", "tts"}

            call.record.partly("i2", "assistant", "We are ", at_ms=1_500.0)
            call.record.partly("i2", "assistant", "open from eight to six.", at_ms=1_600.0)
            (row,) = (await stream.until(lambda told: "calls" in told))["calls"]
            assert [partial["text"] for partial in row["partials"]] == ["We are open from eight to six."]
            assert row["entries"] == []

            call.record.say("i2", "assistant", "We are open", cut=True, at_ms=2_000.0)
            call.record.settle("i2")
            call.record.turn(TurnTimes("r1", 1, False, first_sent_ms=640.0))
            (row,) = (await stream.until(lambda told: "calls" in told))["calls"]
            said = {"item_id": "i2", "role": "assistant", "text": "We are open", "cut": True, "at_ms": 1_500.0}
            assert row["entries"] == [said | {"unheard": "from eight to six."}]
            assert (row["partials"], row["turns"][0]["first_sent_ms"]) == ([], 640.0)

            call.record.forget("i1")
            (row,) = (await stream.until(lambda told: "calls" in told))["calls"]
            assert row["kept"] == ["i2"]


async def test_a_call_comes_and_goes() -> None:
    async with serving() as (here, client), console(client) as stream:
        assert (await stream.next())[1]["calls"] == []
        async with calling(here.gateway) as call:
            told = await stream.until(lambda told: "calls" in told)
            assert (told["calls"][0]["id"], told["server"]["live"]) == (call.id, 1)
        told = await stream.until(lambda told: "gone" in told)
        assert told["gone"] == [call.id]
        assert [(row["id"], row["cause"]) for row in told["calls"]] == [(call.id, "hung_up")]


async def test_a_quiet_server_sends_nothing_but_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "BEAT_S", 0.3)
    monkeypatch.setattr(console_module, "EVERY_S", 0.05)
    async with serving() as (here, client), calling(here.gateway), console(client) as stream:
        await stream.next()
        for _ in range(2):
            event, told = await stream.next()
            assert (event, set(told) - {"engines"}) == ("change", {"points"})
        assert stream.comments >= 1


async def test_many_changes_come_in_bounded_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.console_feed.MAX_CALLS_A_MESSAGE", 2)
    monkeypatch.setattr("gateway.console_feed.MAX_ENTRIES_A_CALL", 3)
    async with serving() as (here, client), contextlib.AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(calling(here.gateway)) for _ in range(5)]
        async with console(client) as stream:
            assert [row["id"] for row in (await stream.next())[1]["calls"]] == [calls[4].id, calls[3].id]
            seen = {calls[4].id, calls[3].id}
            while len(seen) < 5:
                told = await stream.until(lambda told: "calls" in told)
                assert len(told["calls"]) <= 2
                seen |= {row["id"] for row in told["calls"]}
            for number in range(9):
                calls[0].record.say(f"i{number}", "user", "words", at_ms=1.0)
            (row,) = (await stream.until(lambda told: "calls" in told))["calls"]
            assert ([entry["item_id"] for entry in row["entries"]], row["missed"]) == (["i6", "i7", "i8"], True)
            whole = (await client.get(f"/console/calls/{calls[0].id}")).json()
            assert len(whole["entries"]) == 9


async def test_what_is_told_of_long_calls_is_made_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 turns of a call, or thousands of calls, take longer than the audio of the others may wait."""
    made_in: list[str] = []

    def noted(turn: TurnTimes) -> dict[str, object]:
        made_in.append(threading.current_thread().name)
        return turn_view(turn)

    def noted_match(record: CallRecord, words: list[str]) -> bool:
        made_in.append(threading.current_thread().name)
        return matches(record, words)

    matches = console_module._matches
    monkeypatch.setattr("gateway.records.call_record.turn_view", noted)
    monkeypatch.setattr("gateway.console_feed.turn_view", noted)
    monkeypatch.setattr(console_module, "_matches", noted_match)
    async with serving() as (here, client):
        async with calling(here.gateway) as call:
            call.record.turn(TurnTimes("resp_1", 1, True, decision_ms=310.0))
        for path in (f"/v1/calls/{call.id}", f"/console/calls/{call.id}"):
            assert (await client.get(path)).json()["turns"][0]["decision_ms"] == 310.0
        assert [row["id"] for row in (await client.get("/console/calls?q=websocket")).json()["data"]] == [call.id]
    assert len(made_in) == 3
    assert threading.current_thread().name not in made_in


# --- bounds -----------------------------------------------------------------------------------------------------


async def test_no_more_consoles_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "MAX_CONSOLES", 2)
    async with serving() as (here, client):
        async with console(client), console(client):
            surplus = await client.get("/console/events")
            assert code(surplus) == (503, "too_many_consoles")
            assert surplus.headers["retry-after"]
        await eventually(lambda: here.gateway.consoles.open == 0)
        async with console(client) as stream:
            await stream.next()
        await eventually(lambda: here.gateway.consoles.open == 0)


async def test_a_closed_console_leaves_nothing() -> None:
    async with serving() as (here, client):
        before = len(asyncio.all_tasks())
        for _ in range(5):
            async with console(client) as stream:
                await stream.next()
        await eventually(lambda: here.gateway.consoles.open == 0 and len(asyncio.all_tasks()) <= before)


async def test_who_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "SLOW_S", 0.3)
    async with served(settings=NULL, send_buffer_bytes=4_096) as here, calling(here.gateway) as call:
        port = int(here.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
        writer.write(b"GET /console/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readline()
        # The kernel and the transport hold a few messages; then nobody waits for this reader any more.
        for number in range(2_000):
            if here.gateway.consoles.open == 0 and number > 10:
                break
            call.record.say(f"i{number % 20}", "user", f"{number} " + "words " * 2_000, at_ms=1.0)
            await asyncio.sleep(0.02)
        assert here.gateway.consoles.open == 0
        told = b"".join(here.gateway.metrics.exposition()).decode()
        assert 'offhook_events_total{name="console_dropped"} 1.0' in told
        writer.transport.abort()


# --- what an operator does --------------------------------------------------------------------------------------


async def test_an_operator_hangs_up_one_call() -> None:
    async with serving() as (here, client), calling(here.gateway) as other, calling(here.gateway) as call:
        assert code(await client.post("/console/calls/nobody/hangup")) == (404, "call_not_found")
        assert (await client.get(f"/console/calls/{call.id}/hangup")).status_code == 405
        assert (await client.post(f"/console/calls/{call.id}/hangup")).json()["cause"] == "operator_hung_up"
        await eventually(lambda: here.gateway.recent.find(call.id))
        assert (call.record.cause, other.record.state) == ("operator_hung_up", "answered")
        assert code(await client.post(f"/console/calls/{call.id}/hangup")) == (404, "call_not_found")


async def test_a_drain_is_seen_to_its_end() -> None:
    async with serving() as (here, client), calling(here.gateway) as call, console(client) as stream:
        await stream.next()
        answer = await client.post("/console/drain")
        assert (answer.status_code, answer.json()) == (202, {"draining": True, "calls": 1, "stops": False})
        assert (await client.post("/console/drain")).status_code == 202, "a second time changes nothing"
        told = await stream.until(lambda told: "server" in told)
        assert (told["server"]["stage"], told["server"]["status"]) == ("draining", "draining")
        call.hang_up("hung_up")
        while (event := await stream.next())[0] != "end":
            pass
        assert event[1] == {"reason": "drained"}
        with pytest.raises(StopAsyncIteration):
            await stream.next()


async def test_ended_calls_are_found_by_what_is_known_of_them() -> None:
    async with serving() as (here, client):
        ids = []
        for number, words in enumerate(["A birthday cake, please.", "When are you open?", "A cake for Sunday."]):
            async with calling(here.gateway) as call:
                call.record.say("i1", "user", words, at_ms=1.0)
                call.hang_up("connection_lost" if number == 1 else "hung_up")
                ids.append(call.id)

        async def found(**query: str) -> list[str]:
            return [row["id"] for row in (await client.get("/console/calls", params=query)).json()["data"]]

        assert await found() == ids[::-1]
        assert await found(q="CAKE") == [ids[2], ids[0]]
        assert await found(q="cake sunday") == [ids[2]]
        assert await found(q="connection_lost") == [ids[1]]
        assert await found(q="nothing like it") == []
        assert await found(after=ids[2]) == [ids[1], ids[0]]
        assert await found(after="gone") == []
        view = (await client.get(f"/console/calls/{ids[1]}")).json()
        assert (view["cause"], view["entries"][0]["text"]) == ("connection_lost", "When are you open?")
        assert code(await client.get("/console/calls/nobody")) == (404, "call_not_found")
