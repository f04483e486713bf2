"""The scheduler's load (:mod:`engines.executor.load`) on real engines: turns at random, graded as there.

A turn begins when the trace says, whether or not earlier ones are done: the caller's four seconds are there, its
transcript is wanted. Then everything goes as in the gateway, with its deadlines: the reply's 40 tokens on the call's
kept cache, the first clause to speech after 12 of them, the rest when the first is spoken, the words are there and at
most three seconds of speech are ahead. A call's next turn ends what is left of the one before, as a barge-in does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engines.api import Pcm16
from engines.bench.random_kokoro import VOICE, Phrase
from engines.bench.random_llama import word
from engines.executor.load import CLAUSE_TOKENS, LATEST_S, Turn, arrivals
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    Generate,
    Generation,
    GenerationDone,
    GenerationFailed,
    Message,
    OpenTranscription,
    Priority,
    Synthesis,
    SynthesisChunk,
    Synthesize,
    Token,
    Transcript,
)

if TYPE_CHECKING:
    from engines.api import TranscriptionStream
    from engines.bench.real_engines import RealEngines

UTTERANCE_S = 4
SAID_WORDS = 56
"""A word is a token; the template adds a few: about 60 new tokens a turn."""
SYSTEM_WORDS = 60
HISTORY_MESSAGES = 24
"""More are forgotten, two by two: contexts stay below 1300 tokens."""
DRAIN_S = 10.0
"""How long the last turns have to end."""
HOPELESS = 0.2
"""A run ends when so many of its calls have waited too long for a turn."""
_FIRST_WORD, _WORDS = 6, 200
_LOOK_EVERY_S = 0.25
# As streaming.listening, streaming.reply and gateway.call set them.
_FINAL_S, _FIRST_TOKENS_S, _AHEAD_S, _FIRST_SPOKEN_S, _NEXT_CLAUSE_S = 0.3, 0.25, 3.0, 0.6, 1.0


@dataclass(slots=True, kw_only=True)
class RealTurn(Turn):
    """Times are the loop's clock. ``at`` is when the trace wanted it to begin."""

    epoch: int
    begun_at: float = 0.0
    transcript_at: float | None = None
    first_token_at: float | None = None
    first_clause_at: float | None = None
    text: str = ""
    written: bool = False
    audio_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    spoken: list[bool] = field(default_factory=lambda: [False, False])
    asked: int = 0
    """Segments that speech was asked for."""
    failure: str = ""
    superseded: bool = False
    over: bool = False

    @property
    def complete(self) -> bool:
        return all(self.spoken)

    @property
    def underrun_s(self) -> float:
        if self.first_audio_at is None or self.second_audio_at is None:
            return 0.0
        return max(0.0, self.second_audio_at - self.first_audio_at - self.audio_s[0])

    @property
    def too_late(self) -> bool:
        return self.counts and self.wait_s > LATEST_S


@dataclass(slots=True)
class _Call:
    name: str
    messages: list[Message]
    epochs: int = 0
    turn: RealTurn | None = None
    stream: TranscriptionStream | None = None


