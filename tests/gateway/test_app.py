from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette

import gateway.app
from engines.api import HEALTHY, EngineError, EngineHealth, EngineSet, HostHealth, Overload
from engines.opening import open_engines
from engines.registry import Lineup, find_lineup
from gateway.app import Startup, create_app
from gateway.records.call_record import CallRecord
from gateway.settings import AgentSettings, ConfigurationError, Settings
from gateway.state import Gateway
from gateway.transports.webrtc.peers import warm_tls
from streaming.turn_times import TurnTimes

NULL = Settings(preset="null", max_calls=2)


@contextlib.asynccontextmanager
async def serving(app: Starlette, *, base: str = "http://127.0.0.1:8080") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=base) as client:
        yield client


async def settled(app: Starlette) -> Startup:
    startup: Startup = app.state.startup
    async with asyncio.timeout(10):
        await startup.settled.wait()
    return startup


@contextlib.asynccontextmanager
async def warm(settings: Settings = NULL) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    app = create_app(settings)
    async with serving(app) as client:
        assert (await settled(app)).error is None
        yield client, app.state.gateway


async def test_the_first_call_finds_its_tls_warm_and_the_loop_did_not_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def warmed() -> None:
        warm_tls()
        threads.append(threading.get_ident())

    monkeypatch.setattr(gateway.app, "warm_tls", warmed)
    async with warm():
        assert len(threads) == 1
        assert threads != [threading.get_ident()]


class SlowEngines:
    """Engines whose loading the test ends."""

    def __init__(self) -> None:
        self.may_load = asyncio.Event()
        self.fault: Exception | None = None
        self.closed = False

    @contextlib.asynccontextmanager
    async def open(self, lineup: Lineup, **_: Any) -> AsyncIterator[EngineSet]:
        try:
            await self.may_load.wait()
            if self.fault is not None:
                raise self.fault
            async with open_engines(lineup) as engines:
                yield engines
        finally:
            self.closed = True


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowEngines]:
    engines = SlowEngines()
    monkeypatch.setattr(gateway.app, "open_engines", engines.open)
    yield engines
    assert engines.closed


async def status_of(client: httpx.AsyncClient, path: str) -> tuple[int, str]:
    response = await client.get(path)
    body = response.json()
    return response.status_code, body["status"] if "status" in body else body["error"]["code"]


async def test_while_engines_load_it_is_live_and_not_ready(slow: SlowEngines) -> None:
    app = create_app(NULL)
    async with serving(app) as client:
        assert await status_of(client, "/livez") == (200, "live")
        assert await status_of(client, "/readyz") == (503, "warming")
        assert await status_of(client, "/v1/calls") == (503, "warming")
        assert (await client.get("/")).status_code == 200
        slow.may_load.set()
        await settled(app)
        assert await status_of(client, "/readyz") == (200, "ready")
        assert (await client.get("/v1/calls")).status_code == 200


async def test_a_stop_while_engines_load_ends_the_loading(slow: SlowEngines) -> None:
    app = create_app(NULL)
    async with serving(app):
        await asyncio.sleep(0)
    assert app.state.startup.error is None
    assert app.state.gateway is None


@pytest.mark.parametrize("fault", [EngineError("out_of_memory", "no room"), ZeroDivisionError("oops")])
async def test_engines_that_do_not_load_leave_their_error(slow: SlowEngines, fault: Exception) -> None:
    slow.fault = fault
    slow.may_load.set()
    app = create_app(NULL)
    async with serving(app) as client:
        assert (await settled(app)).error is fault
        assert await status_of(client, "/readyz") == (503, "warming")


async def test_engines_that_were_given_are_used_and_a_voice_nobody_speaks_is_refused() -> None:
    from engines.opening import open_preset

    async with open_preset("null") as engines:
        app = create_app(NULL, engines)
        async with serving(app):
            await settled(app)
            assert app.state.gateway.engines is engines
        app = create_app(Settings(agents={"anna": AgentSettings(voice="nobody")}), engines)
        async with serving(app):
            error = (await settled(app)).error
            assert isinstance(error, ConfigurationError)
            assert error.code == "unknown_voice"


def test_a_voice_that_no_engine_of_the_preset_has_is_refused_before_any_is_loaded() -> None:
    with pytest.raises(ConfigurationError, match="it has tone") as caught:
        create_app(Settings(preset="null", agents={"anna": AgentSettings(voice="nobody")}))
    assert caught.value.code == "unknown_voice"


