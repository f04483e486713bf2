"""Who gets in: signatures of upgrades and webhooks, wrong, missing, old and again; proxies; web pages."""

from __future__ import annotations

import time
from urllib.parse import urlencode

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.security.listening import check_listening
from gateway.settings import ConfigurationError, Settings
from gateway.transports.carriers.desk import CarrierDesk
from gateway.transports.carriers.signatures import twilio_signature
from tests.gateway.transports.carriers import fake_plivo, fake_telnyx, fake_twilio
from tests.gateway.transports.carriers.links import AsgiLink, asked
from tests.gateway.transports.carriers.rig import rigged, settings
from tests.gateway.transports.carriers.vendors import PLIVO, TELNYX, TWILIO, VENDORS, Vendor, telnyx_event
from tests.virtual_time import virtual

STREAM = "/v1/carriers/twilio/stream"
CALL = "/v1/carriers/twilio/call"
EVERY = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)


@virtual
async def test_a_twilio_upgrade_is_refused_before_it_unless_its_signature_is_right() -> None:
    right = fake_twilio.signed(STREAM)
    async with rigged(TWILIO.settings) as rig:
        for headers, code in (
            ({}, b"signature_missing"),
            (fake_twilio.signed(STREAM, token="f" * 32), b"signature_invalid"),
            (fake_twilio.signed(STREAM, scheme="https"), b"signature_invalid"),
            (fake_twilio.signed(STREAM + "?agent=sales"), b"signature_invalid"),
            ({"X-Twilio-Signature": right["X-Twilio-Signature"] + "A" * 5_000}, b"signature_invalid"),
            ({"X-Twilio-Signature": "ü"}, b"signature_invalid"),
            ({**right, "X-Twilio-Webhooks-Signature-Settings": "key=k,algorithm=HMAC_SHA256"}, b"signature_invalid"),
        ):
            link = AsgiLink(rig.app, STREAM, headers)
            assert not await link.answered(), headers
            assert link.denied == 403
            assert code in link.denial
        assert rig.counted("carrier_signature_invalid") == 6
        assert rig.gateway.switchboard.live == 0
        link = AsgiLink(rig.app, STREAM, fake_twilio.signed(STREAM + "/"))
        assert await link.answered(), "Twilio may sign it with a slash at its end"
        await link.close()
        await link.task


@virtual
async def test_a_refusal_is_logged_with_the_address_that_counts_once_in_a_while() -> None:
    async with rigged(TWILIO.settings) as rig:
        with structlog.testing.capture_logs() as logs:
            for _ in range(20):
                assert not await AsgiLink(rig.app, STREAM + "?token=secret", {}).answered()
                assert (await asked(rig.app, "POST", CALL, form=TWILIO.form)).status_code == 403
        refusals = [entry for entry in logs if entry["event"] == "a carrier's request was refused"]
        assert [(entry["code"], entry["asked_of"]) for entry in refusals] == [
            ("signature_missing", "wss://voice.example.com/v1/carriers/twilio/stream")
        ]
        assert "secret" not in str(logs)
        assert "+1555" not in str(logs)


@virtual
async def test_a_webhooks_rule_signs_with_its_shared_key() -> None:
    tables = settings(twilio={"enabled": True, "auth_token": fake_twilio.TOKEN, "shared_key": "shared" * 6})
    async with rigged(tables) as rig:
        rule = {"X-Twilio-Webhooks-Signature-Settings": "key=whk1,algorithm=HMAC_SHA256"}
        url = "https://voice.example.com" + CALL
        for secret, sha256, settings_header, status in (
            ("shared" * 6, True, rule, 200),
            (fake_twilio.TOKEN, True, rule, 403),
            ("shared" * 6, False, rule, 403),
            ("shared" * 6, True, {"X-Twilio-Webhooks-Signature-Settings": "key=whk1,algorithm=MD5"}, 403),
            (fake_twilio.TOKEN, False, {}, 200),
        ):
            form = TWILIO.form
            signature = {"X-Twilio-Signature": twilio_signature(secret, url, form.items(), sha256=sha256)}
            answer = await asked(rig.app, "POST", CALL, form=form, headers={**settings_header, **signature})
            assert answer.status_code == status, settings_header


