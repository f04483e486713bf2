"""STUN and TURN servers, with credentials made for one call (TURN REST API, draft-uberti-behave-turn-rest-00)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from gateway.media_settings import MediaSettings


def turn_credential(secret: str, name: str, expires_at: int) -> tuple[str, str]:
    """User name and password that a TURN server which shares ``secret`` takes until ``expires_at`` (Unix time)."""
    username = f"{expires_at}:{name}"
    digest = hmac.new(secret.encode(), username.encode(), hashlib.sha1).digest()
    return username, base64.b64encode(digest).decode()


def ice_servers(media: MediaSettings, *, name: str, expires_at: int) -> list[dict[str, Any]]:
    """As a browser's RTCPeerConnection takes them. ``name`` is for the TURN server's log."""
    stun = [url for url in media.ice_servers if url.startswith("stun")]
    turn = [url for url in media.ice_servers if url.startswith("turn")]
    servers: list[dict[str, Any]] = [{"urls": stun}] if stun else []
    if turn and media.turn_secret is not None:
        username, credential = turn_credential(media.turn_secret.get_secret_value(), name, expires_at)
        servers.append({"urls": turn, "username": username, "credential": credential})
    return servers
