"""Who answers a phone call."""

from __future__ import annotations

from gateway.agents.agent import UnknownAgent
from gateway.state import Gateway
from gateway.transports.phone.line import Incoming


def choose_agent(gateway: Gateway, incoming: Incoming) -> str:
    """The agent that the wire asks for by name; else whose number was dialled (``phone.numbers``); else the agent whose
    name was dialled; else ``phone.agent``.

    Raises:
        UnknownAgent: the wire asks for one that there is not.
    """
    phone = gateway.settings.phone
    chosen = incoming.agent or phone.agent_of(incoming.dialled)
    if chosen is None:
        try:
            return gateway.agents.get(incoming.dialled).name
        except UnknownAgent:
            chosen = phone.agent
    return gateway.agents.get(chosen).name
