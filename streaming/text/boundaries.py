"""Where a text may be cut for speech: pure questions about one place in it.

The questions that need the text after a place answer :data:`WAIT` until enough of it is there, and their answer never
changes once given. So cutting does not depend on the sizes of the pieces in which a model delivers its text.
"""

from __future__ import annotations

import re
import unicodedata

NO = 0
WAIT = -1

STOPS = frozenset(".?!…。！？।॥؟۔")
_FULL_STOPS = frozenset("。！？।॥")  # stand without a space after them
CLAUSE_MARKS = frozenset(",;:，、；：—–-")
_FULL_CLAUSE_MARKS = frozenset("，、；：")

_LOOKAHEAD = 48  # characters after which a question is answered with what there is
_RUN = re.compile(r"[.?!…。！？।॥؟۔]+")
_CLOSERS = re.compile(r"[\"'”’»)\]}」』）】*_`~]*")
_OPENERS = "([{\"'“‘«「『（*_`~#>-"
_CJK = re.compile(r"[぀-ヿ㐀-鿿가-힯]")
_WORD = re.compile(r"[^\s぀-ヿ㐀-鿿]+|[぀-ヿ㐀-鿿]")
_LIST_NUMBER = re.compile(r"(?:^|\n)\s*[-*_>#\s]*\d{1,3}[.)]?$")
_DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
_PLAIN_NUMBER = re.compile(r"[$€£]?\d[\d,.:]*%?")


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


_TITLES = _set(
    "dr mr mrs ms mx prof st gen sen rep gov capt cpt col lt maj sgt rev hon pres mt ft vs e.g i.e eg ie cf viz approx"
    " ca ph messrs mme mlle"
)  # always lead on to something
_OFTEN_LAST = _set("etc inc ltd co corp jr sr ave rd blvd dept est a.m p.m am pm ph.d m.d b.a m.a a.k.a")
_BEFORE_NUMBER = _set("no nos pp vol art sec ch fig figs eq ext tel apt rm")
_SHORT_MONTHS = _set("Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec")
_MONTHS = _SHORT_MONTHS | _set("January February March April May June July August September October November December")
_SENTENCE_STARTERS = _set(
    "The A An It He She They We You I This That These Those There Here In On At But And So If When What Who How Why"
    " Where Please Is Are Do Does Did Can Could Would Will Then Now No Yes Its Our Your My"
)
_WEAK = _set(
    "a an the of to in on at by and or but for from with as my your his her its our their this that is are be i we you"
    " it who which than into"
)  # a pause after these sounds wrong
_BINDS = frozenset("&+=/×%°*")
_OPENS_NUMBER = frozenset("$€£¥-−")


def words(text: str) -> int:
    """How many spoken words: runs with a letter or digit; every CJK character counts."""
    return sum(1 for run in _WORD.findall(text) if any(char.isalnum() for char in run))


def sentence_end(text: str, start: int, at: int, final: bool) -> int:
    """Does the stop at ``at`` end a sentence of ``text[start:]``? The index after the stop and what closes with it,
    :data:`NO` or :data:`WAIT`. ``final``: nothing follows ``text``."""
    text, final = _window(text, at, final)
    run = _match_end(_RUN, text, at)
    end = _match_end(_CLOSERS, text, run)
    if end == len(text):
        return end if final else WAIT
    token = token_before(text, start, at)
    if text[run - 1] in _FULL_STOPS:
        return end
    if not text[end].isspace():
        return _end_without_space(text, at, end, token, final)
    if text[at:run] == ".":
        verdict = _abbreviation(text, start, at, end, token, final)
        if verdict is not None:
            return end if verdict > NO else verdict
    if end > run or run - at > 1 or text[at] == "…":  # a closed quote, or an ellipsis, may be followed by "he said"
        following = _next_word(text, end, final)
        if following is None:
            return WAIT
        return NO if following[:1].islower() else end
    return end


def _window(text: str, at: int, final: bool) -> tuple[str, bool]:
    if len(text) >= at + _LOOKAHEAD:
        return text[: at + _LOOKAHEAD], True
    return text, final


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def token_before(text: str, start: int, at: int) -> str:
    """The characters since the last space before ``at``, without what opens them."""
    begin = at
    while begin > start and not text[begin - 1].isspace():
        begin -= 1
    return text[begin:at].lstrip(_OPENERS)


def _next_word(text: str, at: int, final: bool) -> str | None:
    """The first word after ``at``, whole; ``None`` while more of it may come."""
    rest = text[at:].lstrip().lstrip(_OPENERS)
    word = re.match(r"[\w'’]*", rest)
    found = word.group() if word else ""
    return found if final or (rest and len(found) < len(rest)) else None