async def test_while_draining_it_is_not_ready() -> None:
    async with warm() as (client, running):
        await running.switchboard.drain(0)
        assert await status_of(client, "/readyz") == (503, "draining")
        assert await status_of(client, "/livez") == (200, "live")


async def test_everything_but_health_is_behind_the_key() -> None:
    async with warm(Settings(preset="null", key=SecretStr("sesame"))) as (client, _):
        for path in ("/livez", "/readyz", "/"):
            assert (await client.get(path)).status_code == 200
        for path in ("/metrics", "/v1/calls", "/v1/calls/x", "/v1/realtime", "/nowhere"):
            assert await status_of(client, path) == (401, "missing_api_key")
        client.headers["authorization"] = "Bearer sesame"
        assert (await client.get("/metrics")).status_code == 200
        assert await status_of(client, "/nowhere") == (404, "not_found")


async def test_other_origins_are_refused_on_loopback_too() -> None:
    async with warm() as (client, _):
        client.headers["origin"] = "https://evil.example"
        assert await status_of(client, "/v1/calls") == (403, "origin_not_allowed")
        assert await status_of(client, "/livez") == (200, "live")


async def refused_upgrade(app: Starlette, *, extensions: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": "websocket",
        "scheme": "ws",
        "path": "/v1/realtime",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"origin", b"https://evil.example")],
        "subprotocols": [],
        "extensions": extensions,
    }
    await app(scope, receive, send)
    return sent


async def test_a_websocket_is_refused_before_the_upgrade() -> None:
    app = create_app(NULL)
    answer = await refused_upgrade(app, extensions={"websocket.http.response": {}})
    assert (answer[0]["type"], answer[0]["status"]) == ("websocket.http.response.start", 403)
    closed = await refused_upgrade(app, extensions={})
    assert closed == [{"type": "websocket.close", "code": 1008, "reason": "origin_not_allowed"}]


async def test_errors_are_json() -> None:
    async with warm() as (client, running):
        assert await status_of(client, "/nowhere") == (404, "not_found")
        assert await status_of(client, "/v1/calls/nope") == (404, "call_not_found")
        refused = await client.put("/v1/calls")
        assert refused.status_code == 405
        assert refused.json()["error"]["code"] == "method_not_allowed"
        assert "GET" in refused.headers["allow"]

        def fail() -> Iterator[bytes]:
            raise ZeroDivisionError

        running.metrics.exposition = fail  # type: ignore[method-assign]
        assert await status_of(client, "/metrics") == (500, "internal_error")


class QuietCall:
    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.record = CallRecord(id=call_id, transport="websocket", agent="default", started_at=datetime.now(UTC))
        self.finished = asyncio.Event()

    def drain(self) -> None: ...

    def hang_up(self, cause: str) -> None: ...

    def load_changed(self, overload: Overload) -> None: ...


async def place(running: Gateway, stack: contextlib.ExitStack) -> QuietCall:
    admission = stack.enter_context(await running.switchboard.admit())
    call = QuietCall(admission.call_id)
    running.switchboard.register(admission, call)
    return call


async def test_calls_are_listed_live_first_and_page_by_page() -> None:
    async with warm() as (client, running):
        assert (await client.get("/v1/calls")).json() == {
            "object": "list",
            "data": [],
            "has_more": False,
            "last_id": None,
        }
        ended: list[str] = []
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                ended.append((await place(running, stack)).id)
        with contextlib.ExitStack() as stack:
            live = [(await place(running, stack)).id for _ in range(2)]
            expected = [*reversed(live), *reversed(ended)]
            page = (await client.get("/v1/calls", params={"limit": 3})).json()
            assert [row["id"] for row in page["data"]] == expected[:3]
            assert page["has_more"]
            rest = (await client.get("/v1/calls", params={"limit": 3, "after": page["last_id"]})).json()
            assert [row["id"] for row in rest["data"]] == expected[3:]
            assert not rest["has_more"]


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "", "1e2", "٣", "9" * 5_000])
async def test_a_limit_that_is_none(limit: str) -> None:
    async with warm() as (client, _):
        response = await client.get("/v1/calls", params={"limit": limit})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_limit")


@pytest.mark.parametrize("limit", ["1", "200", "007"])
async def test_a_limit_that_is_one(limit: str) -> None:
    async with warm() as (client, _):
        assert (await client.get("/v1/calls", params={"limit": limit})).status_code == 200


async def test_a_cursor_that_is_gone() -> None:
    async with warm() as (client, _):
        assert await status_of(client, "/v1/calls?after=call_x") == (400, "unknown_cursor")


