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

Fields = dict[str, msgspec.Raw]
"""Of a session object, each as its JSON."""


@dataclass(frozen=True, slots=True)
class GivenSession:
    """A session object as a client wrote it, and what of it is not the protocol's: who is to answer."""

    session: Fields | None = None
    agent: str | None = None

    @property
    def model(self) -> str | None:
        try:
            model = msgspec.json.decode((self.session or {}).get("model", b"null"), type=str | None)
        except ValueError:
            return None
        return model[:MAX_MODEL_CHARS] if model is not None else None


@dataclass(frozen=True, slots=True)
class Beginning:
    """``minted`` is the session of the client secret, ``offered`` the one beside the offer. ``locked``: what the secret
    was made with is what the call is, and its client only takes part."""

    agent: str | None = None
    model: str | None = None
    minted: Fields | None = None
    offered: Fields | None = None
    locked: bool = False

    def apply_to(self, protocol: RealtimeProtocol) -> None:
        """Before the call says hello. Raises :class:`Rejected`."""
        if self.minted is not None:
            protocol.begin_with(self.minted)
        if self.locked:
            protocol.lock()
        if self.offered is not None:
            protocol.begin_with(self.offered)


def read_session(data: bytes | msgspec.Raw) -> GivenSession:
    """A session object in JSON, or null; the extension ``agent`` is taken out of it. What is in it is judged when it is
    applied, and not made objects of before: of half a megabyte that would take a tenth of a second. Raises
    :class:`Rejected`."""
    fields = _decoded(data, dict[str, msgspec.Raw] | None, "the session is an object", "session")
    if fields is None:
        return GivenSession()
    agent = _decoded(fields.pop("agent", b"null"), str | None, "agent is the name of an agent", "session.agent")
    return GivenSession(fields, agent)


def _decoded(data: bytes | msgspec.Raw, kind: Any, message: str, param: str) -> Any:
    try:
        bytes(data).decode()  # what is not looked into is not held to UTF-8 either
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise Rejected("invalid_type", message, param) from None
    except (ValueError, RecursionError):
        raise Rejected("invalid_json", "the session is not valid JSON", "session") from None


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
