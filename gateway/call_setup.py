"""What every way in does alike: a call's first configuration, its protocol, the call itself, and what a client asks."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from gateway.call import Call, Leg
from gateway.playout import Wire
from gateway.realtime.protocol import AppendAudio, ClearAudio, CommitAudio, Inbound, RealtimeProtocol
from gateway.realtime.session_object import SessionDefaults
from gateway.records.call_record import CallRecord, Parties
from gateway.security.guard import error_body
from gateway.state import Gateway
from gateway.switchboard import Admission
from gateway.transports.phone.line import Ability, Incoming
from streaming.config import SessionConfig
from streaming.events import ClearInput, CommitInput

_log = structlog.get_logger(__name__)

MAX_PARTY_CHARS = 256

MAX_MODEL_CHARS = 64
"""Of the ``model`` that a client names and the session echoes."""


class CallNotSetUp(Exception):  # noqa: N818 (an answer: the client is told, and may try again)
    """An engine does not take the call; over HTTP a 503 with :attr:`body`. The reason is logged, not told."""

    status = 503

    def __init__(self) -> None:
        super().__init__("An engine does not take calls.")

    @property
    def body(self) -> dict[str, Any]:
        return error_body("engine_failed", str(self), type_="server_error")


def new_id(kind: str) -> str:
    """A fresh id such as ``event_…``."""
    return f"{kind}_{secrets.token_hex(10)}"


def first_config(
    gateway: Gateway, agent_name: str | None, abilities: frozenset[Ability] = frozenset()
) -> SessionConfig:
    """An agent's own, with those of its tools that its leg can do (hanging up, any can); or for a client that names
    none the documented defaults and nothing else of ours. Raises :class:`gateway.agents.agent.UnknownAgent`."""
    settings = gateway.settings
    if agent_name is not None:
        config = gateway.agents.get(agent_name).session_config()
    else:
        config = SessionConfig(instructions=settings.default_instructions, max_call_s=settings.max_call_s)
    possible = {"end_call", *(ability.value for ability in abilities)}
    tools = tuple(tool for tool in config.tools if tool in possible)
    return msgspec.structs.replace(config, tools=tools, voice=config.voice or gateway.engines.tts.voices[0])


def open_protocol(
    gateway: Gateway, call_id: str, *, config: SessionConfig, agent_name: str | None, model: str | None, media: bool
) -> RealtimeProtocol:
    """The event protocol of a call. Nothing is queued yet: a session that came with the call goes into ``begin_with``,
    then ``open`` says hello. ``media``: audio goes beside the events (see :class:`RealtimeProtocol`)."""
    return RealtimeProtocol(
        call_id=call_id,
        model=(model or "offhook")[:MAX_MODEL_CHARS],
        defaults=SessionDefaults(config, gateway.engines.tts.voices, agent=agent_name is not None),
        new_id=new_id,
        now_s=time.time,
        count=gateway.metrics.count,
        media=media,
    )


def open_call(
    gateway: Gateway,
    admission: Admission,
    *,
    transport: str,
    agent_name: str | None,
    config: SessionConfig,
    leg: Leg,
    wire: Wire | None = None,
    incoming: Incoming | None = None,
) -> Call:
    """The call of an admission, ringing: the caller registers it with the switchboard, says ``answered`` once media
    flows, and sees to it that it ends. ``incoming``: who calls whom by phone. Raises :class:`CallNotSetUp`."""
    record = CallRecord(
        id=admission.call_id,
        transport=transport,
        agent=agent_name,
        started_at=datetime.now(UTC),
        direction="inbound" if incoming is None else incoming.direction,
        parties=None if incoming is None else _parties(incoming),
        trace=gateway.begin_trace(asked=incoming is None or incoming.direction == "outbound"),
    )
    try:
        return Call(
            record=record,
            config=config,
            engines=gateway.engines,
            leg=leg,
            phrases=gateway.phrases,
            metrics=gateway.metrics,
            farewell=gateway.settings.farewell,
            new_id=new_id,
            strict=gateway.strict,
            wire=wire,
            asked_at=admission.asked_at if record.direction == "inbound" else None,
        )
    except Exception as error:  # an engine may raise anything when it opens: it is this caller's answer, and logged
        _log.exception("a call could not be set up", call=admission.call_id)
        raise CallNotSetUp from error


def _parties(incoming: Incoming) -> Parties:
    """A wire may say what is no text, and of any length: shown to people and written as JSON, it would break more than
    its own call."""
    said = (incoming.caller, incoming.dialled, incoming.wire_id)
    shown = ("".join(c if c.isprintable() else "\ufffd" for c in text[:MAX_PARTY_CHARS]) for text in said)
    return Parties(*shown)


async def perform(inbound: Inbound, call: Call) -> None:
    """Do what a client event asks. One after another: a commit waits until all audio before it was looked at. Audio
    inside of events is the transport's own to decode: :class:`ValueError`."""
    match inbound:
        case AppendAudio():
            raise ValueError("audio that came in an event is decoded where its format is known")
        case CommitAudio():
            await call.caught_up()
            call.handle(CommitInput(call.heard_samples, inbound.event_id))
        case ClearAudio():
            call.handle(ClearInput(call.heard_samples, inbound.event_id))
        case _:
            call.handle(inbound)
