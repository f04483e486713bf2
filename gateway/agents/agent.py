"""What an agent is: who answers a call, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engines.registry import Lineup
from gateway.agent_settings import DEFAULT_AGENT, AgentSettings
from gateway.settings import ConfigurationError, Settings
from streaming.config import BargeIn, KeypadRules, SessionConfig, TurnDetection, TurnMode

DEFAULT_AGENT_NAME = "default"


class UnknownAgent(Exception):  # noqa: N818 (what the client asked for does not exist)
    """No agent of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no agent {name!r}")
        self.code = "unknown_agent"
        self.name = name


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    settings: AgentSettings
    max_call_s: float

    def session_config(self) -> SessionConfig:
        """How a call to this agent listens and answers, before the client changes anything. It has all of the agent's
        tools: whoever sets the call up leaves those that its leg can do."""
        said = self.settings
        return SessionConfig(
            instructions=said.instructions,
            examples=said.examples,
            voice=said.voice,
            language=said.language,
            speed=said.speed,
            max_output_tokens=said.max_output_tokens,
            temperature=said.temperature,
            greeting=said.greeting,
            apology=said.apology,
            max_call_s=self.max_call_s,
            tools=said.tools,
            transfer_targets=tuple(said.transfer_targets.items()),
            goodbye=said.goodbye,
            keypad=KeypadRules(said.keypad_pause_ms, said.keypad_end_key),
            turn=TurnDetection(
                mode=TurnMode.SEMANTIC,
                threshold=said.threshold,
                silence_duration_ms=said.silence_ms,
                eagerness=said.eagerness,
                barge_in=BargeIn.HOLD,
                idle_timeout_ms=said.idle_timeout_ms,
                speculate=said.speculate,
            ),
        )


class Agents:
    """Every configured agent, and ``default``, which always exists."""

    def __init__(self, tables: Mapping[str, AgentSettings], *, max_call_s: float) -> None:
        self._agents = {
            name: Agent(name, table, max_call_s)
            for name, table in {DEFAULT_AGENT_NAME: DEFAULT_AGENT, **tables}.items()
        }

    @classmethod
    def from_settings(cls, settings: Settings) -> Agents:
        return cls(settings.agents, max_call_s=settings.max_call_s)

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def get(self, name: str) -> Agent:
        """Raises :class:`UnknownAgent`."""
        try:
            return self._agents[name]
        except KeyError:
            raise UnknownAgent(name) from None

    def check_voices(self, voices: tuple[str, ...]) -> None:
        """Raises :class:`ConfigurationError` (``unknown_voice``) naming every agent whose voice no engine speaks."""
        problems = [
            f"agents.{agent.name}.voice: no voice {agent.settings.voice!r} in this preset; it has {', '.join(voices)}"
            for agent in self
            if agent.settings.voice and agent.settings.voice not in voices
        ]
        if problems:
            raise ConfigurationError("unknown_voice", *problems)


def check_agents_known(settings: Settings) -> None:
    """Raises :class:`ConfigurationError` (``unknown_agent``) naming every place where phones are sent to an agent that
    there is not."""
    phone = settings.phone
    asked = {"phone.agent": phone.agent} | {f"phone.numbers {number}": agent for number, agent in phone.numbers.items()}
    known = {DEFAULT_AGENT_NAME, *settings.agents}
    problems = [
        f"{where}: there is no agent {agent!r}; there are {', '.join(sorted(known))}"
        for where, agent in asked.items()
        if agent not in known
    ]
    if problems:
        raise ConfigurationError("unknown_agent", *problems)


def check_voices_known(settings: Settings, lineup: Lineup) -> None:
    """Before anything is loaded: as :meth:`Agents.check_voices`, where the voices of the first text-to-speech backend
    are known by then."""
    voices = lineup.chains["tts"][0].voices
    if voices:
        Agents.from_settings(settings).check_voices(voices)
