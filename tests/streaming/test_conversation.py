from collections.abc import Callable

import pytest

from streaming.config import SessionConfig
from streaming.conversation import MAX_CHARS, MAX_ITEM_CHARS, MAX_ITEMS, Conversation, Item, ItemError, PartKind, Role
from streaming.jobs import Message


def item(item_id: str, role: Role = "user", text: str | None = "hi", *, cut: bool = False) -> Item:
    return Item(item_id, role, PartKind.INPUT_TEXT, text, cut=cut)


def test_items_are_inserted_where_they_are_asked_for() -> None:
    talk = Conversation()
    assert talk.add(item("a")) is None
    assert talk.add(item("c")) == "a"
    assert talk.add(item("b"), after="a") == "a"
    assert talk.add(item("first"), after="root") is None
    assert [known.id for known in talk.items] == ["first", "a", "b", "c"]
    assert talk.last_id == "c"
    assert len(talk) == 4
    assert talk.get("b").id == "b"


@pytest.mark.parametrize(
    ("code", "act"),
    [
        ("item_already_exists", lambda talk: talk.add(item("a"))),
        ("item_not_found", lambda talk: talk.add(item("b"), after="nobody")),
        ("item_not_found", lambda talk: talk.get("nobody")),
        ("item_not_found", lambda talk: talk.delete("nobody")),
        ("item_too_long", lambda talk: talk.add(item("b", text="x" * (MAX_ITEM_CHARS + 1)))),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(code: str, act: Callable[[Conversation], object]) -> None:
    talk = Conversation()
    talk.add(item("a"))
    with pytest.raises(ItemError) as raised:
        act(talk)
    assert raised.value.code == code
    assert [known.id for known in talk.items] == ["a"]


def test_an_empty_conversation_has_no_last_item_and_no_prompt() -> None:
    assert Conversation().last_id is None
    assert Conversation().messages(()) == ()


def test_a_deleted_item_is_not_brought_back_by_a_late_change() -> None:
    talk = Conversation()
    talk.add(item("a"))
    talk.delete("a")
    talk.replace(item("a", text="late"))
    assert talk.items == ()


def test_the_prompt_joins_neighbours_of_one_role_and_skips_what_has_no_words() -> None:
    talk = Conversation()
    talk.add(item("1", text="hello"))
    talk.add(item("2", "assistant", ""))
    talk.add(item("3", text="are you there"))
    talk.add(item("4", "assistant", "Yes, I am, and", cut=True))
    talk.add(item("5", "user", None))
    talk.add(item("6", "system", "Be brief."))
    talk.add(item("7", "system", "Be kind."))
    assert talk.messages((Message("system", "Be nice."),)) == (
        Message("system", "Be nice."),
        Message("user", "hello are you there"),
        Message("assistant", "Yes, I am, and…"),
        Message("system", "Be brief.\nBe kind."),
    )
    assert talk.messages((), Message("system", "x"))[-1] == Message("system", "Be brief.\nBe kind.\nx")


def test_instructions_and_a_first_system_message_are_one() -> None:
    talk = Conversation()
    talk.add(item("1", "system", "Be brief."))
    assert talk.messages((Message("system", "Be nice."),)) == (Message("system", "Be nice.\nBe brief."),)


def test_an_example_and_a_greeting_stay_apart() -> None:
    config = SessionConfig(instructions="Be nice.", examples=(("Who are you?", "I am Joe."),))
    talk = Conversation()
    talk.add(item("1", "assistant", "Hello there."))
    assert talk.messages(config.preamble(), Message("user", "hi")) == (
        Message("system", "Be nice."),
        Message("user", "Who are you?"),
        Message("assistant", "I am Joe."),
        Message("assistant", "Hello there."),
        Message("user", "hi"),
    )


def test_it_is_bounded_and_keeps_system_messages_longest() -> None:
    talk = Conversation()
    talk.add(item("system", "system"))
    for number in range(MAX_ITEMS + 5):
        talk.add(item(str(number)))
    assert len(talk) == MAX_ITEMS
    assert talk.dropped == 6
    assert talk.items[0].id == "system"


def test_its_text_is_bounded_too() -> None:
    talk = Conversation()
    for number in range(6):
        talk.add(item(str(number), text="x" * (MAX_ITEM_CHARS - 1)))
    assert sum(len(known.text or "") for known in talk.items) <= MAX_CHARS
    assert talk.items[-1].id == "5"
    assert talk.dropped == 2
