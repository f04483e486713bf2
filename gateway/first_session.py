"""How a call begins: who answers it, and the session a client gave for it, with its offer or in a client secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.call_setup import MAX_MODEL_CHARS
from gateway.realtime.errors import Rejected
from gateway.realtime.protocol import RealtimeProtocol
from gateway.security.client_secrets import ClientSecret

MAX_SESSION_BYTES = 512 * 1024
"""Of a session object as JSON: instructions of 64 000 characters, escaped."""


@dataclass(frozen=True, slots=True)
class GivenSession:
    """A session object as a client wrote it, and what of it is not the protocol's: who is to answer."""

    session: dict[str, Any] | None = None
    agent: str | None = None

    @property
    def model(self) -> str | None:
        model = (self.session or {}).get("model")
        return model[:MAX_MODEL_CHARS] if isinstance(model, str) else None


@dataclass(frozen=True, slots=True)
class Beginning:
    """``minted`` is the session of the client secret, ``offered`` the one beside the offer. ``locked``: what the secret
    was made with is what the call is, and its client only takes part."""

    agent: str | None = None
    model: str | None = None
    minted: dict[str, Any] | None = None
    offered: dict[str, Any] | None = None
    locked: bool = False

    def apply_to(self, protocol: RealtimeProtocol) -> None:
        """Before the call says hello. Raises :class:`Rejected`."""
        if self.minted is not None:
            protocol.begin_with(self.minted)
        if self.locked:
            protocol.lock()
        if self.offered is not None:
            protocol.begin_with(self.offered)


def read_session(data: bytes) -> GivenSession:
    """A session object in JSON; the extension ``agent`` is taken out of it. What is in it is judged when it is
    applied. Raises :class:`Rejected`."""
    try:
        session = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        raise Rejected("invalid_json", "the session is not valid JSON", "session") from None
    return given(session)


def given(session: object) -> GivenSession:
    """As :func:`read_session`, of JSON that was read."""
    if session is None:
        return GivenSession()
    if not isinstance(session, dict):
        raise Rejected("invalid_type", "the session is an object", "session")
    agent = session.get("agent")
    if not (agent is None or isinstance(agent, str)):
        raise Rejected("invalid_type", "agent is the name of an agent", "session.agent")
    return GivenSession({name: value for name, value in session.items() if name != "agent"}, agent)


def beginning(query: Mapping[str, str], secret: ClientSecret | None, form: GivenSession | None = None) -> Beginning:
    """Of a call with this query (``agent``, ``model``), client secret and form. A secret that is bound to an agent
    opens calls to no other, and a locked one without an agent to none. Raises :class:`Rejected` (``agent_mismatch``).
    """
    form = form or GivenSession()
    asked = query.get("agent") or form.agent
    if secret is None:
        return Beginning(asked, query.get("model") or form.model, offered=form.session)
    minted = GivenSession() if secret.session is None else read_session(secret.session)
    if asked not in (None, secret.agent) and (secret.agent is not None or secret.locked):
        raise Rejected("agent_mismatch", "this client secret is for another agent", "agent")
    model = query.get("model") or form.model or minted.model
    return Beginning(secret.agent or asked, model, minted.session, form.session, secret.locked)