class Callers:
    """So many calls on the engines, once. Everything happens on the event loop."""

    def __init__(self, engines: RealEngines, calls: int, name: str, seed: int = 1) -> None:
        self._engines = engines
        self._loop = asyncio.get_running_loop()
        self._chance = random.Random(seed)
        self._pcm = _noise(UTTERANCE_S)
        system = Message("system", " ".join(word(at) for at in range(_FIRST_WORD, _FIRST_WORD + SYSTEM_WORDS)))
        self._calls = [_Call(f"{name}-{number}", [system]) for number in range(calls)]
        self._phrases: Sequence[Sequence[Phrase]] = engines.tts.phrases
        self._changed = asyncio.Event()
        self.turns: list[RealTurn] = []
        self.stopped_early = False
        self.elapsed_s = 0.0
        self.latest_start_s = 0.0
        """How long after the trace's time a turn was begun at worst: what this generator itself was late."""

    async def run(self, seconds: float, seed: int) -> None:
        """The turns of that trace, then what they still need (up to :data:`DRAIN_S`)."""
        began = self._loop.time()
        trace = arrivals(len(self._calls), seconds, seed)
        for planned in trace:
            await self._until(began + planned.at)
            if self._hopeless():
                self.stopped_early = True
                break
            self.begin(planned.call, began + planned.at)
        if not self.stopped_early:
            await self._until(began + seconds)
            await self._drained(DRAIN_S)
        self.elapsed_s = self._loop.time() - began
        self.end()

    async def together(self, count: int) -> None:
        """The first ``count`` calls have a turn at the same moment; to the end of their speech."""
        for number in range(count):
            self.begin(number, self._loop.time())
        await self._drained(60.0)

    async def storm(self, seconds: float, every_s: float) -> None:
        """A turn of a random call every so often: rows join batches that run, and leave them at any stage."""
        end = self._loop.time() + seconds
        while (now := self._loop.time()) < end:
            self.begin(self._chance.randrange(len(self._calls)), now)
            await asyncio.sleep(every_s)
        await self._drained(DRAIN_S)

    def end(self) -> None:
        """Stop what is left and forget the calls."""
        for call in self._calls:
            if call.turn is not None:
                self._stop(call, call.turn)
            self._engines.llm.forget(call.name)

    async def _until(self, when: float) -> None:
        while (left := when - self._loop.time()) > 0 and not self._hopeless():  # noqa: ASYNC110 (time is the event)
            await asyncio.sleep(min(left, _LOOK_EVERY_S))

    async def _drained(self, seconds: float) -> None:
        end = self._loop.time() + seconds
        while any(call.turn is not None for call in self._calls) and (left := end - self._loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return

    def _hopeless(self) -> bool:
        now = self._loop.time()
        late = {turn.call for turn in self.turns if turn.over and turn.too_late}
        late |= {
            call.turn.call
            for call in self._calls
            if call.turn is not None and call.turn.first_audio_at is None and now - call.turn.at > LATEST_S
        }
        return len(late) > 1 + HOPELESS * len(self._calls)

    # --- a turn, stage by stage -------------------------------------------------------------------------------

    def begin(self, number: int, at: float) -> None:
        call = self._calls[number]
        if call.turn is not None:
            call.turn.superseded = True
            self._stop(call, call.turn)
        call.epochs += 1
        turn = RealTurn(number, call.epochs, at, epoch=call.epochs, begun_at=self._loop.time())
        self.latest_start_s = max(self.latest_start_s, turn.begun_at - at)
        call.turn = turn
        self.turns.append(turn)
        opened = OpenTranscription(call.name, turn.epoch, 0, partials=False)
        call.stream = self._engines.stt.open(opened, lambda result: self._heard(call, turn, result))
        call.stream.feed(self._pcm)
        call.stream.finalize(FinalizeTranscription(turn.epoch, 0, Priority.FINAL, turn.begun_at + _FINAL_S))

    def _heard(self, call: _Call, turn: RealTurn, result: Transcript) -> None:
        if not isinstance(result, FinalTranscript):
            self._fail(call, turn, getattr(result, "code", "partial"))
            return
        assert call.stream is not None
        call.stream.close()
        call.stream = None
        now = turn.transcript_at = self._loop.time()
        said = " ".join(word(self._chance.randrange(_FIRST_WORD, _WORDS)) for _ in range(SAID_WORDS))
        call.messages.append(Message("user", said))
        while len(call.messages) > HISTORY_MESSAGES:
            del call.messages[1:3]
        self._engines.llm.generate(
            Generate(
                call.name,
                turn.epoch,
                tuple(call.messages),
                Priority.DECODE,
                now + _FIRST_TOKENS_S,
                max_tokens=sum(CLAUSE_TOKENS),
            ),
            lambda token: self._written(call, turn, token),
        )

    def _written(self, call: _Call, turn: RealTurn, result: Generation) -> None:
        now = self._loop.time()
        match result:
            case Token(text=text):
                turn.tokens += 1
                turn.text += text
                if turn.first_token_at is None:
                    turn.first_token_at = now
                if turn.tokens == CLAUSE_TOKENS[0]:
                    turn.first_clause_at = now
                    self._speak(call, turn, now)
            case GenerationDone():
                turn.written = True
                call.messages.append(Message("assistant", turn.text.strip()))
                self._speak_rest(call, turn)
            case GenerationFailed(code=code):
                self._fail(call, turn, code)
            case _:
                raise AssertionError(result)  # it was offered no tools

    def _speak(self, call: _Call, turn: RealTurn, deadline: float) -> None:
        segment, turn.asked = turn.asked, turn.asked + 1
        phrases = self._phrases[segment]
        phrase = phrases[turn.number % len(phrases)]
        self._engines.tts.synthesize(
            Synthesize(
                call.name,
                turn.epoch,
                segment,
                phrase.text,
                VOICE,
                Priority.PLAYOUT if segment else Priority.FIRST_AUDIO,
                deadline,
                phrase.speed,
            ),
            lambda chunk: self._spoken(call, turn, chunk),
        )
        self._postpone(call, turn, _FIRST_SPOKEN_S)

    def _spoken(self, call: _Call, turn: RealTurn, result: Synthesis) -> None:
        if not isinstance(result, SynthesisChunk):
            self._fail(call, turn, result.code)
            return
        now = self._loop.time()
        if result.segment == 0 and turn.first_audio_at is None:
            turn.first_audio_at = now
        elif result.segment == 1 and turn.second_audio_at is None:
            turn.second_audio_at = now
        turn.audio_s[result.segment] += len(result.pcm) / 2 / result.rate_hz
        if not result.last:
            return
        turn.spoken[result.segment] = True
        if turn.complete:
            self._close(call, turn)
        else:
            self._postpone(call, turn, 0.0)
            self._speak_rest(call, turn)

    def _speak_rest(self, call: _Call, turn: RealTurn) -> None:
        """The second segment, once the first is spoken and its own words are there, at most three seconds ahead."""
        if turn.over or not turn.written or turn.asked == 0 or turn.asked == 2 or not turn.spoken[0]:
            return
        now = self._loop.time()
        ahead_s = self._ahead_s(turn, now)
        if ahead_s >= _AHEAD_S:
            self._loop.call_at(now + ahead_s - _AHEAD_S + 0.001, self._speak_rest, call, turn)
        else:
            self._speak(call, turn, now + max(0.0, ahead_s))

    def _postpone(self, call: _Call, turn: RealTurn, spoken_for_s: float) -> None:
        now = self._loop.time()
        until = now + max(spoken_for_s, self._ahead_s(turn, now) - _NEXT_CLAUSE_S)
        self._engines.llm.postpone(call.name, turn.epoch, until)

    def _ahead_s(self, turn: RealTurn, now: float) -> float:
        return max(0.0, turn.first_audio_at + sum(turn.audio_s) - now) if turn.first_audio_at is not None else 0.0

    # --- its end ----------------------------------------------------------------------------------------------

    def _fail(self, call: _Call, turn: RealTurn, code: str) -> None:
        """Graded as too late."""
        turn.failure = code
        self._stop(call, turn)
        if turn.first_audio_at is None:
            turn.ended_at = max(turn.ended_at, turn.at + 2 * LATEST_S)

    def _stop(self, call: _Call, turn: RealTurn) -> None:
        if call.stream is not None:
            call.stream.close()
            call.stream = None
        self._engines.llm.cancel(call.name, turn.epoch)
        self._engines.tts.cancel(call.name, turn.epoch)
        if turn.transcript_at is not None and not turn.written:
            call.messages.append(Message("assistant", turn.text.strip()))
        self._close(call, turn)

    def _close(self, call: _Call, turn: RealTurn) -> None:
        turn.ended_at = self._loop.time()
        turn.over = True
        call.turn = None
        self._changed.set()


def _noise(seconds: int) -> Pcm16:
    pcm: Pcm16 = (np.random.default_rng(4).standard_normal(seconds * INPUT_RATE_HZ) * 3000).astype(np.int16)
    return pcm
