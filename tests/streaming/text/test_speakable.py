"""CASES.md, row "speaking" (and "heard against said" for the spans)."""

import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming.text.speakable import Speakable, speakable


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        # markup
        ("**bold** and *it* and __this__ and ~~that~~", "bold and it and this and that"),
        ("an **open half", "an open half"),
        ("# Heading #\nText below", "Heading. Text below"),
        ("- apples\n- [x] pears\n> quote", "apples. pears quote"),
        ("a line that is\nwrapped.\n\nNext\nLast", "a line that is wrapped. Next. Last"),
        ("1. Open it\n2. Close it", "one. Open it. two. Close it"),
        ("Item | Price\n---|---\nTea | $2", "Item, Price. Tea, two dollars"),
        ("| a | b |\n|---|---|\n| c | d |", "a, b. c, d"),
        ("```python\nprint now\n```\nDone", "print now. Done"),
        ("run `it` now\n***\nok", "run it now ok"),
        ("See [our help](https://a.b/c_(d)) or ![a cat](x) [^1] [ref][1]", "See our help or a cat ref"),
        ("<https://a.com/b> <b>bold</b><br>AT&amp;T", "a dot com slash b bold AT and T"),
        ("a \\* b snake_case", "a b snake case"),
        ("Great 😀 work 👨‍👩‍👧 1️⃣ ☺️", "Great work one"),
        # addresses
        ("Visit https://www.example.com/help/.", "Visit example dot com slash help."),
        ("example.com/a-1?b=%20 now", "example dot com slash a dash one question mark b equals percent twenty now"),
        ("Write to joe.b@example.com!", "Write to joe dot b at example dot com!"),
        ("http://a.com/(x", "a dot com slash x"),
        ("Use Node.js and README.md", "Use Node dot js and README dot md"),
        # plain numbers
        ("22222", "two two two two two"),
        ("Code 12345.Let me know.", "Code one two three four five. Let me know."),
        ("007 and 0", "zero zero seven and zero"),
        ("1,234,567 and 1234", "one million two hundred thirty-four thousand five hundred sixty-seven and one thousand"
         " two hundred thirty-four"),
        ("1,000,000,000,000,000,000", "one" + " zero" * 18),
        ("3.14, .5 and -5", "three point one four, point five and minus five"),
        ("1st, 2nd, 20th, 22nd, 1,000th", "first, second, twentieth, twenty-second, one thousandth"),
        ("1/2, 3/2, 3/4, 1/4, 2/3, 1/100, 7/50, 1 1/2, 24/7", "one half, three halves, three quarters, one quarter, two"
         " thirds, one hundredth, seven over fifty, one and a half, twenty-four seven"),
        ("½ cup, 1½ m², m³, ①, ⅟", "one half cup, one and a half m squared, m cubed, one, one"),
        ("50% of 5 km, 1 kg, 20°C, 5-10 kg", "fifty percent of five kilometers, one kilogram, twenty degrees Celsius,"
         " five to ten kilograms"),
        ("5'10\" tall", "five foot ten tall"),
        ("COVID-19, B12, 4K", "COVID-nineteen, B twelve, four K"),
        ("ratio 3:1, score 10-2", "ratio three to one, score ten to two"),
        ("v2.0.1, V3, 192.168.0.1", "version two point zero point one, version three, one hundred ninety-two dot one"
         " hundred sixty-eight dot zero dot one"),
        # years
        ("in 1998 or 2024 or 2005 or 1900 or 1905", "in nineteen ninety-eight or twenty twenty-four or two thousand"
         " five"
         " or nineteen hundred or nineteen oh five"),
        ("in 1492, 1492 people, 1998-2004", "in fourteen ninety-two, one thousand four hundred ninety-two people,"
         " nineteen ninety-eight to two thousand four"),
        ("the 1990s, '90s, 60s, 2000s", "the nineteen nineties, nineties, sixties, two thousands"),
        # money
        ("$1,234.56, €5, £3.50, $1", "one thousand two hundred thirty-four dollars and fifty-six cents, five euros,"
         " three"
         " pounds and fifty pence, one dollar"),
        ("$0.50, $0.01, $0, $12000, -$5, $2.5", "fifty cents, one cent, zero dollars, twelve thousand dollars,"
         " minus five"
         " dollars, two point five dollars"),
        ("$1.5 million, $5k, $5-10, $5k-10k, 20 €, 50¢, 1¢", "one point five million dollars, five thousand"
         " dollars, five"
         " to ten dollars, five thousand to ten thousand dollars, twenty euros, fifty cents, one cent"),
        # dates
        ("March 3, 2025; 2025-03-03; 3/4/2025; 14/3/25", "March third, twenty twenty-five; March third, twenty"
         " twenty-five; March fourth, twenty twenty-five; March fourteenth, twenty twenty-five"),
        ("3 March 2025, 5th of May, Jan. 5, June 3-5, May 2024", "third of March, twenty twenty-five, fifth of May,"
         " January fifth, June third to fifth, May twenty twenty-four"),
        ("2025-13-03, May 45, 45 May", "two zero two five, one three, zero three, May forty-five, forty-five May"),
        ("since Jan. we know", "since January we know"),
        # times
        ("At 9 a.m. Please come at 10:30, 10:00, 10:05, 14:00, 10:00 pm", "At nine a.m. Please come at ten thirty, ten"
         " o'clock, ten oh five, fourteen hundred, ten p.m."),
        ("9am-5pm, 9:30-11 a.m., 10:00-11:30, 1:02:03, 25:10", "nine a.m. to five p.m., nine thirty to eleven a.m.,"
         " ten to"
         " eleven thirty, one oh two and three seconds, twenty-five to ten"),
        # digit groups
        ("Call (555) 123-4567 or 555-1234", "Call five five five, one two three, four five six seven or five five five,"
         " one two three four"),
        ("+49 30 1234567", "plus four nine, three zero, one two three four five six seven"),
        ("4111 1111 1111 1111", "four one one one, one one one one, one one one one, one one one one"),
        # symbols
        ("R&D, C++, @joe, #5, #tag, a=b, 3 * 4, 6 ÷ 2", "R and D, C plus plus, at joe, number five, tag, a equals"
         " b, three"
         " times four, six divided by two"),
        ("and/or, he/she, w/ me, w/o me, 3 < 5 > 2, ~10, ±2", "and or, he or she, with me, without me, three less than"
         " five greater than two, about ten, plus or minus two"),
        ("/ or a /b", "or a b"),
        # abbreviations
        ("Dr. Smith vs. Mr. Jones, e.g. this, i.e. that", "Doctor Smith versus Mister Jones, for example this, that is"
         " that"),
        ("Tea, etc. Then No. 5 etc. is it", "Tea, et cetera. Then number five et cetera is it"),
        ("On Main St. See St. Mary on 5th St.", "On Main Street. See Saint Mary on fifth Street."),
        ("the U.S. Army, the U.S., NASA", "the U.S. Army, the U.S., NASA"),
        # punctuation
        ("Well... I think (maybe) — yes", "Well. I think, maybe, yes"),
        ("Well… maybe… “So”", "Well, maybe. So"),
        ("“it’s” dogs' rock-n-roll - ok?!", "it's dogs rock-n-roll ok?"),
        ("(first) 你好。Yes ¿no", "first, 你好. Yes no"),
        ("it (works)!", "it, works!"),
        # nothing to say
        ("😀", ""), ("***", ""), ("...", ""), ("", ""), ("---\n", ""),
    ],
)  # fmt: skip
def test_it_reads_as_a_person_would(raw: str, said: str) -> None:
    assert speakable(raw).text == said


