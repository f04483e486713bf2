from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.markup import LONGEST_TEXT, Attribute, Markup, escape, join, number, tag, words


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text(), st.text())
def test_no_text_breaks_out_of_an_element_or_an_attribute(text: str, title: str) -> None:
    reader = read(tag("p", text, title=title))
    assert [name for name, _ in reader.tags] == ["p"]
    assert list(reader.tags[0][1]) == ["title"]
    assert read(tag("p", text)).text == read(escape(text)).text


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S"))))
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    assert read(tag("p", text)).text == text
    assert read(tag("p", title=text)).tags[0][1]["title"] == text


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\r", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800", "\x85"])
def test_what_hides_or_reorders_is_replaced(character: str) -> None:
    assert escape(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"
    tag("p", character).encode("utf-8")


def test_markup_stays_and_nothing_is_left_out_but_none() -> None:
    assert join([tag("b", "<"), " & ", 0, None]) == "<b>&lt;</b> &amp; 0"


@pytest.mark.parametrize(
    ("attribute", "written"),
    [(True, " open"), (False, ""), (None, ""), (0, ' open="0"'), (1.5, ' open="1.5"'), ("a", ' open="a"')],
)
def test_attributes_are_there_with_a_value_without_one_or_not(attribute: Attribute, written: str) -> None:
    assert tag("details", open=attribute) == f"<details{written}></details>"


@pytest.mark.parametrize("attribute", ["onclick", "style", "a b", "a>", "1"])
def test_attributes_that_the_policy_forbids_are_not_written(attribute: str) -> None:
    with pytest.raises(ValueError, match="no attribute"):
        tag("p", **{attribute: "x"})


def test_an_element_without_an_end_has_no_content() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    with pytest.raises(ValueError, match="no content"):
        tag("br", "x")
    with pytest.raises(ValueError, match="no element"):
        tag("p><script", "x")


def test_the_words_of_others_are_cut_and_kept_apart() -> None:
    assert words(None) == ""
    assert words("a") == '<bdi class="words">a</bdi>'
    assert read(words("x" * 10_000)).text == "x" * LONGEST_TEXT + "…"


@pytest.mark.parametrize(
    ("value", "written"), [(0.0, "0"), (-0.001, "0"), (12.5, "12.5"), (100.0, "100"), (3.14159, "3.14"), (-2.0, "-2")]
)
def test_numbers_have_no_needless_digits(value: float, written: str) -> None:
    assert number(value) == written


def test_markup_is_text() -> None:
    assert isinstance(tag("p"), Markup)
    assert isinstance(tag("p"), str)
