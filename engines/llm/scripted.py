"""A language model that thinks nothing: its replies come from a function. For tests and load tests.

All timing is ``loop.call_later``, so it is exact under a virtual clock.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engines.api import EngineError
from engines.llm.scripted_tools import calls_asked_for
from engines.llm.written_tools import ToolCallSplitter, WrittenCall
from streaming.audio.code_words import number_of
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Token, ToolCalled, Usage

Reply = Callable[[Sequence[Message]], str]
Fault = Literal["none", "fail_first", "fail_midway", "stall_first", "stall_midway", "ignore_cancel"]

_WORDS = re.compile(r"\S+\s*|\s+")
_PUNCTUATION = re.compile(r"\W+")

MAX_SAID_CHARS = 4_000
"""Of what a caller typed, so much is said back: what is beyond would be looked through on the event loop."""
_TELL_MORE = "tell me more"
_MORE = "There is a lot to tell, and none of it matters, for all that counts is how long it takes to say so."
_SENTENCES_MORE = 2


def echo(messages: Sequence[Message]) -> str:
    """Say the caller's last words back, or its code word (:mod:`streaming.audio.code_words`), or what became of a tool.
    Who asks to be told more is told 50 words, long enough to be interrupted, with the code word at both
    ends: within the 64 tokens of the built-in agent, or the last word would be cut off."""
    if messages and messages[-1].role == "tool":
        return f"The result is {_PUNCTUATION.sub(' ', messages[-1].content).strip()}."
    said = next((message.content for message in reversed(messages) if message.role == "user"), "nothing")
    said = said[:MAX_SAID_CHARS]
    codes = [word for word in re.findall(r"\w+", said) if number_of(word) is not None]
    # Not the caller's own words around it: said again over the reply, they would be taken for its echo.
    told = f"I heard {' '.join(codes)}." if codes else f"You said: {said.rstrip('.!? ')}."
    if _TELL_MORE not in said.lower():
        return told
    return " ".join([told, *[_MORE] * _SENTENCES_MORE, f"That was all, {' '.join(codes) or 'caller'}."])


def _tokens(reply: str) -> list[str | WrittenCall]:
    splitter = ToolCallSplitter()
    tokens: list[str | WrittenCall] = []
    for piece in (*splitter.feed(reply), *splitter.end()):
        tokens += _WORDS.findall(piece) if isinstance(piece, str) else [piece]
    return tokens


@dataclass(eq=False, slots=True)
class _Run:
    request: Generate
    deliver: Callable[[Generation], None]
    tokens: list[str | WrittenCall]
    limited: bool
    told: int = 0
    cancelled: bool = False
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class ScriptedLlm:
    """A fake :class:`engines.api.LanguageModel`: one token a word, with the spaces after it. It calls a tool where
    ``reply`` writes a call out, and where the caller asks for one (:mod:`engines.llm.scripted_tools`).

    ``fault``: fail or stall for ever before the first token or after half of them; ``ignore_cancel`` goes on delivering
    for dead epochs (which no real engine may do: it proves staleness tests). Attributes may be changed while it runs;
    ``requests``, ``prioritized``, ``postponed``, ``cancelled`` and ``forgotten`` record what was asked of it, unless
    ``records`` is False: a server that runs for days keeps no lists.
    """

    def __init__(
        self,
        reply: Reply = echo,
        *,
        first_token_delay_s: float = 0.0,
        token_delay_s: float = 0.0,
        fault: Fault = "none",
        start_fails: bool = False,
        records: bool = True,
    ) -> None:
        self._reply = reply
        self.first_token_delay_s = first_token_delay_s
        self.token_delay_s = token_delay_s
        self.fault: Fault = fault
        self.start_fails = start_fails
        self.requests: MutableSequence[Generate] = [] if records else deque(maxlen=0)
        self.prioritized: MutableSequence[tuple[str, int]] = [] if records else deque(maxlen=0)
        self.postponed: MutableSequence[tuple[str, int, float]] = [] if records else deque(maxlen=0)
        self.cancelled: MutableSequence[tuple[str, int]] = [] if records else deque(maxlen=0)
        self.forgotten: MutableSequence[str] = [] if records else deque(maxlen=0)
        self._runs: dict[tuple[str, int], _Run] = {}

    async def start(self) -> None:
        if self.start_fails:
            raise EngineError("scripted", "the script says that this engine does not start")

    async def close(self) -> None:
        for call, epoch in list(self._runs):
            self._stop(call, epoch)

    @property
    def running(self) -> int:
        """Generations that were neither finished nor cancelled."""
        return len(self._runs)

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        self.requests.append(request)
        words = _tokens(self._reply(request.messages) + calls_asked_for(request.messages, request.tools))
        run = _Run(request, deliver, words[: request.max_tokens], len(words) > request.max_tokens)
        self._runs[(request.call, request.epoch)] = run
        if self.fault != "stall_first":
            self._after(run, self.first_token_delay_s)

    def prioritize(self, call: str, epoch: int) -> None:
        self.prioritized.append((call, epoch))

    def postpone(self, call: str, epoch: int, until: float) -> None:
        self.postponed.append((call, epoch, until))

    def cancel(self, call: str, epoch: int) -> None:
        self.cancelled.append((call, epoch))
        self._stop(call, epoch)

    def forget(self, call: str) -> None:
        self.forgotten.append(call)
        for key in [key for key in self._runs if key[0] == call]:
            self._stop(*key)

    def _stop(self, call: str, epoch: int) -> None:
        run = self._runs.pop((call, epoch), None)
        if run is None:
            return
        run.cancelled = True
        if run.timer is not None and self.fault != "ignore_cancel":
            run.timer.cancel()

    def _after(self, run: _Run, delay_s: float) -> None:
        run.timer = asyncio.get_running_loop().call_later(delay_s, self._step, run)

    def _step(self, run: _Run) -> None:
        epoch, fault = run.request.epoch, self.fault
        midway = run.told >= max(1, len(run.tokens) // 2)
        if fault == "fail_first" or (fault == "fail_midway" and midway):
            self._end(run, GenerationFailed(epoch, "scripted", "the script says so"))
        elif fault == "stall_midway" and midway:
            return
        elif run.told < len(run.tokens):
            piece = run.tokens[run.told]
            run.told += 1
            if isinstance(piece, str):
                run.deliver(Token(epoch, piece))
            else:
                run.deliver(ToolCalled(epoch, f"call_{epoch}_{run.told}", piece.name, piece.arguments))
            if not run.cancelled or fault == "ignore_cancel":
                # The end comes with the last token: a model knows it by then.
                self._after(run, self.token_delay_s if run.told < len(run.tokens) else 0.0)
        else:
            self._end(run, GenerationDone(epoch, "length" if run.limited else "stop", self._usage(run)))

    def _end(self, run: _Run, end: Generation) -> None:
        self._runs.pop((run.request.call, run.request.epoch), None)
        run.deliver(end)

    def _usage(self, run: _Run) -> Usage:
        prompt = sum(len(message.content.split()) for message in run.request.messages)
        return Usage(prompt, prompt, run.told)
