"""No two callers have one code word at a time, nor soon after each other."""

from __future__ import annotations

from random import Random

from loadtest.code_pool import REST_S, CodePool
from streaming.audio.code_words import WORDS, code_word, number_of


def test_words_come_in_order_and_the_one_that_was_free_for_longest_is_next() -> None:
    pool = CodePool()
    assert [pool.take(0.0) for _ in range(3)] == [code_word(number) for number in range(3)]
    pool.give_back(code_word(1), 5.0)
    pool.give_back(code_word(0), 6.0)
    assert [pool.take(1_000.0) for _ in range(WORDS - 3)] == [code_word(number) for number in range(3, WORDS)]
    assert [pool.take(1_000.0), pool.take(1_000.0)] == [code_word(1), code_word(0)]


def test_generators_share_no_word_and_leave_none_out() -> None:
    pools = [CodePool(generator, 3, 4_000) for generator in range(3)]
    words = [word for pool in pools for _ in range(WORDS) if (word := pool.take(0.0)) is not None]
    assert len(words) == len(set(words)) == WORDS


def test_what_a_run_before_has_used_comes_last() -> None:
    pools = [CodePool(generator, 2, 4_000) for generator in range(2)]
    words = [pool.take(0.0) for _ in range(WORDS // 2) for pool in pools]
    assert [number_of(word or "") for word in words] == [*range(4_000, WORDS), *range(4_000)]


def test_rather_none_than_one_that_another_had_a_moment_ago() -> None:
    pool = CodePool()
    had = [word for _ in range(WORDS) if (word := pool.take(0.0)) is not None]
    assert pool.take(0.0) is None, "all are in use"
    pool.give_back(had[7], 10.0)
    assert pool.take(10.0 + REST_S - 0.01) is None
    assert pool.take(10.0 + REST_S) == had[7]


def test_a_soak_of_ten_thousand_calls_mistakes_nobody() -> None:
    random, now_s = Random(1), 0.0
    pools = [CodePool(generator, 4) for generator in range(4)]
    up: dict[str, tuple[float, CodePool]] = {}
    ended_s: dict[str, float] = {}
    for call in range(10_000):
        now_s += random.expovariate(20.0)
        for word, (until_s, pool) in list(up.items()):
            if until_s <= now_s:
                pool.give_back(word, now_s)
                ended_s[word] = now_s
                del up[word]
        taken = pools[call % 4].take(now_s)
        assert taken is not None
        assert taken not in up
        assert now_s - ended_s.get(taken, -REST_S) >= REST_S
        up[taken] = now_s + random.uniform(1.0, 60.0), pools[call % 4]
    assert len(ended_s) == WORDS
