from __future__ import annotations

import pytest

from gateway.security.client_secrets import AlreadyUsed, ClientSecrets, TooManySecrets, secret_id


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_secret_is_found_until_it_expires() -> None:
    clock = Clock()
    secrets = ClientSecrets(clock)
    value, secret = secrets.mint(60, session=b"{}", agent="anna")
    assert value.startswith("ek_")
    assert len(value) >= 35
    assert (secret.expires_at, secret.session, secret.agent) == (clock.now_s + 60, b"{}", "anna")
    assert secrets.find(value) is secret
    assert secrets.find(value + "x") is None
    assert secrets.find("ek_\udc80") is None
    clock.now_s += 59.9
    assert secrets.find(value) is secret
    clock.now_s += 0.1
    assert secrets.find(value) is None


def test_whoever_gathers_secrets_with_the_pages_key_keeps_out_nobody() -> None:
    secrets = ClientSecrets(Clock(), max_secrets=3)
    owners = secrets.mint(60)[0]
    pages = [secrets.mint(60, by_page=True)[0] for _ in range(5)]
    assert [secrets.find(value) is not None for value in pages] == [False, False, False, True, True]
    for _ in range(2):
        secrets.mint(60)
    assert secrets.find(owners) is not None
    assert not any(secrets.find(value) for value in pages)
    for by_page in (True, False):
        with pytest.raises(TooManySecrets):
            secrets.mint(60, by_page=by_page)


def test_the_value_is_not_kept() -> None:
    secrets = ClientSecrets(Clock())
    value, secret = secrets.mint(60)
    assert secret.id == secret_id(value)
    assert value not in repr(secret)
    assert value not in repr(vars(secrets))


def test_it_opens_one_call() -> None:
    secrets = ClientSecrets(Clock())
    _, secret = secrets.mint(60)
    assert not secrets.is_used(secret)
    secrets.use(secret)
    assert secrets.is_used(secret)
    with pytest.raises(AlreadyUsed):
        secrets.use(secret)
    secrets.restore(secret)
    secrets.use(secret)


def test_one_that_was_forgotten_while_its_offer_came_in_opens_nothing() -> None:
    """A used one makes room for others, and is used all the same; an expired one is not remembered as used for ever."""
    clock = Clock()
    secrets = ClientSecrets(clock, max_secrets=1)
    _, used = secrets.mint(60)
    secrets.use(used)
    _, expired = secrets.mint(60)
    with pytest.raises(AlreadyUsed):
        secrets.use(used)
    clock.now_s += 60
    secrets.mint(60)
    with pytest.raises(AlreadyUsed):
        secrets.use(expired)
    assert not secrets._used


def test_it_opens_any_number_where_that_is_allowed() -> None:
    secrets = ClientSecrets(Clock(), reusable=True)
    _, secret = secrets.mint(60)
    secrets.use(secret)
    secrets.use(secret)
    assert not secrets.is_used(secret)


def test_the_store_is_bounded_in_number_and_makes_room_of_what_is_over() -> None:
    clock = Clock()
    secrets = ClientSecrets(clock, max_secrets=3)
    values = [secrets.mint(60) for _ in range(3)]
    with pytest.raises(TooManySecrets):
        secrets.mint(60)
    secrets.use(values[1][1])
    secrets.mint(60)
    assert secrets.find(values[1][0]) is None
    assert secrets.find(values[0][0]) is values[0][1]
    clock.now_s += 60
    secrets.mint(60)
    assert len(secrets) == 1


def test_the_store_is_bounded_in_size() -> None:
    secrets = ClientSecrets(Clock(), max_bytes=100_000)
    for _ in range(3):
        secrets.mint(60, session=bytes(30_000))
    with pytest.raises(TooManySecrets):
        secrets.mint(60, session=bytes(30_000))
    secrets.mint(60)
