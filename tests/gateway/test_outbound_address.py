from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.outbound_address import MAX_CHARS, BadDestination, parse_destination, redacted_number


@pytest.mark.parametrize(
    ("text", "uri", "number"),
    [
        ("sip:alice@pbx.example.com", "sip:alice@pbx.example.com", ""),
        ("SIP:Alice@PBX.example.com", "sip:Alice@pbx.example.com", ""),
        ("sip:100@10.0.0.5:5070", "sip:100@10.0.0.5:5070", ""),
        ("sip:100@[2001:DB8::1]:5070", "sip:100@[2001:db8::1]:5070", ""),
        ("sip:pbx.example.com", "sip:pbx.example.com", ""),
        ("sips:alice@pbx.example.com;transport=TCP", "sips:alice@pbx.example.com;transport=tcp", ""),
        (" sip:al%69ce@pbx.example.com ", "sip:alice@pbx.example.com", ""),
        ("sip:a%23b@pbx.example.com", "sip:a%23b@pbx.example.com", ""),
        ("sip:*97@pbx.example.com", "sip:*97@pbx.example.com", ""),
        ("sip:+1-555-123-4567@pbx.example.com;user=phone", "sip:+15551234567@pbx.example.com", "+15551234567"),
        ("+1 (555) 123-4567", "sip:+15551234567@trunk.example.com:5080", "+15551234567"),
        ("tel:+44-20-7946-0000", "sip:+442079460000@trunk.example.com:5080", "+442079460000"),
    ],
)
def test_what_is_dialled_is_written_anew(text: str, uri: str, number: str) -> None:
    destination = parse_destination(text, trunk="trunk.example.com:5080")
    assert (destination.uri, destination.number) == (uri, number)
    assert parse_destination(uri) == parse_destination(parse_destination(uri).uri)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_destination"),
        ("alice", "bad_destination"),
        ("pbx.example.com", "bad_destination"),
        ("https://pbx.example.com", "bad_destination"),
        ("sip:", "bad_destination"),
        ("sip:alice@", "bad_destination"),
        ("sip:alice@bob@pbx.example.com", "bad_destination"),
        ("sip:alice:secret@pbx.example.com", "bad_destination"),
        ("sip:alice@pbx.example.com;maddr=evil.example.com", "bad_destination"),
        ("sip:alice@pbx.example.com;transport=ws", "bad_destination"),
        ("sip:alice@pbx.example.com;transport=udp;transport=tcp", "bad_destination"),
        ("sip:alice@pbx.example.com;lr", "bad_destination"),
        ("sip:alice@pbx.example.com?Route=%3Csip:evil.example.com%3E", "bad_destination"),
        ("sip:alice;phone-context=+1@pbx.example.com", "bad_destination"),
        ("sip:al%0d%0aVia@pbx.example.com", "bad_destination"),
        ("sip:al%00ice@pbx.example.com", "bad_destination"),
        ("sip:al%C3%A9@pbx.example.com", "bad_destination"),
        ("sip:alice@pbx.example.com:0", "bad_destination"),
        ("sip:alice@pbx.example.com:65536", "bad_destination"),
        ("sip:alice@pbx_.example.com", "bad_destination"),
        ("sip:alice@-pbx.example.com", "bad_destination"),
        ("sip:alice@[1::2::3]", "bad_destination"),
        ("sip:alice@127.1", "bad_destination"),
        ("sip:alice@0x7f000001", "bad_destination"),
        ("sip:alice@2130706433", "bad_destination"),
        ("sip:a@pbx.example.com\r\nVia: x", "bad_destination"),
        ("sip:älice@pbx.example.com", "bad_destination"),
        ("sip:" + "a" * MAX_CHARS + "@pbx.example.com", "bad_destination"),
        ("sip:" + "a" * 65 + "@pbx.example.com", "bad_destination"),
        ("tel:5551234567", "not_e164"),
        ("tel:+15551234567;ext=9", "not_e164"),
        ("+123456", "not_e164"),
        ("+1234567890123456", "not_e164"),
        ("+0555123456", "not_e164"),
        ("+1555CALLNOW", "not_e164"),
        ("++15551234567", "not_e164"),
        ("sip:0015551234567@pbx.example.com", "not_e164"),
        ("sip:9011442079460000@pbx.example.com", "not_e164"),
        ("sip:%30%30441234567@pbx.example.com", "not_e164"),
        ("sip:+911@pbx.example.com", "not_e164"),
        ("sip:*72*15551234567@pbx.example.com", "not_e164"),
        ("sip:9,15551234567@pbx.example.com", "not_e164"),
        ("sip:9+15551234567@pbx.example.com", "not_e164"),
        ("sip:*720015551234567%23@pbx.example.com", "not_e164"),
    ],
)
def test_what_cannot_be_judged_is_refused(text: str, code: str) -> None:
    with pytest.raises(BadDestination) as caught:
        parse_destination(text, trunk="trunk.example.com")
    assert caught.value.code == code


def test_numbers_need_a_trunk() -> None:
    with pytest.raises(BadDestination) as caught:
        parse_destination("+15551234567")
    assert caught.value.code == "no_trunk"
    assert parse_destination("sip:+15551234567@pbx.example.com").host == "pbx.example.com"


def test_what_may_be_an_extension_can_be_said() -> None:
    assert parse_destination("sip:12345678@pbx", longest_extension=8).number == ""
    with pytest.raises(BadDestination):
        parse_destination("sip:1234@pbx", longest_extension=3)


def test_one_destination_is_the_same_by_any_way() -> None:
    one = parse_destination("+1 555 123 4567", trunk="trunk.example.com")
    other = parse_destination("sip:+1.555.123.4567@pbx.example.com:5070;transport=tcp")
    assert one.key == other.key
    assert parse_destination("sip:Bob@pbx").key == parse_destination("sips:bob@PBX").key
    assert parse_destination("sip:bob@pbx").key != parse_destination("sip:bob@pbx:5070").key
    assert parse_destination("sip:100@pbx").key == parse_destination("sip:1-00@pbx:5060").key
    assert parse_destination("sip:100@pbx").key == parse_destination("sip:(1).0.0@pbx:5061;transport=tls").key
    assert parse_destination("sip:b.ob@pbx").key != parse_destination("sip:bob@pbx").key


def test_a_log_line_cannot_be_called_back() -> None:
    assert redacted_number("+15551234567") == "+155…67"
    assert redacted_number("+1555123") == "…"
    assert parse_destination("+15551234567", trunk="t").redacted() == "+155…67"
    assert parse_destination("sip:+15551234567@pbx").redacted() == "+155…67@pbx"
    assert parse_destination("sip:alice@pbx").redacted() == "a…@pbx"
    assert parse_destination("sip:pbx").redacted() == "@pbx"


@given(st.one_of(st.text(max_size=60), st.from_regex(r"sips?:[!-~]{0,20}@[!-~]{0,20}[;?!-~]{0,20}", fullmatch=True)))
@example("sip:%")
@example("sip:@h")
def test_whatever_comes_is_refused_or_reads_the_same_again(text: str) -> None:
    try:
        destination = parse_destination(text, trunk="trunk.example.com")
    except BadDestination:
        return
    again = parse_destination(destination.uri, trunk="trunk.example.com")
    assert (again.uri, again.number, again.user) == (destination.uri, destination.number, destination.user)
    assert all(part not in destination.uri for part in ("?", "maddr", "\r", "\n", " "))
