"""Which addresses media goes to and is taken at."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from aioice import Candidate
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.webrtc import candidates
from gateway.transports.webrtc.candidates import (
    MAX_REMOTE,
    IceConnection,
    IceServer,
    MediaPolicy,
    NoMediaPort,
    allowed,
    local_addresses,
    remote_candidates,
)

OPEN = MediaPolicy(allow_private=True, allow_loopback=True)
STRICT = MediaPolicy(allow_private=False)


def line(host: str, port: object = 50_000, kind: str = "host", transport: str = "udp", component: object = 1) -> str:
    return f"1 {component} {transport} 2113937151 {host} {port} typ {kind}"


@pytest.mark.parametrize(
    ("address", "strict", "private", "everything"),
    [
        ("8.8.8.8", True, True, True),
        ("2606:4700::1111", True, True, True),
        ("192.168.1.7", False, True, True),
        ("10.0.0.1", False, True, True),
        ("100.64.0.1", False, True, True),
        ("fd00::1", False, True, True),
        ("127.0.0.1", False, False, True),
        ("::1", False, False, True),
        ("::ffff:127.0.0.1", False, False, True),
        ("::ffff:10.0.0.1", False, True, True),
        ("64:ff9b::7f00:1", False, False, True),
        ("2002:7f00:1::", False, False, True),
        ("169.254.169.254", False, False, False),
        ("fe80::1", False, False, False),
        ("0.0.0.0", False, False, False),
        ("::", False, False, False),
        ("224.0.0.1", False, False, False),
        ("ff02::1", False, False, False),
        ("255.255.255.255", False, False, False),
    ],
)
def test_where_media_may_go(address: str, strict: bool, private: bool, everything: bool) -> None:
    parsed = ipaddress.ip_address(address)
    verdicts = [allowed(parsed, policy) for policy in (STRICT, MediaPolicy(allow_private=True), OPEN)]
    assert verdicts == [strict, private, everything]


def test_only_what_can_be_used_is_kept() -> None:
    lines = (
        line("8.8.8.8"),
        line("9.9.9.9", kind="srflx") + " raddr 10.0.0.1 rport 9",
        line("0a1b-2c3d.local"),
        line("8.8.4.4", transport="tcp"),
        line("8.8.4.4", component=2),
        line("8.8.4.4", port=53),
        line("8.8.4.4", port=70_000),
        line("8.8.4.4", port="x"),
        line("8.8.4.4", port="٣٤٥٦"),
        line("8.8.4.4", kind="prflx"),
        line("fe80::1%eth0"),
        line("999.1.1.1"),
        "too short",
    )
    assert [candidate.host for candidate in remote_candidates(lines, OPEN)] == ["8.8.8.8", "9.9.9.9"]


def test_an_offers_candidates_are_few() -> None:
    lines = tuple(line("8.8.8.8", 2000 + n) for n in range(100))
    assert len(remote_candidates(lines, OPEN)) == MAX_REMOTE


@given(st.lists(st.text(max_size=80)))
def test_no_candidate_line_raises(lines: list[str]) -> None:
    assert remote_candidates(tuple(lines), OPEN) == []


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def has(*addresses: str, route: str | None = None) -> None:
        monkeypatch.setattr(candidates, "host_addresses", lambda: list(addresses))
        monkeypatch.setattr(candidates, "_default_route", lambda: route)

    return has


def test_addresses_of_this_host(host: Callable[..., None]) -> None:
    host("127.0.0.1", "172.17.0.1", "10.0.0.5", "::1", "fe80::2", route="10.0.0.5")
    assert local_addresses(MediaPolicy()) == ["10.0.0.5", "172.17.0.1"]
    assert local_addresses(OPEN) == ["10.0.0.5", "172.17.0.1", "127.0.0.1"]
    cloud = MediaPolicy(advertised_ip="198.51.100.9", allow_private=False)
    assert local_addresses(cloud) == ["10.0.0.5"], "the bridge of containers is nobody's way in"
    host("127.0.0.1")
    assert local_addresses(MediaPolicy()) == []


def test_there_is_an_address_to_listen_at() -> None:
    assert local_addresses(OPEN)[-1] == "127.0.0.1"


@pytest.fixture
async def connections() -> AsyncIterator[list[IceConnection]]:
    made: list[IceConnection] = []
    yield made
    for connection in made:
        await connection.close()


async def test_a_machine_with_loopback_only(host: Callable[..., None], connections: list[IceConnection]) -> None:
    host("127.0.0.1", "::1")
    connections.append(IceConnection(OPEN))
    await connections[0].gather_candidates()
    (told,) = connections[0].answer_candidates()
    assert Candidate.from_sdp(told).host == "127.0.0.1"


async def test_without_an_address_there_is_no_media(host: Callable[..., None]) -> None:
    host("127.0.0.1")
    connection = IceConnection(MediaPolicy())
    with pytest.raises(NoMediaPort):
        await connection.gather_candidates()
    await connection.close()


async def test_ports_stay_in_their_range_until_it_is_used_up(
    host: Callable[..., None], connections: list[IceConnection]
) -> None:
    host("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        first = probe.getsockname()[1] & ~3
    policy = MediaPolicy(allow_loopback=True, port_range=(first, first + 3))
    used = set()
    for _ in range(4):
        connection = IceConnection(policy)
        connections.append(connection)
        await connection.gather_candidates()
        used |= {candidate.port for candidate in connection.local_candidates}
    assert used == {first, first + 1, first + 2, first + 3}
    connections.append(IceConnection(policy))
    with pytest.raises(NoMediaPort):
        await connections[-1].gather_candidates()


async def test_the_address_that_the_world_knows(host: Callable[..., None], connections: list[IceConnection]) -> None:
    host("127.0.0.1", route="127.0.0.1")
    for private, hosts in ((True, ["198.51.100.9", "127.0.0.1"]), (False, ["198.51.100.9"])):
        connection = IceConnection(
            MediaPolicy(advertised_ip="198.51.100.9", allow_private=private, allow_loopback=True)
        )
        connections.append(connection)
        await connection.gather_candidates()
        told = [Candidate.from_sdp(text) for text in connection.answer_candidates()]
        assert [candidate.host for candidate in told] == hosts
        assert {candidate.port for candidate in told} == {connection.local_candidates[0].port}


async def test_no_server_is_asked_that_was_not_named(connections: list[IceConnection]) -> None:
    connections.append(IceConnection(OPEN))
    assert connections[0].stun_server is None
    assert connections[0].turn_server is None
    servers = (IceServer(("stun:198.51.100.1", "turn:198.51.100.2?transport=tcp"), "me", "secret"),)
    connections.append(IceConnection(MediaPolicy(ice_servers=servers)))
    assert connections[1].stun_server == ("198.51.100.1", 3478)
    assert connections[1].turn_server == ("198.51.100.2", 3478)
    assert (connections[1].turn_username, connections[1].turn_password) == ("me", "secret")


async def test_media_that_comes_before_its_keys_waits_its_turn(connections: list[IceConnection]) -> None:
    connection = IceConnection(OPEN)
    connections.append(connection)
    connection.data_received(b"\x80first", 1)
    connection.data_received(b"\x80second", 1)
    heard: list[bytes] = []
    connection.hear(heard.append)
    connection.data_received(b"\x80third", 1)
    connection.data_received(b"", 1)
    assert heard == [b"\x80first", b"\x80second", b"\x80third"]
