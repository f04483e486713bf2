from __future__ import annotations

import itertools

import pytest

from gateway.transports.sip.address import BadSyntax
from gateway.transports.sip.digest import (
    NONCE_LIFE_S,
    Credentials,
    DigestGate,
    answer_challenge,
    digest_of,
    parse_digest,
)

ALICE = Credentials("alice", "secret")
URI = "sip:desk@192.0.2.1"


class Gate:
    def __init__(self) -> None:
        self.now_s = 100.0
        count = itertools.count(1)
        self.gate = DigestGate(
            {"alice": "secret"},
            "offhook",
            secret=b"k",
            now_s=lambda: self.now_s,
            random_hex=lambda: f"{next(count):016x}",
        )

    def challenge(self, algorithm: str = "SHA-256") -> str:
        return next(value for _, value in self.gate.challenges("192.0.2.9") if algorithm in value)

    def answer(self, who: Credentials = ALICE, challenge: str = "", method: str = "INVITE", uri: str = URI) -> str:
        said = answer_challenge([challenge or self.challenge()], who, method, uri, cnonce="c")
        assert said is not None
        return said

    def check(self, *values: str, source: str = "192.0.2.9") -> str:
        return self.gate.check(values, "INVITE", source)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_rfc_7616_examples() -> None:
    """Section 3.9.1."""
    who = Credentials("Mufasa", "Circle of Life")
    nonce, cnonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    for algorithm, expected in (
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ):
        args = (algorithm, who, "http-auth@example.org", "GET", "/dir/index.html", nonce, "00000001", cnonce, "auth")
        assert digest_of(*args) == expected


@pytest.mark.parametrize("algorithm", ["SHA-256", "MD5"])
def test_the_right_password_by_either_algorithm(gate: Gate, algorithm: str) -> None:
    assert gate.check(gate.answer(challenge=gate.challenge(algorithm))) == "ok"


def test_the_better_algorithm_is_offered_first_and_taken(gate: Gate) -> None:
    challenges = [value for _, value in gate.gate.challenges("192.0.2.9")]
    said = answer_challenge(challenges[::-1], ALICE, "INVITE", URI, cnonce="c")
    assert said is not None
    assert "algorithm=SHA-256" in said


def test_an_algorithm_that_is_not_offered_is_not_taken(gate: Gate) -> None:
    said = gate.answer()
    gate.gate = DigestGate(
        {"alice": "secret"}, "offhook", secret=b"k", now_s=lambda: 100.0, random_hex=lambda: "a", algorithms=["md5"]
    )
    (only,) = (value for _, value in gate.gate.challenges("192.0.2.9"))
    assert "algorithm=MD5" in only
    assert gate.check(said) == "wrong"
    assert gate.check(gate.answer(challenge=only)) == "ok"


@pytest.mark.parametrize("uri", ["sip:192.0.2.1:5060", "sip:+15551234567@pbx.example"])
def test_the_address_need_not_be_the_requests(gate: Gate, uri: str) -> None:
    assert gate.check(gate.answer(uri=uri)) == "ok"


def test_a_replay_is_stale(gate: Gate) -> None:
    said = gate.answer()
    assert gate.check(said) == "ok"
    assert gate.check(said) == "stale"


def test_an_expired_nonce_is_stale(gate: Gate) -> None:
    said = gate.answer()
    gate.now_s += NONCE_LIFE_S
    assert gate.check(said) == "stale"


@pytest.mark.parametrize("who", [ALICE, Credentials("alice", "no"), Credentials("bob", "no")])
def test_a_nonce_that_is_not_ours_is_stale_and_tells_nothing_of_the_password(gate: Gate, who: Credentials) -> None:
    foreign = 'Digest realm="offhook", nonce="64.1.aa", qop="auth", algorithm=SHA-256'
    assert gate.check(gate.answer(who, foreign)) == "stale"
    assert gate.check('Digest realm="offhook"') == "stale"


def test_a_nonce_is_good_for_whom_it_was_given_to(gate: Gate) -> None:
    said = gate.answer()
    assert gate.check(said, source="198.51.100.1") == "stale"
    assert gate.check(said) == "ok"


@pytest.mark.parametrize("who", [Credentials("alice", "wrong"), Credentials("bob", "secret"), Credentials("", "")])
def test_the_wrong_password_or_nobody(gate: Gate, who: Credentials) -> None:
    assert gate.check(gate.answer(who)) == "wrong"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("qop=auth,", ""),
        ("qop=auth", "qop=auth-int"),
        ("nc=00000001", "nc=1"),
        ("nc=00000001", "nc=zzzzzzzz"),
        ('cnonce="c"', 'cnonce=""'),
        ("algorithm=SHA-256", "algorithm=SHA-512-256"),
        (URI, "sip:other@192.0.2.1"),
        (URI, ""),
        ('response="', 'response="\u20ac'),
    ],
)
def test_credentials_that_were_changed(gate: Gate, old: str, new: str) -> None:
    said = gate.answer()
    assert old in said
    assert gate.check(said.replace(old, new)) == "wrong"


def test_credentials_hold_for_their_method_alone(gate: Gate) -> None:
    assert gate.check(gate.answer(method="OPTIONS")) == "wrong"


@pytest.mark.parametrize("value", ["", "Basic YQ==", 'Digest realm="other", nonce="n"', "Digest realm", 'Digest a="x'])
def test_no_credentials_of_ours(gate: Gate, value: str) -> None:
    assert gate.check(value) == "none"


def test_those_of_others_are_passed_over(gate: Gate) -> None:
    assert gate.check('Digest realm="proxy", nonce="n"', gate.answer()) == "ok"


def test_used_nonces_are_bounded_and_a_living_one_is_never_forgotten(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.transports.sip.digest.MAX_NONCES", 2)
    first = gate.answer()
    assert gate.check(first) == "ok"
    assert gate.check(gate.answer()) == "ok"
    assert gate.check(gate.answer()) == "stale"
    assert gate.check(first) == "stale"
    gate.now_s += NONCE_LIFE_S
    assert gate.check(gate.answer()) == "ok"
    assert len(gate.gate._counts) == 2


@pytest.mark.parametrize("text", ["Digest a=1, a=2", 'Digest a="', 'Digest a="x"y', "Digest =1", "Digest a b"])
def test_what_is_no_digest(text: str) -> None:
    with pytest.raises(BadSyntax):
        parse_digest(text)


def test_quoted_text_is_read_and_written() -> None:
    assert parse_digest(r'Digest realm="a \"b\", c", nonce=x') == {"realm": 'a "b", c', "nonce": "x"}
    said = answer_challenge(
        [r'Digest realm="a \"b\"", nonce="n", opaque="o\\p"'], Credentials('x"y', "p"), "BYE", URI, cnonce="c"
    )
    assert said is not None
    assert parse_digest(said)["username"] == 'x"y'
    assert parse_digest(said)["opaque"] == "o\\p"
    assert "qop" not in said, "a server that offers none is of RFC 2069"


@pytest.mark.parametrize(
    "challenge",
    [
        "Basic realm=x",
        "Digest realm=x",
        'Digest realm=x, nonce="n", algorithm=SHA-1',
        'Digest nonce="n", qop="auth-int"',
    ],
)
def test_a_challenge_that_we_cannot_answer(challenge: str) -> None:
    assert answer_challenge([challenge], ALICE, "INVITE", URI, cnonce="c") is None
