from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.transports.sip.digest import Credentials, DigestGate, answer_challenge
from gateway.transports.sip.guard import (
    KNOWN_PER_S,
    LONG_ONES_PER_S,
    STRANGERS_CALLS_PER_S,
    STRANGERS_PER_S,
    SourceGuard,
)
from gateway.transports.sip.message import Headers, Request
from gateway.transports.sip.transaction import Peer

URI = "sip:desk@192.0.2.1"


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def guard(clock: Clock, *, users: bool = False, calls: tuple[str, ...] = (), **kwargs: object) -> SourceGuard:
    digest = None
    if users:
        digest = DigestGate({"alice": "secret"}, "r", secret=b"k", now_s=clock, random_hex=lambda: "ab")
    given: dict[str, object] = {"allow": (), "anyone": False, "local_only": False, "requests_per_s": 20} | kwargs
    return SourceGuard(digest=digest, has_call=lambda host: host in calls, now_s=clock, **given)  # type: ignore[arg-type]


def asked(method: str = "INVITE", authorization: str = "") -> Request:
    headers = Headers([("authorization", authorization)] if authorization else [])
    return Request(headers, method=method, uri=URI)


def peer(host: str) -> Peer:
    return Peer("udp", host, 5060)


def test_a_stranger_is_limited_and_who_has_a_call_is_not(clock: Clock) -> None:
    source = guard(clock, calls=("192.0.2.7",), allow=("192.0.2.8/32",))
    assert sum(source.takes("192.0.2.6") for _ in range(100)) == 40
    assert sum(source.takes("192.0.2.7") for _ in range(100)) == 100
    assert sum(source.takes("192.0.2.8") for _ in range(100)) == 100
    assert sum(source.takes("192.0.2.8") for _ in range(3 * KNOWN_PER_S)) <= 2 * KNOWN_PER_S


def test_many_strangers_are_limited_together(clock: Clock) -> None:
    source = guard(clock)
    assert sum(source.takes(f"198.51.{a}.{b}") for a in range(8) for b in range(250)) == 2 * STRANGERS_PER_S


def test_one_ipv6_network_is_one_source(clock: Clock) -> None:
    source = guard(clock)
    assert sum(source.takes(f"2001:db8::{number:x}") for number in range(100)) == 40


def test_by_address(clock: Clock) -> None:
    source = guard(clock, allow=("192.0.2.0/24", "2001:db8::/32"))
    for host, verdict in (
        ("192.0.2.9", "allow"),
        ("::ffff:192.0.2.9", "allow"),
        ("2001:db8::1", "allow"),
        ("fe80::1%eth0", "drop"),
        ("198.51.100.1", "drop"),
        ("name.example", "drop"),
    ):
        assert source.judge(asked(), peer(host)) == verdict, host
    assert source.challenges("192.0.2.7", stale=False) == []


def test_a_trunk_s_address_is_trusted_while_we_are_registered(clock: Clock) -> None:
    source = guard(clock)
    source.trust("main", ["198.51.100.1"])
    assert source.judge(asked(), peer("198.51.100.1")) == "allow"
    source.trust("main", [])
    assert source.judge(asked(), peer("198.51.100.1")) == "drop"


@pytest.mark.parametrize(("local_only", "anyone", "verdict"), [(True, False, "allow"), (False, True, "allow")])
def test_anyone(clock: Clock, local_only: bool, anyone: bool, verdict: str) -> None:
    assert guard(clock, local_only=local_only, anyone=anyone).judge(asked(), peer("198.51.100.1")) == verdict


def test_who_says_who_may_call_means_it_on_this_machine_too(clock: Clock) -> None:
    assert guard(clock, local_only=True, allow=("10.0.0.0/8",)).judge(asked(), peer("127.0.0.1")) == "drop"
    assert guard(clock, local_only=True, users=True).judge(asked(), peer("127.0.0.1")) == "challenge"


def credentials(source: SourceGuard, password: str, host: str = "198.51.100.1") -> str:
    challenges = [value for _, value in source.challenges(host, stale=False)]
    said = answer_challenge(challenges, Credentials("alice", password), "INVITE", URI, cnonce="c")
    assert said is not None
    return said


def test_by_password(clock: Clock) -> None:
    source = guard(clock, users=True)
    stranger = peer("198.51.100.1")
    assert source.judge(asked(), stranger) == "challenge"
    said = credentials(source, "secret")
    assert source.judge(asked(authorization=said), stranger) == "allow"
    assert source.judge(asked(authorization=said), stranger) == "stale"
    assert source.judge(asked("OPTIONS"), stranger) == "allow"


def test_guessing_is_stopped_for_the_guesser_alone(clock: Clock) -> None:
    source = guard(clock, users=True)
    guesser, other = peer("198.51.100.1"), peer("198.51.100.2")
    verdicts = [source.judge(asked(authorization=credentials(source, f"guess {n}")), guesser) for n in range(20)]
    assert verdicts[:10] == ["challenge"] * 10
    assert verdicts[10:] == ["drop"] * 10
    assert source.judge(asked(), other) == "challenge"
    clock.now_s += 60
    assert source.judge(asked(authorization=credentials(source, "secret")), guesser) == "allow"


def test_a_long_message_counts_as_several(clock: Clock) -> None:
    source = guard(clock)
    assert sum(source.takes("192.0.2.6", 16 * 1024) for _ in range(100)) == 3
    others = sum(source.takes(f"198.51.{a}.{b}", 16 * 1024) for a in range(8) for b in range(20))
    assert 0 < others <= LONG_ONES_PER_S // 16
    assert source.takes("192.0.2.8", 900)


def test_strangers_begin_only_so_many_calls_where_anyone_may(clock: Clock) -> None:
    source = guard(clock, anyone=True, allow=("192.0.2.7/32",))
    verdicts = [source.judge(asked(), peer(f"198.51.100.{number}")) for number in range(2 * STRANGERS_CALLS_PER_S + 9)]
    assert verdicts == ["allow"] * (2 * STRANGERS_CALLS_PER_S) + ["drop"] * 9
    assert source.judge(asked("OPTIONS"), peer("198.51.100.1")) == "allow"
    assert source.judge(asked(), peer("192.0.2.7")) == "allow"
    clock.now_s += 1
    assert source.judge(asked(), peer("198.51.100.1")) == "allow"


@pytest.mark.parametrize("nonce_of", ["203.0.113.66", ""])
def test_nobody_is_wrong_in_the_name_of_another(clock: Clock, nonce_of: str) -> None:
    """The source of a datagram is what its sender writes there; answers to it, and so its nonces, go elsewhere."""
    source = guard(clock, users=True)
    caller = peer("198.51.100.1")
    forged = credentials(source, "guess", nonce_of or "198.51.100.1")
    if not nonce_of:
        forged = forged.replace('nonce="', 'nonce="x')
    for _ in range(50):
        assert source.judge(asked(authorization=forged), caller) == "stale"
    assert source.judge(asked(authorization=credentials(source, "secret")), caller) == "allow"
