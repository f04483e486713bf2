"""The policy of the CTranslate2 engine: admission, cancelling, what is told. No weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engines.api import EngineError
from engines.llm.chatml import ChatMl
from engines.llm.ctranslate2 import MAX_WAITING, CTranslate2LanguageModel
from engines.llm.text_model import Offer, Wanted
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token, Usage
from tests.engines.manual_lane import ManualLane, ManualSlot

START_ID, END_ID = 256, 257


class FakeModel:
    """A byte a token; says ``reply``, then ends."""

    def __init__(self) -> None:
        self.chat = ChatMl(lambda text: list(text.encode()), START_ID, END_ID)
        self.end_ids = frozenset({END_ID})
        self.reply = list(b"Hi.") + [END_ID]
        self.prompts: list[list[int]] = []
        self.error: Exception | None = None
        self.recalled = 0
        self.reordered = 0
        self.closed = False

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def generate(self, wanted: Wanted, slot: Offer) -> None:
        self.prompts.append(wanted.prompt)
        error = self.error
        try:
            for token in self.reply[: wanted.max_tokens] if error is None else []:
                if wanted.on_token(token) or not slot.yield_if_needed() or wanted.urgency() is None:
                    break
        except Exception as failure:  # noqa: BLE001
            error = failure
        wanted.on_end(len(wanted.prompt) - self.recalled, error)

    def reorder(self) -> None:
        self.reordered += 1

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, workers: int = 2, **budgets: int) -> None:
        self.lane = ManualLane()
        self.model = FakeModel()
        self.llm = CTranslate2LanguageModel(
            Path("unused"), self.lane, workers=workers, load=lambda _folder, _workers: self.model, **budgets
        )
        self.got: list[Generation] = []

    async def started(self) -> Bench:
        await self.llm.start()
        self.model.prompts.clear()
        return self

    def ask(
        self,
        epoch: int = 1,
        *,
        call: str = "a",
        priority: Priority = Priority.DECODE,
        deadline: float = 5.0,
        max_tokens: int = 50,
        messages: tuple[Message, ...] = (Message("user", "Hello?"),),
    ) -> None:
        self.llm.generate(Generate(call, epoch, messages, priority, deadline, max_tokens), self.got.append)

    async def run_all(self) -> list[Generation]:
        for _ in range(10):
            self.lane.run_all()
            await settle()
        got, self.got = self.got, []
        return got


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def text(generations: list[Generation]) -> str:
    return "".join(item.text for item in generations if isinstance(item, Token))


async def test_a_reply_is_told_token_by_token_with_its_counts() -> None:
    bench = await Bench().started()
    bench.ask()
    got = await bench.run_all()
    prompt = len(bench.model.prompts[0])
    assert text(got) == "Hi."
    assert got[-1] == GenerationDone(1, "stop", Usage(prompt, prompt, 4))
    assert bytes(bench.model.prompts[0][1:12]) == b"user\nHello?"


async def test_max_tokens_ends_it_by_length() -> None:
    bench = await Bench().started()
    bench.ask(max_tokens=2)
    got = await bench.run_all()
    assert text(got) == "Hi"
    assert isinstance(got[-1], GenerationDone)
    assert got[-1].reason == "length"


async def test_no_piece_of_text_holds_half_a_character() -> None:
    bench = await Bench().started()
    bench.model.reply = list("1 € or ½".encode()) + [END_ID]
    bench.ask()
    got = await bench.run_all()
    assert text(got) == "1 € or ½"
    bench.ask(2, max_tokens=3)
    assert text(await bench.run_all()) == "1 "


async def test_each_token_offers_the_slot_and_a_closing_lane_ends_the_reply() -> None:
    bench = await Bench().started()
    yields = 0

    def at_yield() -> bool:
        nonlocal yields
        yields += 1
        return yields < 2

    bench.ask()
    bench.lane.jobs[0].at_yield = at_yield
    got = await bench.run_all()
    assert (yields, text(got)) == (2, "Hi")


async def test_a_cancelled_reply_ends_at_the_next_token_and_tells_nothing_more() -> None:
    bench = await Bench().started()
    slots: list[ManualSlot] = []

    def at_yield() -> bool:
        bench.llm.cancel("a", 1)
        return True

    bench.ask()
    slots.append(bench.lane.jobs[0])
    slots[0].at_yield = at_yield
    assert await bench.run_all() == []
    assert slots[0].priority is Priority.FINAL, "so that a paused one leaves at once"
    bench.ask(2)
    assert text(await bench.run_all()) == "Hi."


async def test_cancel_before_it_began_frees_its_place() -> None:
    bench = await Bench(workers=1).started()
    bench.ask(1)
    bench.ask(2)
    assert len(bench.lane.waiting) == 1
    bench.llm.cancel("a", 1)
    assert len(bench.lane.waiting) == 1
    got = await bench.run_all()
    assert {item.epoch for item in got} == {2}
    bench.llm.cancel("a", 2)
    bench.llm.cancel("nobody", 1)


async def test_no_more_replies_than_workers_are_in_the_lane_most_urgent_first() -> None:
    bench = await Bench(workers=2).started()
    for epoch, deadline in ((1, 5.0), (2, 5.0), (3, 9.0), (4, 1.0)):
        bench.ask(epoch, deadline=deadline)
    assert len(bench.lane.waiting) == 2
    order = [item.epoch for item in await bench.run_all() if isinstance(item, GenerationDone)]
    assert order == [1, 2, 4, 3]


async def test_speculation_leaves_workers_for_live_replies() -> None:
    bench = await Bench(workers=2).started()
    for epoch in (1, 2):
        bench.ask(epoch, priority=Priority.SPECULATIVE)
    assert len(bench.lane.waiting) == 1
    bench.ask(3, call="b")
    assert [slot.priority for slot in bench.lane.waiting] == [Priority.SPECULATIVE, Priority.DECODE]
    done = [item.epoch for item in await bench.run_all() if isinstance(item, GenerationDone)]
    assert done == [3, 1, 2]


async def test_a_promoted_speculation_goes_as_a_live_reply() -> None:
    bench = await Bench(workers=2).started()
    bench.ask(1, priority=Priority.SPECULATIVE, deadline=1e9)
    bench.ask(2, priority=Priority.SPECULATIVE, deadline=1e9)
    bench.llm.prioritize("a", 2)
    bench.llm.prioritize("a", 1)
    bench.llm.prioritize("a", 1)
    bench.llm.prioritize("a", 99)
    now = asyncio.get_running_loop().time()
    assert [slot.priority for slot in bench.lane.waiting] == [Priority.DECODE, Priority.DECODE]
    assert all(slot.deadline < now + 1 for slot in bench.lane.waiting)


async def test_a_postponed_reply_is_due_later() -> None:
    bench = await Bench(workers=1).started()
    bench.ask(1, deadline=1.0)
    bench.ask(2, deadline=1.0)
    bench.llm.postpone("a", 1, 50.0)
    bench.llm.postpone("a", 2, 60.0)
    bench.llm.postpone("a", 99, 60.0)
    assert [slot.deadline for slot in bench.lane.waiting] == [50.0]
    await bench.run_all()


async def test_forget_cancels_all_epochs_of_the_call_only() -> None:
    bench = await Bench(workers=3).started()
    bench.ask(1)
    bench.ask(2)
    bench.ask(1, call="b")
    bench.llm.forget("a")
    got = await bench.run_all()
    assert text(got) == "Hi."


async def test_failures_come_with_codes() -> None:
    bench = await Bench(history_tokens=40, max_prompt_tokens=60).started()
    bench.ask(1, messages=(Message("system", "x" * 100), Message("user", "hi")))
    bench.ask(2)
    bench.ask(2)
    bench.model.error = RuntimeError("boom")
    codes = [(item.epoch, item.code) for item in await bench.run_all() if isinstance(item, GenerationFailed)]
    assert sorted(codes) == [(1, "context_too_long"), (2, "duplicate_epoch"), (2, "generation_failed")]
    bench.model.error = None
    bench.lane.full = True
    bench.ask(3)
    (refused,) = await bench.run_all()
    assert isinstance(refused, GenerationFailed)
    assert refused.code == "overloaded"
    bench.lane.full = False
    bench.ask(3)
    assert text(await bench.run_all()) == "Hi."


async def test_the_queue_is_bounded() -> None:
    bench = await Bench(workers=1).started()
    for epoch in range(MAX_WAITING + 2):
        bench.ask(epoch)
    await settle()
    assert [(type(item), item.epoch) for item in bench.got] == [(GenerationFailed, MAX_WAITING + 1)]


async def test_old_turns_are_left_out_of_the_prompt() -> None:
    bench = await Bench(history_tokens=60, max_prompt_tokens=90).started()
    old, new = Message("user", "long ago"), Message("user", "and now")
    bench.ask(messages=(Message("system", "Be brief."), old, Message("assistant", "yes"), new))
    await bench.run_all()
    prompt = bytes(token for token in bench.model.prompts[0] if token < START_ID)
    assert prompt == b"system\nBe brief.\nuser\nand now\nassistant\n"


async def test_close_ends_everything_and_is_safe_twice_or_without_a_start() -> None:
    bench = await Bench().started()
    bench.ask()
    (job,) = bench.lane.jobs
    await bench.llm.close()
    await bench.llm.close()
    assert bench.model.closed
    bench.lane.run(job)
    await settle()
    assert bench.got == []
    with pytest.raises(EngineError):
        bench.ask(2)
    await Bench().llm.close()


async def test_what_was_recalled_of_a_prompt_is_not_counted_as_computed() -> None:
    bench = await Bench().started()
    bench.model.recalled = 10
    bench.ask()
    bench.lane.run_all()
    await asyncio.sleep(0)
    end = bench.got[-1]
    assert isinstance(end, GenerationDone)
    assert end.usage.prefilled_tokens == end.usage.prompt_tokens - 10


class Elsewhere(FakeModel):
    """Hands a reply over; the test tells how it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[Wanted] = []

    def generate(self, wanted: Wanted, slot: Offer) -> None:
        self.wanted.append(wanted)


