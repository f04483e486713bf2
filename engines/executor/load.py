"""The load of the scheduler's benchmark, and how its calls are graded. Virtual time; nothing here chooses an order.

Fixed: every call has turns at random (Poisson), one every 12 s. A turn begins at its end-of-turn decision, with the
caller's last words to transcribe; the reply is 40 tokens, the first 12 of which are its first clause, spoken as two
segments of 3 and 7 s. The first is synthesised while the rest is decoded. A turn's first audio is there when its first
segment is; the second is late when the first has been heard to its end before it is there (an underrun). A call's next
turn ends what is left of the one before, as a barge-in does, at the next quantum's end.

A call is good if at least 95 % of its turns have first audio within 800 ms, none later than 2 s, and underruns are at
most 0.5 % of its speech. Goodput is the share of good calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from engines.executor.costs import Costs
from engines.executor.kinds import Choice, Key, Kind
from engines.executor.tables import LLM, STT, TTS, CostTable
from streaming.jobs import Priority

TURN_EVERY_S = 12.0
PROMPT_TOKENS = 64
"""What is new since the last turn; the rest is in the call's cache."""
CLAUSE_TOKENS = (12, 28)
CLAUSE_AUDIO_MS = (3000, 7000)
CLAUSE_IDS = (64, 128)
"""Buckets of phonemes: about 45 and 105 of them."""
FIRST_AUDIO_S = 0.8
LATEST_S = 2.0
GOOD_TURNS = 0.95
MAX_UNDERRUN = 0.005
JITTER = 0.1
"""Every quantum takes its table's cost, give or take so much."""


class Scheduler(Protocol):
    """What the load needs of a policy: :class:`engines.executor.policy.Agenda` has it."""

    def add(
        self,
        key: Key,
        kind: Kind,
        priority: Priority,
        deadline: float,
        now: float,
        *,
        units: int = 1,
        bucket: int = 0,
        remaining: int = 1,
    ) -> None: ...
    def advance(self, key: Key, kind: Kind, *, units: int = 1, bucket: int = 0, remaining: int = 1) -> None: ...
    def move(self, key: Key, now: float, *, deadline: float | None = None) -> None: ...
    def drop(self, key: Key) -> None: ...
    def choose(self, now: float) -> Choice | None: ...
    def observe(self, choice: Choice, seconds: float) -> None: ...


@dataclass(slots=True)
class Turn:
    """One turn: its state, then its result."""

    call: int
    number: int
    at: float
    heard: int = 0
    """Tokens of the transcript."""
    tokens: int = 0
    """Tokens of the reply."""
    prompt_left: int = PROMPT_TOKENS
    first_audio_at: float | None = None
    second_audio_at: float | None = None

    ended_at: float = 0.0

    @property
    def wait_s(self) -> float:
        """How long the caller waited for first audio, or has waited when the next turn came."""
        return (self.first_audio_at if self.first_audio_at is not None else self.ended_at) - self.at

    @property
    def counts(self) -> bool:
        """Not a turn that the caller went on from before it was late."""
        return self.first_audio_at is not None or self.wait_s > FIRST_AUDIO_S

    @property
    def underrun_s(self) -> float:
        if self.first_audio_at is None or self.second_audio_at is None:
            return 0.0
        return max(0.0, self.second_audio_at - self.first_audio_at - CLAUSE_AUDIO_MS[0] / 1000)


def arrivals(calls: int, seconds: float, seed: int) -> list[Turn]:
    """The turns of so many calls over so long, in order."""
    chance = random.Random(seed)
    turns = []
    for call in range(calls):
        at, number = chance.expovariate(1 / TURN_EVERY_S), 0
        while at < seconds:
            turns.append(Turn(call, number, at))
            at += chance.expovariate(1 / TURN_EVERY_S)
            number += 1
    turns.sort(key=lambda turn: turn.at)
    return turns


