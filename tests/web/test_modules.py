"""The page's modules that know nothing of the page, by themselves, in the browser they are written for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.web.page_rig import ORIGIN, needs_chromium, rig
from tests.web.server_events import answer_began, answer_ended, answered, heard, heard_partly, said, speech_started

pytestmark = [pytest.mark.e2e, needs_chromium]

Run = Callable[..., Any]

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def run(browser: Browser) -> Iterator[Run]:
    """``run(module, body, **given)``: what ``body`` returns, with the exports as ``m``."""
    with rig(browser) as here:
        here.page.goto(f"{ORIGIN}/far")

        def run(module: str, body: str, **given: Any) -> Any:
            script = f"async (given) => {{ const m = await import('/web/call/{module}.js'); {body} }}"
            return here.page.evaluate(script, given)

        yield run


# --- states ---------------------------------------------------------------------------------------------------

CALL = {"type": "call"}
MICROPHONE = {"type": "microphone"}
CONNECTED = {"type": "connected", "at": 1_000}


def over(reason: str, at: int = 5_000) -> dict[str, Any]:
    return {"type": "over", "reason": reason, "at": at}


def states(run: Run, *events: dict[str, Any]) -> list[dict[str, Any]]:
    script = """
        const seen = [];
        let state = m.IDLE;
        for (const event of given.events) { state = m.nextState(state, event); seen.push(state); }
        return seen;
    """
    seen: list[dict[str, Any]] = run("states", script, events=list(events))
    return seen


def test_a_call_goes_from_state_to_state(run: Run) -> None:
    assert states(run, CALL, MICROPHONE, CONNECTED, over("caller_hung_up"), CALL) == [
        {"name": "asking"},
        {"name": "connecting"},
        {"name": "in-call", "since": 1_000},
        {"name": "ended", "reason": "caller_hung_up", "lasted": 4_000},
        {"name": "asking"},
    ]


def test_what_comes_late_changes_nothing(run: Run) -> None:
    ended = {"name": "ended", "reason": "no_route", "lasted": None}
    late = states(run, CALL, MICROPHONE, over("no_route"), CONNECTED, MICROPHONE, over("caller_hung_up"))
    assert late[2:] == [ended, ended, ended, ended]
    assert states(run, over("connection_lost"), CONNECTED, MICROPHONE) == [{"name": "idle"}] * 3
    assert states(run, CALL, CALL) == [{"name": "asking"}] * 2


# --- the transcript -------------------------------------------------------------------------------------------


def entries(run: Run, *events: dict[str, Any]) -> list[dict[str, Any]]:
    script = """
        const transcript = new m.Transcript();
        for (const event of given.events) transcript.apply(event);
        return [...transcript.entries.values()].map((entry) => ({ ...entry, pieces: m.pieces(entry) }));
    """
    found: list[dict[str, Any]] = run("transcript", script, events=list(events))
    return found


def test_partials_join_and_the_final_text_stands(run: Run) -> None:
    parts = [speech_started("u1"), heard_partly("u1", "when are"), heard_partly("u1", " you o")]
    (entry,) = entries(run, *parts)
    assert (entry["text"], entry["status"]) == ("when are you o", "partial")
    (entry,) = entries(run, *parts, *heard("u1", "When are you open?"), heard_partly("u1", "late"))
    assert (entry["text"], entry["status"]) == ("When are you open?", "final")


def test_turns_stand_in_the_order_they_began(run: Run) -> None:
    late = heard("u1", "The first.")[-1]
    found = entries(run, speech_started("u1"), *answered("r1", "i1", "An answer."), *said("u2", "The second."), late)
    assert [entry["text"] for entry in found] == ["The first.", "An answer.", "The second."]


def test_an_answer_that_was_heard_to_its_end_is_whole(run: Run) -> None:
    (entry,) = entries(run, *answered("r1", "i1", "Hello there."))
    assert (entry["status"], entry["pieces"]) == ("done", [{"text": "Hello there.", "heard": True}])


ALL = "We sell bread. And cakes."


def test_an_answer_that_was_cut_is_told_apart(run: Run) -> None:
    began = answer_began("r1", "i1", ALL)
    (entry,) = entries(run, *began, *answer_ended("r1", "i1", ALL, heard="We sell bread."))
    assert entry["status"] == "cut"
    assert entry["pieces"] == [{"text": "We sell bread.", "heard": True}, {"text": "And cakes.", "heard": False}]
    (entry,) = entries(run, *began, *answer_ended("r1", "i1", ALL, heard=""))
    assert entry["pieces"] == [{"text": ALL, "heard": False}]


def test_what_was_made_of_an_answer_that_was_cut_is_never_taken_for_heard(run: Run) -> None:
    began, ends = answer_began("r1", "i1", ALL), answer_ended("r1", "i1", ALL, heard="We sell bread.")
    told = [entries(run, *began, *ends[:number])[0] for number in range(len(ends) + 1)]
    assert [entry["status"] for entry in told] == ["speaking"] * 2 + ["cut"] * 3
    assert {entry["heard"] for entry in told[2:]} == {"We sell bread."}
    made, _, cleared, truncated = ends
    assert entries(run, *began, made, cleared, truncated)[0]["heard"] == "We sell bread."


@pytest.mark.parametrize("status", ["incomplete", "failed"])
def test_an_answer_that_ended_early_but_was_heard_was_not_cut_by_the_caller(run: Run, status: str) -> None:
    made, done, *_ = answer_ended("r1", "i1", ALL, heard=ALL)
    done["response"]["status"] = status
    stopped = {"type": "output_audio_buffer.stopped", "response_id": "r1"}
    (entry,) = entries(run, *answer_began("r1", "i1", ALL), made, done, stopped)
    assert (entry["status"], entry["pieces"]) == ("done", [{"text": ALL, "heard": True}])


def test_words_that_come_after_the_cut_are_not_taken_for_said(run: Run) -> None:
    late = {"type": "response.output_audio_transcript.delta", "response_id": "r1", "item_id": "i1", "delta": " More."}
    (entry,) = entries(run, *answer_began("r1", "i1", ALL), *answer_ended("r1", "i1", ALL, heard="We sell"), late)
    assert entry["text"] == ALL


@pytest.mark.parametrize(
    ("text", "heard", "at"),
    [("abc def", "abc", 3), ("abc  def", "abc def", 8), ("abc def", "abx", 2), ("abc", "", 0), ("", "abc", 0)],
)
def test_the_heard_part_is_found(run: Run, text: str, heard: str, at: int) -> None:
    assert run("transcript", "return m.heardUpTo(given.text, given.heard);", text=text, heard=heard) == at


def test_speech_without_words_goes_again(run: Run) -> None:
    assert entries(run, speech_started("u1"), {"type": "input_audio_buffer.cleared"}) == []
    assert entries(run, *said("u1", "")) == []


def test_keys_are_a_turn(run: Run) -> None:
    item = {"id": "k1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "(keypad: 12*)"}]}
    (entry,) = entries(run, {"type": "conversation.item.added", "item": item})
    assert (entry["text"], entry["keys"], entry["role"]) == ("12*", True, "user")


def test_a_long_call_is_bounded(run: Run) -> None:
    events = [event for number in range(520) for event in said(f"u{number}", "words")]
    found = entries(run, *events)
    assert len(found) == 500
    assert found[0]["id"] == "u20"


# --- the waterfall --------------------------------------------------------------------------------------------


def layout(run: Run, *turns: dict[str, Any]) -> Any:
    script = """
        const turns = new m.Turns();
        for (const times of given.turns) turns.add(times);
        return { ...turns.layout(), median: turns.median() };
    """
    return run("waterfall", script, turns=list(turns))


def times(response_id: str, **more: Any) -> dict[str, Any]:
    return {"response_id": response_id, "utterance": 1, "speculative": False, **more}


IN_TURN = {"decision_ms": 300, "final_ms": 400, "first_token_ms": 500, "first_audio_ms": 700, "first_sent_ms": 720}


def test_each_bar_begins_where_what_it_needs_is_there(run: Run) -> None:
    drawn = layout(run, times("r1", **IN_TURN))
    (row,) = drawn["rows"]
    assert [(bar["from"], bar["to"]) for bar in row["bars"]] == [
        (0, 300),
        (300, 400),
        (400, 500),
        (500, 700),
        (700, 720),
    ]
    assert drawn["scale"] == 800
    assert drawn["ticks"] == [0, 200, 400, 600, 800]
    assert row["bars"][1]["left"] == pytest.approx(300 / 800)
    assert row["total"] == 720


def test_work_done_ahead_overlaps_the_wait(run: Run) -> None:
    ahead = {"decision_ms": 600, "final_ms": 200, "first_token_ms": 300, "first_audio_ms": 450, "first_sent_ms": 610}
    (row,) = layout(run, times("r1", **ahead) | {"speculative": True})["rows"]
    assert [(bar["from"], bar["to"]) for bar in row["bars"]] == [(0, 600), (0, 200), (200, 300), (300, 450), (600, 610)]


def test_what_did_not_happen_has_no_bar(run: Run) -> None:
    (row,) = layout(run, times("r1", decision_ms=300, first_sent_ms=None))["rows"]
    assert [bar["stage"] for bar in row["bars"]] == ["decision"]
    assert row["total"] is None


def test_turns_are_newest_first_and_a_later_record_replaces(run: Run) -> None:
    drawn = layout(run, times("r1", **IN_TURN), times("r2", **IN_TURN), times("r1", **IN_TURN, cut_to_silence_ms=64))
    assert [(row["number"], row["cut"]) for row in drawn["rows"]] == [(2, None), (1, 64)]
    assert drawn["median"] == 720


def test_a_greeting_is_no_turn(run: Run) -> None:
    drawn = layout(run, times("r0", first_sent_ms=2) | {"utterance": 0})
    assert (drawn["rows"], drawn["median"]) == ([], None)


# --- words, numbers, tones ------------------------------------------------------------------------------------


def test_times_are_written_as_people_do(run: Run) -> None:
    clocks = run("../numbers", "return given.at.map(m.clock);", at=[0, 999, 61_000, 3_600_000 + 62_000])
    assert clocks == ["0:00", "0:00", "1:01", "1:01:02"]
    assert run("../numbers", "return given.at.map(m.duration);", at=[0.4, 511.6, 1_240]) == ["0 ms", "512 ms", "1.24 s"]


def documented_codes() -> set[str]:
    """What calls end with, and what refuses them for reasons that are not this page's doing."""
    ends = (DOCS / "operations.md").read_text("utf-8").partition("## How calls end")[2].partition("\n## ")[0]
    rows = (DOCS / "protocols" / "webrtc.md").read_text("utf-8").splitlines()
    refusals = [row for row in rows if row.startswith(("| 401 |", "| 429 |", "| 503 |"))]
    causes = re.findall(r"^\| `([a-z_]+)`", ends, re.MULTILINE)
    codes = re.findall(r"`([a-z_]+)`", " ".join(refusals))
    assert len(causes) > 8
    assert len(codes) > 8
    return {*causes, *codes}


