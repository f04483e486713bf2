import pytest

from streaming.config import Eagerness, TurnDetection, TurnMode
from streaming.turns import (
    DICTATION_WAIT_MS,
    HOLD_MS,
    SPECULATE_AFTER_MS,
    UNFINISHED_WORDS_WAIT_MS,
    UNSCORED_WAIT_MS,
    EndOfTurnPolicy,
    InterruptionPolicy,
    Verdict,
    is_backchannel,
    is_dictation,
    is_echo,
    is_goodbye,
    words_of,
)

SEMANTIC = TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300)
REPLY = "We are open from seven in the morning to six in the evening, Tuesday to Sunday."


def test_server_vad_waits_for_its_silence_whatever_is_said() -> None:
    policy = EndOfTurnPolicy(TurnDetection(silence_duration_ms=500))
    assert policy.wait_ms(None, "") == policy.wait_ms(0.0, "my number is five five five") == 500
    assert policy.score_after_ms is None


def test_a_finished_sentence_ends_after_the_least_silence() -> None:
    assert EndOfTurnPolicy(SEMANTIC).wait_ms(0.9, "what are your opening hours") == 300


def test_a_late_score_falls_back_to_silence() -> None:
    assert EndOfTurnPolicy(SEMANTIC).wait_ms(None, "what are your opening hours") == UNSCORED_WAIT_MS


def test_the_less_finished_it_sounds_the_longer_the_wait() -> None:
    waits = [EndOfTurnPolicy(SEMANTIC).wait_ms(score / 10, "what about the red") for score in (5, 4, 3, 2, 1, 0)]
    assert waits == sorted(waits)
    assert waits[0] == 300
    assert waits[-1] == 4_000


def test_eagerness_bounds_the_wait() -> None:
    waits = {
        eagerness: EndOfTurnPolicy(
            TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, eagerness=eagerness)
        ).wait_ms(0.0, "what about the red")
        for eagerness in Eagerness
    }
    assert waits == {Eagerness.LOW: 8_000, Eagerness.MEDIUM: 4_000, Eagerness.AUTO: 4_000, Eagerness.HIGH: 2_000}


@pytest.mark.parametrize("answer", ["Yes.", "no", "Yes, please.", "Thank you.", "Stop!"])
def test_a_one_word_answer_is_fast_even_if_it_sounds_unfinished(answer: str) -> None:
    assert EndOfTurnPolicy(SEMANTIC).wait_ms(0.1, answer) == 300


@pytest.mark.parametrize(
    "text",
    [
        "my number is 555",
        "five five five",
        "it's 5 5 5 0",
        "my e-mail is j doe at",
        "S as in",
        "account number 12",
        "j",
    ],
)
def test_dictation_lengthens_the_wait_past_the_pause_between_groups(text: str) -> None:
    expected = text != "S as in"
    assert is_dictation(text) is expected
    if expected:
        assert EndOfTurnPolicy(SEMANTIC).wait_ms(0.95, text) == DICTATION_WAIT_MS


@pytest.mark.parametrize("text", ["", "a table for two", "see you at", "I want one", "and I"])
def test_not_everything_with_a_number_is_dictation(text: str) -> None:
    assert not is_dictation(text)


def test_words_that_ask_for_more_lengthen_the_wait() -> None:
    assert EndOfTurnPolicy(SEMANTIC).wait_ms(0.49, "I would like a cake and") == UNFINISHED_WORDS_WAIT_MS


def test_speculation_can_be_off() -> None:
    assert EndOfTurnPolicy(TurnDetection(speculate=False)).speculate_after_ms is None
    assert EndOfTurnPolicy(TurnDetection(silence_duration_ms=100)).speculate_after_ms == SPECULATE_AFTER_MS
    assert EndOfTurnPolicy(TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=150)).score_after_ms == 150


def test_words_are_lower_case_and_keep_their_apostrophes() -> None:
    assert words_of("It’s Mm-hm, OK? 24") == ["it's", "mm-hm", "ok", "24"]


