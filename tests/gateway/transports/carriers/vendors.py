"""How each vendor places a call here: its settings, its webhook, its stream."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

import httpx

from gateway.settings import Settings
from tests.gateway.call_rig import Engines
from tests.gateway.transports.carriers import fake_plivo, fake_telnyx, fake_twilio
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import AsgiLink, asked
from tests.gateway.transports.carriers.rig import Rig, rigged, settings

FORM = {"From": "+15550001", "To": "+15550002", "Direction": "inbound"}
_numbers = itertools.count(1)
FORM_TYPE = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class Vendor:
    """``form`` is what the webhook says; ``sign`` makes its headers, ``sign_upgrade`` those of the stream."""

    name: str
    settings: Settings
    fake: type[FakeCarrier]
    form: dict[str, str]
    sign: Callable[[str, dict[str, str]], dict[str, str]]
    wire_id: str
    sign_upgrade: Callable[[str], dict[str, str]] = field(default=lambda path: {})

    async def webhook(self, rig: Rig, query: str = "", **changes: str) -> httpx.Response:
        path = f"/v1/carriers/{self.name}/call{query}"
        form = {**self.form, "RequestNumber": str(next(_numbers)), **changes}
        return await asked(
            rig.app, "POST", path, content=urlencode(form).encode(), headers={**FORM_TYPE, **self.sign(path, form)}
        )

    def link(self, rig: Rig, path: str) -> AsgiLink:
        return AsgiLink(rig.app, path, self.sign_upgrade(path))

    async def stream_path(self, rig: Rig, query: str = "") -> str:
        """Where the webhook's answer sends the call's audio."""
        answer = await self.webhook(rig, query)
        assert answer.status_code == 200, answer.text
        found = re.search(r"wss://voice\.example\.com(/[^\"<\s]+)", answer.text)
        assert found is not None, answer.text
        return found[1]

    @contextlib.asynccontextmanager
    async def called(
        self,
        engines: Engines | None = None,
        *,
        latency_s: float = 0.03,
        query: str = "",
        tables: Settings | None = None,
    ) -> AsyncIterator[tuple[Rig, FakeCarrier]]:
        """A call from its webhook on."""
        async with rigged(tables or self.settings, engines) as rig:
            link = self.link(rig, await self.stream_path(rig, query))
            assert await link.answered()
            async with self.fake(link, latency_s=latency_s).connected() as fake:
                yield rig, fake
            await link.task


TWILIO = Vendor(
    "twilio",
    settings(twilio={"enabled": True, "auth_token": fake_twilio.TOKEN}),
    fake_twilio.FakeTwilio,
    {**FORM, "CallSid": fake_twilio.CALL, "AccountSid": fake_twilio.ACCOUNT, "CallStatus": "ringing"},
    lambda path, form: fake_twilio.signed(path, form, scheme="https"),
    fake_twilio.CALL,
    fake_twilio.signed,
)
TELNYX = Vendor(
    "telnyx",
    settings(telnyx={"enabled": True, "public_key": fake_telnyx.PUBLIC_KEY, "api_key": "KEY0123456789"}),
    fake_telnyx.FakeTelnyx,
    {**FORM, "CallSid": fake_telnyx.CALL, "CallStatus": "ringing"},
    lambda path, form: fake_telnyx.signed(urlencode(form).encode()),
    fake_telnyx.CALL,
)
PLIVO = Vendor(
    "plivo",
    settings(plivo={"enabled": True, "auth_id": fake_plivo.AUTH_ID, "auth_token": fake_plivo.TOKEN}),
    fake_plivo.FakePlivo,
    {**FORM, "CallUUID": fake_plivo.CALL, "CallStatus": "ringing", "Event": "StartApp"},
    lambda path, form: fake_plivo.signed(path, form),
    fake_plivo.CALL,
)
VENDORS = (TWILIO, TELNYX, PLIVO)


def telnyx_event(event_type: str = "call.initiated", direction: str = "incoming") -> bytes:
    """A Call Control webhook."""
    payload = {"call_control_id": fake_telnyx.CALL, "from": "+15550001", "to": "+15550002", "direction": direction}
    data = {"record_type": "event", "event_type": event_type, "id": "0ccc7b54-4df3-4bca-a65a-3da1ecc777f0"}
    return json.dumps({"data": {**data, "payload": payload}}).encode()
