from __future__ import annotations

import pytest

from gateway.security.unconnected import PER_SOURCE, Unconnected


def test_one_source_holds_a_few_and_another_has_its_own() -> None:
    waiting = Unconnected(100)
    assert [waiting.begin(call, "203.0.113.9") for call in range(PER_SOURCE + 1)] == [True] * PER_SOURCE + [False]
    assert waiting.begin("other", "203.0.113.10")
    waiting.end(0)
    waiting.end(0)
    assert waiting.begin("next", "::ffff:203.0.113.9")
    assert not waiting.begin("one more", "203.0.113.9")
    assert len(waiting) == PER_SOURCE + 1


def test_one_subscriber_has_a_whole_network_of_ipv6() -> None:
    waiting = Unconnected(100)
    taken = [waiting.begin(call, f"2001:db8::{call + 1:x}") for call in range(PER_SOURCE + 1)]
    assert taken == [True] * PER_SOURCE + [False]
    assert waiting.begin("other", "2001:db8:0:1::1")


@pytest.mark.parametrize(("places", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_half_of_the_places_are_left_for_who_comes(places: int, most: int) -> None:
    waiting = Unconnected(places)
    for call in range(most):
        assert waiting.begin(call, f"203.0.113.{call}")
    assert not waiting.begin("late", "203.0.113.200")
    waiting.end(0)
    assert waiting.begin("later", "203.0.113.200")


@pytest.mark.parametrize(("places", "each"), [(4, 1), (7, 1), (8, 2), (12, 3), (16, 4), (1_000, 4)])
def test_no_source_alone_keeps_out_another(places: int, each: int) -> None:
    waiting = Unconnected(places)
    assert sum(waiting.begin(call, "203.0.113.9") for call in range(places)) == each
    assert waiting.begin("other", "203.0.113.10")


@pytest.mark.parametrize("loopback", ["127.0.0.1", "::1"])
def test_the_loopback_address_has_the_count_of_all_only(loopback: str) -> None:
    waiting = Unconnected(40)
    assert [waiting.begin(call, loopback) for call in range(21)] == [True] * 20 + [False]


def test_nothing_is_kept_of_what_is_over() -> None:
    waiting = Unconnected(40)
    for call in range(1_000):
        assert waiting.begin(call, f"203.0.{call % 250}.9")
        waiting.end(call)
    assert len(waiting) == len(waiting._by_source) == 0
