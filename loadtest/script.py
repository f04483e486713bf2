"""What a caller does, step by step: speak, wait, interrupt, press keys, vanish. Sans-IO, one tick a slot of 20 ms.

:class:`Stepper` walks through a script's steps and returns the :class:`Action` that is due; whoever holds the call
performs it. Every wait is bounded (:class:`Patience`): an agent that never greets, never answers, never stops or never
finishes delays the caller and can't hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from streaming.audio.keypad_tones import KEYS

Pcm16 = npt.NDArray[np.int16]
TurnKind = Literal["say", "press", "interrupt", "backchannel"]

_GAP_MS = 200.0  # a shorter pause is inside the agent's speech

KEY_MS = 100.0
"""How long a key is down: what PBXs send, and well over the 40 ms that receivers must know (RFC 4733, ITU-T Q.24)."""

KEY_PAUSE_MS = 100.0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Line:
    """Words to say. ``pcm`` is mono int16 at the call's rate; ``code`` is the code word that is heard in it, if any.
    Lines are compared by identity, so that what is made of one (its frames) can be kept for it."""

    text: str | None
    pcm: Pcm16 = field(repr=False)
    duration_ms: float
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """Speak now, whatever the agent does."""

    line: Line
    answer_expected: bool = True


@dataclass(frozen=True, slots=True)
class Press:
    """Press keys one after another, now. Raises :class:`ValueError` for what is on no keypad."""

    keys: str
    answer_expected: bool = True

    def __post_init__(self) -> None:
        keys = self.keys.replace(" ", "").upper()
        if not keys or not KEYS.issuperset(keys):
            raise ValueError("keys are 0 to 9, *, # and A to D")
        object.__setattr__(self, "keys", keys)

    @property
    def duration_ms(self) -> float:
        return len(self.keys) * (KEY_MS + KEY_PAUSE_MS)


@dataclass(frozen=True, slots=True)
class WaitAgent:
    """Wait until the agent has answered and finished. ``bound_ms`` is for its first sound; without it the caller's
    patience has the bound."""

    bound_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Speak, or press, ``after_ms`` after the agent was first heard since the caller's last turn (or since the call
    began: then it cuts the greeting). Done also where the agent kept silent for as long as an answer is waited for."""

    what: Line | Press
    after_ms: float
    answer_expected: bool = True


@dataclass(frozen=True, slots=True)
class Backchannel:
    """As :class:`Interrupt`, but the agent should go on ("mm-hm"): no turn of the caller's, and left out where the
    agent is not speaking at that moment."""

    line: Line
    after_ms: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Be silent. In a :class:`Repeat` until the planned end, no longer than to that."""

    ms: float


@dataclass(frozen=True, slots=True)
class HoldLine:
    """Put the agent on hold for so long (SIP: a re-INVITE; elsewhere silence); bounded as :class:`Pause`."""

    ms: float


@dataclass(frozen=True, slots=True)
class Vanish:
    """Stop sending and reading without a word, as a phone without battery."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """At once, whatever the agent does. A script without it ends after its last step."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """``times`` over, or (None) until the call's planned end: nothing new is said or paused for after that, and what
    was begun is waited for."""

    steps: tuple[Step, ...]
    times: int | None = None

    def __post_init__(self) -> None:
        if not self.steps or (self.times is not None and self.times < 1):
            raise ValueError("what is repeated has steps, and is done once or more")


Step = Say | Press | WaitAgent | Interrupt | Backchannel | Pause | HoldLine | Vanish | HangUp | Repeat


@dataclass(frozen=True, slots=True)
class Speak:
    """Begin to speak this line now; its turn is the caller's next (:attr:`Stepper.turn`)."""

    line: Line
    kind: TurnKind
    answer_expected: bool


@dataclass(frozen=True, slots=True)
class PressKeys:
    """Begin to press these keys now, each down for :data:`KEY_MS` and up for :data:`KEY_PAUSE_MS`."""

    keys: str
    kind: TurnKind
    answer_expected: bool


@dataclass(frozen=True, slots=True)
class HoldOn:
    """Put the agent on hold."""


@dataclass(frozen=True, slots=True)
class HoldOff:
    """Take it back."""


