from __future__ import annotations

import pytest

from gateway.outbound_book import KEYS_KEPT_S, IdempotencyKeys, KeyConflict


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def conflict(keys: IdempotencyKeys, key: str, request: bytes) -> str:
    with pytest.raises(KeyConflict) as caught:
        keys.begin(key, request)
    return caught.value.code


def test_a_key_stands_for_one_request_and_its_call() -> None:
    keys = IdempotencyKeys(Clock())
    assert keys.begin("a", b"x") is None
    assert conflict(keys, "a", b"x") == "idempotency_key_in_use"
    keys.settle("a", "call")
    assert keys.begin("a", b"x") == "call"
    assert conflict(keys, "a", b"y") == "idempotency_key_reused"
    assert keys.begin("b", b"x") is None
    keys.drop("b")
    keys.drop("b")
    assert keys.begin("b", b"y") is None


def test_keys_are_forgotten_after_a_day_and_the_oldest_of_too_many() -> None:
    clock = Clock()
    keys = IdempotencyKeys(clock, most=2)
    for key in "abc":
        assert keys.begin(key, b"x") is None
        keys.settle(key, key)
    assert keys.begin("b", b"x") == "b"
    assert keys.begin("a", b"x") is None
    keys.settle("b", "too late: it was forgotten")
    clock.now_s += KEYS_KEPT_S
    assert keys.begin("c", b"x") is None
    assert len(keys._known) == 1
