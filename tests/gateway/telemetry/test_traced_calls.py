"""Calls of a running gateway, as a collector has them."""

from __future__ import annotations

import subprocess
import sys
import threading

import httpx
from pydantic import SecretStr

from gateway.outbound import DialFailed
from gateway.outbound_settings import OutboundSettings
from gateway.settings import Settings
from gateway.state import Gateway
from gateway.telemetry.traces_context import TraceParent, asked_in
from gateway.telemetry_settings import TelemetrySettings
from tests.e2e.wire import dialled, tone
from tests.gateway.fake_dialler import FakeDialler
from tests.gateway.telemetry.collector import attributes, collector
from tests.serving import eventually, served

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IN_TRACE = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
KEY = {"Authorization": "Bearer sesame"}


def settings(url: str, **more: object) -> Settings:
    return Settings(preset="null", telemetry=TelemetrySettings(otlp_endpoint=url, **more))  # type: ignore[arg-type]


async def test_a_call_is_in_the_trace_of_whoever_asked_for_it() -> None:
    with collector() as there:
        async with served(settings=settings(there.url)) as here:
            async with dialled(here.ws, additional_headers=IN_TRACE) as wire:
                created = await wire.expect("session.created")
                await wire.speak(tone(600), times=1)
                await wire.speak(tone(800, level=0), times=1)
                await wire.expect("response.done")
            await here.empty()
            record = next(iter(here.gateway.recent))
            async with httpx.AsyncClient() as client:
                view = (await client.get(f"{here.url}/v1/calls/{record.id}")).json()
            assert view["trace_id"] == TRACE
        call = there.named("call")[0]
        assert call.trace_id.hex() == TRACE
        assert call.parent_span_id.hex() == SPAN
        told = attributes(call.attributes)
        assert told["offhook.call.id"] == record.id
        assert told["offhook.call.transport"] == "websocket"
        assert told["offhook.call.cause"] == "caller_hung_up"
        assert created["session"]["id"]
        turns = there.named("turn")
        assert len(turns) == len(record.turns) > 0
        assert {"caller_speaks", "end_of_turn", "transcript", "first_token", "first_sent"} <= {
            s.name for s in there.spans
        }
        for span in there.spans:
            assert call.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert not any("hello" in str(span) for span in there.spans)
        assert there.resource["offhook.preset"] == "null"


async def test_only_whoever_has_the_key_decides_what_is_sampled() -> None:
    with collector() as there:
        told = Settings(
            preset="null",
            key=SecretStr("sesame"),
            telemetry=TelemetrySettings(otlp_endpoint=there.url, sample_ratio=0.0),
        )
        async with served(settings=told) as here:
            async with httpx.AsyncClient(headers=KEY) as client:
                minted = (await client.post(f"{here.url}/v1/realtime/client_secrets", json={})).json()["value"]
            for headers in (KEY | IN_TRACE, {"Authorization": f"Bearer {minted}"} | IN_TRACE, KEY):
                async with dialled(here.ws, additional_headers=headers) as wire:
                    await wire.expect("session.created")
        assert len(there.named("call")) == 1
        assert there.named("call")[0].trace_id.hex() == TRACE


async def test_a_placed_call_is_in_the_trace_of_whoever_placed_it() -> None:
    with collector() as there:
        told = Settings(
            preset="null",
            key=SecretStr("sesame"),
            outbound=OutboundSettings(enabled=True, allow=("pbx.example.com",)),
            telemetry=TelemetrySettings(otlp_endpoint=there.url),
        )
        diallers: dict[int, FakeDialler] = {}

        def dialler(gateway: Gateway) -> FakeDialler:
            return diallers.setdefault(0, FakeDialler(gateway))

        async with served(settings=told, dialler=dialler) as here, httpx.AsyncClient(headers=KEY) as client:
            body = {"to": "sip:bob@pbx.example.com"}
            placed = await client.post(f"{here.url}/v1/calls", json=body, headers=IN_TRACE)
            assert placed.status_code == 201
            await eventually(lambda: diallers[0].outcomes)
            diallers[0].outcomes[0].set_result(DialFailed("unreachable"))
            await here.empty()
        call = there.named("call")[0]
        assert call.trace_id.hex() == TRACE
        assert attributes(call.attributes)["error.type"] == "unreachable"
        assert "bob" not in str(there.requests)


async def test_what_a_request_leaves_behind_is_not_of_its_trace() -> None:
    """A connection that was opened to place a call has the context of that, also when somebody calls by it."""
    with collector() as there:
        async with served(settings=settings(there.url)) as here:
            token = asked_in.set(TraceParent(1, 2, True))
            asked, not_asked = (here.gateway.begin_trace(asked=asked) for asked in (True, False))
            asked_in.reset(token)
    assert asked is not None
    assert not_asked is not None
    assert (asked.trace_id, not_asked.parent) == (1, None)


async def test_a_collector_that_hangs_disturbs_no_call_and_no_stop() -> None:
    with collector() as there:
        there.hangs = threading.Event()
        async with served(settings=settings(there.url)) as here:
            for _ in range(3):
                async with dialled(here.ws) as wire:
                    await wire.expect("session.created")
                    await wire.send("response.create")
                    await wire.expect("response.done")
            await here.empty()
            assert [record.cause for record in here.gateway.recent] == ["caller_hung_up"] * 3
            there.hangs.set()


def test_where_no_collector_is_named_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, gateway.cli\n"
        "from gateway.app import create_app\n"
        "from gateway.settings import Settings\n"
        "create_app(Settings(preset='null'))\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'google.protobuf'))])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert said.stdout.strip() == "[]"