Action = Speak | PressKeys | HoldOn | HoldOff | Vanish | HangUp


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the caller waits, all in ms."""

    greeting_ms: float = 1_500.0
    """For a greeting's first sound; when the agent has begun a response, :attr:`answer_ms` instead."""
    answer_ms: float = 15_000.0
    pause_ms: float = 500.0
    """From the agent's last sound to the caller's next word."""
    stalled_ms: float = 5_000.0
    """Of silence, when the agent has not said that its response is over."""
    agent_turn_ms: float = 60_000.0
    """Of an agent that goes on talking."""


def conversation(turns: Sequence[Say | Press | Interrupt]) -> tuple[Step, ...]:
    """Steps of a caller with manners: hears a greeting out, then every answer, but where a turn interrupts it."""
    steps: list[Step] = []
    for turn in turns:
        if not isinstance(turn, Interrupt):
            steps.append(WaitAgent())
        steps.append(turn)
    return (*steps, WaitAgent())


class Stepper:
    """Walks through ``steps``; ``finished`` once the last is over. ``length_ms`` is the call's planned length, which
    a :class:`Repeat` may need. Times are ms since the call was up."""

    def __init__(
        self, steps: Sequence[Step], patience: Patience | None = None, *, length_ms: float | None = None
    ) -> None:
        self.finished = False
        self.turn = -1
        """Index of the turn last begun: what is said or pressed is one, whatever its kind; -1 before the first."""
        self._course = _Course(steps, length_ms)
        self._patience = patience or Patience()
        self._step_from_ms = 0.0
        self._on_hold = False
        self._spoke_from_ms = 0.0
        self._speaking_until_ms = 0.0
        self._onset_ms = 0.0
        self._last_voiced_ms: float | None = None
        self._first_heard_ms: float | None = None

    def tick(self, now_ms: float, *, voiced: bool, busy: bool) -> Action | None:
        """What the caller begins to do now, if anything.

        ``voiced``: agent speech was heard in the slot that just ended. ``busy``: agent audio is still queued, or a
        response is in progress.
        """
        self._listen(now_ms, voiced)
        if self.finished or now_ms < self._speaking_until_ms:
            return None
        while (step := self._course.step(now_ms, begun=self._on_hold)) is not None:
            action, over = self._perform(step, now_ms, busy)
            if over:
                self._course.advance()
                self._step_from_ms = max(now_ms, self._speaking_until_ms)
            if action is not None or not over:
                return action
        self.finished = self._course.over
        return None

    def _listen(self, now_ms: float, voiced: bool) -> None:
        if not voiced:
            return
        if self._last_voiced_ms is None or now_ms - self._last_voiced_ms > _GAP_MS:
            self._onset_ms = now_ms
        self._last_voiced_ms = now_ms
        # The tail of a reply that the caller talked over is not the answer to what it said.
        if self._first_heard_ms is None and now_ms >= self._speaking_until_ms and self._onset_ms >= self._spoke_from_ms:
            self._first_heard_ms = now_ms

    def _perform(self, step: Step, now_ms: float, busy: bool) -> tuple[Action | None, bool]:
        """What the step does now, and whether it is over with that."""
        match step:
            case Say(line, answer_expected):
                return self._begin(line, "say", answer_expected, now_ms), True
            case Press(_, answer_expected):
                return self._begin(step, "press", answer_expected, now_ms), True
            case WaitAgent(bound_ms):
                return None, self._heard_out(now_ms, busy, bound_ms)
            case Interrupt(what, after_ms, answer_expected):
                if not self._heard_for(after_ms, now_ms, busy):
                    return None, False
                return self._begin(what, "interrupt", answer_expected, now_ms), True
            case Backchannel(line, after_ms):
                if not self._heard_for(after_ms, now_ms, busy):
                    return None, False
                return (self._murmur(line, now_ms) if self._agent_speaks(now_ms, busy) else None), True
            case Pause(ms):
                return None, now_ms >= min(self._step_from_ms + ms, self._course.ends_ms)
            case HoldLine(ms):
                if not self._on_hold:
                    self._on_hold = True
                    return HoldOn(), False
                over = now_ms >= min(self._step_from_ms + ms, self._course.ends_ms)
                self._on_hold = not over
                return (HoldOff() if over else None), over
            case Vanish() | HangUp():
                self.finished = True
                return step, True
            case Repeat():
                raise AssertionError("a course takes what is repeated apart")

    def _begin(self, what: Line | Press, kind: TurnKind, answer_expected: bool, now_ms: float) -> Action:
        self._first_heard_ms = None
        self._spoke_from_ms = now_ms
        self._speaking_until_ms = now_ms + what.duration_ms
        self.turn += 1
        if isinstance(what, Press):
            return PressKeys(what.keys, kind, answer_expected)
        return Speak(what, kind, answer_expected)

    def _murmur(self, line: Line, now_ms: float) -> Action:
        """Speak without taking the turn: what the agent says stays its answer."""
        self._speaking_until_ms = now_ms + line.duration_ms
        self.turn += 1
        return Speak(line, "backchannel", answer_expected=False)

    def _agent_speaks(self, now_ms: float, busy: bool) -> bool:
        return busy or (self._last_voiced_ms is not None and now_ms - self._last_voiced_ms <= _GAP_MS)

    def _heard_for(self, after_ms: float, now_ms: float, busy: bool) -> bool:
        first_ms = self._first_heard_ms
        return self._given_up(now_ms, busy, None) if first_ms is None else now_ms - first_ms >= after_ms

    def _heard_out(self, now_ms: float, busy: bool, bound_ms: float | None) -> bool:
        patience = self._patience
        first_ms, last_ms = self._first_heard_ms, self._last_voiced_ms
        if first_ms is None or last_ms is None:
            return self._given_up(now_ms, busy, bound_ms)
        quiet_ms = now_ms - last_ms
        if quiet_ms >= patience.stalled_ms or now_ms - first_ms >= patience.agent_turn_ms:
            return True
        return quiet_ms >= patience.pause_ms and not busy

    def _given_up(self, now_ms: float, busy: bool, bound_ms: float | None) -> bool:
        """The agent was not heard for as long as the caller waits for that."""
        if bound_ms is None:
            bound_ms = self._patience.greeting_ms if self.turn < 0 and not busy else self._patience.answer_ms
        return now_ms - self._step_from_ms >= bound_ms