@dataclass(slots=True)
class Deadlines:
    """How long before its first audio is due each stage of a turn should be done, by the table's costs alone."""

    encode: float
    transcribe: float
    start: float
    prefill: float
    decode: float
    phonemes: float
    speak_rest: float
    """How long before it is wanted the second segment should be begun."""

    @classmethod
    def of(cls, table: CostTable, costs: Costs) -> Deadlines:
        kinds = table.kinds()
        phonemes, rest = (costs.estimate(kinds["speak"], 1, audio_ms) for audio_ms in CLAUSE_AUDIO_MS)
        decode = phonemes
        if "phonemes" in kinds:
            decode += costs.estimate(kinds["phonemes"], 1, CLAUSE_IDS[0])
            rest += costs.estimate(kinds["phonemes"], 1, CLAUSE_IDS[1])
        prefill = decode + CLAUSE_TOKENS[0] * costs.estimate(kinds["decode"])
        start = prefill + costs.estimate(kinds["prefill"], 1, PROMPT_TOKENS) + table.join_ms / 1000
        transcribe = start + table.start_ms / 1000
        encode = transcribe + table.transcribe_steps * costs.estimate(kinds["transcribe"])
        return cls(encode, transcribe, start, prefill, decode, phonemes, rest)


@dataclass(slots=True)
class World:
    """Turns in flight: gives the scheduler their jobs and does what the quanta it chose bring about."""

    table: CostTable
    scheduler: Scheduler
    seed: int = 0
    batched: bool = True
    """Replies are rows of one batch, which rows join and leave at a cost."""
    kinds: dict[str, Kind] = field(init=False)
    costs: Costs = field(init=False)
    before: Deadlines = field(init=False)
    turns: dict[str, Turn] = field(default_factory=dict)
    """By call."""
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = self.table.kinds()
        self.costs = self.table.costs()
        self.before = Deadlines.of(self.table, self.costs)
        self.chance = random.Random(self.seed)

    def begin(self, turn: Turn, now: float) -> Turn | None:
        """The end of a turn was decided: its transcript is wanted. Returns the call's turn that this one ended."""
        before = self.turns.get(str(turn.call))
        if before is not None:
            before.ended_at = now
            for owner, segment in ((STT, 0), (LLM, 0), (TTS, 0), (TTS, 1)):
                self.scheduler.drop(self._key(before, owner, segment))
        self.turns[str(turn.call)] = turn
        self._add(turn, STT, "encode", Priority.FINAL, self._first_audio_due(turn) - self.before.encode, now)
        return before

    def seconds(self, choice: Choice) -> float:
        """What a quantum takes."""
        seconds = self.costs.estimate(choice.kind, len(choice.keys), choice.length)
        if self.batched and choice.kind.name == "prefill":
            joining, units = 0, choice.max_units or PROMPT_TOKENS
            for key in choice.keys:
                units -= self._turn(key).prompt_left
                joining += units >= 0
            seconds += (joining > 0) * self.table.join_ms / 1000
        if self.batched and choice.kind.name == "decode":
            leaving = any(self._turn(key).tokens == sum(CLAUSE_TOKENS) - 1 for key in choice.keys)
            seconds += leaving * self.table.leave_ms / 1000
        return seconds * self.chance.uniform(1 - JITTER, 1 + JITTER)

    def complete(self, choice: Choice, now: float) -> Iterator[Turn]:
        """The quantum is over. Yields the turns whose last audio is there."""
        name = choice.kind.name
        units = choice.max_units or 0
        for key in choice.keys:
            turn = self._turn(key)
            match name:
                case "encode" if key.owner == STT:
                    due = self._first_audio_due(turn) - self.before.transcribe
                    self._go_on(key, "transcribe", due, now, remaining=self.table.transcribe_steps)
                case "transcribe":
                    turn.heard += 1
                    if turn.heard == self.table.transcribe_steps:
                        self.scheduler.drop(key)
                        due = self._first_audio_due(turn) - self.before.start
                        self._add(turn, LLM, "start", Priority.DECODE, due, now)
                case "start":
                    due = self._first_audio_due(turn) - self.before.prefill
                    self._go_on(key, "prefill", due, now, units=turn.prompt_left)
                case "prefill":
                    done = min(units, turn.prompt_left) if choice.max_units is not None else turn.prompt_left
                    units -= done
                    turn.prompt_left -= done
                    self._prefilled(key, turn, now)
                case "decode":
                    turn.tokens += 1
                    self._decoded(key, turn, now)
                case "encode":
                    self._go_on(
                        key, "speak", self._segment_due(turn, key.part, now), now, bucket=CLAUSE_AUDIO_MS[key.part]
                    )
                case _:
                    if self._spoken(key, turn, now):
                        yield turn

    # --- one stage after another ------------------------------------------------------------------------------

    def _prefilled(self, key: Key, turn: Turn, now: float) -> None:
        if turn.prompt_left:
            self.scheduler.advance(key, self.kinds["prefill"], units=turn.prompt_left)
        else:
            due = self._first_audio_due(turn) - self.before.decode
            self._go_on(key, "decode", due, now, remaining=CLAUSE_TOKENS[0])

    def _decoded(self, key: Key, turn: Turn, now: float) -> None:
        if turn.tokens == CLAUSE_TOKENS[0]:
            self._speak(turn, 0, now)
            # The rest is wanted when the first segment will have been heard, less what it takes to speak it.
            self._go_on(key, "decode", self._rest_due(turn, now), now, remaining=CLAUSE_TOKENS[1])
        elif turn.tokens == sum(CLAUSE_TOKENS):
            self.scheduler.drop(key)
            self._speak(turn, 1, now)

    def _speak(self, turn: Turn, segment: int, now: float) -> None:
        due = self._segment_due(turn, segment, now)
        priority = Priority.PLAYOUT if segment else Priority.FIRST_AUDIO
        key = self._key(turn, TTS, segment)
        if "phonemes" in self.kinds:
            due -= self.before.phonemes
            self.scheduler.add(key, self.kinds["phonemes"], priority, due, now, bucket=CLAUSE_IDS[segment])
        else:
            self.scheduler.add(key, self.kinds["speak"], priority, due, now, bucket=CLAUSE_AUDIO_MS[segment])

    def _spoken(self, key: Key, turn: Turn, now: float) -> bool:
        self.scheduler.drop(key)
        if key.part == 0:
            turn.first_audio_at = now
            rest = self._key(turn, LLM)
            if turn.tokens < sum(CLAUSE_TOKENS):
                self.scheduler.move(rest, now, deadline=self._rest_due(turn, now))
            else:
                self.scheduler.move(self._key(turn, TTS, 1), now, deadline=self._segment_due(turn, 1, now))
        else:
            turn.second_audio_at = now
        if turn.first_audio_at is None or turn.second_audio_at is None:
            return False
        del self.turns[str(turn.call)]
        return True

    def _first_audio_due(self, turn: Turn) -> float:
        return turn.at + FIRST_AUDIO_S

    def _rest_due(self, turn: Turn, now: float) -> float:
        heard_from = turn.first_audio_at if turn.first_audio_at is not None else max(now, self._first_audio_due(turn))
        return heard_from + CLAUSE_AUDIO_MS[0] / 1000 - self.before.speak_rest

    def _segment_due(self, turn: Turn, segment: int, now: float) -> float:
        return self._rest_due(turn, now) + self.before.speak_rest if segment else self._first_audio_due(turn)

    # --- words of the scheduler -------------------------------------------------------------------------------

    def _key(self, turn: Turn, owner: str, segment: int = 0) -> Key:
        return Key(owner, str(turn.call), turn.number, segment)

    def _turn(self, key: Key) -> Turn:
        return self.turns[key.call]

    def _add(self, turn: Turn, owner: str, name: str, priority: Priority, due: float, now: float) -> None:
        self.scheduler.add(self._key(turn, owner), self.kinds[name], priority, due, now)

    def _go_on(
        self, key: Key, name: str, due: float, now: float, *, units: int = 1, bucket: int = 0, remaining: int = 1
    ) -> None:
        self.scheduler.advance(key, self.kinds[name], units=units, bucket=bucket, remaining=remaining)
        self.scheduler.move(key, now, deadline=due)


@dataclass(slots=True)
class Grade:
    """One call's turns so far."""

    turns: int = 0
    in_time: int = 0
    too_late: int = 0
    underrun_s: float = 0.0

    def add(self, turn: Turn) -> None:
        if not turn.counts:
            return
        self.turns += 1
        self.in_time += turn.wait_s <= FIRST_AUDIO_S
        self.too_late += turn.wait_s > LATEST_S
        self.underrun_s += turn.underrun_s

    @property
    def good(self) -> bool:
        spoken_s = self.turns * sum(CLAUSE_AUDIO_MS) / 1000
        return (
            self.in_time >= GOOD_TURNS * self.turns
            and self.too_late == 0
            and self.underrun_s <= MAX_UNDERRUN * spoken_s
        )
