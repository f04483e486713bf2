"""From the settings to the media peer of a call."""

from __future__ import annotations

import time

from aiortc import RTCCertificate
from aiortc.rtcdtlstransport import SRTP_PROFILES

from gateway.security.networks import is_loopback
from gateway.settings import Settings
from gateway.state import Gateway
from gateway.transports.webrtc.call_task import SETUP_S, MakePeer, PeerListener
from gateway.transports.webrtc.ice_servers import ice_servers
from gateway.transports.webrtc.leg import Peer
from gateway.transports.webrtc.peer import IceServer, MediaPeer, MediaPolicy

OUR_TURN_NAME = "gateway"
"""In the TURN server's log."""


def warm_tls() -> None:
    """Make what each call's DTLS needs once, and let it go: OpenSSL's first certificate and context take 7 ms, which
    the first call would take of the event loop; later ones take half of one. For a thread."""
    RTCCertificate.generateCertificate()._create_ssl_context(SRTP_PROFILES)


def peer_maker(gateway: Gateway) -> MakePeer:
    """What makes the peers of this gateway's calls."""

    def make(listener: PeerListener) -> Peer:
        return MediaPeer(media_policy(gateway.settings), listener)

    return make


def media_policy(settings: Settings) -> MediaPolicy:
    """What a call's media may do; its TURN credentials last as long as a call can."""
    media = settings.media
    expires_at = int(time.time() + settings.max_call_s + SETUP_S)
    servers = ice_servers(media, name=OUR_TURN_NAME, expires_at=expires_at)
    private, loopback = media.private_candidates, media.loopback_candidates
    return MediaPolicy(
        advertised_ip=media.advertised_ip or None,
        port_range=media.ports(),
        ice_servers=tuple(
            IceServer(tuple(server["urls"]), server.get("username"), server.get("credential")) for server in servers
        ),
        allow_private=not media.advertised_ip if private is None else private,
        allow_loopback=is_loopback(settings.host) if loopback is None else loopback,
        setup_s=SETUP_S,
    )
