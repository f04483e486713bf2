"""What is used of aiortc and aioice that they do not promise. After an upgrade, this says which of it moved."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import aioice.candidate
import aioice.ice
import aiortc.rtcicetransport
import aiortc.rtp
import pytest
from aiortc import RTCCertificate, RTCDtlsTransport, RTCSctpTransport

from gateway.transports.webrtc.candidates import IceConnection, MediaPolicy
from gateway.transports.webrtc.data_channel import _Path
from gateway.transports.webrtc.ice_link import IceLink

FUNCTIONS = {
    aioice.candidate.candidate_foundation: ["candidate_type", "candidate_transport", "base_address"],
    aioice.candidate.candidate_priority: ["candidate_component", "candidate_type", "local_pref"],
    aioice.ice.server_reflexive_candidate: ["protocol", "stun_server"],
    aioice.ice.get_host_addresses: ["use_ipv4", "use_ipv6"],
    aioice.ice.Connection.get_component_candidates: ["self", "component", "addresses", "timeout"],
    aioice.ice.Connection.data_received: ["self", "data", "component"],
    aioice.ice.Connection.request_received: ["self", "message", "addr", "protocol"],
    aioice.ice.Connection.recv: ["self"],
    aioice.ice.Connection.send: ["self", "data"],
    aioice.ice.StunProtocol.datagram_received: ["self", "data", "addr"],
    aiortc.rtcicetransport.connection_kwargs: ["servers"],
    aiortc.rtp.is_rtcp: ["msg"],
    RTCCertificate._create_ssl_context: ["self", "srtp_profiles"],
    RTCDtlsTransport._set_role: ["self", "role"],
    RTCDtlsTransport._send_rtp: ["self", "data"],
    RTCDtlsTransport._send_data: ["self", "data"],
    RTCDtlsTransport._register_data_receiver: ["self", "receiver"],
    RTCDtlsTransport._unregister_data_receiver: ["self", "receiver"],
    RTCSctpTransport._handle_data: ["self", "data"],
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_a_function_takes_what_it_is_given(function: Any) -> None:
    assert list(inspect.signature(function).parameters) == FUNCTIONS[function], f"{function.__qualname__} changed"


async def test_attributes_are_where_they_are_looked_for() -> None:
    ice = IceConnection(MediaPolicy())
    dtls = RTCDtlsTransport(IceLink(ice), [RTCCertificate.generateCertificate()])  # type: ignore[arg-type]
    sctp = RTCSctpTransport(_Path(dtls, lambda: None))  # type: ignore[arg-type]
    found: dict[object, dict[str, type]] = {
        ice: {"_protocols": list, "_remote_candidates": list, "_queue": asyncio.Queue}
        | {"ice_controlling": bool, "remote_is_lite": bool},
        dtls: {"_role": str, "_task": type(None), "_rx_srtp": type(None), "_tx_srtp": type(None)},
        sctp: {"_advertised_rwnd": int, "_sack_misordered": set},
    }
    for owner, names in found.items():
        for name, kind in names.items():
            assert hasattr(owner, name), f"{type(owner).__name__}.{name} moved"
            assert isinstance(getattr(owner, name), kind), f"{type(owner).__name__}.{name} is another thing now"
    await ice.close()


def used(owner: type, attribute: str) -> set[str]:
    """What a class does with one of its attributes."""
    return set(re.findall(rf"self\.(?:_{owner.__name__}__|__)?_*{attribute}\.(\w+)", inspect.getsource(owner)))


def test_dtls_asks_no_more_of_its_transport_than_ours_has() -> None:
    asked = used(RTCDtlsTransport, "transport")
    assert asked, "the name of the attribute moved"
    assert asked <= {"role", "_recv", "_send"}, f"new: {asked}"


def test_sctp_asks_no_more_of_its_transport_than_ours_has() -> None:
    asked = used(RTCSctpTransport, "transport")
    assert asked, "the name of the attribute moved"
    have = {name for name in dir(_Path) if not name.startswith("__")}
    assert asked <= have, f"new: {asked - have}"


def test_media_passes_by_the_dtls_transports_reader_in_the_order_it_came() -> None:
    """``_recv_next`` is the one reader, and reads through ``_recv``: media that never gets there is ours."""
    source = inspect.getsource(RTCDtlsTransport._recv_next)
    assert "self.transport._recv()" in source
    assert "first_byte > 127 and first_byte < 192" in source


async def test_sending_never_waits() -> None:
    """Frames are sent within ``play``: what aiortc calls on the way must not suspend."""
    source = inspect.getsource(aioice.ice.StunProtocol.send_data)
    assert "await" not in source, "StunProtocol.send_data waits now"
    source = inspect.getsource(RTCDtlsTransport._send_rtp)
    assert re.findall(r"await (\S+)\(", source) == ["self.transport._send"], "RTCDtlsTransport._send_rtp changed"
    assert asyncio.iscoroutinefunction(aioice.ice.Connection.send)