@virtual
async def test_behind_a_proxy_the_public_url_is_what_was_signed() -> None:
    public = settings(
        twilio={"enabled": True, "auth_token": fake_twilio.TOKEN}, public_url="https://calls.example.org:8443/voice/"
    )
    async with rigged(public) as rig:
        url = "https://calls.example.org:8443/voice" + CALL + "?agent=default"
        signature = {"X-Twilio-Signature": twilio_signature(fake_twilio.TOKEN, url, TWILIO.form.items())}
        answer = await asked(rig.app, "POST", CALL + "?agent=default", form=TWILIO.form, headers=signature)
        assert '<Stream url="wss://calls.example.org:8443/voice/v1/carriers/twilio/stream/' in answer.text
        path = answer.text.split('url="wss://calls.example.org:8443/voice')[1].split('"')[0]
        upgrade = twilio_signature(fake_twilio.TOKEN, "wss://calls.example.org:8443/voice" + path)
        link = AsgiLink(rig.app, path, {"X-Twilio-Signature": upgrade}, scheme="ws")
        assert await link.answered()
        await link.close()
        await link.task


@EVERY
@virtual
async def test_a_webhook_is_refused_unless_it_is_signed(vendor: Vendor) -> None:
    async with rigged(vendor.settings) as rig:
        path = f"/v1/carriers/{vendor.name}/call"
        right = vendor.sign(path, vendor.form)
        for headers, form in (
            ({}, vendor.form),
            (right, {**vendor.form, "To": "+15559999"}),
            ({name: value[:-2] + "AA" for name, value in right.items()}, vendor.form),
        ):
            answer = await asked(rig.app, "POST", path, form=form, headers=headers)
            assert answer.status_code == 403
            assert answer.json()["error"]["code"].startswith("signature_")


@virtual
async def test_a_telnyx_webhook_holds_for_five_minutes_and_once() -> None:
    async with rigged(TELNYX.settings) as rig:
        body = telnyx_event("call.hangup")
        now = time.time()

        async def code(headers: dict[str, str], method: str = "POST") -> object:
            answer = await asked(rig.app, method, "/v1/carriers/telnyx/call", content=body, headers=headers)
            return answer.json()["error"]["code"] if answer.content else answer.status_code

        assert await code(fake_telnyx.signed(body, at=now - 290)) == 200
        assert await code(fake_telnyx.signed(body, at=now - 310)) == "signature_expired"
        assert await code(fake_telnyx.signed(body, at=now + 310)) == "signature_expired"
        once = fake_telnyx.signed(body, at=now - 5)
        assert await code(once) == 200
        assert await code(once) == "signature_replayed"
        assert await code({**once, "telnyx-timestamp": str(int(now) - 4)}) == "signature_invalid"
        stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
        assert await code(fake_telnyx.signed(body, key=stranger)) == "signature_invalid"
        assert await code(fake_telnyx.signed(body, at=now - 7), "GET") == "signature_invalid", (
            "a body of none is signed"
        )


@virtual
async def test_a_plivo_nonce_is_good_once() -> None:
    async with rigged(PLIVO.settings) as rig:
        path, form = "/v1/carriers/plivo/call", PLIVO.form
        once = fake_plivo.signed(path, form, nonce="31415")
        assert (await asked(rig.app, "POST", path, form=form, headers=once)).status_code == 200
        again = await asked(rig.app, "POST", path, form=form, headers=once)
        assert (again.status_code, again.json()["error"]["code"]) == (403, "signature_replayed")
        main = fake_plivo.signed(path, form)
        main["X-Plivo-Signature-Ma-V3"] = main.pop("X-Plivo-Signature-V3")
        assert (await asked(rig.app, "POST", path, form=form, headers=main)).status_code == 200
        got = fake_plivo.signed(path + "?" + urlencode(form), {}, method="GET")
        assert (await asked(rig.app, "GET", path + "?" + urlencode(form), headers=got)).status_code == 200


@virtual
async def test_an_expired_ticket_opens_nothing() -> None:
    async with rigged(TELNYX.settings) as rig:
        now = [time.time()]
        rig.app.state.carriers = CarrierDesk(TELNYX.settings, now_s=lambda: now[0])
        path = await TELNYX.stream_path(rig)
        now[0] += 61
        link = AsgiLink(rig.app, path)
        assert not await link.answered()
        assert b"ticket_invalid" in link.denial
        for nothing in ("/v1/carriers/telnyx/stream", "/v1/carriers/telnyx/stream/guess"):
            link = AsgiLink(rig.app, nothing)
            assert not await link.answered()


@virtual
async def test_a_ticket_is_no_signature_where_the_vendor_signs_upgrades() -> None:
    async with rigged(TWILIO.settings) as rig:
        path = await TWILIO.stream_path(rig)
        link = AsgiLink(rig.app, path)
        assert not await link.answered()
        assert b"signature_missing" in link.denial
        link = AsgiLink(rig.app, path, fake_twilio.signed(path))
        assert await link.answered(), "and it was not used up by who had no right to it"
        await link.close()
        await link.task


