"""The two batches on a tiny llama: any rows together give each what it gives alone. On the executor's thread, with the
shapes as they are and rounded up as on a GPU."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engines.executor.batch import Joining, Prompt, TokenBatch, open_batch
from engines.executor.cache import KeptCache
from engines.executor.library_batch import LibraryBatch
from engines.executor.prefill import _alike
from engines.executor.slots import SlotBatch
from engines.executor.thread import MlxExecutor
from tests.engines.tiny_llama import needs_mlx, write_tiny_llama

pytestmark = needs_mlx

FIRST, LAST = 3, 100
"""Tokens that are words."""
KINDS = ["slots", "padded", "library", "sliding"]


class Model:
    """A tiny model, and what it says alone. For the MLX thread."""

    def __init__(self, folder: Path, kind: str) -> None:
        from mlx_lm.utils import load

        self.model, _ = load(str(folder))
        self.kind = kind

    def batch(self, stops: Sequence[int] = ()) -> TokenBatch:
        if self.kind == "padded":
            return SlotBatch(self.model, stops, pad=True)
        return LibraryBatch(self.model, stops) if self.kind == "library" else open_batch(self.model, stops)

    def alone(self, prompt: Sequence[int], count: int) -> list[int]:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        return [int(token) for token, _ in generate_step(mx.array(list(prompt)), self.model, max_tokens=count)]


class Rows:
    """Drives a batch and remembers what each row said."""

    def __init__(self, batch: TokenBatch) -> None:
        self.batch = batch
        self.said: dict[int, list[int]] = {}
        self.ended: dict[int, KeptCache] = {}

    def prefill(self, prompts: Sequence[Sequence[int]], caches: Sequence[KeptCache] | None = None) -> list[Prompt]:
        made = [
            Prompt(cache, list(prompt)[len(cache.tokens) :])
            for prompt, cache in zip(prompts, caches or [self.batch.new_cache() for _ in prompts], strict=True)
        ]
        self.batch.prefill(made, [1000] * len(made))
        return made

    def join(self, prompts: Sequence[Prompt], count: int, temperature: float = 0.0) -> list[int]:
        uids = self.batch.join([Joining(prompt, count, temperature) for prompt in prompts])
        self.said |= {uid: [] for uid in uids}
        return uids

    def steps(self, count: int) -> None:
        for _ in range(count):
            if not len(self.batch):
                return
            for stepped in self.batch.step():
                self.said[stepped.uid].append(stepped.token)
                if stepped.cache is not None:
                    self.ended[stepped.uid] = stepped.cache
            self.batch.tidy()


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(FIRST, LAST) for _ in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    plain = write_tiny_llama(tmp_path_factory.mktemp("plain"), stops=False)
    sliding = write_tiny_llama(tmp_path_factory.mktemp("sliding"), stops=False)
    config = json.loads((sliding / "config.json").read_text())
    config |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16}
    (sliding / "config.json").write_text(json.dumps(config))
    return {"slots": plain, "padded": plain, "library": plain, "sliding": sliding}


Check = Callable[[Model], None]


async def _on_thread(executor: MlxExecutor, folder: Path, kind: str, check: Check) -> None:
    def run() -> None:
        check(Model(folder, kind))

    await executor.run(run)


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_of_all_lengths_say_what_they_say_alone(
    executor: MlxExecutor, folders: dict[str, Path], kind: str
) -> None:
    def check(model: Model) -> None:
        rng = random.Random(5)
        rows = Rows(model.batch())
        truths: dict[int, list[int]] = {}
        for size in (1, 3, 2):
            prompts = [words(rng, rng.choice([1, 2, 9, 30, 70])) for _ in range(size)]
            count = rng.randint(6, 14)
            uids = rows.join(rows.prefill(prompts), count)
            truths |= {uid: model.alone(prompt, count) for uid, prompt in zip(uids, prompts, strict=True)}
            rows.steps(rng.randint(1, 4))
        rows.steps(40)
        assert rows.said == truths
        assert (len(rows.batch), rows.batch.width, rows.batch.nbytes) == (0, 0, 0)

    await _on_thread(executor, folders[kind], kind, check)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cache_that_left_goes_on_where_it_was(
    executor: MlxExecutor, folders: dict[str, Path], kind: str
) -> None:
    """Taken out in the middle, at the end, copied while it runs, taken up again at once or after others came."""

    def check(model: Model) -> None:
        rng = random.Random(6)
        rows = Rows(model.batch())
        prompts = [words(rng, 12) for _ in range(4)]
        uids = rows.join(rows.prefill(prompts), 8)
        rows.steps(4)
        forked = rows.batch.fork(uids[3])
        left = rows.batch.leave([*uids[:2], 999])
        assert sorted(left) == uids[:2]
        rows.batch.tidy()
        caches = [left[uids[0]], left[uids[1]], forked]
        again = [[*cache.tokens, *words(rng, 5)] for cache in caches]
        late = rows.join(rows.prefill([words(rng, 3) for _ in range(5)]), 30)  # takes the slots of those at rest
        rows.steps(3)
        second = rows.join(rows.prefill(again, caches), 10)
        rows.steps(60)
        ended = rows.ended[uids[2]]
        assert ended.tokens == [*prompts[2], *rows.said[uids[2]]]
        third = [*ended.tokens, *words(rng, 2)]
        rows.join(rows.prefill([third], [ended]), 5)
        rows.steps(10)
        for uid, prompt in zip(uids[2:], prompts[2:], strict=True):
            assert rows.said[uid] == model.alone(prompt, 8)
        for uid, prompt in zip(second, again, strict=True):
            assert rows.said[uid] == model.alone(prompt, 10)
        assert rows.said[max(rows.said)] == model.alone(third, 5)
        assert all(len(rows.said[uid]) == 30 for uid in late)

    await _on_thread(executor, folders[kind], kind, check)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_clone_and_its_original_go_different_ways(
    executor: MlxExecutor, folders: dict[str, Path], kind: str
) -> None:
    def check(model: Model) -> None:
        rng = random.Random(8)
        rows = Rows(model.batch())
        prefix = words(rng, 10)
        (begun,) = rows.prefill([[*prefix, FIRST]])
        clones = [rows.batch.clone(begun.cache) for _ in range(3)]
        rows.batch.own(clones[0])
        asked = [[*prefix, *words(rng, count)] for count in (1, 7, 30)]
        uids = rows.join(rows.prefill(asked, clones), 6)
        rows.steps(10)
        assert [rows.said[uid] for uid in uids] == [model.alone(prompt, 6) for prompt in asked]
        assert begun.cache.tokens == prefix

    await _on_thread(executor, folders[kind], kind, check)


@pytest.mark.parametrize("kind", ["slots", "padded"])
async def test_a_row_may_grow_beyond_the_room_it_was_given(
    executor: MlxExecutor, folders: dict[str, Path], kind: str
) -> None:
    def check(model: Model) -> None:
        rng = random.Random(9)
        rows = Rows(model.batch())
        prompt = words(rng, 240)
        (uid,) = rows.join(rows.prefill([prompt]), 2000)
        rows.steps(300)
        assert rows.said[uid][:290] == model.alone(prompt, 290)

    await _on_thread(executor, folders[kind], kind, check)


async def test_a_join_or_leave_moves_no_other_row(executor: MlxExecutor, folders: dict[str, Path]) -> None:
    """Slots keep their places while they last, and a batch that has emptied shrinks."""

    def check(model: Model) -> None:
        rng = random.Random(10)
        batch = SlotBatch(model.model, ())
        rows = Rows(batch)
        uids = rows.join(rows.prefill([words(rng, 4) for _ in range(8)]), 1000)
        rows.steps(2)
        places = dict(batch._slots)
        buffers = batch.nbytes
        left = batch.leave(uids[:5])
        rows.steps(3)
        assert {uid: batch._slots[uid] for uid in uids[5:]} == {uid: places[uid] for uid in uids[5:]}
        assert batch.nbytes == buffers
        assert all(cache.layers[0].slot is not None for cache in left.values())
        rows.join(rows.prefill([words(rng, 4)]), 1000)
        assert {uid: batch._slots[uid] for uid in uids[5:]} == {uid: places[uid] for uid in uids[5:]}
        batch.leave(uids[5:7])
        rows.steps(30)
        assert batch.width == 2
        assert all(cache.layers[0].arrays is not None for cache in left.values())

    await _on_thread(executor, folders["slots"], "slots", check)


async def test_nothing_of_a_row_that_left_reaches_the_next_in_its_slot(
    executor: MlxExecutor, folders: dict[str, Path]
) -> None:
    """Not even a NaN, which no mask keeps out."""

    def check(model: Model) -> None:
        import mlx.core as mx

        rng = random.Random(11)
        batch = SlotBatch(model.model, ())
        rows = Rows(batch)
        first, second = rows.join(rows.prefill([words(rng, 60), words(rng, 4)]), 500)
        rows.steps(2)
        poisoned = batch._slots[first]
        for layer in batch._layers:
            layer.values[poisoned] = mx.full(layer.values[poisoned].shape, float("nan"))
        batch.leave([first])
        batch.tidy()
        prompt = words(rng, 6)
        (uid,) = rows.join(rows.prefill([prompt]), 8)
        assert batch._slots[uid] == poisoned
        rows.steps(10)
        assert rows.said[uid] == model.alone(prompt, 8)
        assert second in batch._slots

    await _on_thread(executor, folders["slots"], "slots", check)


@pytest.mark.parametrize("kind", ["slots", "library"])
async def test_a_warm_row_samples_beside_a_greedy_one(
    executor: MlxExecutor, folders: dict[str, Path], kind: str
) -> None:
    def check(model: Model) -> None:
        rng = random.Random(12)
        prompt = words(rng, 8)
        rows = Rows(model.batch())
        (greedy,) = rows.join(rows.prefill([prompt]), 12)
        warm = rows.join(rows.prefill([prompt, prompt, prompt]), 12, temperature=2.0)
        rows.steps(20)
        assert rows.said[greedy] == model.alone(prompt, 12)
        assert len({tuple(rows.said[uid]) for uid in warm}) == 3

    await _on_thread(executor, folders[kind], kind, check)


@pytest.mark.parametrize("kind", ["slots", "library"])
async def test_a_stop_token_ends_a_row(executor: MlxExecutor, folders: dict[str, Path], kind: str) -> None:
    def check(model: Model) -> None:
        prompt = words(random.Random(13), 8)
        truth = model.alone(prompt, 12)
        stop = truth[5]
        rows = Rows(model.batch([stop]))
        (uid,) = rows.join(rows.prefill([prompt]), 12)
        rows.steps(20)
        assert rows.said[uid] == truth[: truth.index(stop) + 1]

    await _on_thread(executor, folders[kind], kind, check)


async def test_a_reset_loses_what_rests_in_the_batch(executor: MlxExecutor, folders: dict[str, Path]) -> None:
    def check(model: Model) -> None:
        batch = SlotBatch(model.model, ())
        rows = Rows(batch)
        uids = rows.join(rows.prefill([words(random.Random(14), 8) for _ in range(2)]), 50)
        rows.steps(3)
        cache = batch.leave(uids[:1])[uids[0]]
        batch.reset()
        assert cache.lost
        assert not cache.cut_to(4)
        assert (len(batch), batch.width) == (0, 0)

    await _on_thread(executor, folders["slots"], "slots", check)


async def test_the_batch_fits_the_models_caches(executor: MlxExecutor, folders: dict[str, Path]) -> None:
    def kinds() -> list[str]:
        return [type(Model(folders[kind], kind).batch()).__name__ for kind in ("slots", "sliding")]

    assert await executor.run(kinds) == ["SlotBatch", "LibraryBatch"]


@pytest.mark.parametrize(
    ("counts", "together"),
    [
        ([10, 12, 11], [[1, 2, 0]]),
        ([0, 5, 0], [[1]]),
        ([500, 10, 12], [[0], [2, 1]]),
        ([300, 290, 10, 20], [[0, 1], [3, 2]]),
        ([], []),
    ],
)
def test_prompts_of_like_length_go_together(counts: list[int], together: list[list[int]]) -> None:
    assert _alike(counts) == together
