"""When has the caller finished, and did the caller mean to interrupt: policies without state, testable alone."""

from __future__ import annotations

import enum
import re

from streaming.config import MAX_WAIT_MS, TurnDetection, TurnMode

SPECULATE_AFTER_MS = 64
"""Silence after which the transcript is asked for and a reply begun, without knowing yet that the turn ended: as soon
as the voice activity says that the caller paused."""

SCORE_AFTER_MS = 192
"""Silence the end-of-turn model is given: it judges by how the voice fell away, and wants to hear it do so."""

UNSCORED_WAIT_MS = 700
"""The silence that ends a turn when the end-of-turn model gave no answer."""

DICTATION_WAIT_MS = 1_400
"""People pause 700-900 ms between groups of digits, and longer inside an e-mail address."""

UNFINISHED_WORDS_WAIT_MS = 1_000

FINISHED = 0.5
"""The end-of-turn model's own threshold."""

SHORT_ANSWERS = frozenset(
    "yes yeah yep no nope okay ok sure correct right exactly please thanks hello hi stop goodbye bye".split()
    + ["thank you", "yes please", "no thanks", "no thank you", "that's right", "that's all", "of course", "not really"]
)

BACKCHANNELS = frozenset("aha yeah yep yes ok okay right sure wow nice i see got it alright good great cool".split())

_MURMUR = re.compile(r"(?:[mh]+|h?u+[hm]+|e+[hmr]+|[ao]+h+)(?:-(?:[mh]+|h?u+h+))*")
"""Every way to write "mm-hm": speech-to-text gives "MMHM", "Mmmm", "uh-huh", "Em"."""

PRESENCE_CHECKS = frozenset(["hello", "are you there", "hello are you there", "are you still there", "anybody there"])

_DIGIT_WORDS = frozenset(
    "zero oh one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred double triple".split()
)
_OPEN_WORDS = frozenset(
    "and or but so because the a an my your of to for with at in on from is are was um uh er like that if when"
    " i i'm it's we'd i'd could would can".split()
)
_SPELLING_WORDS = frozenset("at dot dash underscore hyphen slash".split())
_SPELLING_CUES = re.compile(r"\b(e-?mail|address|number|code|spell(ed|ing)?|zip|postcode|account|digits?)\b")
_WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


def is_dictation(text: str) -> bool:
    """Whether the last thing said is a group of digits, or a piece of an e-mail address or a spelled word."""
    words = words_of(text)
    if not words:
        return False
    last = words[-1]
    cued = _SPELLING_CUES.search(text.lower()) is not None
    if last in _SPELLING_WORDS and (cued or any(len(word) == 1 for word in words)):
        return True
    if len(last) == 1 and last not in {"a", "i"}:
        return True
    digits = 0
    for word in reversed(words):
        if not (word.isdigit() or word in _DIGIT_WORDS):
            break
        digits += len(word) if word.isdigit() else 1
    return digits >= 3 or (digits > 0 and cued)


class EndOfTurnPolicy:
    """How much silence ends a turn."""

    def __init__(self, turn: TurnDetection) -> None:
        self.turn = turn

    @property
    def score_after_ms(self) -> int | None:
        """Silence after which to ask for an end-of-turn score; None: never."""
        if self.turn.mode is not TurnMode.SEMANTIC:
            return None
        return min(SCORE_AFTER_MS, self.turn.silence_duration_ms)

    @property
    def speculate_after_ms(self) -> int | None:
        """Silence after which to begin speculating; None: never."""
        return min(SPECULATE_AFTER_MS, self.turn.silence_duration_ms) if self.turn.speculate else None

    def wait_ms(self, probability: float | None, text: str) -> int:
        """The silence, counted from the last voiced sample, that ends the turn.

        ``probability`` is the end-of-turn score, None while it is not there; ``text`` is the transcript so far.
        """
        least = self.turn.silence_duration_ms
        if self.turn.mode is not TurnMode.SEMANTIC:
            return least
        longest = max(MAX_WAIT_MS[self.turn.eagerness], least)
        if is_dictation(text):
            return min(max(DICTATION_WAIT_MS, least), longest)
        words = words_of(text)
        if " ".join(words) in SHORT_ANSWERS:
            return least
        if probability is None:
            wait: float = max(UNSCORED_WAIT_MS, least)
        elif probability >= FINISHED:
            return least
        else:
            doubt = (FINISHED - probability) / FINISHED
            wait = least + doubt * doubt * (longest - least)
        if words and words[-1] in _OPEN_WORDS:
            wait = max(wait, UNFINISHED_WORDS_WAIT_MS)
        return int(min(wait, longest))


