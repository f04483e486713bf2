"""What was tried against the carriers' doors with success once: each is refused now, and nothing else suffers."""

from __future__ import annotations

import asyncio
import base64
import json
import string
import time
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.carrier_settings import TwilioSettings
from gateway.transports.carriers.dialect import Dialect, Message
from gateway.transports.carriers.plivo import PlivoDialect
from gateway.transports.carriers.rest import rest_client
from gateway.transports.carriers.telnyx import TelnyxDialect
from gateway.transports.carriers.twilio import Twilio, TwilioDialect
from gateway.transports.phone.line import Ability
from tests.gateway.transports.carriers import fake_plivo, fake_telnyx, fake_twilio, test_rest
from tests.gateway.transports.carriers.links import asked
from tests.gateway.transports.carriers.rig import rigged
from tests.gateway.transports.carriers.vendors import PLIVO, TELNYX, VENDORS, Vendor, telnyx_event
from tests.listening import listening
from tests.virtual_time import virtual

EVERY = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


@EVERY
@virtual
@pytest.mark.parametrize("host", ["[", "a:b", "a:99999", "[::1", "", "a@b", "a/b?c#d", "x" * 300])
async def test_a_host_that_is_none_is_refused(vendor: Vendor, host: str) -> None:
    path = f"/v1/carriers/{vendor.name}/call"
    headers = {**vendor.sign(path, vendor.form), "Host": host}
    async with rigged(vendor.settings) as rig:
        with structlog.testing.capture_logs() as logs:
            answer = await asked(rig.app, "POST", path, form=vendor.form, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_invalid")
        assert not any(host in str(entry) for entry in logs if len(host) > 1)


@virtual
async def test_a_signature_that_is_spelt_another_way_is_a_replay_all_the_same() -> None:
    body = telnyx_event("call.hangup")
    right = fake_telnyx.signed(body, at=time.time() - 5)
    signature = right["telnyx-signature-ed25519"]
    at = BASE64.index(signature[85])
    respelt = signature[:85] + BASE64[at ^ 1] + "=="
    assert base64.b64decode(respelt) == base64.b64decode(signature)
    async with rigged(TELNYX.settings) as rig:
        first = await asked(rig.app, "POST", "/v1/carriers/telnyx/call", content=body, headers=right)
        assert first.status_code == 200
        right["telnyx-signature-ed25519"] = respelt
        again = await asked(rig.app, "POST", "/v1/carriers/telnyx/call", content=body, headers=right)
        assert (again.status_code, again.json()["error"]["code"]) == (403, "signature_replayed")


@virtual
async def test_a_plivo_nonce_is_good_once_for_a_day() -> None:
    """Its signatures have no time in them."""
    path, form = "/v1/carriers/plivo/call", PLIVO.form
    now = [1_000_000.0]
    async with rigged(PLIVO.settings) as rig:
        carrier: Any = rig.app.state.carriers.find("plivo")
        carrier._seen._now_s = lambda: now[0]
        once = fake_plivo.signed(path, form, nonce="31415")
        assert (await asked(rig.app, "POST", path, form=form, headers=once)).status_code == 200
        now[0] += 23 * 3_600
        again = await asked(rig.app, "POST", path, form=form, headers=once)
        assert (again.status_code, again.json()["error"]["code"]) == (403, "signature_replayed")


@virtual
@pytest.mark.parametrize("data", [{"event_type": {}}, {"event_type": "call.initiated", "payload": {"direction": []}}])
async def test_a_signed_event_of_another_shape_is_answered(data: dict[str, Any]) -> None:
    body = json.dumps({"data": data}).encode()
    async with rigged(TELNYX.settings) as rig:
        headers = fake_telnyx.signed(body, at=time.time())
        assert (await asked(rig.app, "POST", "/v1/carriers/telnyx/call", content=body, headers=headers)).is_success


@EVERY
@virtual
async def test_a_stolen_ticket_opens_no_other_call_nor_ends_one(vendor: Vendor, monkeypatch: Any) -> None:
    other = fake_twilio.CALL[:-4] + "beef"
    for module in (fake_twilio, fake_plivo, fake_telnyx):
        monkeypatch.setattr(module, "CALL", other)
    async with vendor.called() as (rig, fake):
        closed = await fake.over()
        assert (closed.code, closed.reason) == (1008, "wrong_call")
        assert rig.counted("carrier_wrong_call") == 1
        assert not rig.rest.requests, "the other call goes on"


DIALECTS: dict[str, type[Any]] = {"twilio": TwilioDialect, "telnyx": TelnyxDialect, "plivo": PlivoDialect}


@EVERY
@virtual
async def test_a_message_that_breaks_a_dialect_costs_no_call(vendor: Vendor, monkeypatch: Any) -> None:
    real = DIALECTS[vendor.name].decode

    def decode(dialect: Dialect, message: Message) -> Any:
        if message == "break":
            raise TypeError("unhashable type")
        return real(dialect, message)

    monkeypatch.setattr(DIALECTS[vendor.name], "decode", decode)
    async with vendor.called() as (rig, fake):
        object.__setattr__(rig.gateway, "strict", False)
        await fake.hush(2_000)
        with structlog.testing.capture_logs() as logs:
            for _ in range(5):
                fake.send("break")
            await fake.hush(500)
        assert rig.counted("carrier_dialect_defect") == 5
        assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1
        await fake.speak(800)
        await fake.until(lambda: rig.turns == 2)
        assert rig.record.cause is None


IDS = st.text(alphabet="./%~:=_-aA0?#\\ ", max_size=12) | st.sampled_from(["..", ".", "...", "a/../..", "%2e%2e"])


@given(IDS, IDS)
def test_no_id_of_a_stream_leaves_its_place_in_a_path(call: str, account: str) -> None:
    dialects: tuple[tuple[Dialect, dict[str, Any]], ...] = (
        (
            TelnyxDialect(),
            {"stream_id": "s", "start": {"call_control_id": call, "custom_parameters": {"texml_account": account}}},
        ),
        (
            TwilioDialect(),
            {"streamSid": "MZ", "start": {"accountSid": account, "callSid": call}},
        ),
        (
            PlivoDialect(lambda reply: "https://x/", account="MA1"),
            {"start": {"streamId": "s", "callId": call}},
        ),
    )
    for dialect, start in dialects:
        dialect.decode(json.dumps({"event": "start", **start}))
        asked_for = [dialect.hang_up().request]
        if Ability.TRANSFER in dialect.abilities:
            asked_for.append(dialect.transfer("+1555").request)
        for request in asked_for:
            if request is not None:
                segments = request.path.split("/")
                assert not {".", ".."}.intersection(segments)
                assert not set(request.path) & set("?#%\\ ")


async def test_an_answer_without_end_is_not_read() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while sent < 64_000_000:
                writer.write(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
                sent += 0x100000
                await writer.drain()
        except ConnectionError:
            pass

    async with listening(endless) as port, rest_client() as client:
        table = {"auth_token": fake_twilio.TOKEN, "api_url": f"http://127.0.0.1:{port}/"}
        await client.send(Twilio(TwilioSettings.model_validate(table)), test_rest.TRANSFER)
    assert sent < 32_000_000
