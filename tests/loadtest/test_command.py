from __future__ import annotations

import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from loadtest import command, webrtc_call
from loadtest.call import PhoneOptions
from loadtest.command import CallOptions, CallUsageError, PlayWav, Press, Say, add_call_command, place_call
from loadtest.frame_tables import FrameTables
from loadtest.measure import voiced_spans
from loadtest.report import (
    BufferReport,
    CallReport,
    GreetingReport,
    MediaReport,
    SetupReport,
    TurnReport,
    to_json,
    to_text,
)
from loadtest.script import Patience
from streaming.audio.opus import OpusUnavailable
from streaming.audio.wav import encode_wav
from tests.loadtest.realtime_server import Script, realtime_server

QUICK = Patience(greeting_ms=200, answer_ms=800, pause_ms=120, stalled_ms=800, agent_turn_ms=3_000)

FIELDS = {
    "answered",
    "setup_ms",
    "end_cause",
    "recording",
    "turns",
    "greeting",
    "call_id",
    "caller_lag_ms",
    "errors",
    "problem",
    "transport",
    "called",
    "setup",
    "media",
    "buffer",
    "keys_heard",
    "transferred_to",
}
TURN_FIELDS = {
    "said_text",
    "heard_text",
    "agent_text",
    "agent_transcript",
    "voice_to_voice_ms",
    "stop_ms",
    "late_frames",
    "pressed_keys",
}


async def test_a_call_becomes_a_report_and_a_stereo_recording(tmp_path: Path) -> None:
    recording = tmp_path / "call.wav"
    async with realtime_server(Script(greeting_ms=300, replies=(400,))) as (url, _):
        options = CallOptions(url, (Say("Stop."),), record=recording, patience=QUICK)
        report = await place_call(options)
    assert report.answered
    assert report.end_cause == "hangup"
    assert report.recording == str(recording)
    (turn,) = report.turns
    assert (turn.said_text, turn.heard_text) == ("Stop.", "utterance 0")
    assert (turn.agent_text, turn.agent_transcript) == (None, "answer 0")
    assert turn.voice_to_voice_ms is not None
    assert turn.voice_to_voice_ms >= 200
    assert turn.stop_ms is None
    assert report.greeting == GreetingReport(None, "greeting", report.greeting.late_frames if report.greeting else 0)
    data = recording.read_bytes()
    assert data[22:24] == b"\x02\x00"  # channels
    stereo = np.frombuffer(data[44:], dtype="<i2").reshape(-1, 2)
    assert stereo[:, 0].any()
    assert stereo[:, 1].any()


async def test_a_barge_in_is_a_turn_after_the_first(tmp_path: Path) -> None:
    async with realtime_server(Script(replies=(5_000, 200, 200))) as (url, _):
        options = CallOptions(
            url,
            (Say("Stop."), Say("Yes.")),
            barge_in_after_ms=300,
            barge_in_text="Wait, one moment please.",
            patience=QUICK,
        )
        report = await place_call(options)
    assert [turn.said_text for turn in report.turns] == ["Stop.", "Wait, one moment please.", "Yes."]
    first, cut, _ = report.turns
    assert first.stop_ms is None
    assert cut.stop_ms is not None
    assert 80 <= cut.stop_ms <= 500


async def test_a_call_that_is_not_answered(tmp_path: Path) -> None:
    async with realtime_server(Script(deaf=True)) as (url, _):
        report = await place_call(CallOptions(url, (Say("Stop."),), patience=QUICK))
    assert not report.answered
    assert report.turns[0].voice_to_voice_ms is None
    assert report.greeting is None


async def test_a_greeting_answers_a_caller_who_says_nothing() -> None:
    async with realtime_server(Script(greeting_ms=300)) as (url, _):
        report = await place_call(CallOptions(url, patience=QUICK))
    assert report.answered
    assert report.turns == []


