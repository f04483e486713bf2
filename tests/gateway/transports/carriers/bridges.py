"""How Vonage and jambonz place a call here: their webhooks are JSON."""

from __future__ import annotations

import atexit
import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.gateway.transports.carriers import fake_jambonz, fake_vonage
from tests.gateway.transports.carriers.links import asked
from tests.gateway.transports.carriers.rig import Rig, settings
from tests.gateway.transports.carriers.vendors import Vendor

_numbers = itertools.count(1)
_folder = tempfile.TemporaryDirectory()
atexit.register(_folder.cleanup)
PRIVATE_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
KEY_FILE = Path(_folder.name) / "vonage.pem"
KEY_FILE.write_bytes(PRIVATE_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
VONAGE_TABLE = {
    "enabled": True,
    "signature_secret": fake_vonage.SECRET,
    "application_id": fake_vonage.APPLICATION,
    "private_key": KEY_FILE,
    "rate_hz": 8_000,
}
JAMBONZ_TABLE = {
    "enabled": True,
    "webhook_secret": fake_jambonz.SECRET,
    "account_sid": fake_jambonz.ACCOUNT,
    "api_key": "jambonz-api-key",
    "api_url": "https://jambonz.example.com/api",
}


@dataclass(frozen=True)
class JsonVendor(Vendor):
    sign_body: Callable[[bytes], dict[str, str]] = field(default=lambda body: {})

    async def webhook(self, rig: Rig, query: str = "", **changes: str) -> httpx.Response:
        body = json.dumps({**self.form, "number": next(_numbers), **changes}).encode()
        path = f"/v1/carriers/{self.name}/call{query}"
        return await asked(rig.app, "POST", path, content=body, headers=self.sign_body(body))


def _unsigned(path: str, form: dict[str, str]) -> dict[str, str]:
    raise NotImplementedError("webhooks are signed by their bodies")


VONAGE = JsonVendor(
    "vonage",
    settings(vonage=VONAGE_TABLE),
    fake_vonage.FakeVonage,
    {"from": "+15550001", "to": "+15550002", "uuid": fake_vonage.CALL, "conversation_uuid": "CON-1"},
    _unsigned,
    fake_vonage.CALL,
    sign_body=fake_vonage.signed,
)
JAMBONZ = JsonVendor(
    "jambonz",
    settings(jambonz=JAMBONZ_TABLE),
    fake_jambonz.FakeJambonz,
    {
        "call_sid": fake_jambonz.CALL,
        "direction": "inbound",
        "from": "+15550001",
        "to": "+15550002",
        "call_status": "trying",
        "account_sid": fake_jambonz.ACCOUNT,
    },
    _unsigned,
    fake_jambonz.CALL,
    lambda path: {"sec-websocket-protocol": "audio.jambonz.org"},
    fake_jambonz.signed,
)
