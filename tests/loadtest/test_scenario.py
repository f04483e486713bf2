"""Callers are made from a scenario, their number and the run's seed, and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from loadtest.call import Transport
from loadtest.noise import LOOP_S
from loadtest.phone_chain import speech_dbfs
from loadtest.scenario import CallerScript, Scenario, load_scenario
from loadtest.scenario_file import ScenarioError, library_names
from loadtest.script import (
    Backchannel,
    HangUp,
    HoldLine,
    Interrupt,
    Line,
    Patience,
    Pause,
    Press,
    Repeat,
    Say,
    Step,
    Vanish,
    WaitAgent,
)
from loadtest.voices import spoken_line
from streaming.audio.code_words import code_word
from streaming.audio.level import rms_dbfs

RATE_HZ = 8_000


def scenario(folder: Path, text: str) -> Scenario:
    path = folder / "mine.yaml"
    path.write_text("name: mine\nabout: mine\n" + text, encoding="utf-8")
    return load_scenario(str(path))


def caller(of: Scenario, number: int = 0, seed: int = 0, *, codes: bool = False) -> CallerScript:
    return of.caller(number, seed, RATE_HZ, of.transports[0], code=code_word(number) if codes else None)


def lines(steps: Sequence[Step]) -> Iterator[Line]:
    for step in steps:
        match step:
            case Say(line=line) | Backchannel(line=line) | Interrupt(what=Line() as line):
                yield line
            case Repeat(steps=inner):
                yield from lines(inner)


def looks(made: CallerScript) -> str:
    """All of a caller but its sound."""
    return f"{made.steps} {made.voice} {made.code} {made.patience} {[line.text for line in lines(made.steps)]}"


EVERY_STEP = """
transports: [sip]
steps:
- wait_agent
- wait_agent: {bound_s: 2}
- say: Stop.
- say: {text: Yes., answer: false}
- press: 1 2#
- press: {keys: "3", answer: false}
- interrupt: {say: Stop., after_ms: 300}
- interrupt: {press: "4", after_ms: 300}
- backchannel: {say: Okay., after_ms: 900}
- pause_s: 1.5
- hold_s: 2
- repeat: {times: 2, steps: [{repeat: {steps: [{pause_s: 1}]}}]}
- hang_up
- vanish
"""


def test_every_step_of_a_file_becomes_the_callers(tmp_path: Path) -> None:
    made = caller(scenario(tmp_path, EVERY_STEP))
    stop, yes, okay = (spoken_line(text, made.voice, RATE_HZ, None) for text in ("Stop.", "Yes.", "Okay."))
    assert made.steps == (
        WaitAgent(),
        WaitAgent(2_000),
        Say(stop),
        Say(yes, answer_expected=False),
        Press("12#"),
        Press("3", answer_expected=False),
        Interrupt(stop, 300),
        Interrupt(Press("4"), 300),
        Backchannel(okay, 900),
        Pause(1_500),
        HoldLine(2_000),
        Repeat((Repeat((Pause(1_000),)),), 2),
        HangUp(),
        Vanish(),
    )


@pytest.mark.parametrize("name", library_names())
@pytest.mark.parametrize("codes", [False, True])
def test_the_library_makes_the_same_callers_of_the_same_seed(name: str, *, codes: bool) -> None:
    shipped = load_scenario(name)
    assert shipped.prepare(RATE_HZ, codes=codes) == ()
    made = [caller(shipped, number, codes=codes) for number in range(30)]
    assert [looks(each) for each in made] == [looks(caller(shipped, n, codes=codes)) for n in range(30)]
    assert [looks(each) for each in made] != [looks(caller(shipped, n, seed=1, codes=codes)) for n in range(30)]
    assert len({each.voice for each in made}) == 3
    for number, each in enumerate(made):
        said = {line.code for line in lines(each.steps)} - {None}
        assert said <= {code_word(number)} if codes else not said


def test_lines_are_shared_by_those_who_say_the_same(tmp_path: Path) -> None:
    of = scenario(tmp_path, "voices: [slt]\nsteps: [{say: Stop.}]\n")
    assert caller(of, 1).steps == caller(of, 2).steps
    assert caller(of, 1, codes=True).steps != caller(of, 2, codes=True).steps


def test_chance_chooses_words_and_pauses_for_each_caller(tmp_path: Path) -> None:
    of = scenario(tmp_path, "steps: [{say: [Stop., Yes.]}, {pause_s: [1, 3]}]\n")
    made = [caller(of, number).steps for number in range(60)]
    texts = Counter(step.line.text for steps in made for step in steps if isinstance(step, Say))
    pauses = [step.ms for steps in made for step in steps if isinstance(step, Pause)]
    assert set(texts) == {"Stop.", "Yes."}
    assert min(texts.values()) > 15
    assert 1_000 <= min(pauses) < 1_300
    assert 2_700 < max(pauses) <= 3_000


def test_kinds_of_callers_come_by_their_share(tmp_path: Path) -> None:
    of = scenario(tmp_path, "callers:\n- {name: a, share: 3, steps: [vanish]}\n- {name: b, steps: [hang_up]}\n")
    ends = Counter(type(caller(of, number).steps[0]) for number in range(200))
    assert 120 < ends[Vanish] < 175
    assert ends[Vanish] + ends[HangUp] == 200


def test_a_kind_may_be_for_some_transports(tmp_path: Path) -> None:
    text = """
