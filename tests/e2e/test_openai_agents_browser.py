"""OpenAI's own client for browsers, not changed, on a page of the gateway's origin: all it needs is the base URL.

(With real models it calls in test_chromium_call.py.)
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from engines.api import EngineSet
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from gateway.agents.agent import DEFAULT_AGENT_NAME
from gateway.settings import AgentSettings, Settings
from tests.e2e.browser_rig import LEAD_MS, SILENT, TAIL_MS, BrowserPage, ended_calls
from tests.e2e.openai_agents import connect, history, seen
from tests.gateway.call_rig import Engines
from tests.serving import served_beside
from tests.web.page_rig import needs_chromium

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), needs_chromium]

KEY = "sesame"
COST, STOP = "How much does it cost?", "Stop."
STORY = (
    " ".join(first + second for first in "ba de fi go lu ma ne po".split() for second in "ka re ti so".split()) + "."
)


@contextlib.contextmanager
def scripted(**settings: Any) -> Iterator[str]:
    @contextlib.asynccontextmanager
    async def engines() -> AsyncIterator[EngineSet]:
        llm = ScriptedLlm(lambda messages: STORY if messages[-1].content == COST else "All right.")
        yield Engines(stt=ScriptedStt((COST, STOP)), llm=llm, tts=ScriptedTts(100)).set

    with served_beside(engines, Settings(preset="null", **settings)) as here:
        yield here.url


def test_a_turn_an_interruption_and_the_end(caller: BrowserPage) -> None:
    with scripted(key=SecretStr(KEY)) as url:
        connect(caller, url, key=KEY)
        assert seen(caller, "states") == ["connecting", "connected"]
        caller.say(COST)
        caller.page.wait_for_function("() => tap.sounded() > 1500")
        caller.page.evaluate("() => session.interrupt()")
        cut_ms = caller.expect("output_audio_buffer.cleared")["at_ms"]
        caller.expect("conversation.item.truncated")
        caller.say(STOP)
        caller.expect("output_audio_buffer.stopped")
        (_, _, asked), (role, _, cut), (_, _, stop), (_, _, answer) = history(caller)
        assert (asked, role, stop, answer) == (COST, "assistant", "Stop.", "All right.")
        assert STORY.startswith(cut.rstrip("."))
        sound = caller.hears()
        next_ms = caller.events("output_audio_buffer.started")[1]["at_ms"]
        assert np.abs(sound.between(cut_ms + TAIL_MS, next_ms - LEAD_MS).astype(int)).max() < SILENT
        assert {"agent_start", "agent_end", "audio_stopped"} <= set(seen(caller, "names"))
        assert seen(caller, "errors") == []
        caller.page.evaluate("() => session.close()")
        (call,) = ended_calls(url, KEY)
        assert (call["transport"], call["cause"]) == ("webrtc", "caller_hung_up")
        assert [entry["role"] for entry in call["transcript"]] == ["user", "assistant"] * 2


def test_a_key_in_the_page_works_too_where_one_dares(caller: BrowserPage) -> None:
    with scripted(key=SecretStr(KEY)) as url:
        connect(caller, url, apiKey=KEY)
        caller.page.evaluate("() => session.sendMessage('Hello?')")
        caller.expect("output_audio_buffer.stopped")
        assert [(role, text) for role, _, text in history(caller)] == [("user", "Hello?"), ("assistant", "All right.")]
        caller.page.evaluate("() => session.mute(true)")
        assert seen(caller, "errors") == []
        caller.page.evaluate("() => session.close()")
        assert [call["cause"] for call in ended_calls(url, KEY)] == ["caller_hung_up"]


def test_a_locked_call_takes_its_updates_and_keeps_its_greeting(caller: BrowserPage) -> None:
    with scripted(
        key=SecretStr(KEY), page_key=SecretStr("page"), agents={DEFAULT_AGENT_NAME: AgentSettings(greeting=STORY)}
    ) as url:
        connect(caller, url, key="page")
        caller.expect("output_audio_buffer.stopped")
        order = seen(caller, "order")
        assert "error" not in order
        # It is connected by the answer to its first update, not by its patience, which ends after the greeting.
        assert order[order.index("connected") + 1] == "session.updated"
        assert order.index("connected") < order.index("output_audio_buffer.stopped")
        assert all("instructions" not in event["session"] for event in caller.events("session.updated"))
        assert history(caller) == [("assistant", "completed", STORY)]
        assert seen(caller, "errors") == []
        caller.page.evaluate("() => session.close()")
        assert [call["cause"] for call in ended_calls(url, KEY)] == ["caller_hung_up"]