def test_every_cause_and_code_has_words(run: Run) -> None:
    unknown = run("messages", "return m.messageOf('something_new');")
    assert unknown == {"tone": "bad", "title": "The call failed", "text": "The gateway said: something_new."}
    codes = sorted(documented_codes())
    titles = run("messages", "return given.codes.map((code) => m.messageOf(code).title);", codes=codes)
    assert [code for code, title in zip(codes, titles, strict=True) if title == "The call failed"] == []


@pytest.mark.parametrize(
    "code", ["busy", "overloaded", "draining", "engines_down", "too_many_attempts", "no_media_port"]
)
def test_when_to_call_again_is_said_once(run: Run, code: str) -> None:
    text = run("messages", "return m.messageOf(given.code, { retryAfterS: 5 }).text;", code=code)
    assert text.endswith("Try again in 5 seconds.")
    assert len(re.findall(r"again|[Ww]ait|minute", text)) == 1
    later = "return [1, 1.5, 89, 90, 600].map((s) => m.messageOf('busy', { retryAfterS: s }).text);"
    ends = [text.rpartition("Try again in ")[2] for text in run("messages", later)]
    assert ends == ["1 second.", "2 seconds.", "89 seconds.", "2 minutes.", "10 minutes."]
    assert run("messages", "return m.messageOf('busy').text;").endswith("Try again in a minute.")


