"""CASES.md, row "splitting", and the splitter's properties."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.text.clauses import HARD_MAX_CHARS, LATER_MAX_CHARS, ClauseSplitter, Segment


def split(text: str, delta: int = 0) -> list[Segment]:
    splitter = ClauseSplitter()
    pieces = [text[at : at + delta] for at in range(0, len(text), delta)] if delta else [text]
    return [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()


def texts(text: str) -> list[str]:
    segments = split(text)
    assert segments == split(text, 1) == split(text, 3)
    return [segment.text.strip() for segment in segments]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        # numeral lists
        ("1. Open the app. 2. Press start.", ["1. Open the app.", "2. Press start."]),
        ("Do this:\n1. Open the app\n2. Press start", ["Do this:", "1. Open the app", "2. Press start"]),
        ("1.\nOpen the app.", ["1.\nOpen the app."]),
        # bullets without full stops
        ("- Apples\n- Pears\n- Plums and more", ["- Apples", "- Pears", "- Plums and more"]),
        ("a line that is\nonly wrapped. Right?", ["a line that is\nonly wrapped.", "Right?"]),
        # numbers
        ("It costs $29. Next item please.", ["It costs $29.", "Next item please."]),
        ("Pi is 3.14 today. Yes it is.", ["Pi is 3.14 today.", "Yes it is."]),
        ("Take v2.0.1 at 10:30 now. Then rest well.", ["Take v2.0.1 at 10:30 now.", "Then rest well."]),
        ("It is $1,234.56 in all. Thank you.", ["It is $1,234.56 in all.", "Thank you."]),
        ("On March 3, 2025, we met. So there.", ["On March 3, 2025,", "we met.", "So there."]),
        ("Bring 5, please. Thank you.", ["Bring 5,", "please. Thank you."]),
        ("Your code is 12345.Let me know.", ["Your code is 12345.", "Let me know."]),
        # abbreviations
        ("Open at 9 a.m. Please come by.", ["Open at 9 a.m.", "Please come by."]),
        ("Open at 9 a.m. sharp today. Come by.", ["Open at 9 a.m. sharp today.", "Come by."]),
        ("See Dr. Smith about it. He knows.", ["See Dr. Smith about it.", "He knows."]),
        ("In the U.S. Army we march. He said so.", ["In the U.S. Army we march.", "He said so."]),
        ("He lives in the U.S. It is big.", ["He lives in the U.S.", "It is big."]),
        ("Try fruit, e.g. this one. It is good.", ["Try fruit,", "e.g. this one.", "It is good."]),
        ("Use route No. 5 today. It is fast.", ["Use route No. 5 today.", "It is fast."]),
        ("I say no. Really I do.", ["I say no.", "Really I do."]),
        ("Come on Jan. 5 then. All right.", ["Come on Jan. 5 then.", "All right."]),
        ("Ask J. Smith about it. He knows.", ["Ask J. Smith about it.", "He knows."]),
        ("Use .NET . It works well.", ["Use .NET . It works well."]),
        # addresses
        ("Mail joe@example.com. Or call us.", ["Mail joe@example.com.", "Or call us."]),
        ("See https://x.com/a.b?c=D.E now. It helps.", ["See https://x.com/a.b?c=D.E now.", "It helps."]),
        ("Go to Example.com now. It helps.", ["Go to Example.com now.", "It helps."]),
        # brackets, quotes, tags
        ("It works (see sec. 3. It is fine.) and more.", ["It works (see sec. 3. It is fine.) and more."]),
        ("See it here. (It works.) Good for you.", ["See it here.", "(It works.)", "Good for you."]),
        (
            "Visit [our page. Now](https://a.b/c) and be well. Bye now.",
            ["Visit [our page. Now](https://a.b/c) and be well.", "Bye now."],
        ),
        ('Use <a href="x. Y">this one</a> now. It helps.', ['Use <a href="x. Y">this one</a> now.', "It helps."]),
        ("So 3 < 5 is true. I am sure.", ["So 3 < 5 is true.", "I am sure."]),
        ("That is sad :( but true. I am sure.", ["That is sad :( but true.", "I am sure."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ('Say it. "Really?" he asked.', ["Say it.", '"Really?" he asked.']),
        # no space, ellipses, emoji
        ("Sentence one.Sentence two.", ["Sentence one.", "Sentence two."]),
        ("That is great!Now we go.", ["That is great!", "Now we go."]),
        ("And so do they.I do too.", ["And so do they.", "I do too."]),
        ("Use the Node.JS one.", ["Use the Node.JS one."]),
        ("Wait... what is it? Well now... I think so.", ["Wait... what is it?", "Well now...", "I think so."]),
        ("Hello there.😀 How are you?", ["Hello there.", "😀 How are you?"]),
        ("Is it so?! I say. OK", ["Is it so?!", "I say.", "OK"]),
        # other scripts
        ("你好世界。我们走吧！好的？行", ["你好世界。", "我们走吧！", "好的？", "行"]),
        ("你好，世界。走", ["你好，", "世界。", "走"]),
        ("他说好.我们走", ["他说好.", "我们走"]),
        ("नमस्ते दुनिया। कैसे हो।", ["नमस्ते दुनिया।", "कैसे हो।"]),
        # clauses
        ("Well, sure, I can do it.", ["Well, sure,", "I can do it."]),
        ("I can - if you like - help.", ["I can -", "if you like - help."]),
        ("I can—if you like—help.", ["I can—", "if you like—help."]),
        ("Count 5 - 3 for me; thank you.", ["Count 5 - 3 for me;", "thank you."]),
        ("Pages 3—5 are good, I think.", ["Pages 3—5 are good,", "I think."]),
        # one word
        ("Yes.", ["Yes."]),
        ("Yes", ["Yes"]),
        ("Yes. I can do that.", ["Yes. I can do that."]),
        ("Yes.\n\nI can do that.", ["Yes.", "I can do that."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_splitting(text: str, want: list[str]) -> None:
    assert texts(text) == want


def test_a_long_first_sentence_is_cut_early_between_words() -> None:
    text = (
        "This very long first sentence goes on and on "
        + "without any mark of punctuation " * 4
        + "till it ends. Bye now."
    )
    first = texts(text)[0]
    assert first == "This very long first sentence goes on and on without any mark"[: len(first)]
    assert 30 < len(first) <= 60


def test_the_length_cut_never_parts_a_number_from_its_unit_or_a_title_from_its_name() -> None:
    assert texts("The parcel we are sending to your new home now weighs about 55 kg in all and is big")[0].endswith(
        "weighs"
    )
    assert texts("The person who will be able to tell you all about it is Dr. Smith of our office here")[0].endswith(
        "all about"
    )
    assert texts("Our next meeting with the whole team will be on the day of March 3 and you may come")[0].endswith(
        "day"
    )
    assert texts("The sum of everything that you have bought from us is 1 + 1 and some more in the end")[0].endswith(
        "from us"
    )
    assert texts("a of the to in on at by and or but for from with as my your a of the to in on at by x")[0].endswith(
        "as my your"
    )


def test_an_address_longer_than_the_first_chunk_stays_whole() -> None:
    url = "https://example.com/" + "a" * 80
    assert url in texts(f"{url} is the place to go")[0]


def test_a_long_sentence_is_split_at_a_clause_else_at_a_word() -> None:
    clause = "and then there is one more thing that I have to say about this whole affair, " * 5
    parts = texts("Here we go. We begin " + clause.strip(", ") + ".")
    assert all(len(part) <= LATER_MAX_CHARS for part in parts)
    assert parts[1].endswith("affair,")
    parts = texts("Here we go. We begin " + "word " * 80 + "end.")
    assert all(len(part) <= LATER_MAX_CHARS for part in parts)


@pytest.mark.parametrize(
    "text", ["x" * 2_000, "see " * 5 + "[" + "never closed " * 100, "." * 2_000, " " * 3_000 + "Hi."]
)
def test_nothing_grows_without_bound(text: str) -> None:
    splitter = ClauseSplitter()
    segments: list[Segment] = []
    for char in text:
        segments += splitter.feed(char)
        assert len(splitter.pending) <= HARD_MAX_CHARS + 200
    segments += splitter.flush()
    assert all(len(segment.text) <= HARD_MAX_CHARS + 64 for segment in segments)
    assert segments == split(text)


def test_a_bracket_with_words_too_long_to_be_one_is_cut_at_a_space() -> None:
    parts = split("Hello (a" + " bc" * 300)
    assert {word for part in parts for word in part.text.split()} == {"Hello", "(a", "bc"}


def test_numbers_alone_are_cut_between_numbers_at_the_bound() -> None:
    parts = split("47 " * 300)
    assert {word for part in parts for word in part.text.split()} == {"47"}
    assert max(len(part.text) for part in parts) <= HARD_MAX_CHARS + 1


def test_the_whole_reply_in_one_delta_and_the_first_clause_at_once() -> None:
    splitter = ClauseSplitter()
    assert [s.text for s in splitter.feed("Sure thing, I can. It is easy. Then")] == [
        "Sure thing,",
        " I can.",
        " It is easy.",
    ]
    assert splitter.pending == " Then"


def test_a_stop_is_not_an_end_before_the_next_character_proves_it() -> None:
    splitter = ClauseSplitter()
    assert splitter.feed("It is about 3.") == []
    assert splitter.feed("14 or so") == []
    assert [s.text for s in splitter.flush()] == ["It is about 3.14 or so"]


@pytest.mark.parametrize(
    ("fed", "released", "kept"),
    [
        ("Hello there.", "Hello there.", ""),
        ("Sure.", "Sure.", ""),
        ("Is it so?", "Is it so?", ""),
        ("We can go  the", "We can go", "  the"),
        ("Hello there. ", "", " "),
        ('He said "Go."', 'He said "Go."', ""),
        ("Well then,", "Well then,", ""),
        ("I can help everyone with th", "I can help everyone", " with th"),
        ("I can help you now ", "I can help you now", " "),
        ("The total now is $29", "The total now", " is $29"),
        ("The total costs $29", "The total costs", " $29"),
        ("It costs 3.", "It costs", " 3."),
        ("It costs 1,", "It costs", " 1,"),
        ("We go see Dr.", "We go see", " Dr."),
        ("Come here Jan.", "Come here", " Jan."),
        ("In the big U.S.", "In the big", " U.S."),
        ("You go to www.example.", "You go", " to www.example."),
        ("Then write joe@exa", "Then write", " joe@exa"),
        ("It weighs 5 ", "It weighs", " 5 "),
        ("We have met on March ", "We have met", " on March "),
        ("Look here [at this", "Look here", " [at this"),
        ("Look here (at this.", "Look here", " (at this."),
        ("Hello there <thi", "Hello there", " <thi"),
        ("One", "", "One"),
        ("One moment", "", "One moment"),
        ("1.", "", "1."),
        ("...", "", "..."),
        ("", "", ""),
    ],
)
def test_a_stall_releases_what_can_be_spoken_and_no_more(fed: str, released: str, kept: str) -> None:
    splitter = ClauseSplitter()
    first = "".join(segment.text for segment in splitter.feed(fed))
    out = "".join(segment.text for segment in splitter.flush_pending())
    assert (out, splitter.pending) == (released, kept)
    assert first + out + "".join(segment.text for segment in splitter.flush()) == fed or not fed.strip() or kept == " "


def test_after_a_stall_the_offsets_go_on() -> None:
    splitter = ClauseSplitter()
    splitter.feed("I can help Joe n")
    (first,) = splitter.flush_pending()
    (second,) = splitter.feed("ow too. And")
    assert (first, second) == (Segment(0, 14, "I can help Joe"), Segment(14, 23, " now too."))


@pytest.mark.parametrize("delta", [0, 1, 2, 5])
def test_reasoning_is_never_spoken(delta: int) -> None:
    text = "<think>Hmm. Let me see, well.</think>Hello <b>there</b>, I am <Thinking>uh. no</Thinking> here. "
    text += "</think>What now?<thi"
    segments = split(text, delta)
    assert [s.text for s in segments] == ["Hello <b>there</b>,", " I am ", " here. ", "What now?<thi"]
    assert all(text[s.start : s.end] == s.text for s in segments)


def test_reasoning_that_never_ends_is_silent_and_costs_nothing() -> None:
    splitter = ClauseSplitter()
    for _ in range(1_000):
        assert splitter.feed("<think> and so on. ") == []
    assert (splitter.flush_pending(), splitter.flush(), splitter.pending) == ([], [], "")


PIECES = st.sampled_from(
    [" ", "\n", ".", ". ", ", ", "? ", "! ", "3", "3.14", "$1,234.56", "10:30", " a.m. ", "Dr. ", "U.S.", " e.g. ", "(",
     ") ", "[", "](", "<", "<think>", "</think>", "**", "- ", "—", "…", "...", "。", "，", "你好", "नमस्ते", "।", "😀",
     "word", " Word", " the ", "joe@example.com", "https://a.b/c.d", '"', "1. ", "\n- ", "x" * 70, " \t ", "I", "'"]
)  # fmt: skip
REPLIES = st.lists(st.one_of(PIECES, st.text(max_size=6)), max_size=40).map("".join)


def spoken_part(text: str) -> str:
    """What is outside reasoning, by a slower road."""
    out, inside, at = "", False, 0
    while at < len(text):
        tag = next((t for t in ("<think>", "</think>") if text.lower().startswith(t, at)), None)
        if tag:
            inside, at = tag == "<think>", at + len(tag)
        else:
            out, at = out + ("" if inside else text[at]), at + 1
    return "".join(out.split())


@settings(max_examples=120, deadline=None)
@given(
    text=REPLIES,
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    stalls=st.sets(st.integers(0, 40), max_size=5),
)
def test_every_word_once_in_order_whatever_the_deltas(text: str, cuts: list[int], stalls: set[int]) -> None:
    splitter = ClauseSplitter()
    segments: list[Segment] = []
    at = turn = 0
    while at < len(text):
        size = cuts[turn % len(cuts)]
        segments += splitter.feed(text[at : at + size])
        if turn in stalls:
            segments += splitter.flush_pending()
        at, turn = at + size, turn + 1
    segments += splitter.flush()
    assert splitter.pending == ""
    for segment in segments:
        assert segment.text == text[segment.start : segment.end]
        assert segment.text.strip()
    assert all(one.end <= two.start for one, two in itertools.pairwise(segments))
    assert "".join("".join(segment.text for segment in segments).split()) == spoken_part(text)


@settings(max_examples=120, deadline=None)
@given(text=REPLIES, cuts=st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_segments_do_not_depend_on_the_deltas(text: str, cuts: list[int]) -> None:
    splitter = ClauseSplitter()
    segments: list[Segment] = []
    at = turn = 0
    while at < len(text):
        segments += splitter.feed(text[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    assert segments + splitter.flush() == split(text)