async def test_one_call_while_it_lives_and_after() -> None:
    async with warm() as (client, running):
        with contextlib.ExitStack() as stack:
            call = await place(running, stack)
            call.record.answered(3.0)
            call.record.say("item_1", "user", "hello", at_ms=700.0)
            call.record.turn(TurnTimes("resp_1", 1, True, decision_ms=310.0))
            view = (await client.get(f"/v1/calls/{call.id}")).json()
            assert (view["state"], view["turn_count"]) == ("answered", 1)
            assert view["transcript"] == [
                {"item_id": "item_1", "role": "user", "text": "hello", "cut": False, "at_ms": 700.0}
            ]
            assert view["turns"][0]["decision_ms"] == 310.0
            call.record.ended("hung_up", 9_000.0)
        view = (await client.get(f"/v1/calls/{call.id}")).json()
        assert (view["state"], view["cause"]) == ("ended", "hung_up")


async def test_metrics_tell_of_places() -> None:
    async with warm() as (client, running):
        with contextlib.ExitStack() as stack:
            await place(running, stack)
            response = await client.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain")
            assert "offhook_calls_live 1.0" in response.text
            assert "offhook_calls_limit 2.0" in response.text
            assert "offhook_ready 1.0" in response.text


# --- how the engines are ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def with_health(health: Callable[[], EngineHealth]) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    async with open_engines(find_lineup("null")) as engines:
        app = create_app(NULL, dataclasses.replace(engines, health=health))
        async with serving(app) as client:
            await settled(app)
            yield client, app.state.gateway


async def test_it_is_not_ready_while_engines_are_not_and_says_why() -> None:
    now = HEALTHY
    async with with_health(lambda: now) as (client, _):
        assert (await client.get("/readyz")).status_code == 200
        now = EngineHealth(healthy=False, reason="the mlx host is down: it ended by SIGKILL")
        response = await client.get("/readyz")
        assert (response.status_code, response.json()) == (503, {"status": "unwell", "reason": now.reason})
        assert "offhook_ready 0.0" in (await client.get("/metrics")).text
        now = EngineHealth(healthy=True, takes_calls=False)
        assert await status_of(client, "/readyz") == (503, "unwell")
        now = EngineHealth(healthy=True, overload=Overload.REFUSE_CALLS)
        assert await status_of(client, "/readyz") == (503, "overloaded")
        now = EngineHealth(healthy=True, overload=Overload.SHORT_CLAUSES)
        assert await status_of(client, "/readyz") == (200, "ready")
        assert await status_of(client, "/livez") == (200, "live")


async def test_a_change_of_load_reaches_the_calls_that_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = HEALTHY
    told: list[Overload] = []
    monkeypatch.setattr(QuietCall, "load_changed", lambda _, overload: told.append(overload))
    monkeypatch.setattr("gateway.engine_watch.EVERY_S", 0.01)
    async with with_health(lambda: now) as (_, running):
        with contextlib.ExitStack() as stack:
            await place(running, stack)
            now = EngineHealth(healthy=True, overload=Overload.NO_SPECULATION)
            async with asyncio.timeout(10):
                while not told:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    assert told == [Overload.NO_SPECULATION]


async def test_operators_see_every_host() -> None:
    hosts = {
        "mlx": HostHealth(up=False, restarts=3, memory_bytes=1_000, waiting=2, cpu_s=2.5),
        "cpu": HostHealth(up=True),
    }
    failed = {("llm", "mine"): 4}
    how = EngineHealth(False, "x", Overload.SHORT_CLAUSES, hosts=hosts, failed_requests=failed)
    async with with_health(lambda: how) as (client, _):
        text = (await client.get("/metrics")).text
    for line in (
        "offhook_engine_overload 2.0",
        'offhook_host_up{host="mlx"} 0.0',
        'offhook_host_up{host="cpu"} 1.0',
        'offhook_host_restarts_total{host="mlx"} 3.0',
        'offhook_host_memory_bytes{host="mlx"} 1000.0',
        'offhook_host_cpu_seconds_total{host="mlx"} 2.5',
        'offhook_host_waiting_jobs{host="mlx"} 2.0',
        'offhook_backend_failures_total{backend="mine",stage="llm"} 4.0',
    ):
        assert line in text


async def test_engines_run_in_the_place_that_is_given() -> None:
    closed: list[bool] = []

    class Nowhere:
        def engine(self, spec: object, weights: object) -> Any:
            raise AssertionError("fakes stay in this process")

        async def close(self) -> None:
            closed.append(True)

    app = create_app(NULL, place=Nowhere)
    async with serving(app):
        assert (await settled(app)).error is None
    assert closed == [True]
