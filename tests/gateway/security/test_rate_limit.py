from __future__ import annotations

import pytest

from gateway.security.rate_limit import MAX_SOURCES, Buckets, FailureLimit, source_of


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_after_some_failures_a_source_waits_and_is_forgiven_one_by_one() -> None:
    clock = Clock()
    limit = FailureLimit(clock, failures=3, every_s=6.0)
    for _ in range(3):
        assert limit.wait_s("10.0.0.1") == 0
        limit.failed("10.0.0.1")
    assert limit.wait_s("10.0.0.1") == pytest.approx(6.0)
    assert limit.wait_s("10.0.0.2") == 0
    clock.now_s += 6
    assert limit.wait_s("10.0.0.1") == 0
    limit.failed("10.0.0.1")
    assert limit.wait_s("10.0.0.1") == pytest.approx(6.0)
    clock.now_s += 18
    for _ in range(3):
        assert limit.wait_s("10.0.0.1") == 0
        limit.failed("10.0.0.1")
    assert limit.wait_s("10.0.0.1") > 0


def test_sources_are_bounded() -> None:
    limit = FailureLimit(Clock(), failures=1)
    limit.failed("first")
    assert limit.wait_s("first") > 0
    for number in range(MAX_SOURCES):
        limit.failed(f"source {number}")
    assert limit.wait_s("first") == 0


def test_a_bucket_holds_so_many_and_refills() -> None:
    clock = Clock()
    buckets = Buckets(clock, most=20, every_s=0.1)
    assert sum(buckets.take("a") for _ in range(50)) == 20
    assert buckets.take("b")
    clock.now_s += 0.5
    assert sum(buckets.take("a") for _ in range(50)) == 5


def test_keys_are_remembered_up_to_a_number() -> None:
    buckets = Buckets(Clock(), most=2, every_s=1.0)
    for number in range(MAX_SOURCES + 10):
        assert buckets.take(str(number))
    assert len(buckets._full_at) == MAX_SOURCES


def test_a_subscriber_is_one_source() -> None:
    assert source_of("2001:db8:1:2::1") == source_of("2001:db8:1:2:ffff::9")
    assert source_of("2001:db8:1:2::1") != source_of("2001:db8:1:3::1")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1")
    assert source_of("10.0.0.1") != source_of("10.0.0.2")
    assert source_of("fe80::1%eth0") == source_of("fe80::2")
    assert source_of("") == ""