def test_keys_sound_as_phones_do(run: Run) -> None:
    tones = run("keypad", "return ['1', '5', '#', '0', '*'].map(m.tonesOf);")
    assert tones == [[697, 1209], [770, 1336], [941, 1477], [941, 1336], [941, 1209]]


def test_levels_are_shown_by_decibels(run: Run) -> None:
    assert run("meters", "return [0, 1e-9, 1, 2].map(m.share);") == [0, 0, 1, 1]
    assert run("meters", "return m.share(0.1);") == pytest.approx(2 / 3)


def test_statistics_are_read_as_shares_since_the_last_reading(run: Run) -> None:
    def report(received: int, lost: int) -> list[dict[str, Any]]:
        return [
            {"id": "in", "type": "inbound-rtp", "kind": "audio", "packetsReceived": received, "packetsLost": lost}
            | {"jitter": 0.012, "codecId": "c", "jitterBufferDelay": 2.0, "jitterBufferEmittedCount": 50},
            {"id": "c", "type": "codec", "mimeType": "audio/opus", "clockRate": 48_000},
            {"id": "rem", "type": "remote-inbound-rtp", "kind": "audio", "fractionLost": 0.02},
            {"id": "t", "type": "transport", "selectedCandidatePairId": "p"},
            {"id": "p", "type": "candidate-pair", "currentRoundTripTime": 0.045, "localCandidateId": "l"},
            {"id": "l", "type": "local-candidate", "candidateType": "relay"},
        ]

    script = """
        const first = m.readStats(given.reports[0], null);
        const { reading } = m.readStats(given.reports[1], first.counters);
        return { reading, verdict: m.verdict(reading) };
    """
    read = run("quality", script, reports=[report(100, 50), report(190, 60)])
    assert read["reading"] == {
        "lossIn": 0.1,
        "lossOut": 0.02,
        "concealed": None,
        "jitterMs": 12,
        "bufferMs": 40,
        "roundTripMs": 45,
        "codec": "opus, 48 kHz",
        "path": "through a relay",
    }
    assert read["verdict"] == "poor"
    nothing = run("quality", "const { reading } = m.readStats([], null); return m.verdict(reading);")
    assert nothing == "unknown"
