from __future__ import annotations

from gateway.transports.phone.flooding import MAX_AHEAD_S, MESSAGES_PER_S, Flooding


def test_what_a_network_held_back_is_no_flood() -> None:
    peer = Flooding(100.0, messages_ahead=10)
    for _ in range(60 * 50):  # a minute of 20 ms frames at once, after a minute of nothing
        assert not peer.message(160.0)
        assert not peer.audio(0.02, 160.0)


def test_audio_ahead_of_the_clock_is_too_much_and_does_not_count() -> None:
    peer = Flooding(0.0, messages_ahead=10)
    taken = sum(not peer.audio(1.0, 2.0) for _ in range(100))
    assert taken == 2 + MAX_AHEAD_S
    assert peer.audio(1.0, 2.5)
    assert not peer.audio(1.0, 3.0), "the clock catches up"


def test_messages_have_a_rate_and_a_reserve() -> None:
    peer = Flooding(0.0, messages_ahead=10)
    assert sum(not peer.message(0.0) for _ in range(100)) == 10
    assert not peer.message(1.0)
    assert sum(not peer.message(1.0) for _ in range(1_000)) == MESSAGES_PER_S + 10 - 101