def test_backchannels_are_short_and_only_that() -> None:
    assert is_backchannel("Mm-hm.")
    assert is_backchannel("yeah, okay")
    for heard in ("MMHM", "Mmmm.", "HMM", "Uh-huh.", "Uh...", "Em...", "Okay. Okay.", "Mm-hmm", "ah", "Oh!"):
        assert is_backchannel(heard), heard
    for word in ("him", "her", "hum hum stop", "me", "he", "no", "um, wait"):
        assert not is_backchannel(word), word
    assert not is_backchannel("")
    assert not is_backchannel("okay stop")
    assert not is_backchannel("yeah yeah yeah yeah yeah")


def test_the_agents_own_words_coming_back_are_an_echo() -> None:
    assert is_echo("open from seven in the morning", REPLY)
    assert is_echo("from seven in a morning to six", REPLY)
    assert not is_echo("open from", REPLY)
    assert not is_echo("do you have anything on Monday", REPLY)


def decide(
    text: str,
    *,
    final: bool = False,
    heard: bool = True,
    voiced_ms: float = 200,
    speaking: bool = True,
    held_ms: float = 0,
) -> Verdict:
    return InterruptionPolicy().decide(
        text, REPLY, final=final, heard=heard, voiced_ms=voiced_ms, speaking=speaking, held_ms=held_ms
    )


def test_words_end_a_held_reply_at_once() -> None:
    assert decide("stop") is Verdict.COMMIT
    assert decide("do you have") is Verdict.COMMIT


def test_one_word_of_a_beginning_is_a_guess_unless_it_is_a_command() -> None:
    for text in ("And", "Here"):
        assert decide(text) is Verdict.UNDECIDED
        assert decide(text, final=True) is Verdict.COMMIT
        assert decide(text, voiced_ms=450) is Verdict.COMMIT
        assert decide(text, held_ms=HOLD_MS) is Verdict.COMMIT
    for text in ("Stop.", "Wait", "no"):
        assert decide(text) is Verdict.COMMIT


def test_a_backchannel_or_an_echo_lets_it_go_on() -> None:
    for text in ("mm-hm", "open from seven in the"):
        assert decide(text) is Verdict.UNDECIDED
        assert decide(text, speaking=False) is Verdict.RELEASE
        assert decide(text, held_ms=HOLD_MS) is Verdict.RELEASE


def test_without_words_the_length_decides() -> None:
    assert decide("", voiced_ms=200) is Verdict.UNDECIDED
    assert decide("", voiced_ms=200, speaking=False) is Verdict.RELEASE
    assert decide("", voiced_ms=300, speaking=False) is Verdict.UNDECIDED
    assert decide("", voiced_ms=480, speaking=False, final=True) is Verdict.RELEASE  # a cough: it is known to be none
    assert decide("", voiced_ms=300, speaking=False, held_ms=HOLD_MS) is Verdict.RELEASE
    assert decide("", voiced_ms=480, held_ms=HOLD_MS) is Verdict.COMMIT


def test_hello_is_no_interruption_of_a_reply_that_was_not_heard_yet() -> None:
    assert decide("hello?", heard=False, speaking=False) is Verdict.RELEASE
    assert decide("hello?", heard=True, final=True) is Verdict.COMMIT
    assert decide("never mind", heard=False) is Verdict.COMMIT


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        ("bye", True),
        ("Okay, thank you so much, bye bye!", True),
        ("thanks you too", True),
        ("have a good day", False),
        ("thanks but one more question", False),
        ("goodbye is not what I said", False),
        ("", False),
    ],
)
def test_who_only_takes_leave_is_told_from_who_goes_on(text: str, leaves: bool) -> None:
    assert is_goodbye(text) is leaves
    policy = InterruptionPolicy()
    said = "It was nice to talk to you."
    assert policy.is_interruption(text, said, heard=True, leaving=True) is (bool(text) and not leaves)
    assert policy.is_interruption(text, said, heard=True) is bool(text)
