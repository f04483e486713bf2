"""Whether an ear heard what was said: by sounds, as ears write one sound in many ways.

"Open from eight to six" comes back as "open for mate to 6" from any Whisper, and one word in thirty of what the agent's
voice says is written otherwise; "the capital of Francis Paris" is two words wrong of six and one sound of twenty-three.
So both texts are sounded out as the agent's own voice would say them, and phonemes are compared.
"""

from __future__ import annotations

import functools

from engines.fetch import ensure
from engines.tts.g2p.english import EnglishPhonemes
from engines.tts.g2p.letters import LetterToSound
from engines.tts.g2p.lexicon import Lexicon
from streaming.text.speakable import speakable

MOST_MISHEARD = 0.25
"""Of the sounds said. Measured with Whisper tiny.en on 62 sentences of an agent, each spoken up to five times by
Piper's "joe", wide and over a phone line: 0.6 % on average, 15 % at most (22 % once, on the phone). A sentence of
which half is missing has over 40 %, another sentence over 39 %, usually 80 %."""
SOUNDS_FORGIVEN = 2
"""Of what is shorter than a sentence: less than this no ear can promise of a word or two."""

_STRESS = frozenset("ˈˌː ")


def was_heard(said: str | None, heard: str | None, *, cut: bool = False) -> bool:
    """Whether ``heard`` sounds like ``said``, which was something. ``cut``: whether it begins like it, whatever
    follows; then ``said`` may be nothing. Blocks when first called."""
    a, b = _sounds(said or ""), _sounds(heard or "")
    if not a or not b:
        return cut and not a
    row = list(range(len(b) + 1))
    for i, sound in enumerate(a, 1):
        above, row = row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (sound != other)))
    return (min(row) if cut else row[-1]) <= max(SOUNDS_FORGIVEN, MOST_MISHEARD * len(a))


def _sounds(text: str) -> list[str]:
    spoken = _english().words(speakable(text).text)
    return [phoneme for word in spoken for phoneme in word.ipa if phoneme not in _STRESS]


@functools.cache
def _english() -> EnglishPhonemes:
    return EnglishPhonemes(Lexicon.load(ensure("misaki-en")), LetterToSound.load(ensure("g2p-en")))
