"""Which reading of a word with several: a few rules on the words beside it, no tagger.

Worth it only where the wrong reading is plainly wrong ("I read it" aside, which no neighbour can tell): a verb after
"to", a pronoun or a modal; a noun after a determiner; a participle after "have" or "be".
"""

from __future__ import annotations

from engines.tts.g2p.lexicon import DEFAULT, Readings

AT_PHRASE_END = "None"
"""The lexicon's tag for "nothing follows"."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ADVERBS = _set("also already always just never not now only often still then usually")
_DETERMINERS = _set("a an any each every her his its my no our per some such that the their this these those what your")
_BEFORE_VERB = _set(
    "can can't cannot could couldn't did didn't do does doesn't don't everyone he'll i i'd i'll it'll let's may might "
    "must people please shall she'll should shouldn't they they'd they'll to we we'd we'll who will won't would "
    "wouldn't you you'd you'll"
)
_BEFORE_PARTICIPLE = _set(
    "am are be been being get gets got had has have haven't hasn't he's i'm i've is it's she's they've was wasn't "
    "we've were you've"
)
_PLACES = _set("alone at here in near on there with")
_OBJECTS = _set("a an her him his it me my our that the their them these this those us your")


def choose(word: str, readings: Readings, before: list[str], following: str | None) -> str:
    """The phonemes of ``word`` (lower case) after the words ``before``, with ``following`` in the same phrase."""
    if len(readings) == 1:
        return readings[DEFAULT]
    if following is None and AT_PHRASE_END in readings:
        return readings[AT_PHRASE_END]
    if word == "used":
        return readings.get("VBD" if following == "to" else DEFAULT, readings[DEFAULT])
    if word in ("live", "lives") and following in _PLACES and "VERB" in readings:
        return readings["VERB"]
    for tag in _likely_tags(before, following):
        if tag in readings:
            return readings[tag]
    return readings[DEFAULT]


def _likely_tags(before: list[str], following: str | None) -> tuple[str, ...]:
    last = before[-1] if before else ""
    if last in _ADVERBS:
        last = before[-2] if len(before) > 1 else ""
    if last in _BEFORE_PARTICIPLE:
        return ("VBN", "ADJ")
    if last in _BEFORE_VERB:
        return ("VERB",)
    if last in _DETERMINERS:
        return ("NOUN",)
    if not last and following in _OBJECTS:
        return ("VERB",)  # an imperative: "Record your message"
    return ()