@dataclass(slots=True)
class _Loop:
    steps: Sequence[Step]
    times_left: int | None
    began_ms: float
    index: int = 0


class _Course:
    """Where a caller is in its steps, and in those that are repeated."""

    def __init__(self, steps: Sequence[Step], length_ms: float | None) -> None:
        if length_ms is None and _endless(steps):
            raise ValueError("steps that are repeated until the call's planned end need its length")
        self._length_ms = float("inf") if length_ms is None else length_ms
        self._loops = [_Loop(steps, 1, 0.0)]

    @property
    def over(self) -> bool:
        return not self._loops

    @property
    def ends_ms(self) -> float:
        """When what is being repeated ends for the call's sake."""
        return self._length_ms if any(loop.times_left is None for loop in self._loops) else float("inf")

    def advance(self) -> None:
        if self._loops:
            self._loops[-1].index += 1

    def step(self, now_ms: float, *, begun: bool) -> Step | None:
        """What is to be done now. None: nothing any more, or nothing before the next slot (a pass took no time).
        ``begun``: it has begun, so that it has to be ended too."""
        while self._loops:
            loop = self._loops[-1]
            if loop.index == len(loop.steps):
                if loop.times_left == 1 or (loop.times_left is None and now_ms >= self._length_ms):
                    self._loops.pop()
                    continue
                if loop.began_ms == now_ms:
                    return None
                loop.times_left = None if loop.times_left is None else loop.times_left - 1
                loop.index, loop.began_ms = 0, now_ms
                continue
            step = loop.steps[loop.index]
            if now_ms >= self.ends_ms and not begun and isinstance(step, Say | Press | Pause | HoldLine | Repeat):
                self._leave_endless()
            elif isinstance(step, Repeat):
                loop.index += 1
                self._loops.append(_Loop(step.steps, step.times, now_ms))
            else:
                return step
        return None

    def _leave_endless(self) -> None:
        first = next(number for number, loop in enumerate(self._loops) if loop.times_left is None)
        del self._loops[first:]


def _endless(steps: Sequence[Step]) -> bool:
    return any(isinstance(step, Repeat) and (step.times is None or _endless(step.steps)) for step in steps)
