from hypothesis import given
from hypothesis import strategies as st

from streaming.heard import HeardLedger
from streaming.jobs import WordEnd
from streaming.text.speakable import speakable

RATE = 8_000


def words_at(text: str, word_ms: int = 250) -> tuple[WordEnd, ...]:
    ends, position = [], 0
    for index, word in enumerate(text.split(" ")):
        position += len(word) + (1 if index else 0)
        ends.append(WordEnd(position, (index + 1) * word_ms))
    return tuple(ends)


def ledger_of(raw: str, *, timed: bool = True) -> HeardLedger:
    ledger = HeardLedger(RATE)
    spoken = speakable(raw)
    ledger.add_segment(0, len(raw), raw, spoken)
    words = words_at(spoken.text)
    ledger.add_audio(0, len(words) * RATE // 4, words if timed else (), last=True)
    return ledger


RAW = "One two three four five six seven eight nine ten."


def heard(ledger: HeardLedger, ms: float, raw: str = RAW) -> str:
    return raw[: ledger.raw_end(int(ms * RATE / 1000))]


def test_a_ten_word_reply_cut_at_word_four_with_word_times() -> None:
    ledger = ledger_of(RAW)
    assert heard(ledger, 1_000) == "One two three four"
    assert heard(ledger, 1_100) == "One two three four"
    assert heard(ledger, 1_130) == "One two three four five"
    assert heard(ledger, 0) == ""
    assert heard(ledger, 2_500) == RAW


def test_without_word_times_it_is_right_within_a_word() -> None:
    ledger = ledger_of("aaa bbb ccc ddd eee fff ggg hhh iii jjj", timed=False)
    raw = "aaa bbb ccc ddd eee fff ggg hhh iii jjj"
    for count in range(1, 10):
        assert abs(len(heard(ledger, 250 * count, raw).split()) - count) <= 1


def test_a_number_is_heard_when_all_its_words_were() -> None:
    raw = "It costs 21 dollars today"
    ledger = ledger_of(raw)
    spoken = speakable(raw).text
    assert spoken.split()[2:4] != ["21", "dollars"]
    assert heard(ledger, 500, raw) == "It costs"


def test_later_segments_begin_where_earlier_ones_end() -> None:
    ledger = HeardLedger(RATE)
    first, second = "Hello there. ", "How are you?"
    ledger.add_segment(0, len(first), first, speakable(first))
    ledger.add_segment(len(first), len(first + second), second, speakable(second))
    ledger.add_audio(0, 4_000, words_at("Hello there."), last=True)
    assert ledger.audio_start(1) == 4_000
    ledger.add_audio(1, 6_000, words_at("How are you?"), last=True)
    assert ledger.samples == 10_000
    raw = first + second
    assert raw[: ledger.raw_end(4_000 + 2_000)] == "Hello there. How"


def test_while_a_segment_is_being_made_its_length_is_guessed() -> None:
    ledger = HeardLedger(RATE)
    ledger.add_segment(0, len(RAW), RAW, speakable(RAW))
    ledger.add_audio(0, RATE, (), last=False)
    part = heard(ledger, 1_000)
    assert part
    assert part != RAW
    assert RAW.startswith(part)


def test_a_segment_without_sound_counts_with_the_one_before_it() -> None:
    ledger = HeardLedger(RATE)
    ledger.add_segment(0, 6, "Hello ", speakable("Hello "))
    ledger.add_segment(6, 8, "**", speakable("**"))
    ledger.add_audio(1, 0, (), last=True)
    assert ledger.raw_end(0) == 0
    ledger.add_audio(0, 2_000, (), last=True)
    assert ledger.raw_end(1_999) == 5
    assert ledger.raw_end(2_000) == 8


def test_an_engine_that_yields_nothing_was_not_heard() -> None:
    ledger = HeardLedger(RATE)
    assert ledger.raw_end(0) == ledger.samples == 0
    ledger.add_segment(0, 5, "Hello", speakable("Hello"))
    assert ledger.raw_end(10_000) == 0


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.booleans())
def test_hearing_more_never_takes_words_back(lengths: list[int], timed: bool) -> None:
    raw = " ".join("x" * length for length in lengths)
    ledger = ledger_of(raw, timed=timed)
    ends = [ledger.raw_end(samples) for samples in range(0, ledger.samples + 400, 200)]
    assert ends == sorted(ends)
    assert ends[-1] == len(raw)
