"""The policy's properties over random runs. `offhook bench scheduler --check 10000` runs more of the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.executor import policy
from engines.executor.demand import Quantum
from engines.executor.properties import CHECKS, broken_property


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 40))
def test_no_property_is_broken(seed: int) -> None:
    assert broken_property(seed) is None


def notices(check: str, seeds: int = 150) -> bool:
    """Whether one of the checks finds something in so many runs."""
    (found,) = (one for one in CHECKS if one.__name__ == f"_{check}")
    return any(found(random.Random(seed)) is not None for seed in range(seeds))


def test_the_checks_notice_batches_widened_without_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    widen = Quantum.widen
    monkeypatch.setattr(Quantum, "widen", lambda quantum, job, slack_s: widen(quantum, job, 1e9))
    assert notices("lives")


def test_the_checks_notice_a_pool_that_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy._Pool, "full_for", lambda pool, key: False)
    assert notices("lives")


def test_the_checks_notice_an_order_that_is_not_by_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_due", lambda job: (job.due == float("inf"), -job.due))
    assert notices("feasible_sets")
    assert notices("arrivals")


def test_the_checks_notice_speculation_before_live_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_due", lambda job: -job.due)
    assert notices("lives")


def test_the_checks_notice_a_job_without_a_deadline_that_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "LATEST_S", dict.fromkeys(policy.LATEST_S, 1e9))
    assert notices("starvation")


def test_the_checks_notice_batches_that_wait_for_what_is_not_there_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        policy.Agenda,
        "_before_a_batch",
        lambda agenda, order, ready, now: next((job for job in ready if job.group is not ready[0].group), None),
    )
    assert notices("feasible_sets")