async def test_a_refused_call_is_a_report_without_a_recording(tmp_path: Path) -> None:
    async with realtime_server(Script(status=401)) as (url, _):
        report = await place_call(CallOptions(url, (Say("Stop."),), record=tmp_path / "call.wav"))
    assert (report.answered, report.end_cause, report.recording) == (False, "unauthorized", None)
    assert not os.listdir(tmp_path)


async def test_own_ears_hear_each_stretch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Ears:
        def text_of(self, pcm: Any, rate_hz: int) -> str:
            (voiced,) = voiced_spans(pcm, rate_hz)
            return f"{round((voiced.end - voiced.start) / rate_hz, 1)} s"

    monkeypatch.setattr(command, "open_hearing", lambda model: Ears() if model == tmp_path else None)
    async with realtime_server(Script(greeting_ms=300, replies=(500,))) as (url, _):
        report = await place_call(CallOptions(url, (Say("Stop."),), hearing_model=lambda: tmp_path, patience=QUICK))
    assert report.greeting is not None
    assert report.greeting.agent_text == "0.3 s"
    assert report.turns[0].agent_text == "0.5 s"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (CallOptions("ws://h/", barge_in_after_ms=1.0), "both"),
        (CallOptions("nonsense"), "nonsense"),
        (CallOptions("http://h:99999"), "Port"),
        (CallOptions("ws://h/", key="one\r\nX: another"), "one line"),
        (CallOptions("ws://h/", (PlayWav(Path("/nowhere/a.wav")),)), "/nowhere/a.wav"),
        (CallOptions("ws://h/", record=Path("/nowhere/a.wav")), "no such folder"),
        (CallOptions("ws://h/", ephemeral=True), "--ephemeral goes with http"),
        (CallOptions("sip:h", ephemeral=True), "--ephemeral goes with http"),
        (CallOptions("ws://h/", (Press("1"),)), "--press goes with sip:"),
        (CallOptions("http://h/", barge_in_after_ms=1.0, barge_in_keys="1"), "--press goes with sip:"),
        (CallOptions("sip:h", (Press("12x"),)), r"keys are 0 to 9"),
        (CallOptions("sip:h", barge_in_after_ms=1.0, barge_in_keys="1", barge_in_text="a"), "not both"),
        (CallOptions("sip:h", phone=PhoneOptions(codec="opus")), "a codec is pcmu or pcma"),
        (CallOptions("sip:a:secret@h"), "not a SIP address"),
        (CallOptions("sip:h", phone=PhoneOptions(caller="a>\r\nX: y")), "not a SIP address"),
        (CallOptions("sip:h", phone=PhoneOptions(user='a"b')), "no quotes"),
        (CallOptions("sip:h;transport=tls"), "not TLS"),
        (CallOptions("sip:h", agent="two words"), "not a SIP address"),
        (CallOptions("audiosocket://h:1", agent="sales"), "names no agent"),
        (CallOptions("audiosocket://h"), "not audiosocket://host:port"),
        (CallOptions("twilio+ws:///path"), r"not a twilio\+ws://"),
    ],
)
async def test_options_that_make_no_call(options: CallOptions, words: str) -> None:
    with pytest.raises(CallUsageError, match=words):
        await place_call(options)


async def test_a_recording_that_cannot_be_written(tmp_path: Path) -> None:
    async with realtime_server(Script(deaf=True)) as (url, _):
        with pytest.raises(CallUsageError, match="cannot write"):
            await place_call(CallOptions(url, record=tmp_path, patience=QUICK))


async def test_a_wav_is_a_turn_without_words(tmp_path: Path) -> None:
    path = tmp_path / "line.wav"
    path.write_bytes(encode_wav([np.full(8_000, 6_000, dtype=np.int16)], 16_000))
    async with realtime_server(Script()) as (url, _):
        report = await place_call(CallOptions(url, (PlayWav(path),), patience=QUICK))
    assert report.answered
    assert report.turns[0].said_text is None


