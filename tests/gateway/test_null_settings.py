"""What the scripted engines are told, and what is told of them."""

from __future__ import annotations

import pytest

from engines.selection import Choice, select
from gateway.engine_settings import EngineSettings
from gateway.null_settings import NullSettings
from gateway.settings import ConfigurationError, Settings

DELAYS = NullSettings(stt_ms=120, llm_first_token_ms=200, llm_token_ms=20, tts_ms=150, tts_realtime_factor=0.5)


def test_delays_reach_the_engines_of_the_null_preset_and_keep_their_other_options() -> None:
    chains = DELAYS.applied_to(select("null", {})).chains
    stt, llm, tts = chains["stt"][0], chains["llm"][0], chains["tts"][0]
    assert dict(stt.options) == {"final_delay_s": 0.12}
    assert dict(llm.options) == {"records": False, "first_token_delay_s": 0.2, "token_delay_s": 0.02}
    assert dict(tts.options) == {"records": False, "first_chunk_delay_s": 0.15, "realtime_factor": 0.5}


def test_real_engines_keep_what_they_have() -> None:
    lineup = select("embedded", {})
    assert DELAYS.applied_to(lineup) == lineup
    assert lineup.fakes() == ()
    assert DELAYS.stated(lineup) == ""


def test_what_is_fake_is_stated_with_its_delays_only() -> None:
    said = DELAYS.stated(select("null", {}))
    assert said == (
        "FAKE engines (vad, turn, stt, llm, tts): no figure tells of a model; delays: stt 120 ms, "
        "first token 200 ms, each further token 20 ms, tts 150 ms, speech at 0.5 x its own length"
    )
    assert NullSettings().stated(select("null", {})).endswith("no figure tells of a model; delays: none")
    mixed = select("embedded", {"vad": Choice(("energy",))})
    assert DELAYS.stated(mixed) == "FAKE engines (vad): no figure tells of a model; delays: none"
    with_model = select("null", {"vad": Choice(("silero",)), "tts": Choice(("piper-joe",))})
    assert with_model.fakes() == ("turn", "stt", "llm")
    assert "tts 150" not in DELAYS.stated(with_model)


def test_voice_activity_is_chosen_by_a_setting() -> None:
    chosen = Settings(preset="null", engines=EngineSettings(vad="silero")).lineup()
    assert [spec.name for spec in chosen.chains["vad"]] == ["silero"]
    assert [spec.name for spec in Settings(preset="null").lineup().chains["vad"]] == ["energy"]
    with pytest.raises(ConfigurationError) as caught:
        Settings(engines=EngineSettings(vad="smart-turn")).lineup()
    assert caught.value.code == "unknown_backend"


@pytest.mark.parametrize("wrong", [{"stt_ms": -1}, {"llm_token_ms": 60_001}, {"tts_realtime_factor": 101}, {"vad": 1}])
def test_delays_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        NullSettings.model_validate(wrong)
