from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.llm.detokenize import Detokenizer


def decode(ids: list[int]) -> str:
    """A byte-level vocabulary: each id is one byte."""
    return bytes(ids).decode("utf-8", "replace")


@given(st.text(st.characters(exclude_characters="�", codec="utf-8"), max_size=40))
def test_any_text_comes_out_whole_and_in_whole_characters(text: str) -> None:
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.feed(byte) for byte in text.encode()]
    assert detokenizer.finish() == ""
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)


def test_a_character_that_never_became_whole_is_dropped() -> None:
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.feed(byte) for byte in "a€".encode()[:3]]
    assert pieces == ["a", "", ""]
    assert detokenizer.finish() == ""


def test_broken_bytes_do_not_hold_back_the_rest_for_ever() -> None:
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.feed(byte) for byte in b"\xe2\xe2\xe2\xe2\xe2ok"]
    assert "".join(pieces).endswith("ok")
