from __future__ import annotations

import pytest

from gateway.agents.agent import Agents, UnknownAgent
from gateway.settings import AgentSettings, ConfigurationError, Settings
from streaming.config import BargeIn, Eagerness, TurnMode


def test_an_agent_becomes_the_session_it_begins_with() -> None:
    table = AgentSettings(
        instructions="Be brief.",
        greeting="Hi",
        voice="joe",
        language="en-GB",
        apology="Sorry",
        speed=1.2,
        speculate=False,
        silence_ms=450,
        eagerness=Eagerness.HIGH,
        threshold=0.6,
        idle_timeout_ms=9_000,
        max_output_tokens=50,
        temperature=0.7,
    )
    config = Agents.from_settings(Settings(agents={"anna": table}, max_call_s=60)).get("anna").session_config()
    assert (config.instructions, config.greeting, config.voice, config.language) == ("Be brief.", "Hi", "joe", "en-GB")
    assert (config.apology, config.speed, config.max_output_tokens, config.temperature) == ("Sorry", 1.2, 50, 0.7)
    assert config.max_call_s == 60
    assert config.turn.mode is TurnMode.SEMANTIC
    assert config.turn.barge_in is BargeIn.HOLD
    assert (config.turn.silence_duration_ms, config.turn.threshold, config.turn.speculate) == (450, 0.6, False)
    assert (config.turn.eagerness, config.turn.idle_timeout_ms) == (Eagerness.HIGH, 9_000)


def test_the_default_agent_always_exists_and_can_be_replaced() -> None:
    assert "Blue Door Bakery" in Agents.from_settings(Settings()).get("default").settings.greeting
    mine = AgentSettings(greeting="Mine")
    agents = Agents.from_settings(Settings(agents={"default": mine, "other": AgentSettings()}))
    assert agents.get("default").settings == mine
    assert [agent.name for agent in agents] == ["default", "other"]


def test_an_unknown_agent_is_named() -> None:
    with pytest.raises(UnknownAgent, match="'nobody'") as caught:
        Agents.from_settings(Settings()).get("nobody")
    assert (caught.value.code, caught.value.name) == ("unknown_agent", "nobody")


def test_every_voice_that_nobody_speaks_is_reported() -> None:
    tables = {name: AgentSettings(voice=name) for name in ("joe", "ann", "bob")}
    agents = Agents.from_settings(Settings(agents=tables))
    with pytest.raises(ConfigurationError) as caught:
        agents.check_voices(("joe", "mary"))
    assert caught.value.code == "unknown_voice"
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["agents.ann.voice", "agents.bob.voice"]
    assert "joe, mary" in caught.value.problems[0]
    agents.check_voices(("joe", "ann", "bob"))
