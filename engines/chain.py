"""The backends of one stage in order: who serves, who stands in, and when a failed one is tried again.

A backend that failed is left alone for a while, then one request tries it; succeeding, it serves again. Those behind
the first are loaded only when a request needs them, and unloaded when memory is needed and nobody used them lately.
All on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Generic, TypeVar

import structlog

from engines.api import BackendState, Engine, EngineError

LOAD_WAIT_S = 10.0
"""How long a request waits for a fallback to be loaded. The load goes on for those that come later."""
SILENT_S = 8.0
"""An engine that gives nothing for so long, until nobody wants the answer any more, has failed: one that hangs never
says so itself."""
MAX_WAITING = 256
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0

NOT_ITS_FAULT = frozenset(
    {
        "overloaded",
        "unsupported_language",
        "context_too_long",
        "content_filter",
        "unknown_voice",
        "bad_request",
        "empty_reply",
    }
)
"""Codes of requests that this backend can't serve, or not now: the next is asked, and this one stays in use."""
HOPELESS = frozenset({"invalid_request", "duplicate_epoch"})
"""Codes of requests that nobody can serve."""

E = TypeVar("E", bound=Engine)
_log = structlog.get_logger(__name__)


class Link(Generic[E]):
    """One backend of a chain. ``make`` gives its engine, started; what it raises marks the backend as down."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[E]],
        clock: Callable[[], float],
        languages: Collection[str] = (),
    ) -> None:
        self.name = name
        self.engine: E | None = None
        self.waiting = 0
        """Requests that wait for it to be loaded."""
        self.logged: set[str] = set()
        """Codes of failures that were logged since it last served."""
        self.failed_requests = 0
        """All that it failed, whoever served them then."""
        self._users = 0
        self._used_at = 0.0
        self._make = make
        self._clock = clock
        self._languages = frozenset(languages)
        self._loading: asyncio.Task[E] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failures = 0
        self._down_until = 0.0
        self._on_trial = False

    @property
    def state(self) -> BackendState:
        if self._loading is not None:
            return "loading"
        if self._failures:
            return "paused"
        if self.engine is None:
            return "standing_by"
        return "up" if getattr(self.engine, "available", True) else "down"

    def speaks(self, language: str) -> bool:
        """Whether it may know the language; a BCP 47 tag's first subtag decides."""
        return not self._languages or not language or language.split("-")[0].lower() in self._languages

    def admits(self) -> bool:
        """Whether a request may be given to it."""
        return self._failures == 0 or (self._clock() >= self._down_until and not self._on_trial)

    def begin(self) -> None:
        """It is given a request, which :meth:`end` follows."""
        self._users += 1
        self._used_at = self._clock()
        self._on_trial = self._failures > 0

    def end(self) -> None:
        self._users -= 1
        self._used_at = self._clock()
        self._on_trial = False

    def succeeded(self) -> bool:
        """Returns whether it was down."""
        was_down, self._failures = self._failures > 0, 0
        self._on_trial = False
        self.logged.clear()
        return was_down

    def failed(self) -> None:
        if self._failures and self._clock() < self._down_until:
            return  # of the same accident as the failure before: a lost host fails all its requests at once
        self._failures += 1
        pause_s: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10))
        self._down_until = self._clock() + pause_s
        self._on_trial = False

    def idle_s(self) -> float | None:
        """Seconds since its last request; None while there are any, or it is not loaded."""
        if self.engine is None or self._users or self.waiting:
            return None
        return self._clock() - self._used_at

    def load(self) -> asyncio.Task[E]:
        """The one load that is under way, or a new one."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load(), name=f"load {self.name}")
        return self._loading

    async def _load(self) -> E:
        try:
            if self._closing is not None:
                await asyncio.wait([self._closing])
            self.engine = await self._make()
            return self.engine
        finally:
            self._loading = None

    async def unload(self) -> None:
        """Free the model; the next request loads it again."""
        engine, self.engine = self.engine, None
        if engine is not None:
            self._closing = asyncio.create_task(_close(engine), name=f"unload {self.name}")
        closing, self._closing = self._closing, None
        if closing is not None:
            await asyncio.shield(closing)

    async def close(self) -> None:
        """Safe to call twice."""
        if self._loading is not None:
            self._loading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._loading
        await self.unload()


class Chain(Generic[E]):
    """The links of one stage."""

    def __init__(self, stage: str, links: Sequence[Link[E]], *, load_wait_s: float = LOAD_WAIT_S) -> None:
        self.stage = stage
        self.links = tuple(links)
        self._load_wait_s = load_wait_s

    @property
    def first(self) -> E:
        engine = self.links[0].engine
        if engine is None:
            raise EngineError("not_started", f"the {self.stage} engine is not running")
        return engine

    async def start(self) -> None:
        """Load the first; the others wait until they are needed."""
        await self.links[0].load()

    async def close(self) -> None:
        """Safe to call twice. The last first; one that can't close keeps no other open."""
        async with contextlib.AsyncExitStack() as stack:
            for link in self.links:
                stack.push_async_callback(link.close)

    def pick(self, tried: Collection[Link[E]], language: str = "", wanted: Link[E] | None = None) -> Link[E] | None:
        """Who is asked next: the first that knows the language and is not down, or ``wanted`` if that is so for it.
        When all are down, the first is asked all the same: it can only get better."""
        left = [link for link in self.links if link not in tried and link.speaks(language)]
        if wanted in left and wanted is not None and wanted.admits():
            return wanted
        up = [link for link in left if link.admits()]
        if up:
            return up[0]
        return left[0] if left and not tried else None

    def use(self, link: Link[E], then: Callable[[E | EngineError], None]) -> Callable[[], None]:
        """Hand the link's engine to ``then``, at once if it is loaded, else within :attr:`load_wait_s`. ``then`` gets
        an error at the latest after that. Returns what makes ``then`` not be called any more; every use of an engine
        is followed by one :meth:`Link.end`."""
        if link.engine is not None:
            link.begin()
            then(link.engine)
            return _nothing
        waiter = _Waiter(self, link, then)
        if link.waiting >= MAX_WAITING:
            waiter.settle_soon(EngineError("overloaded", f"too many requests wait for {link.name}"))
        else:
            waiter.wait(self._load_wait_s)
        return waiter.cancel

    def succeeded(self, link: Link[E]) -> None:
        if link.succeeded():
            _log.info("a backend serves again", stage=self.stage, backend=link.name)

    def failed(self, link: Link[E], code: str, message: str) -> bool:
        """A request failed there. Returns whether another may be asked."""
        if code in HOPELESS:
            return False
        link.failed_requests += 1
        if code not in NOT_ITS_FAULT:
            link.failed()
        if code not in link.logged:
            link.logged.add(code)
            _log.warning("a backend failed", stage=self.stage, backend=link.name, code=code, message=message)
        return True


