from __future__ import annotations

import pytest

from engines.stt.plausible import loops, spoken_text, without_loop
from engines.stt.whisper_decoder import Hypothesis


@pytest.mark.parametrize(
    ("text", "no_speech", "log_probability"),
    [
        # As measured on noise, coughs, breaths, music, hum, tones and silence.
        ("You", 0.80, -3.34),
        (".", 0.94, -2.0),
        (". . . . . . . .", 0.96, -0.1),
        ("Mm.", 0.81, -1.81),
        ("Thank you.", 0.75, -0.6),
        ("Thanks for watching!", 0.5, -0.9),
        ("[Music]", 0.1, -0.2),
        ("(upbeat music) ♪", 0.1, -0.2),
        ("*coughs*", 0.1, -0.2),
        ("Bye.", 0.2, -1.7),
        ("I", 0.71, -4.91),
        ("he went there", 0.45, -2.6),
        ("he went there", 0.6, -2.2),
        ("the the the the the the the the", 0.9, -0.1),
        ("", 0.0, 0.0),
    ],
)
def test_what_was_not_spoken_is_empty(text: str, no_speech: float, log_probability: float) -> None:
    assert spoken_text(Hypothesis(text, no_speech, log_probability)) == ""


@pytest.mark.parametrize(
    ("text", "no_speech", "log_probability"),
    [
        # As measured on synthetic callers, 16 kHz and 8 kHz mu-law.
        ("Yes.", 0.21, -0.68),
        ("No.", 0.37, -0.88),
        ("No?", 0.31, -1.12),
        ("Bye", 0.33, -1.40),
        ("Thank you.", 0.28, -0.21),
        ("Okay", 0.18, -1.39),
        ("4", 0.49, -2.08),
        ("stop", 0.62, -2.08),
        ("Stop", 0.30, -3.24),
        ("You.", 0.12, -0.68),
        ("Can I book a table for two?", 0.85, -0.2),
    ],
)
def test_short_answers_survive(text: str, no_speech: float, log_probability: float) -> None:
    assert spoken_text(Hypothesis(text, no_speech, log_probability)) == text


def test_sound_tags_are_cut_out_of_speech() -> None:
    assert spoken_text(Hypothesis("[noise] Hello (coughs) there. ♪", 0.1, -0.3)) == "Hello there."


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("Is there parking near your shop? Near your shop? Near your shop? Near your shop?", None),
        ("go go go go go go go", "go"),
        ("Well, of course, of course, of course, of course, of course", "Well, of course"),
        ("We are open now. We are open now. We are open now. We are open", "We are open now"),
    ],
)
def test_loops_are_seen_and_cut_to_one_round(text: str, once: str | None) -> None:
    assert loops(text)
    assert without_loop(text) == (once or "Is there parking near your shop")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No, no, no, no!",
        "My number is 5 5 5 5 5 1 2 3 4",
        "five five five one two three four",
        "555 555 5555",
        "bye bye, bye bye",
        "It is what it is.",
        "Would you, could you, on a train?",
    ],
)
def test_what_people_repeat_is_no_loop(text: str) -> None:
    assert not loops(text)
    assert without_loop(text) == text
