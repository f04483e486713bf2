"""The server as it is served: real sockets, real engines of the null preset, a phone of our own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import ipaddress
import random
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.settings import ConfigurationError, Settings
from gateway.sip_settings import SipSettings, TrunkSettings
from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.line import SipLine
from gateway.transports.sip.message import Headers, Request
from gateway.transports.sip.server import SipServer
from gateway.transports.sip.session_events import SessionEvents
from gateway.transports.sip.transaction import Peer
from tests.gateway.transports.sip.caller import HOST, Placed
from tests.gateway.transports.sip.server_rig import phone, taking_calls
from tests.gateway.transports.sip.sip_rig import request
from tests.serving import Served, eventually, served


async def test_a_call_from_either_side() -> None:
    async with taking_calls() as (here, server), phone() as caller:
        call = caller.call(server.ports["udp"])
        await call.until("established")
        await eventually(here.gateway.switchboard.calls)
        (record,) = here.gateway.switchboard.calls()
        assert record.transport == "sip"
        assert record.agent == "default"
        call.session.hang_up()
        await call.until("closed")
        await here.empty()
        assert record.cause == "caller_hung_up"
        call = caller.call(server.ports["udp"])
        await call.until("established")
        await eventually(here.gateway.switchboard.calls)
        (live,) = here.gateway.switchboard.calls()
        found = here.gateway.switchboard.find(live.id)
        assert found is not None
        found.hang_up("agent_hung_up")
        await call.until("hung up")
        assert call.told[-2:] == ["hung up: caller_hung_up", "closed"]


@pytest.mark.parametrize("at", [HOST, "trunk.invalid"])
async def test_a_line_knows_the_trunk_that_its_call_came_by(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trunks = {"main": TrunkSettings(server=at, user="desk", domain="example.com", register=False)}
    async with taking_calls(trunks=trunks) as (_, server), phone() as caller:
        told: list[SipLine] = []
        invited = server.invited

        def hears(session: IncomingSession) -> SessionEvents:
            line = invited(session)
            assert isinstance(line, SipLine)
            told.append(line)
            return line

        monkeypatch.setattr(server, "invited", hears)
        for domain in (None if at != HOST else "example.com", "example.com"):
            call = caller.call(server.ports["udp"])
            await call.until("established")
            assert told[-1].trunk_domain == domain
            call.session.hang_up()
            await call.until("closed")
            server.guard.trust("main", [HOST])  # as if we were registered


async def test_hold_is_told_to_the_call_and_taken_back() -> None:
    async with taking_calls() as (_, server), phone() as caller:
        call = caller.call(server.ports["udp"])
        await call.until("established")
        for direction in ("sendonly", "sendrecv", "inactive"):
            call.media.direction = direction
            assert (await call.reoffer()).ok
        call.session.hang_up()
        await call.until("closed")


async def test_over_capacity_and_for_one_source() -> None:
    async with taking_calls(max_calls=2, calls_per_source=1) as (_, server), phone() as caller:
        first = caller.call(server.ports["udp"])
        await first.until("established")
        second = caller.call(server.ports["udp"])
        await second.until("failed: 486")
        async with phone(host="127.0.0.2") as other, phone(host="127.0.0.3") as third:
            theirs = other.call(server.ports["udp"])
            await theirs.until("established")
            refused = third.call(server.ports["udp"])
            await refused.until("failed: 503")
            theirs.session.hang_up()
            await theirs.until("closed")
        first.session.hang_up()
        await first.until("closed")


async def test_an_agent_that_there_is_not() -> None:
    async with taking_calls() as (_, server), phone() as caller:
        call = caller.call(server.ports["udp"], agent="nobody")
        await call.until("failed: 404")
        call = caller.call(server.ports["udp"], "nobody")
        await call.until("established")  # phone.agent answers what no name decides
        call.session.hang_up()
        await call.until("closed")


async def test_by_password() -> None:
    async with taking_calls(users={"alice": "secret"}) as (_, server), phone() as caller:
        for password in (None, ("alice", "wrong"), ("bob", "secret")):
            call = caller.call(server.ports["udp"], password=password)
            await call.until("failed: 401")
        call = caller.call(server.ports["udp"], password=("alice", "secret"))
        await call.until("established")
        call.session.hang_up()
        await call.until("closed")


async def test_by_address() -> None:
    async with taking_calls(allow=("127.0.0.2/32",)) as (_, server):
        async with phone(host="127.0.0.2") as friend:
            call = friend.call(server.ports["udp"])
            await call.until("established")
            call.session.hang_up()
            await call.until("closed")
        async with phone() as stranger:
            call = stranger.call(server.ports["udp"])
            await asyncio.sleep(0.3)
            assert call.told == [], "a stranger hears nothing"


async def test_the_log_says_who_is_not_answered_and_is_not_filled_by_it() -> None:
    async with taking_calls(allow=("192.0.2.7",)) as (_, server):
        with structlog.testing.capture_logs() as logs:
            asked = Request(Headers(), method="OPTIONS", uri="sip:desk@127.0.0.1")
            for host in ("127.0.0.3", "127.0.0.4", "127.0.0.3"):
                assert server.judge(asked, Peer("udp", host, 5060)) == "drop"
        assert [line["source"] for line in logs if "is not answered" in line["event"]] == ["127.0.0.3"]


async def test_while_it_rings_the_caller_may_give_up() -> None:
    async with taking_calls(ring_s=0.3) as (here, server), phone() as caller:
        call = caller.call(server.ports["udp"])
        await call.until("rings")
        call.session.hang_up()
        await call.until("closed")
        await here.empty()
        call = caller.call(server.ports["udp"])
        await call.until("established")
        call.session.hang_up()
        await call.until("closed")


async def test_draining_says_goodbye_and_refuses() -> None:
    async with taking_calls() as (here, server), phone() as caller:
        call = caller.call(server.ports["udp"])
        await call.until("established")
        draining = asyncio.create_task(here.gateway.switchboard.drain(0.2))
        await asyncio.sleep(0)
        late = caller.call(server.ports["udp"])
        await late.until("failed: 503")
        await call.until("hung up")
        await draining


async def test_the_server_stops_while_a_call_is_up() -> None:
    async with phone() as caller:
        settings = Settings(preset="null", sip=SipSettings(enabled=True, port=0))
        async with served(settings=settings) as here:
            server = here.gateway.wires.sip
            assert server is not None
            call = caller.call(server.ports["udp"])
            await call.until("established")
            here.gateway.switchboard.hang_up_all("server_stop")
            await call.until("hung up")


# --- connections ----------------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


async def test_over_tcp() -> None:
    async with taking_calls() as (_, server), phone(transport="tcp") as caller:
        call = caller.call(server.ports["tcp"])
        await call.until("established")
        call.media.direction = "sendonly"
        assert (await call.reoffer()).ok
        call.session.hang_up()
        await call.until("closed")


async def test_over_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(cert))
    sip: dict[str, Any] = {"transports": ("udp", "tls"), "tls_port": 0, "tls_cert": cert, "tls_key": key}
    async with taking_calls(**sip) as (_, server), phone(transport="tls", tls=trusting) as caller:
        call = caller.call(server.ports["tls"])
        await call.until("established")
        call.session.hang_up()
        await call.until("closed")


async def test_a_connection_that_breaks_does_not_end_its_call_but_its_media_would() -> None:
    async with taking_calls() as (here, server), phone(transport="tcp") as caller:
        call = caller.call(server.ports["tcp"])
        await call.until("established")
        for connection in list(caller.sockets._connections.values()):
            connection.abort()
        await asyncio.sleep(0.1)
        assert here.gateway.switchboard.live == 1
        here.gateway.switchboard.hang_up_all("agent_hung_up")
        await here.empty()
        server.ua.close()


async def test_a_stream_of_nonsense_is_cut() -> None:
    async with taking_calls() as (_, server):
        for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(20_000)):
            reader, writer = await asyncio.open_connection(HOST, server.ports["tcp"])
            writer.write(data)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()


async def test_a_ping_is_answered_and_half_a_message_is_not() -> None:
    async with taking_calls() as (_, server):
        reader, writer = await asyncio.open_connection(HOST, server.ports["tcp"])
        writer.write(b"\r\n\r\n")
        assert await reader.readexactly(2) == b"\r\n"
        head = "\r\n".join([*request("OPTIONS"), "Content-Length: 0", "", ""]).encode()
        writer.write(head[:40])
        await asyncio.sleep(0.05)
        writer.write(head[40:])
        assert (await reader.readline()).startswith(b"SIP/2.0 200")
        writer.close()
        await writer.wait_closed()


async def test_a_taken_port() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        async with served() as here:
            settings = Settings(preset="null", sip=SipSettings(enabled=True, port=port))
            server = SipServer(_with(here, settings))
            with pytest.raises(ConfigurationError) as caught:
                async with server.listening():
                    pass
            assert caught.value.code == "cannot_listen"


def _with(here: Served, settings: Settings) -> Any:
    return dataclasses.replace(here.gateway, settings=settings)


# --- many -----------------------------------------------------------------------------------------------------------


async def test_two_hundred_calls_hung_up_in_every_state_leave_nothing() -> None:
    rng = random.Random(1)
    async with (
        taking_calls(max_calls=64, ring_s=0.05) as (here, server),
        phone() as caller,
        phone(transport="tcp") as other,
    ):
        calls: list[Placed] = []
        for number in range(200):
            by = other if number % 4 == 0 else caller
            call = by.call(server.ports["tcp" if number % 4 == 0 else "udp"])
            calls.append(call)
            match number % 5:
                case 0:
                    call.session.hang_up()  # before anything came back
                case 1:
                    asyncio.get_running_loop().call_later(rng.uniform(0, 0.05), call.session.hang_up)
                case 2:
                    asyncio.get_running_loop().call_later(rng.uniform(0.05, 0.1), call.session.hang_up)
                case 3:
                    asyncio.get_running_loop().call_later(rng.uniform(0, 0.3), here_hangs_up, here)
                case 4:
                    call.session.events = call
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        for call in calls:
            call.session.hang_up()
        for call in calls:
            await call.until("closed")
        await here.empty()
        await eventually(lambda: server.idle)
        assert not server.ua._invites
        here.gateway.switchboard.hang_up_all("x")


def here_hangs_up(here: Served) -> None:
    for record in list(here.gateway.switchboard.calls())[:1]:
        call = here.gateway.switchboard.find(record.id)
        assert call is not None
        call.hang_up("agent_hung_up")


async def test_a_scanner_does_not_disturb_calls_and_leaves_nothing() -> None:
    async with taking_calls(max_calls=16, allow=("127.0.0.9/32",)) as (here, server), phone(host="127.0.0.9") as caller:
        calls = [caller.call(server.ports["udp"]) for _ in range(10)]
        for call in calls:
            await call.until("established")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as scanner:
            scanner.bind((HOST, 0))
            scanner.setblocking(False)
            for number in range(3_000):
                lines = request("REGISTER", branch=f"z9hG4bK{number}", call_id=f"scan-{number}")
                with contextlib.suppress(BlockingIOError):
                    scanner.sendto("\r\n".join([*lines, "", ""]).encode(), (HOST, server.ports["udp"]))
                if number % 100 == 0:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            with pytest.raises(BlockingIOError):
                scanner.recv(100)
        for call in calls:
            call.media.direction = "sendonly"
            assert (await call.reoffer()).ok
        assert here.gateway.switchboard.live == 10
        assert len(server.ua.sessions) == 10
        for call in calls:
            call.session.hang_up()
            await call.until("closed")