def report_of(answered: bool) -> CallReport:
    turn = TurnReport("Hi", "Hi.", None, "Hello", 812.0, 130.0, 2)
    silent = TurnReport(None, None, None, None, None, None, 0)
    greeting = GreetingReport("Welcome", None, 0)
    return CallReport(
        answered, 12.5, "time_limit", "a.wav", [turn, silent], greeting, "sess_1", 1.0, ["odd: so"], "it took too long"
    )


class Placed:
    """Stands in for :func:`place_call` and for the event loop, and keeps the options."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, answered: bool = True, failure: Exception | None = None
    ) -> None:
        self.options: list[CallOptions] = []

        async def place(options: CallOptions) -> CallReport:
            self.options.append(options)
            if failure is not None:
                raise failure
            return report_of(answered)

        def run(coroutine: Coroutine[Any, Any, CallReport]) -> CallReport:
            try:
                coroutine.send(None)
            except StopIteration as done:
                value: CallReport = done.value
                return value
            raise AssertionError("the stand-in must not wait")

        monkeypatch.setattr(command, "place_call", place)
        monkeypatch.setattr("asyncio.run", run)

    def invoke(self, *arguments: str, env: dict[str, str] | None = None) -> Any:
        app = typer.Typer()
        add_call_command(app, lambda: None)

        @app.callback()
        def main() -> None: ...

        return CliRunner().invoke(app, ["call", *arguments], env=env)


def test_say_and_wav_keep_the_order_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed(monkeypatch)
    result = placed.invoke("--say", "a", "--wav", "1.wav", "ws://h/", "--wav=2.wav", "--say=b", "--wav", "3.wav")
    assert result.exit_code == 0, result.output
    wavs = [PlayWav(Path(f"{number}.wav")) for number in (1, 2, 3)]
    assert placed.options[0].lines == (Say("a"), wavs[0], wavs[1], Say("b"), wavs[2])


def test_keys_are_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed(monkeypatch)
    placed.invoke("sip:h", "--press", "1", "--say", "a", "--press=2#", "--barge-in-after", "9", "--barge-in-press", "*")
    (options,) = placed.options
    assert options.lines == (Press("1"), Say("a"), Press("2#"))
    assert (options.barge_in_keys, options.barge_in_text) == ("*", None)


def test_the_options_of_phones_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed(monkeypatch)
    arguments = "sip:h --caller +1555 --user alice --codec pcma --parameter a=b=c --parameter d= --signed-url wss://x/"
    environment = {"OFFHOOK_SIP_PASSWORD": "secret", "TWILIO_AUTH_TOKEN": "token"}
    assert placed.invoke(*arguments.split(), env=environment).exit_code == 0
    parameters = {"a": "b=c", "d": ""}
    expected = PhoneOptions("+1555", "alice", "secret", "pcma", parameters, "token", "wss://x/")
    assert placed.options[0].phone == expected
    assert "secret" not in repr(expected)
    assert "token'" not in repr(expected)
    assert placed.invoke("sip:h", "--parameter", "novalue").exit_code == 2
    assert placed.invoke("sip:h", "--parameter", "=x").exit_code == 2


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed(monkeypatch)
    arguments = (
        "ws://h/ --agent desk --barge-in-after 900 --barge-in-say Stop. --record a.wav --max-seconds 9 --voice rms"
    )
    placed.invoke(*arguments.split(), env={"OFFHOOK_KEY": "secret"})
    (options,) = placed.options
    assert (options.url, options.agent, options.key, options.lines) == ("ws://h/", "desk", "secret", ())
    assert (options.barge_in_after_ms, options.barge_in_text) == (900.0, "Stop.")
    assert (options.record, options.max_seconds, options.voice) == (Path("a.wav"), 9.0, "rms")
    assert options.hearing_model is not None


async def test_a_machine_without_libopus_is_told_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OpusUnavailable("install it")

    monkeypatch.setattr(webrtc_call, "OpusEncoder", missing)
    monkeypatch.setattr(webrtc_call, "frame_tables", FrameTables())
    with pytest.raises(CallUsageError, match="install it"):
        await place_call(CallOptions("http://127.0.0.1:1/"))


def test_a_client_secret_is_asked_for_by_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed(monkeypatch)
    placed.invoke("http://h/", "--ephemeral")
    placed.invoke("http://h/")
    assert [options.ephemeral for options in placed.options] == [True, False]


def test_people_read_how_the_set_up_and_the_media_went() -> None:
    report = msgspec.structs.replace(
        report_of(True),
        transport="webrtc",
        called="http://h/v1/realtime/calls",
        setup=SetupReport(8.0, 41.4, 45.6, None),
        media=MediaReport(500, 7, 2, 0, 0, 140, 0),
    )
    text = to_text(report)
    for words in (
        "called http://h/v1/realtime/calls over WebRTC",
        "answered after 8 ms, media connected after 41 ms, channel open after 46 ms, first audio after -",
        "7 packets were not there in time (2 came late)",
        "140 ms concealed",
    ):
        assert words in text
    clean = msgspec.structs.replace(report, media=MediaReport(500, 0, 0, 0, 0, 0, 0))
    assert "concealed" not in to_text(clean)


def test_people_read_how_a_phone_call_went() -> None:
    keys = msgspec.structs.replace(report_of(True).turns[1], pressed_keys="42#")
    report = msgspec.structs.replace(
        report_of(True),
        transport="sip",
        turns=[keys],
        setup=SetupReport(30.0, None, None, 60.0, trying_ms=2.0, ringing_ms=4.0),
        buffer=BufferReport(900, 300, 20, 2, 500, 7),
        keys_heard="9",
        transferred_to="sip:desk@h",
    )
    text = to_text(report)
    for words in (
        "first response after 2 ms, ringing after 4 ms, answered after 30 ms, first audio after 60 ms",
        "caller  (keys) 42#",
        "up to 300 ms queued, 20 ms dropped, cleared 2 times (500 ms)",
        "the agent pressed 9",
        "transferred to sip:desk@h",
    ):
        assert words in text


def test_a_barge_in_has_words_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed(monkeypatch)
    placed.invoke("ws://h/", "--barge-in-after", "900")
    assert placed.options[0].barge_in_text == "Wait, one moment please."


def test_json_alone_is_on_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Placed(monkeypatch).invoke("ws://h/", "--json")
    document = json.loads(result.stdout)
    assert document.keys() == FIELDS
    assert document["turns"][0].keys() == TURN_FIELDS
    assert "it took too long" in result.stderr


def test_people_read_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Placed(monkeypatch).invoke("ws://h/")
    assert result.stdout == ""
    for words in ("answered after 12 ms", "Welcome", "heard: Hi.", "812 ms", "2 late frames", "(recording)", "a.wav"):
        assert words in result.stderr


def test_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Placed(monkeypatch, answered=False).invoke("ws://h/").exit_code == 1
    failed = Placed(monkeypatch, failure=CallUsageError("no such line")).invoke("ws://h/", "--json")
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert "no such line" in failed.stderr


def test_the_document_has_every_field_also_when_empty() -> None:
    empty = CallReport(False, None, "refused", None, [], None, None, 0.0, [], None)
    assert json.loads(to_json(empty)).keys() == FIELDS
    assert to_text(empty) == "NOT ANSWERED, ended: refused"


def test_a_call_that_was_up_without_an_answer_is_told_from_one_that_was_not_taken() -> None:
    report = CallReport(False, 9.0, "time_limit", None, [], None, None, 0.0, [], None)
    assert to_text(report) == "NO ANSWER HEARD, though the call was up after 9 ms, ended: time_limit"


def test_a_sound_without_words_is_told_from_silence() -> None:
    greeting = GreetingReport(None, None, 0)
    text = to_text(CallReport(True, 9.0, "hangup", None, [], greeting, None, 0.0, [], None))
    assert "agent   (a sound, no words made out)" in text