class Attempt(Generic[E]):
    """One request on its way down a chain. ``ask(engine)`` starts it on an engine; ``give_up(code, message)`` ends it,
    never from inside a method of this class. Nothing is called after :meth:`finish` or :meth:`drop`."""

    def __init__(
        self,
        chain: Chain[E],
        ask: Callable[[E], None],
        give_up: Callable[[str, str], None],
        language: str = "",
        *,
        silent_s: float = SILENT_S,
    ) -> None:
        self._chain = chain
        self._ask = ask
        self._give_up = give_up
        self._language = language
        self._silent_s = silent_s
        self._tried: list[Link[E]] = []
        self._stop_waiting: Callable[[], None] = _nothing
        self._awaited_since: float | None = None
        self.link: Link[E] | None = None
        self.engine: E | None = None
        """Who serves it now."""
        self.ended = False

    def go(self, wanted: Link[E] | None = None) -> None:
        """Ask the first who can; ``wanted`` before all others."""
        link = self._chain.pick(self._tried, self._language, wanted)
        if link is None:  # the language is nobody's, or the request was hopeless from the start
            self._end_soon("unsupported_language", f"no {self._chain.stage} engine knows {self._language!r}")
        else:
            self._try(link)

    @property
    def may_move_on(self) -> bool:
        """Whether there is another who could serve it."""
        return self._chain.pick(self._tried, self._language) is not None

    def awaits(self) -> None:
        """Whoever serves it is to answer now: see :data:`SILENT_S`."""
        if self.link is not None and self._awaited_since is None:
            self._awaited_since = asyncio.get_running_loop().time()

    def answered(self) -> None:
        """It does."""
        self._awaited_since = None

    def works(self) -> None:
        """The engine delivered something good."""
        self.answered()
        if self.link is not None:
            self._chain.succeeded(self.link)

    def failed(self, code: str, message: str, *, begun: bool = False) -> None:
        """The engine failed it. ``begun``: something was delivered, so nobody may do it again."""
        link = self.link
        if link is None or self.ended:
            return
        self._leave()
        self._after(link, code, message, begun=begun)

    def finish(self) -> None:
        """It was served."""
        self.works()
        self.drop()

    def drop(self) -> E | None:
        """Nobody wants it any more. Returns the engine that has to be told."""
        self.ended = True
        self._stop_waiting()
        engine = self.engine
        since = self._awaited_since
        if self.link is not None and since is not None:
            waited_s = asyncio.get_running_loop().time() - since
            if waited_s >= self._silent_s:
                self._chain.failed(self.link, "no_answer", f"it gave nothing for {waited_s:.0f} s")
        self._leave()
        return engine

    def _try(self, link: Link[E]) -> None:
        self._tried.append(link)
        stop_waiting = self._chain.use(link, partial(self._ready, link))
        if self._tried[-1] is link:  # else it failed at once, and the next is waited for already
            self._stop_waiting = stop_waiting

    def _ready(self, link: Link[E], result: E | EngineError) -> None:
        if isinstance(result, EngineError):
            self._after(link, result.code, str(result))
            return
        self.link, self.engine = link, result
        try:
            self._ask(result)
        except EngineError as error:
            self.failed(error.code, str(error))
        except Exception as error:  # noqa: BLE001 (a defect of one backend is what the next is for)
            _log.exception("a backend raised", stage=self._chain.stage, backend=link.name)
            self.failed("engine_raised", repr(error))

    def _after(self, link: Link[E], code: str, message: str, *, begun: bool = False) -> None:
        another = self._chain.failed(link, code, message) and not begun
        following = self._chain.pick(self._tried, self._language) if another else None
        if following is None:
            self._end_soon(code, message)
        else:
            self._try(following)

    def _end_soon(self, code: str, message: str) -> None:
        asyncio.get_running_loop().call_soon(self._end, code, message)

    def _end(self, code: str, message: str) -> None:
        if not self.ended:
            self.ended = True
            self._give_up(code, message)

    def _leave(self) -> None:
        if self.link is not None:
            self.link.end()
        self.link = self.engine = self._awaited_since = None