@pytest.mark.parametrize(
    ("raw", "language", "said"),
    [
        ("**Hallo** Welt, 3,5 km 😀", "de", "Hallo Welt, 3,5 km"),
        ("好👍的 \n朋友", "zh-CN", "好 的. 朋友"),
        ("क्‍ष नमस्ते", "hi", "क्‍ष नमस्ते"),
        ("5 km", "en-GB", "five kilometers"),
    ],
)
def test_other_languages_lose_only_markup_and_pictures(raw: str, language: str, said: str) -> None:
    assert speakable(raw, language).text == said


def test_spans_name_the_raw_words() -> None:
    raw = "I **really mean** it costs $29.50 now 😀"
    said = speakable(raw)
    got = [(word, raw[start:end]) for word, (start, end) in zip(said.text.split(), said.spans, strict=True)]
    money = [(word, "$29.50") for word in "twenty-nine dollars and fifty cents".split()]
    assert got == [
        ("I", "I"),
        ("really", "really"),
        ("mean", "mean**"),
        ("it", "it"),
        ("costs", "costs"),
        *money,
        ("now", "now 😀"),
    ]


def test_heard_up_to_a_word_is_a_raw_prefix() -> None:
    raw = "It costs $29.50 now."
    said = speakable(raw)

    def heard(spoken: str) -> str:
        assert said.text.startswith(spoken)
        return raw[: said.raw_end(len(spoken))]

    assert heard("") == ""
    assert heard("I") == ""
    assert heard("It") == "It"
    assert heard("It cos") == "It"
    assert heard("It costs twenty-nine dollars") == "It costs"  # half a price is none
    assert heard("It costs twenty-nine dollars and fifty cents") == "It costs $29.50"
    assert heard(said.text) == raw
    assert speakable("22222").raw_end(3) == 0
    assert Speakable("", ()).raw_end(0) == 0