async def test_a_reply_that_another_thread_says_keeps_its_place_until_it_has_ended() -> None:
    bench = await Bench(workers=1).started()
    elsewhere = bench.llm._model = Elsewhere()
    bench.ask(1)
    bench.ask(2)
    bench.lane.run()
    (wanted,) = elsewhere.wanted
    assert wanted.urgency() == (Priority.DECODE, 5.0)
    assert bench.lane.waiting == []
    bench.llm.postpone("a", 1, 50.0)
    assert (wanted.urgency(), elsewhere.reordered) == ((Priority.DECODE, 50.0), 1)
    assert not wanted.on_token(ord("H"))
    wanted.on_end(3, None)
    await settle()
    first, end = bench.got
    assert first == Token(1, "H")
    assert isinstance(end, GenerationDone)
    assert end.usage.prefilled_tokens == 3
    bench.lane.run()
    assert len(elsewhere.wanted) == 2, "the next has its place"
    bench.llm.cancel("a", 2)
    assert (elsewhere.wanted[1].urgency(), elsewhere.reordered) == (None, 2)
    assert elsewhere.wanted[1].on_token(ord("H"))
    closing = asyncio.create_task(bench.llm.close())
    await settle()
    assert not closing.done(), "what is under way uses the weights"
    elsewhere.wanted[1].on_end(3, None)
    await closing
    assert elsewhere.closed
    assert len(bench.got) == 2


async def test_a_warm_up_that_fails_is_a_failure_to_start() -> None:
    bench = Bench()
    bench.model.error = ValueError("broken weights")
    with pytest.raises(ValueError, match="broken"):
        await bench.llm.start()
