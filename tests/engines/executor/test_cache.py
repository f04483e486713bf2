"""The clear_cache guard and the kept KV caches, on fakes: the rules alone, without MLX."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.executor.cache import ClearCacheGuard, KeptCache, KeptCaches, SharedPrefixes, common_prefix


@dataclass
class FakeMlx:
    """Stands for ``mlx.core``; ``log`` is what really happened."""

    log: list[str] = field(default_factory=list)

    def clear_cache(self) -> None:
        self.log.append("clear")


class Guarded:
    def __init__(self) -> None:
        self.mlx = FakeMlx()
        self.now = 0.0
        self.guard = ClearCacheGuard(self.mlx, lambda: self.mlx.log.append("drain"), lambda: self.now)
        self.guard.install()


def test_a_library_call_becomes_a_request_served_at_rest_after_draining() -> None:
    g = Guarded()
    g.mlx.clear_cache()
    g.guard.serve(open_streams=1)
    assert g.mlx.log == []
    g.guard.serve(open_streams=0)
    g.guard.serve(open_streams=0)
    assert g.mlx.log == ["drain", "clear"]
    assert (g.guard.requests, g.guard.served, g.guard.pending) == (1, 1, False)


def test_without_a_request_nothing_is_cleared() -> None:
    g = Guarded()
    g.guard.serve(open_streams=0)
    assert g.mlx.log == []
    assert not g.guard.holding


def test_an_old_request_holds_new_streams_and_is_served_when_none_is_open() -> None:
    g = Guarded()
    g.mlx.clear_cache()
    g.now = 9.9
    g.mlx.clear_cache()  # does not make the first one younger
    holding = [g.guard.holding]
    g.now = 10.0
    g.guard.serve(open_streams=1)
    holding.append(g.guard.holding)
    g.guard.serve(open_streams=0)
    holding.append(g.guard.holding)
    assert g.mlx.log == ["drain", "clear"]
    assert holding == [False, True, False]


def test_a_hold_has_an_end_and_comes_again() -> None:
    g = Guarded()
    g.mlx.clear_cache()
    g.now = 12.0
    g.guard.serve(open_streams=1)
    assert not g.guard.holding
    assert g.guard.pending
    assert g.guard.holds_given_up == 1
    g.now = 22.0
    assert g.guard.holding


def test_a_demand_holds_new_streams_at_once() -> None:
    g = Guarded()
    g.now = 100.0
    g.guard.demand()
    g.guard.serve(open_streams=1)
    assert g.guard.holding
    g.guard.serve(open_streams=0)
    assert g.mlx.log == ["drain", "clear"]
    assert not g.guard.holding


def test_uninstalling_gives_the_real_function_back() -> None:
    g = Guarded()
    g.guard.uninstall()
    g.guard.uninstall()
    g.mlx.clear_cache()
    assert g.mlx.log == ["clear"]
    g.guard.request()
    g.guard.serve(open_streams=0)
    assert g.mlx.log == ["clear"]


@dataclass
class FakeLayer:
    length: int
    trimmable: bool = True
    most: int = 10**6

    @property
    def nbytes(self) -> int:
        return 10 * self.length

    def is_trimmable(self) -> bool:
        return self.trimmable

    def trim(self, n: int) -> int:
        trimmed = min(n, self.length, self.most)
        self.length -= trimmed
        return trimmed


def cache(tokens: list[int], **layer: bool | int) -> KeptCache:
    return KeptCache(list(tokens), [FakeLayer(len(tokens), **layer), FakeLayer(len(tokens), **layer)])  # type: ignore[arg-type]


def kept(max_bytes: int = 10**6, max_calls: int = 8) -> KeptCaches:
    return KeptCaches(max_bytes, max_calls)


@pytest.mark.parametrize(
    ("held", "prompt", "reused"),
    [
        ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3]),
        ([1, 2, 3, 9, 9], [1, 2, 3, 4], [1, 2, 3]),  # the reply was cut where it was heard
        ([1, 2, 3, 4], [1, 2, 3], [1, 2]),  # the last token is computed again for its logits
        ([7, 2], [1, 2], None),
        ([1], [1], None),
    ],
)
def test_taking_cuts_to_the_common_prefix(held: list[int], prompt: list[int], reused: list[int] | None) -> None:
    k = kept()
    k.keep("a", cache(held))
    taken = k.take("a", prompt)
    assert (taken.tokens if taken is not None else None) == reused
    if taken is not None:
        assert [layer.length for layer in taken.layers] == [len(taken.tokens)] * 2
    assert (len(k), k.nbytes) == (0, 0)
    assert k.take("a", prompt) is None


def test_a_cache_that_cannot_be_rewound_is_not_used() -> None:
    k = kept()
    k.keep("a", cache([1, 2, 3], trimmable=False))
    assert k.take("a", [1, 2, 4]) is None
    k.keep("a", cache([1, 2, 3], trimmable=False))
    assert k.take("a", [1, 2, 3, 4]) is not None
    k.keep("a", cache([1, 2, 3, 4], most=1))
    assert k.take("a", [1, 2, 5]) is None


def test_the_least_recently_used_call_goes_first() -> None:
    k = kept(max_calls=2)
    k.keep("a", cache([1]))
    k.keep("b", cache([1]))
    k.keep("a", cache([1, 2]))
    k.keep("c", cache([1]))
    assert [k.shared(call, [1, 2]) for call in "abc"] == [2, 0, 1]
    assert k.evicted == 1


def test_bytes_are_bounded_even_by_one_cache() -> None:
    k = kept(max_bytes=100)
    k.keep("a", cache([1, 2]))
    k.keep("b", cache([1, 2, 3]))
    assert (len(k), k.nbytes) == (2, 100)
    k.keep("c", cache([1, 2, 3, 4, 5, 6]))
    assert (len(k), k.nbytes) == (0, 0)


def test_forgetting_and_clearing_free_the_bytes() -> None:
    k = kept()
    for call in "abc":
        k.keep(call, cache([1, 2]))
    k.forget("a")
    k.forget("a")
    assert (len(k), k.nbytes) == (2, 80)
    k.clear()
    assert (len(k), k.nbytes) == (0, 0)


def test_what_a_failed_batch_lost_is_not_used() -> None:
    k = kept()
    gone = cache([1, 2])
    gone.lost = True
    k.keep("a", gone)
    assert k.shared("a", [1, 2, 3]) == 0
    assert k.take("a", [1, 2, 3]) is None


def test_shedding_makes_room_oldest_first() -> None:
    k = kept()
    k.keep("a", cache([1]))
    k.keep("b", cache([1]))
    assert k.shed()
    assert [k.shared(call, [1]) for call in "ab"] == [0, 1]
    assert k.shed()
    assert not k.shed()
    assert (k.evicted, k.nbytes) == (2, 0)


def test_a_prefix_is_found_by_exactly_its_tokens() -> None:
    shared = SharedPrefixes(max_bytes=10**6, max_entries=4)
    held = cache([1, 2, 3])
    shared.put(held)
    shared.put(cache([1, 2, 3]))
    shared.put(cache([]))
    assert shared.get([1, 2, 3]) is held
    assert shared.get([1, 2]) is None
    assert shared.get([1, 2, 3, 4]) is None
    assert (len(shared), shared.nbytes, shared.hits) == (1, 60, 1)


def test_prefixes_are_bounded_and_the_least_recently_used_goes_first() -> None:
    shared = SharedPrefixes(max_bytes=100, max_entries=2)
    shared.put(cache([1]))
    shared.put(cache([2]))
    assert shared.get([1]) is not None
    shared.put(cache([3]))
    assert [shared.get([token]) is not None for token in (1, 2, 3)] == [True, False, True]
    shared.put(cache([4, 5, 6, 7]))  # 80 bytes: with another it is too much
    assert (len(shared), shared.nbytes) == (2, 100)
    shared.put(cache([8] * 6))  # 120 alone
    assert (len(shared), shared.nbytes) == (0, 0)
    assert not shared.shed()
    shared.put(cache([1]))
    shared.clear()
    assert (len(shared), shared.nbytes) == (0, 0)


def test_an_empty_cache_is_not_kept() -> None:
    k = kept()
    k.keep("a", cache([1, 2]))
    k.keep("a", cache([]))
    assert len(k) == 0


tokens = st.lists(st.integers(0, 2), max_size=8)


@given(a=tokens, b=tokens)
def test_the_common_prefix_is_common_and_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(turns=st.lists(st.tuples(st.sampled_from("abc"), tokens, tokens), max_size=30))
def test_bounds_and_counts_hold_through_any_life(turns: list[tuple[str, list[int], list[int]]]) -> None:
    k = KeptCaches(max_bytes=200, max_calls=2)
    for call, held, prompt in turns:
        k.keep(call, cache(held))
        assert k.nbytes <= 200
        assert len(k) <= 2
        if prompt and (taken := k.take(call, prompt)) is not None:
            assert taken.tokens == prompt[: len(taken.tokens)]
            assert 0 < len(taken.tokens) < len(prompt)
    assert k.nbytes == sum(k.shared(call, [0]) >= 0 and k._kept[call].nbytes for call in k._kept)