MARKS = "ab A1234567890.,:/-+$€%°'’()[]*_`#|<>&@=~\n½²…–—"


@settings(max_examples=120, deadline=None)
@given(
    st.one_of(st.text(max_size=60), st.text(alphabet="ab A1234567890.,:/-+$€%°'’()[]*_`#|<>&@=~\n½²…–—", max_size=40))
)
@example("5.")
@example("1998s 0000s 00/00/00 99:99:99 1/0")
def test_english_is_speakable_whatever_comes(raw: str) -> None:
    said = speakable(raw)
    assert all(char in "'-.,?!;: " or unicodedata.category(char)[0] in "LM" for char in said.text)
    assert said.text == " ".join(said.text.split())
    assert len(said.spans) == len(said.text.split())
    assert all(0 <= start < end <= len(raw) for start, end in said.spans)
    assert list(said.spans) == sorted(said.spans)
    ends = [said.raw_end(at) for at in range(len(said.text) + 1)]
    assert ends == sorted(ends)
    assert ends[-1] in (0, len(raw))


WORDS = st.lists(st.sampled_from("alpha bravo charlie delta echo foxtrot golf".split()), min_size=1, max_size=8)
WRAPS = st.sampled_from(
    ["{}", "**{}**", "*{}*", "`{}`", "({})", "[{}](https://a.com)", "“{}”", "{},", "{}!", "# {}", "- {}\n", "😀{}"]
    + ["<b>{}</b>", "~~{}~~", "{} |", "> {}"]
)


@settings(max_examples=80, deadline=None)
@given(words=WORDS, wraps=st.lists(WRAPS, min_size=8, max_size=8), language=st.sampled_from(["en", "de"]))
def test_no_word_is_lost(words: list[str], wraps: list[str], language: str) -> None:
    raw = " ".join(wrap.format(word) for word, wrap in zip(words, wraps, strict=False))
    said = speakable(raw, language)
    assert re.findall(r"[a-z]+", said.text) == words
    for word, (start, end) in zip(said.text.split(), said.spans, strict=True):
        assert all(part in raw[start:end] for part in re.findall("[a-z]+", word))


def test_a_long_run_of_marks_takes_no_time_to_speak_of() -> None:
    for mark in ("-", "|", "*", "[", "(", "<", "#", "1.", "1-", "a@", "1,", "_ ", "+1 "):
        speakable(mark * 400 + "x")