class Verdict(enum.Enum):
    """What became of a held reply."""

    UNDECIDED = "undecided"
    COMMIT = "commit"
    RELEASE = "release"


HOLD_MS = 1_000
"""A held reply is decided on within this. A murmur is told from a word only by what was said, and that is known some
300 ms after a short sound ends: to be sooner would be to end the reply at every "okay". The caller hears no
difference, as the reply is silent meanwhile."""

SHORT_SOUND_MS = 250
LONG_SOUND_MS = 400
ECHO_SHARE = 0.7


COMMANDS = frozenset("stop wait no hold sorry excuse but hey".split())
"""Single words that end a reply as soon as they are made out."""


_LEAVE = frozenset("bye goodbye cheers ciao thanks thank".split())
_WITH_LEAVE = frozenset(
    "you so much very for your help and have a good nice great day evening night too same to".split()
)
"""Words that say nothing more beside those that take leave."""


def _is_guess(text: str) -> bool:
    """Whether a partial is one word that may yet become another: a third of a second of "mm-hm" reads as "And" at
    first. To wait for more is inaudible, as the reply is held."""
    words = words_of(text)
    return len(words) == 1 and words[0] not in COMMANDS


def is_backchannel(text: str) -> bool:
    """Whether these words only say: go on."""
    words = words_of(text)
    return bool(words) and len(words) <= 4 and all(word in BACKCHANNELS or _MURMUR.fullmatch(word) for word in words)


def is_goodbye(text: str) -> bool:
    """Whether these words only take leave, or thank."""
    words = words_of(text)
    return any(word in _LEAVE for word in words) and all(
        word in _LEAVE or word in _WITH_LEAVE or word in BACKCHANNELS for word in words
    )


def is_echo(text: str, agent_text: str) -> bool:
    """Whether these words are the agent's own, coming back through the caller's microphone."""
    words = words_of(text)
    if len(words) < 3:
        return False
    spoken = words_of(agent_text)
    position = matched = 0
    for word in words:
        try:
            position = spoken.index(word, position) + 1
        except ValueError:
            continue
        matched += 1
    return matched >= ECHO_SHARE * len(words)


class InterruptionPolicy:
    """Decides on a held reply by words first, then by length (the words are late when the machine is busy)."""

    def is_interruption(self, text: str, agent_text: str, *, heard: bool, leaving: bool = False) -> bool:
        """Whether these words end a reply. ``heard`` is False while the caller has heard nothing of it: then
        asking "hello?" is no reason to begin again. ``leaving``: it is the agent's goodbye, which a goodbye answers."""
        if not words_of(text) or is_echo(text, agent_text) or (leaving and is_goodbye(text)):
            return False
        if not heard and " ".join(words_of(text)) in PRESENCE_CHECKS:
            return False
        return not is_backchannel(text)

    def decide(
        self,
        text: str,
        agent_text: str,
        *,
        final: bool,
        heard: bool,
        voiced_ms: float,
        speaking: bool,
        held_ms: float,
        leaving: bool = False,
    ) -> Verdict:
        """``text`` is the transcript so far, ``final`` whether it is all that was said up to a pause, ``voiced_ms``
        how long the caller has spoken, ``speaking`` whether the caller still does, ``held_ms`` how long the reply has
        been held."""
        if self.is_interruption(text, agent_text, heard=heard, leaving=leaving):
            guess = not final and voiced_ms < LONG_SOUND_MS and held_ms < HOLD_MS and _is_guess(text)
            return Verdict.UNDECIDED if guess else Verdict.COMMIT
        if words_of(text):
            return Verdict.RELEASE if not speaking or held_ms >= HOLD_MS else Verdict.UNDECIDED
        if not speaking and (final or voiced_ms < SHORT_SOUND_MS):
            return Verdict.RELEASE
        if held_ms >= HOLD_MS:
            return Verdict.COMMIT if voiced_ms >= LONG_SOUND_MS else Verdict.RELEASE
        return Verdict.UNDECIDED