@virtual
async def test_what_is_not_enabled_is_not_there() -> None:
    async with rigged(settings(key="a-bearer-key-of-the-gateway")) as rig:
        for name in ("twilio", "nobody", "a" * 500):
            link = AsgiLink(rig.app, f"/v1/carriers/{name}/stream", fake_twilio.signed(STREAM))
            assert not await link.answered()
            assert link.denied == 404
            assert (await asked(rig.app, "POST", f"/v1/carriers/{name}/call")).status_code == 404


@virtual
async def test_the_bearer_key_is_neither_needed_nor_enough() -> None:
    key = "a-bearer-key-of-the-gateway"
    async with rigged(settings(key=key, twilio={"enabled": True, "auth_token": fake_twilio.TOKEN})) as rig:
        assert (await TWILIO.webhook(rig)).status_code == 200
        bearer = {"Authorization": f"Bearer {key}"}
        assert (await asked(rig.app, "POST", CALL, form=TWILIO.form, headers=bearer)).status_code == 403
        assert (await asked(rig.app, "GET", "/v1/calls")).status_code == 401


@virtual
async def test_unsigned_calls_are_taken_where_they_are_allowed_but_not_from_web_pages_nor_with_a_bad_signature() -> (
    None
):
    tables = settings(twilio={"enabled": True, "allow_unsigned": True})
    async with rigged(tables) as rig:
        for headers, right in (
            ({"host": "127.0.0.1:8080"}, True),
            ({"host": "127.0.0.1:8080", "origin": "https://evil.example"}, False),
            ({"host": "evil.example", "origin": "https://evil.example"}, False),
        ):
            link = AsgiLink(rig.app, STREAM, headers)
            assert await link.answered() is right, headers
            if right:
                await link.close()
                await link.task
    tables = settings(twilio={"enabled": True, "allow_unsigned": True, "auth_token": fake_twilio.TOKEN})
    async with rigged(tables) as rig:
        link = AsgiLink(rig.app, STREAM, {"X-Twilio-Signature": "AAAA"})
        assert not await link.answered()


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe\x00", b"{" * 60_000, b"CallSid=" + b"x" * 300, b"&" * 1_000], ids=lambda body: body[:12]
)
@EVERY
@virtual
async def test_a_signed_webhook_that_makes_no_sense_is_told_so(vendor: Vendor, body: bytes) -> None:
    async with rigged(settings(**{vendor.name: {"enabled": True, "allow_unsigned": True}})) as rig:
        for kind in ("application/x-www-form-urlencoded", "application/json", ""):
            path = f"/v1/carriers/{vendor.name}/call"
            answer = await asked(rig.app, "POST", path, content=body, headers={"Content-Type": kind})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "bad_webhook"


@EVERY
@virtual
async def test_a_body_without_end_is_not_read(vendor: Vendor) -> None:
    async with rigged(vendor.settings) as rig:
        path = f"/v1/carriers/{vendor.name}/call"
        assert (await asked(rig.app, "POST", path, content=b"x" * 70_000)).status_code == 413


@pytest.mark.parametrize(
    ("tables", "word"),
    [
        ({"twilio": {"enabled": True}}, "twilio.enabled needs twilio.auth_token"),
        ({"twilio": {"account_sid": "AC12"}}, "account SID"),
        ({"twilio": {"api_url": "ftp://x"}}, "not a URL such as"),
        ({"telnyx": {"enabled": True}}, "telnyx.public_key"),
        ({"telnyx": {"public_key": "AAAA"}}, "32 bytes"),
        ({"telnyx": {"public_key": "%%"}}, "base64"),
        ({"telnyx": {"stream_token": "short"}}, "16 characters"),
        ({"plivo": {"enabled": True, "auth_id": "MA"}}, "plivo.auth_token"),
        ({"vonage": {"private_key": "key.pem"}}, "vonage.application_id"),
        ({"jambonz": {"api_key": "k"}}, "jambonz.api_url"),
        ({"public_url": "voice.example.com"}, "not a URL such as"),
        ({"public_url": "https://voice.example.com/?a=1"}, "query"),
    ],
)
def test_settings_that_cannot_work_are_refused(tables: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Settings.model_validate({"preset": "null", **tables})


def test_unsigned_calls_are_for_loopback() -> None:
    tables = {"host": "0.0.0.0", "key": "k" * 20, "trusted_proxies": "10.0.0.0/8", "plivo": {"allow_unsigned": True}}
    with pytest.raises(ConfigurationError) as refused:
        check_listening(Settings.model_validate(tables))
    assert refused.value.code == "unsigned_calls"
