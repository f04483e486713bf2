"""Signatures by the vendors' own examples, and what is refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.transports.carriers.dialect import Asked, Unauthentic
from gateway.transports.carriers.signatures import (
    Ed25519Verifier,
    Seen,
    check_stream_token,
    check_timestamp,
    plivo_signature,
    twilio_signature,
    twilio_urls,
)
from gateway.transports.carriers.tickets import Tickets
from tests.gateway.transports.carriers.fake_telnyx import PRIVATE_KEY, PUBLIC_KEY


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("caller", "expected"),
    [("+14158675310", "GvWf1cFY/Q7PnoempGyD5oXAezc="), ("+12349013030", "0/KCTR6DLpKmkAf8muzZqo1nDgQ=")],
)
def test_twilios_own_examples(caller: str, expected: str) -> None:
    form = {"To": "+18005551212", "From": caller, "Digits": "1234", "Caller": caller, "CallSid": "CA1234567890ABCDE"}
    assert twilio_signature("12345", "https://mycompany.com/myapp.php?foo=1&bar=2", form.items()) == expected


def test_a_parameter_that_is_there_twice_counts_once_for_each_of_its_values() -> None:
    twice = [("b", "2"), ("a", "1"), ("b", "1"), ("b", "2")]
    assert twilio_signature("k", "https://x/", twice) == twilio_signature("k", "https://x/a1b1b2")


@pytest.mark.parametrize(
    ("url", "forms"),
    [
        ("https://x.com/a?b=1", ("https://x.com/a?b=1", "https://x.com:443/a?b=1")),
        ("https://x.com:443/a", ("https://x.com:443/a", "https://x.com/a")),
        ("https://x.com:8443/a", ("https://x.com:8443/a",)),
        ("wss://x.com/a", ("wss://x.com/a", "wss://x.com:443/a", "wss://x.com/a/", "wss://x.com:443/a/")),
    ],
)
def test_the_forms_of_a_url_that_twilio_signs(url: str, forms: tuple[str, ...]) -> None:
    assert twilio_urls(url) == forms


@pytest.mark.parametrize(
    ("method", "url", "form", "signed"),
    [
        ("POST", "https://h/c", {"To": "2", "From": "1"}, "https://h/c?From1To2"),
        ("POST", "https://h/c?z=%20x&agent=a", {"To": "2", "From": "1"}, "https://h/c?agent=a&z= x.From1To2"),
        ("POST", "https://h/c?x=1", {}, "https://h/c?x=1"),
        ("POST", "https://h/c", {}, "https://h/c"),
        ("GET", "https://h/c?b=1&a=%2B1", {}, "https://h/c?a=+1&b=1"),
    ],
)
def test_plivo_signs_what_its_own_clients_do(method: str, url: str, form: dict[str, str], signed: str) -> None:
    import hashlib
    import hmac

    expected = base64.b64encode(hmac.new(b"token", f"{signed}.nonce".encode(), hashlib.sha256).digest()).decode()
    assert plivo_signature("token", method, url, "nonce", form.items()) == expected


def test_a_vector_made_by_plivos_own_client() -> None:
    form = [("To", "+2"), ("From", "+1")]
    made = plivo_signature("tok", "POST", "https://h.example.com/call?agent=sales", "n0", form)
    assert made == "WDZaEjUMG0YnpCfCM2xy5qaS+/BokUEhI/hyHj+tSPM="


def test_ed25519_and_what_is_none() -> None:
    verifier = Ed25519Verifier(PUBLIC_KEY)
    right = base64.b64encode(PRIVATE_KEY.sign(b"1|x")).decode()
    verifier.check(right, b"1|x")
    for wrong, message in ((right, b"1|y"), (right[:-4], b"1|x"), ("", b"1|x"), ("ä!", b"1|x"), ("A" * 5_000, b"1|x")):
        with pytest.raises(Unauthentic):
            verifier.check(wrong, message)


@pytest.mark.parametrize(
    ("timestamp", "code"),
    [
        ("1000000", None),
        ("999700", None),
        ("1000300", None),
        ("999699", "signature_expired"),
        ("1000301", "signature_expired"),
        ("", "signature_invalid"),
        ("-5", "signature_invalid"),
        ("1e6", "signature_invalid"),
        ("٣", "signature_invalid"),
        ("9" * 400, "signature_invalid"),
    ],
)
def test_a_timestamp_is_of_now(timestamp: str, code: str | None) -> None:
    if code is None:
        check_timestamp(timestamp, 1_000_000.0)
        return
    with pytest.raises(Unauthentic) as refused:
        check_timestamp(timestamp, 1_000_000.0)
    assert refused.value.code == code


def test_what_was_seen_is_refused_for_as_long_as_its_signature_holds_and_no_more_is_kept() -> None:
    clock = Clock()
    seen = Seen(clock, window_s=300, limit=3)
    seen.take("a")
    clock.now += 599
    with pytest.raises(Unauthentic) as refused:
        seen.take("a")
    assert refused.value.code == "signature_replayed"
    clock.now += 2
    seen.take("a")
    for word in "bcdef":
        seen.take(word)
    assert len(seen) == 3


def test_a_ticket_is_good_once_for_a_minute_and_for_its_carrier() -> None:
    clock = Clock()
    words = iter("abcdefgh")
    tickets: Tickets[int] = Tickets(clock, new=lambda: next(words), limit=3)
    assert tickets.issue("telnyx", 1) == "a"
    assert tickets.redeem("plivo", "a") is None
    assert tickets.redeem("telnyx", "a") == 1
    assert tickets.redeem("telnyx", "a") is None
    tickets.issue("telnyx", 2)
    clock.now += 60
    assert tickets.redeem("telnyx", "b") is None
    for number in range(4):
        tickets.issue("telnyx", number)
    assert len(tickets) == 3
    assert tickets.redeem("telnyx", "c") is None, "beyond the limit the oldest is lost"
    clock.now += 61
    tickets.issue("telnyx", 9)
    assert len(tickets) == 1


WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), max_size=4)


@given(WORDS, WORDS)
def test_a_stream_token_is_itself_and_nothing_else(token: str, given_word: str) -> None:
    asked = Asked("wss://x/", {"authorization": f"Bearer {given_word}"}, {"token": given_word})
    if given_word and given_word == token:
        check_stream_token(asked, SecretStr(token), allow_unsigned=False)
        return
    with pytest.raises(Unauthentic):
        check_stream_token(asked, SecretStr(token), allow_unsigned=False)


def test_a_basic_password_is_a_stream_token_and_a_wrong_one_is_never_let_in_as_unsigned() -> None:
    def asked(credentials: str) -> Asked:
        return Asked("wss://x/", {"authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"})

    check_stream_token(asked("user:right-token-here"), SecretStr("right-token-here"), allow_unsigned=False)
    with pytest.raises(Unauthentic):
        check_stream_token(asked("user:wrong"), SecretStr("right-token-here"), allow_unsigned=True)
    with pytest.raises(Unauthentic):
        check_stream_token(asked("user:"), None, allow_unsigned=False)
    check_stream_token(Asked("wss://x/", {}), None, allow_unsigned=True)