class _Waiter(Generic[E]):
    """One request that waits for a model to be loaded."""

    def __init__(self, chain: Chain[E], link: Link[E], then: Callable[[E | EngineError], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._chain = chain
        self._link = link
        self._then: Callable[[E | EngineError], None] | None = then
        self._timer: asyncio.TimerHandle | None = None
        self._waits = False

    def wait(self, seconds: float) -> None:
        self._waits = True
        self._link.waiting += 1
        message = f"{self._link.name} was not loaded within {seconds:g} s"
        self._timer = self._loop.call_later(seconds, self._settle, EngineError("load_slow", message))
        self._link.load().add_done_callback(self._loaded)

    def settle_soon(self, error: EngineError) -> None:
        self._loop.call_soon(self._settle, error)

    def cancel(self) -> None:
        self._leave()
        self._then = None

    def _loaded(self, task: asyncio.Task[E]) -> None:
        if task.cancelled():
            self._settle(EngineError("engine_closed", "the engines are closing"))
        elif (error := task.exception()) is not None:
            self._settle(error if isinstance(error, EngineError) else EngineError("load_failed", repr(error)))
        else:
            self._settle(task.result())

    def _settle(self, result: E | EngineError) -> None:
        then, self._then = self._then, None
        self._leave()
        if then is None:
            return
        if not isinstance(result, EngineError):
            self._link.begin()
        then(result)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._waits:
            self._waits = False
            self._link.waiting -= 1


async def _close(engine: Engine) -> None:
    await engine.close()


def _nothing() -> None:
    pass