def _abbreviation(text: str, start: int, at: int, end: int, token: str, final: bool) -> int | None:
    """For a single full stop before a space: :data:`NO`, :data:`WAIT`, 1 for an end, ``None`` for a common word."""
    lowered = token.lower()
    if not token or _LIST_NUMBER.search(text[start:at]):
        return NO
    if (len(token) == 1 and token.isascii() and token.isalpha()) or lowered in _TITLES:
        return NO
    dotted = bool(_DOTTED.fullmatch(token))
    if not (dotted or lowered in _OFTEN_LAST or lowered in _BEFORE_NUMBER or token in _SHORT_MONTHS):
        return None
    following = _next_word(text, end, final)
    if following is None:
        return WAIT
    if lowered in _BEFORE_NUMBER or token in _SHORT_MONTHS:
        return NO if following[:1].isdigit() else 1
    if lowered in _OFTEN_LAST:
        return 1 if following[:1].isupper() else NO
    return 1 if following in _SENTENCE_STARTERS else NO  # "the U.S. Army", but "in the U.S. It"


def _end_without_space(text: str, at: int, end: int, token: str, final: bool) -> int:
    """ "Sentence one.Sentence two" ends there; "example.com", "3.14" and "v2.0.1" don't."""
    following = text[end]
    if is_address(token):
        return NO
    if _CJK.match(following):
        return end if text[at] != "." or _CJK.match(text[at - 1]) else NO
    if unicodedata.category(following) in ("So", "Sk"):  # an emoji
        return end
    if not following.isupper():
        return NO
    if text[at] != ".":
        return end
    if end + 1 == len(text):
        return NO if final else WAIT
    sentence = text[end + 1].islower() or (following in "IA" and text[end + 1] in " '’")
    common_word = len(token) > 1 and token.isalpha() and token[1:].islower()
    return end if sentence and (common_word or _PLAIN_NUMBER.fullmatch(token)) else NO


def is_address(token: str) -> bool:
    """A URL, an e-mail address or a path."""
    return "@" in token or "/" in token or token.lower().startswith("www.")


def clause_end(text: str, start: int, at: int, final: bool) -> int:
    """Does the mark at ``at`` end a clause? The index after it, :data:`NO` or :data:`WAIT`."""
    mark = text[at]
    if mark in _FULL_CLAUSE_MARKS:
        return at + 1
    text, final = _window(text, at, final)
    end = _match_end(_CLOSERS, text, at + 1) if mark in ",;:" else at + 1
    if end == len(text):
        return NO if final else WAIT
    before = text[start:at].rstrip()
    if mark == "—":
        return NO if before[-1:].isdigit() or text[end].isdigit() else end
    if not text[end].isspace():
        return NO
    if mark in "-–":
        line = text[start:at].rpartition("\n")[2]
        spaced = line.strip() and line[-1].isspace()
        return end if spaced and not before[-1].isdigit() else NO
    if not before[-1:].isdigit():
        return end
    following = _next_word(text, end, final)  # "March 3, 2025"
    if following is None:
        return WAIT
    return NO if following[:1].isdigit() else end


def line_end(text: str, start: int, at: int, final: bool) -> int:
    """Does the line break at ``at`` end what is said? ``at`` itself, :data:`NO` or :data:`WAIT`. A line that goes on in
    lower case was only wrapped; a numeral alone waits for its item."""
    text, final = _window(text, at, final)
    gap = text[at : len(text) - len(text[at:].lstrip())]
    following = text[at + len(gap) : at + len(gap) + 1]
    if not following and not final:
        return WAIT
    if _LIST_NUMBER.search(text[start:at]) or (following.islower() and gap.count("\n") == 1):
        return NO
    return at


def word_boundary(text: str, body: int, spaces: list[int], end: int, number_may_follow: bool = False) -> int:
    """The last of ``spaces`` (indexes of whitespace in ``text[body:end]``) where a pause sounds natural and nothing is
    torn: no number from its unit, no title from its name; else 0."""
    fallback = 0
    for at in reversed(spaces):
        token = token_before(text, body, at)
        following = text[at:end].lstrip()[:1]
        if not token or (not following and at + 1 < end):
            continue
        if any(char.isdigit() for char in token) and token[-1] not in ",;:.!?)":
            continue
        if following in _BINDS or (not number_may_follow and (following.isdigit() or following in _OPENS_NUMBER)):
            continue
        bare = token.rstrip(".")
        if bare in _MONTHS or (token != bare and (bare.lower() in _TITLES or bare.lower() in _BEFORE_NUMBER)):
            continue
        if token.lower() not in _WEAK:
            return at
        fallback = fallback or at
    return fallback


def stands_complete(text: str, start: int) -> bool:
    """May ``text[start:]`` be spoken as it ends now, though more may come? True after a clause or a sentence that no
    later character could turn into a part of a number, an address or an abbreviation."""
    body = text.rstrip()
    ended = re.search(r"([.?!…。！？।॥؟۔]+|[,;，、；：—])[\"'”’»)\]}」』）】*_`~]*$", body[start:])
    if not ended:
        return False
    at = start + ended.start()
    token = token_before(body, start, at)
    if is_address(token):
        return False
    if text[at] in ".,":
        known = token.lower() in _TITLES | _BEFORE_NUMBER or token in _SHORT_MONTHS
        return len(token) > 1 and not token[-1].isdigit() and not known and not _DOTTED.fullmatch(token)
    return True