transports: [sip, websocket]
callers:
- {name: a, transports: [sip], steps: [{press: '1'}]}
- {name: b, transports: [websocket], steps: [vanish]}
"""
    of = scenario(tmp_path, text)
    for transport, step in ((Transport.SIP, Press("1")), (Transport.WEBSOCKET, Vanish())):
        assert {of.caller(number, 0, RATE_HZ, transport).steps for number in range(20)} == {(step,)}
    nobody = scenario(tmp_path, "callers: [{name: a, transports: [sip], steps: [vanish]}]\n")
    with pytest.raises(ScenarioError, match="not for webrtc"):
        nobody.check(Transport.WEBRTC)


def test_a_kind_has_what_the_scenario_says_of_all_unless_it_says_otherwise(tmp_path: Path) -> None:
    text = """
noise: {kind: pink, snr_db: 20}
phone: {agc: false}
callers:
- {name: a, steps: [vanish]}
- {name: b, steps: [vanish], noise: {kind: brown, snr_db: 3}, echo: {loss_db: 20, delay_ms: 100}}
"""
    first, second = scenario(tmp_path, text).kinds
    assert first.noise is not None
    assert second.noise is not None
    assert (first.noise.kind, second.noise.kind) == ("pink", "brown")
    assert (first.echo, second.phone) == (None, first.phone)


def test_noise_is_so_far_below_the_callers_speech(tmp_path: Path) -> None:
    of = scenario(
        tmp_path, "noise: {kind: pink, snr_db: 12}\nvoices: [rms]\nsteps: [{say: 'How much does it cost?'}]\n"
    )
    made = caller(of)
    assert made.sound is not None
    silence = np.zeros(RATE_HZ // 50, dtype=np.int16)
    frames = [made.sound.frame(None, silence) for _ in range(LOOP_S * 50)]
    noise_dbfs = rms_dbfs(np.concatenate([frame for frame in frames if frame is not None]))
    spoken = speech_dbfs(next(lines(made.steps)).pcm, RATE_HZ)
    assert spoken is not None
    assert spoken - noise_dbfs == pytest.approx(12, abs=0.7)


def test_every_call_has_a_sound_of_its_own(tmp_path: Path) -> None:
    of = scenario(tmp_path, "noise: {kind: pink, snr_db: 12}\nsteps: [{say: Stop.}]\n")
    silence = np.zeros(RATE_HZ // 50, dtype=np.int16)
    first, again, other = caller(of, 1).sound, caller(of, 1).sound, caller(of, 2).sound
    assert first is not again
    frames = [sound.frame(None, silence) for sound in (first, again, other) if sound is not None]
    assert np.array_equal(frames[0], frames[1])  # type: ignore[arg-type]
    assert not np.array_equal(frames[0], frames[2])  # type: ignore[arg-type]


def test_without_noise_and_echo_the_frames_are_those_made_before(tmp_path: Path) -> None:
    assert caller(scenario(tmp_path, "steps: [{say: Stop.}]\n")).sound is None


def test_patience_is_the_wires_unless_the_scenario_says(tmp_path: Path) -> None:
    assert caller(scenario(tmp_path, "steps: [vanish]\n")).patience is None
    of = scenario(tmp_path, "patience: {answer_ms: 4000}\nsteps: [vanish]\n")
    assert of.caller(0, 0, RATE_HZ, Transport.WEBSOCKET).patience == Patience(answer_ms=4_000)
    on_phones = of.caller(0, 0, RATE_HZ, Transport.SIP).patience
    assert on_phones == Patience(greeting_ms=3_000, answer_ms=4_000, pause_ms=1_000)


def test_the_network_is_the_scenarios(tmp_path: Path) -> None:
    assert scenario(tmp_path, "steps: [vanish]\n").packets() is None
    text = "network: {up: {loss: 0.1, burst: 3}, stalls: {every_s: 5}}\nsteps: [vanish]\n"
    network = scenario(tmp_path, text).packets()
    assert network is not None
    assert (network.up.loss, network.up.burst, network.down.loss) == (0.1, 3, 0)
    assert network.stalls is not None
    assert (network.stalls.every_s, network.stalls.for_s) == (5, (0.3, 2.0))


def test_a_scenario_says_on_what_it_makes_no_sense() -> None:
    with pytest.raises(ScenarioError, match="ivr is for sip, twilio, audiosocket, not for webrtc"):
        load_scenario("ivr").caller(0, 0, RATE_HZ, Transport.WEBRTC)


def test_voices_that_are_not_there_are_told_of(tmp_path: Path) -> None:
    of = scenario(tmp_path, "voices: [slt, 'piper:/no/such.onnx']\nsteps: [{say: Stop.}]\n")
    (note,) = of.prepare(RATE_HZ)
    assert note.startswith("voice piper:/no/such.onnx left out: piper")
    assert {caller(of, number).voice for number in range(10)} == {"slt"}
