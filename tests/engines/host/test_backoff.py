from __future__ import annotations

from engines.host.backoff import Backoff


def test_it_doubles_up_to_a_bound_less_some_at_random_and_begins_again() -> None:
    backoff = Backoff(lambda: 0.0, first_s=1.0, most_s=5.0)
    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_s() == 1.0
    assert Backoff(lambda: 1.0, first_s=1.0).next_s() == 0.5
