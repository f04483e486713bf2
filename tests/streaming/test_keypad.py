"""The keypad alone: what ends an entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.config import KeypadRules
from streaming.keypad import MAX_KEYS, Keypad

KEYS = "0123456789*#ABCD"
PAUSE_S = 2.0
END_KEY = "#"


def test_a_pause_ends_an_entry_and_each_key_puts_it_off() -> None:
    keypad = Keypad()
    assert keypad.deadline() is None
    assert keypad.on_time(99.0) is None
    assert keypad.press("1", 10.0) is None
    assert keypad.press("2", 11.5) is None
    assert (keypad.open, keypad.deadline()) == (True, 11.5 + PAUSE_S)
    assert keypad.on_time(11.5 + PAUSE_S - 0.001) is None
    assert keypad.on_time(11.5 + PAUSE_S) == "12"
    assert not keypad.open
    assert keypad.on_time(99.0) is None


def test_the_end_key_ends_an_entry_and_is_one_alone() -> None:
    keypad = Keypad()
    assert [keypad.press(key, 1.0) for key in "4*2#"] == [None, None, None, "4*2"]
    assert keypad.press(END_KEY, 1.0) == END_KEY
    assert keypad.deadline() is None


def test_who_asks_for_long_numbers_waits_longer_and_ends_them_otherwise() -> None:
    keypad = Keypad(KeypadRules(pause_ms=5_000, end_key="*"))
    assert [keypad.press(key, 10.0) for key in "4#2*"] == [None, None, None, "4#2"]
    assert keypad.press("*", 10.0) == "*"
    keypad = Keypad(KeypadRules(pause_ms=5_000, end_key=""))
    assert [keypad.press(key, 10.0) for key in "#*#"] == [None] * 3
    assert keypad.on_time(14.999) is None
    assert keypad.on_time(15.0) == "#*#"


def test_an_entry_is_bounded() -> None:
    keypad = Keypad()
    entries = [keypad.press("7", 1.0) for _ in range(MAX_KEYS + 1)]
    assert entries[MAX_KEYS - 1] == "7" * MAX_KEYS
    assert entries[MAX_KEYS] is None
    keypad.clear()
    assert not keypad.open


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.floats(0.0, 4.0))))
def test_no_key_is_lost_or_told_twice(presses: list[tuple[str, float]]) -> None:
    keypad, now, told = Keypad(), 0.0, ""
    entries: list[str | None] = []
    for key, later_s in presses:
        now += later_s
        entries += [keypad.on_time(now), keypad.press(key, now)]
    entries.append(keypad.on_time(now + PAUSE_S))
    for entry in entries:
        if entry is not None:
            assert 0 < len(entry) <= MAX_KEYS
            told += entry
    assert told.replace(END_KEY, "") == "".join(key for key, _ in presses).replace(END_KEY, "")
