import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streaming.audio.ring import PcmRing


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(0, 400), st.integers(0, 400))
def test_it_gives_back_what_is_still_held(blocks: list[int], start: int, end: int) -> None:
    ring = PcmRing(50)
    whole = np.arange(sum(blocks), dtype=np.int16)
    position = 0
    for size in blocks:
        ring.append(whole[position : position + size])
        position += size
    assert ring.end_samples == len(whole)
    assert ring.start_samples == max(0, len(whole) - 50)
    assert np.array_equal(ring.read(start, end), whole[max(start, ring.start_samples) : max(end, ring.start_samples)])


def test_a_block_longer_than_the_ring_leaves_its_end() -> None:
    ring = PcmRing(10)
    ring.append(np.arange(25, dtype=np.int16))
    assert list(ring.read(0, 100)) == list(range(15, 25))


def test_a_closed_ring_holds_nothing_and_takes_nothing() -> None:
    ring = PcmRing(4)
    ring.append(np.array([1, 2, 3], np.int16))
    ring.close()
    ring.append(np.array([4], np.int16))
    assert len(ring.read(0, 4)) == 0
    assert ring.end_samples == 3
