"""Numbers in English words, from their digits."""

from __future__ import annotations

_WORDS_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_ONES = tuple(_WORDS_TO_NINETEEN.split())
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("", " thousand", " million", " billion", " trillion")
_ORDINAL_ENDS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_MAX_CARDINAL_DIGITS = 15


def _below_hundred(value: int) -> str:
    if value < 20:
        return _ONES[value]
    tens, ones = divmod(value, 10)
    return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")


def _below_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    if not hundreds:
        return _below_hundred(rest)
    return f"{_ONES[hundreds]} hundred" + (f" {_below_hundred(rest)}" if rest else "")


def cardinal(digits: str) -> str:
    """ "1234" -> "one thousand two hundred thirty-four". More than 15 digits are read one by one."""
    value = int(digits)
    if value == 0:
        return "zero"
    if len(str(value)) > _MAX_CARDINAL_DIGITS:
        return spelled(digits)
    parts: list[str] = []
    for scale in _SCALES:
        value, rest = divmod(value, 1000)
        if rest:
            parts.append(_below_thousand(rest) + scale)
    return " ".join(reversed(parts))


def spelled(digits: str) -> str:
    """ "404" -> "four zero four"."""
    return " ".join(_ONES[int(digit)] for digit in digits)


def ordinal(digits: str) -> str:
    """ "22" -> "twenty-second"."""
    words = cardinal(digits)
    at = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[at:]
    if last in _ORDINAL_ENDS:
        return words[:at] + _ORDINAL_ENDS[last]
    return words[:-1] + "ieth" if last.endswith("y") else words + "th"


def number(text: str) -> str:
    """A plain decimal: "3.14", "1,234", ".5". Long runs of digits without separators (an order number) and those with
    a leading zero are read digit by digit."""
    whole, point, fraction = text.replace(",", "").partition(".")
    if not whole:
        spoken = ""
    elif (len(whole) > 4 and "," not in text) or (len(whole) > 1 and whole[0] == "0"):
        spoken = spelled(whole)
    else:
        spoken = cardinal(whole)
    return f"{spoken} point {spelled(fraction)}".strip() if point else spoken


def year(digits: str) -> str:
    """ "1998" -> "nineteen ninety-eight", "2005" -> "two thousand five", "1905" -> "nineteen oh five"."""
    century, rest = divmod(int(digits), 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(digits)
    if rest == 0:
        return f"{_below_hundred(century)} hundred"
    return f"{_below_hundred(century)} {'oh ' if rest < 10 else ''}{_below_hundred(rest)}"


def plural(words: str) -> str:
    """ "nineteen ninety" -> "nineteen nineties", "two thousand" -> "two thousands"."""
    if words.endswith("y"):
        return words[:-1] + "ies"
    return words + ("es" if words.endswith("x") else "s")


def clock(hour: str, minute: str, with_half: bool) -> str:
    """ "10", "30" -> "ten thirty"; a full hour is "ten" before a.m. or p.m. (``with_half``), else "ten o'clock"."""
    spoken = cardinal(hour)
    if minute == "00":
        if with_half:
            return spoken
        return f"{spoken} o'clock" if 1 <= int(hour) <= 12 else f"{spoken} hundred"
    return f"{spoken} {'oh ' if minute[0] == '0' else ''}{cardinal(minute)}"


def fraction(numerator: str, denominator: str) -> str:
    """ "1", "2" -> "one half"; "3", "4" -> "three quarters"; what isn't said so: "seven over fifty"."""
    value = int(denominator)
    if value == 2:
        part = "half" if int(numerator) == 1 else "halves"
    elif value == 4:
        part = "quarter" if int(numerator) == 1 else "quarters"
    elif 3 <= value <= 20 or value in (100, 1000):
        part = ordinal(denominator) + ("" if int(numerator) == 1 else "s")
        part = part.removeprefix("one ")
    else:
        return f"{cardinal(numerator)} over {cardinal(denominator)}"
    return f"{cardinal(numerator)} {part}"
