"""Who serves, who stands in, when a failed backend is tried again, and what a request waits for."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from engines.api import EngineError
from engines.chain import FIRST_PAUSE_S, LOAD_WAIT_S, LONGEST_PAUSE_S, MAX_WAITING, Attempt, Chain, Link
from tests.virtual_time import virtual


class Engine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = 0

    async def start(self) -> None: ...

    async def close(self) -> None:
        self.closed += 1


class Maker:
    """What a link is made of: counts its loads, each of ``load_s``."""

    def __init__(self, name: str, *, load_s: float = 0.0, error: Exception | None = None) -> None:
        self.name = name
        self.load_s = load_s
        self.error = error
        self.made: list[Engine] = []

    async def __call__(self) -> Engine:
        await asyncio.sleep(self.load_s)
        if self.error is not None:
            raise self.error
        self.made.append(Engine(self.name))
        return self.made[-1]


def chain_of(*makers: Maker, languages: dict[str, tuple[str, ...]] | None = None) -> Chain[Engine]:
    clock = asyncio.get_running_loop().time
    return Chain("llm", [Link(maker.name, maker, clock, (languages or {}).get(maker.name, ())) for maker in makers])


class Request:
    """An attempt, and what became of it: the engines asked, and the end."""

    def __init__(self, chain: Chain[Engine], language: str = "") -> None:
        self.asked: list[str] = []
        self.gave_up: list[str] = []
        self.attempt = Attempt(
            chain,
            lambda engine: self.asked.append(engine.name),
            lambda code, message: self.gave_up.append(code),
            language,
        )
        self.attempt.go()


async def soon() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@virtual
async def test_only_the_first_is_loaded_until_it_fails() -> None:
    first, second = Maker("first"), Maker("second", load_s=1.0)
    chain = chain_of(first, second)
    await chain.start()
    request = Request(chain)
    assert request.asked == ["first"]
    assert second.made == []
    request.attempt.failed("host_lost", "it is gone")
    await asyncio.sleep(0.9)
    assert request.asked == ["first"]
    await asyncio.sleep(0.2)
    assert request.asked == ["first", "second"]
    assert [link.failed_requests for link in chain.links] == [1, 0]
    request.attempt.finish()
    assert Request(chain).asked == ["second"]
    await chain.close()
    await chain.close()
    assert [engine.closed for engine in first.made + second.made] == [1, 1]


@virtual
async def test_a_failed_backend_rests_and_then_one_request_tries_it() -> None:
    chain = chain_of(Maker("first"), Maker("second"))
    await chain.start()
    requests = [Request(chain) for _ in range(5)]
    for request in requests:  # a host that is lost fails all of them at once: one accident, not five
        request.attempt.failed("host_lost", "it is gone")
    await soon()
    assert [request.asked for request in requests] == [["first", "second"]] * 5
    for request in requests:
        request.attempt.finish()
    await asyncio.sleep(FIRST_PAUSE_S - 0.1)
    assert Request(chain).asked == ["second"]
    await asyncio.sleep(0.2)
    trial, meanwhile = Request(chain), Request(chain)
    assert (trial.asked, meanwhile.asked) == (["first"], ["second"])
    trial.attempt.failed("host_down", "not yet")
    assert trial.asked == ["first", "second"]
    await asyncio.sleep(FIRST_PAUSE_S * 2 - 0.1)
    assert Request(chain).asked == ["second"], "the second pause is longer"
    await asyncio.sleep(0.2)
    dropped = Request(chain)
    assert dropped.asked == ["first"]
    assert dropped.attempt.drop() is chain.first  # a trial that says nothing lets the next one try
    good = Request(chain)
    assert good.asked == ["first"]
    good.attempt.finish()
    assert [Request(chain).asked for _ in range(3)] == [["first"]] * 3
    await chain.close()


@virtual
async def test_the_pause_is_bounded() -> None:
    chain = chain_of(Maker("first"), Maker("second"))
    await chain.start()
    for _ in range(30):
        Request(chain).attempt.failed("engine_error", "broken")
        await asyncio.sleep(LONGEST_PAUSE_S + 0.1)
        assert chain.links[0].admits()
    await chain.close()


@virtual
@pytest.mark.parametrize("code", ["overloaded", "unsupported_language", "context_too_long"])
async def test_a_request_it_cannot_take_is_not_its_fault(code: str) -> None:
    chain = chain_of(Maker("first"), Maker("second"))
    await chain.start()
    request = Request(chain)
    request.attempt.failed(code, "not this one")
    await soon()
    assert request.asked == ["first", "second"]
    assert Request(chain).asked == ["first"]
    await chain.close()


@virtual
async def test_nobody_is_asked_twice_and_the_last_reason_is_told() -> None:
    chain = chain_of(Maker("first"), Maker("second"))
    await chain.start()
    request = Request(chain)
    request.attempt.failed("engine_error", "broken")
    await soon()
    request.attempt.failed("host_lost", "gone as well")
    assert request.gave_up == [], "never from inside the failure"
    await soon()
    assert (request.asked, request.gave_up) == (["first", "second"], ["host_lost"])
    # With all of them down, the first is asked all the same.
    assert Request(chain).asked == ["first"]
    await chain.close()


@virtual
@pytest.mark.parametrize(("code", "begun"), [("invalid_request", False), ("engine_error", True)])
async def test_what_nobody_may_do_again_ends(code: str, begun: bool) -> None:
    chain = chain_of(Maker("first"), Maker("second"))
    await chain.start()
    request = Request(chain)
    request.attempt.failed(code, "no", begun=begun)
    await soon()
    assert (request.asked, request.gave_up) == (["first"], [code])
    await chain.close()


@virtual
async def test_a_dropped_request_hears_nothing_more() -> None:
    second = Maker("second", load_s=1.0)
    chain = chain_of(Maker("first"), second)
    await chain.start()
    waits, fails = Request(chain), Request(chain)
    waits.attempt.failed("engine_error", "broken")
    fails.attempt.failed("invalid_request", "no")
    assert waits.attempt.drop() is None
    assert fails.attempt.drop() is None
    await asyncio.sleep(2.0)
    assert (waits.asked, waits.gave_up, fails.gave_up) == (["first"], [], [])
    assert chain.links[1].waiting == 0
    assert len(second.made) == 1, "the load went on for the next"
    await chain.close()


@virtual
async def test_a_load_is_waited_for_only_so_long() -> None:
    chain = chain_of(Maker("first"), Maker("second", load_s=LOAD_WAIT_S + 5))
    await chain.start()
    request = Request(chain)
    request.attempt.failed("engine_error", "broken")
    await asyncio.sleep(LOAD_WAIT_S + 0.1)
    assert request.gave_up == ["load_slow"]
    await asyncio.sleep(6)
    assert chain.links[1].engine is not None
    await chain.close()


@virtual
async def test_only_so_many_wait_for_a_load() -> None:
    chain = chain_of(Maker("first"), Maker("second", load_s=1.0))
    await chain.start()
    requests = [Request(chain) for _ in range(MAX_WAITING + 1)]
    for request in requests:
        request.attempt.failed("engine_error", "broken")
    await soon()
    assert [request.gave_up for request in requests] == [[]] * MAX_WAITING + [["overloaded"]]
    await asyncio.sleep(1.1)
    assert sum(request.asked == ["first", "second"] for request in requests) == MAX_WAITING
    await chain.close()


@virtual
async def test_a_fallback_that_cannot_be_loaded_is_passed_over() -> None:
    broken, third = Maker("second", error=EngineError("not_enough_memory", "short")), Maker("third")
    chain = chain_of(Maker("first"), broken, third)
    await chain.start()
    request = Request(chain)
    request.attempt.failed("engine_error", "broken")
    await soon()
    await soon()
    assert request.asked == ["first", "third"]
    await chain.close()


@virtual
async def test_a_backend_that_raises_failed() -> None:
    chain = chain_of(Maker("first"), Maker("second"))
    await chain.start()
    asked: list[str] = []

    def ask(engine: Engine) -> None:
        asked.append(engine.name)
        if engine.name == "first":
            raise ZeroDivisionError

    attempt = Attempt(chain, ask, lambda code, message: asked.append(code))
    attempt.go()
    await soon()
    assert asked == ["first", "second"]
    await chain.close()


@virtual
async def test_a_language_goes_to_who_knows_it() -> None:
    chain = chain_of(Maker("first"), Maker("second"), languages={"first": ("en",), "second": ("en", "de")})
    await chain.start()
    request, plain, nobody = Request(chain, "de-AT"), Request(chain, "EN"), Request(chain, "fr")
    await soon()
    assert (request.asked, plain.asked, nobody.asked) == (["second"], ["first"], [])
    assert nobody.gave_up == ["unsupported_language"]
    assert chain.links[0].admits()
    await chain.close()


@virtual
async def test_a_reason_is_logged_once_until_it_serves_again() -> None:
    structlog.reset_defaults()
    chain = chain_of(Maker("first"), Maker("second"))
    await chain.start()

    def fail(code: str) -> None:
        Request(chain).attempt.failed(code, "broken")

    with capture_logs() as logs:
        for _ in range(3):
            fail("overloaded")
        fail("host_lost")
        fail("host_lost")
    assert [(entry["event"], entry["backend"], entry["code"]) for entry in logs] == [
        ("a backend failed", "first", "overloaded"),
        ("a backend failed", "first", "host_lost"),
    ]
    await asyncio.sleep(FIRST_PAUSE_S + 0.1)
    with capture_logs() as logs:
        Request(chain).attempt.finish()
        fail("host_lost")
    assert [entry["event"] for entry in logs] == ["a backend serves again", "a backend failed"]
    await chain.close()


@virtual
async def test_an_idle_fallback_can_be_unloaded_and_is_loaded_again() -> None:
    second = Maker("second")
    chain = chain_of(Maker("first"), second)
    await chain.start()
    link = chain.links[1]
    assert link.idle_s() is None
    request = Request(chain)
    request.attempt.failed("engine_error", "broken")
    await soon()
    assert link.idle_s() is None, "it serves"
    request.attempt.finish()
    await asyncio.sleep(1.0)
    assert link.idle_s() == 1.0
    await link.unload()
    assert second.made[0].closed == 1
    request = Request(chain)
    await soon()
    assert (request.asked, len(second.made)) == (["second"], 2)
    await chain.close()


@virtual
async def test_closing_stops_a_load_and_fails_those_that_wait() -> None:
    chain = chain_of(Maker("first"), Maker("second", load_s=5.0))
    await chain.start()
    request = Request(chain)
    request.attempt.failed("engine_error", "broken")
    await soon()
    await chain.close()
    await soon()
    assert request.gave_up == ["engine_closed"]


@virtual
async def test_a_chain_that_did_not_start_says_so() -> None:
    chain = chain_of(Maker("first", error=EngineError("load_failed", "no")), Maker("second"))
    with pytest.raises(EngineError, match="no"):
        await chain.start()
    with pytest.raises(EngineError, match="not running"):
        _ = chain.first
    await chain.close()
