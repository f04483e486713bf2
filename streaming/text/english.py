"""Says in English words what a text writes in digits, symbols and abbreviations.

A table of rules, the first that matches at a place wins: (pattern, what to say). A rule may decline with ``None``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from streaming.text import numbers

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str | None]]

_N = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\w)\.\d+)"
_HALF_DAY = r"[aApP]\.?[mM](?!\w)\.?"
_SCALE = r"\s?(?:thousand|million|billion|trillion|bn|[kKMB])(?!\w)"
_SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion"}
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTH_NAMES = tuple(_MONTHS.split("|"))
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
_FULL_MONTH = rf"({_MONTHS}|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
_UNITS = {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"),
    "mph": ("mile per hour", "miles per hour"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "ft": ("foot", "feet"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
} | {
    symbol: (name, name + "s")
    for symbol, name in {
        "km": "kilometer",
        "cm": "centimeter",
        "mm": "millimeter",
        "m": "meter",
        "mi": "mile",
        "yd": "yard",
        "kg": "kilogram",
        "mg": "milligram",
        "g": "gram",
        "oz": "ounce",
        "ml": "milliliter",
        "mL": "milliliter",
        "L": "liter",
        "KB": "kilobyte",
        "kB": "kilobyte",
        "MB": "megabyte",
        "GB": "gigabyte",
        "TB": "terabyte",
        "kW": "kilowatt",
        "kWh": "kilowatt hour",
        "W": "watt",
        "ms": "millisecond",
        "s": "second",
        "sec": "second",
        "secs": "second",
        "min": "minute",
        "mins": "minute",
        "h": "hour",
        "hr": "hour",
        "hrs": "hour",
    }.items()
}
_UNIT = "(?:" + "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True)) + r")(?!\w|/\w)"
_ABBREVIATIONS = {
    "Dr": "Doctor",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Prof": "Professor",
    "Gen": "General",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Mt": "Mount",
    "e.g": "for example",
    "i.e": "that is",
    "vs": "versus",
    "approx": "approximately",
}
_LAST_ABBREVIATIONS = {
    "etc": "et cetera",
    "Jr": "Junior",
    "Sr": "Senior",
    "Ave": "Avenue",
    "Rd": "Road",
    "Blvd": "Boulevard",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Co": "Company",
    "Corp": "Corporation",
    "Dept": "Department",
}  # may end a sentence, and then keep its stop
_ADDRESS_SYMBOLS = {
    ".": "dot",
    "/": "slash",
    "@": "at",
    "-": "dash",
    "_": "underscore",
    ":": "colon",
    "?": "question mark",
    "=": "equals",
    "&": "and",
    "#": "hash",
    "+": "plus",
    "%": "percent",
    "~": "tilde",
}
_TOP_DOMAINS = "com|org|net|edu|gov|io|ai|app|dev|info|biz|co|uk|de|fr|eu|us|ca|au|nl|ch|me|tv"
_YEAR_BEFORE = re.compile(
    r"\b(?:in|since|by|from|until|till|to|year|of|before|after|around|circa|during|late|early|mid)\s+$", re.IGNORECASE
)


def english(text: str) -> Iterator[tuple[int, int, str]]:
    """Replacements for ``text`` in order: say the last instead of ``text[start:end]``."""
    at = 0
    while found := _ANY.search(text, at):
        at = found.start() + 1
        for pattern, say in _RULES:
            match = pattern.match(text, found.start())
            if match and (spoken := say(match)) is not None:
                yield match.start(), match.end(), spoken
                at = match.end()
                break


def _address(match: re.Match[str]) -> str:
    text = re.sub(r"^(?:https?://)?(?:www\.)?", "", match.group(), flags=re.IGNORECASE).rstrip("/")
    parts = re.findall(r"\d+|[^\W\d_]+|.", text)
    return " ".join(
        numbers.number(part) if part.isdecimal() else part if part.isalpha() else _ADDRESS_SYMBOLS.get(part, "")
        for part in parts
    )


def _amount(amount: str, scale: str | None, currency: str) -> str:
    one, many, small_one, small_many = _CURRENCIES[currency]
    whole, _, small = amount.partition(".")
    if scale:
        word = scale.strip().lower()
        return f"{numbers.number(amount)} {_SCALES.get(word, word)} {many}"
    if len(small) not in (0, 2):
        return f"{numbers.number(amount)} {many}"
    parts: list[str] = []
    if int(whole.replace(",", "") or "0") or not int(small or "0"):
        parts.append(f"{numbers.cardinal(whole.replace(',', '') or '0')} {one if whole == '1' else many}")
    if int(small or "0"):
        parts.append(f"{numbers.cardinal(small)} {small_one if int(small) == 1 else small_many}")
    return " and ".join(parts)


def _money(match: re.Match[str]) -> str:
    sign, currency, amount, scale, upper, upper_scale = match.groups()
    spoken = "minus " if sign else ""
    if not upper:
        return spoken + _amount(amount, scale, currency)
    low = f"{numbers.number(amount)} {_SCALES.get((scale or '').strip().lower(), (scale or '').strip())}".strip()
    return f"{spoken}{low} to {_amount(upper, upper_scale, currency)}"


def _money_after(match: re.Match[str]) -> str:
    amount, currency = match.groups()
    if currency == "¢":
        return f"{numbers.number(amount)} {'cent' if amount == '1' else 'cents'}"
    return _amount(amount, None, currency)


def _month(name: str) -> str:
    return next(month for month in _MONTH_NAMES if month.startswith(name[:3]))


def _date(month: int, day: str, year: str) -> str | None:
    if not (1 <= month <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{_MONTH_NAMES[month - 1]} {numbers.ordinal(day)}, {_short_year(year)}"


def _short_year(year: str) -> str:
    return numbers.year(year) if len(year) == 4 else numbers.year("20" + year)


def _slash_date(match: re.Match[str]) -> str | None:
    first, second, year = match.groups()
    if int(first) > 12:
        return _date(int(second), first, year)
    return _date(int(first), second, year)


def _month_day(match: re.Match[str]) -> str | None:
    name, day, last_day, year = match.groups()
    if not 1 <= int(day) <= 31:
        return None
    spoken = f"{_month(name)} {numbers.ordinal(day)}"
    if last_day:
        spoken += f" to {numbers.ordinal(last_day)}"
    return f"{spoken}, {numbers.year(year)}" if year else spoken


def _day_month(match: re.Match[str]) -> str | None:
    day, name, year = match.groups()
    if not 1 <= int(day) <= 31:
        return None
    spoken = f"{numbers.ordinal(day)} of {_month(name)}"
    return f"{spoken}, {numbers.year(year)}" if year else spoken


def _half_day(text: str) -> str:
    return f" {text[0].lower()}.m."


def _time(match: re.Match[str]) -> str | None:
    hour, minute, second, half = match.groups()
    if int(hour) > 24 or int(minute) > 59:
        return None
    spoken = numbers.clock(hour, minute, bool(half or second))
    if second:
        spoken += f" and {numbers.cardinal(second)} seconds"
    return spoken + (_half_day(half) if half else "")


def _hour(match: re.Match[str]) -> str:
    return numbers.cardinal(match.group(1)) + _half_day(match.group(2))


def _hours(match: re.Match[str]) -> str:
    hour, minute, half, last_hour, last_minute, last_half = match.groups()
    first = numbers.clock(hour, minute or "00", True) + (_half_day(half) if half else "")
    last = numbers.clock(last_hour, last_minute or "00", True) + (_half_day(last_half) if last_half else "")
    return f"{first} to {last}"


def _digit_groups(match: re.Match[str]) -> str:
    groups = ", ".join(numbers.spelled(group) for group in re.findall(r"\d+", match.group()))
    return f"plus {groups}" if match.group().startswith("+") else groups


def _version(match: re.Match[str]) -> str:
    digits = match.group().lstrip("vV")
    parts = digits.split(".")
    joined = (" dot " if len(parts) == 4 else " point ").join(map(numbers.number, parts))
    return joined if digits == match.group() else f"version {joined}"


def _fraction(match: re.Match[str]) -> str | None:
    whole, numerator, denominator = match.groups()
    if (numerator, denominator) == ("24", "7"):
        return "twenty-four seven"
    spoken = numbers.fraction(numerator, denominator)
    if not whole:
        return spoken
    return f"{numbers.number(whole)} and {spoken.replace('one half', 'a half')}"


def _quantity(match: re.Match[str]) -> str:
    sign, amount, upper, unit = match.groups()
    text = match.string
    say: Callable[[str], str] = numbers.number
    if not unit and _is_year(text, match.start(2), amount) and (not upper or _looks_like_year(upper)):
        say = numbers.year
    spoken = ("minus " if sign else "") + say(amount)
    if upper:
        spoken += f" to {say(upper)}"
    if unit:
        spoken += " " + _UNITS[unit][0 if amount == "1" and not upper else 1]
    return spoken


def _looks_like_year(amount: str) -> bool:
    return len(amount) == 4 and amount.isdecimal() and 1100 <= int(amount) <= 2099


def _is_year(text: str, at: int, amount: str) -> bool:
    return _looks_like_year(amount) and (int(amount) >= 1900 or bool(_YEAR_BEFORE.search(text, 0, at)))


def _street_or_saint(match: re.Match[str]) -> str:
    text = match.string
    before = re.search(r"(\b[A-Z]\w*|\d(?:st|nd|rd|th))\s+$", text[: match.start()])
    if before and before[1] not in ("See", "Visit", "In", "At", "On", "To", "From", "The", "And", "Near"):
        return _with_stop("Street", match)
    return "Saint"


def _with_stop(spoken: str, match: re.Match[str]) -> str:
    rest = match.string[match.end() :].lstrip()
    return spoken + ("." if not rest or rest[0].isupper() else "")


def _slash(match: re.Match[str]) -> str:
    before = re.search(r"(\w+)$", match.string[: match.start()])
    word = before.group(1).lower() if before else ""
    return " " if word == "and" or re.match(r"(?:or|and)\b", match.string[match.end() :]) else " or "


def _other_number(match: re.Match[str]) -> str:
    """½, ², ①: what Unicode says they are."""
    char = match.group()
    if char in "²³":
        return " squared" if char == "²" else " cubed"
    parts = re.findall(r"\d+", unicodedata.normalize("NFKC", char))
    if len(parts) == 2 and int(parts[1]):
        spoken = numbers.fraction(parts[0], parts[1])
        mixed = match.string[: match.start()][-1:].isdecimal()
        return f" and {spoken.replace('one half', 'a half')}" if mixed else spoken
    return " ".join(numbers.number(part) for part in parts)


def _say(words: str) -> Callable[[re.Match[str]], str]:
    return lambda _: words


def _rules() -> Iterator[Rule]:
    def rule(pattern: str, say: Callable[[re.Match[str]], str | None], flags: int = 0) -> Rule:
        return re.compile(pattern, flags), say

    yield rule(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", _address)
    yield rule(r"(?<![\w@])(?:https?://|www\.)[^\s<>\"“”]*[^\s<>\"“”.,;:!?'’)\]}*]", _address, re.IGNORECASE)
    domain = rf"(?<![\w@.-])(?:[a-z\d-]+\.)+(?:{_TOP_DOMAINS})(?![\w-]|\.\w)(?:/[^\s<>\"]*[^\s<>\"“”.,;:!?'’)\]}}*])?/?"
    yield rule(domain, _address, re.IGNORECASE)
    yield rule(rf"(?:(?<!\w)([-−]))?([$€£¥₹])\s?({_N})({_SCALE})?(?:\s?[-–]\s?[$€£¥₹]?({_N})({_SCALE})?)?", _money)
    yield rule(rf"(?<![\w.])({_N})\s?([€£¥₹¢])", _money_after)
    yield rule(r"(?<!\w)(\d{4})-(\d\d?)-(\d\d?)(?![\w-])", lambda m: _date(int(m[2]), m[3], m[1]))
    yield rule(r"(?<![\w/])(\d\d?)/(\d\d?)/(\d{4}|\d\d)(?![\w/])", _slash_date)
    yield rule(
        rf"\b{_FULL_MONTH}\.?\s+(\d\d?)(?:st|nd|rd|th)?(?:\s?[-–]\s?(\d\d?))?(?:,?\s+(\d{{4}}))?(?![\w:%]|[.,/]\d)",
        _month_day,
    )
    yield rule(
        rf"(?<![\w.,:])(\d\d?)(?:st|nd|rd|th)?\s+(?:of\s+)?{_FULL_MONTH}(?:(?:\.(?=\s+\d))?,?\s+(\d{{4}}))?(?!\w)",
        _day_month,
    )
    yield rule(rf"\b{_FULL_MONTH}\.?,?\s+(\d{{4}})(?!\w)", lambda m: f"{_month(m[1])} {numbers.year(m[2])}")
    yield rule(
        rf"(?<![\w.:])(\d\d?)(?::([0-5]\d))?\s?({_HALF_DAY})?\s?[-–]\s?(\d\d?)(?::([0-5]\d))?\s?({_HALF_DAY})", _hours
    )
    yield rule(r"(?<![\w.:])(\d\d?):([0-5]\d)\s?()[-–]\s?(\d\d?):([0-5]\d)()(?![\w:])", _hours)
    yield rule(rf"(?<![\w.:])(\d\d?):(\d\d)(?::(\d\d))?(?:\s?({_HALF_DAY}))?(?![\w:])", _time)
    yield rule(rf"(?<![\w.:])(\d\d?)\s?({_HALF_DAY})", _hour)
    yield rule(r"(?<![\w.])(\d+):(\d+)(?![\w:])", lambda m: f"{numbers.number(m[1])} to {numbers.number(m[2])}")
    yield rule(r"(?<![\w.])(?:\+?1[-. ]?)?(?:\(\d{3}\)\s?|\d{3}[-. ])\d{3}[-. ]\d{4}(?!\w)", _digit_groups)
    yield rule(r"\+\d{1,3}(?:[ .-]?\(?\d{2,4}\)?){2,5}(?!\w)", _digit_groups)
    yield rule(r"(?<![\w.-])(?:\d{3}-\d{4}|\d{1,12}(?:-\d{1,12}){2,7}|\d{4}(?: \d{4}){2,})(?![\w-])", _digit_groups)
    yield rule(r"(?<!\w)(?:[vV]\d+(?:\.\d+)*|\d+(?:\.\d+){2,})(?!\w)", _version)
    yield rule(r"(?<!\w)(\d\d\d0)s(?!\w)", lambda m: numbers.plural(numbers.year(m[1])))
    yield rule(r"(?:(?<!\w)['’])?(?<!\w)([2-9]0)s(?!\w)", lambda m: numbers.plural(numbers.cardinal(m[1])))
    yield rule(r"(?<![\w.])(\d[\d,]*)(?:st|nd|rd|th)(?!\w)", lambda m: numbers.ordinal(m[1].replace(",", "")))
    yield rule(r"(?<![\w./])(?:(\d+)\s)?(\d{1,3})/([1-9]\d{0,2})(?![\w/])", _fraction)
    yield rule(
        r"(?<![\w.])(\d)['’](\d\d?)[\"”]?(?!\w)", lambda m: f"{numbers.number(m[1])} foot {numbers.number(m[2])}"
    )
    yield rule(rf"(?:(?<![\w)])([-−]))?({_N})(?:(?:-|\s?–\s?)({_N}))?(?:\s?({_UNIT}))?", _quantity)
    yield rule(r"[#№]\s?(?=\d)", _say("number "))
    yield rule(r"\bNos?\.\s?(?=\d)", _say("number "))
    leading = "|".join(map(re.escape, _ABBREVIATIONS))
    yield rule(rf"(?<![\w.])({leading})\.(?!\w)", lambda m: _ABBREVIATIONS[m[1]])
    last = "|".join(_LAST_ABBREVIATIONS)
    yield rule(rf"(?<![\w.])({last})\.(?!\w)", lambda m: _with_stop(_LAST_ABBREVIATIONS[m[1]], m))
    yield rule(rf"\b{_MONTH}\.(?!\w)", lambda m: _with_stop(_month(m[1]), m))
    yield rule(r"(?<![\w.])St\.(?!\w)", _street_or_saint)
    yield rule(r"(?<!\w)w/o(?!\w)", _say("without"))
    yield rule(r"(?<!\w)w/(?=\s?\w)", _say("with "))
    yield rule(r"(?<=[^\W_]{2})[.!?](?=[A-Z][a-z'’ ])", lambda m: m[0] + " ")
    yield rule(r"(?<=[^\W_]{2})\.(?=[^\W_]{2})", _say(" dot "))
    yield rule(r"(?<=\w)\s?[*×]\s?(?=\d)", _say(" times "))
    yield rule(r"(?<=\w)\s?÷\s?(?=\w)", _say(" divided by "))
    yield rule(r"(?<=\w)/(?=\w)", _slash)
    yield rule(r"(?<=\w)\s?=\s?(?=\w)", _say(" equals "))
    yield rule(r"(?<=\w)\s?[<>]\s?(?=\d)", lambda m: " less than " if "<" in m[0] else " greater than ")
    yield rule(r"~\s?(?=\d)", _say("about "))
    yield rule(r"±\s?(?=\d)", _say("plus or minus "))
    for symbol, words in (("&", " and "), (r"\+", " plus "), ("@", " at ")):
        yield rule(rf"{symbol}(?=\s?\w)|(?<=\w){symbol}|(?<=\w\s){symbol}|(?<={symbol}){symbol}", _say(words))
    yield rule("[²³¹\u00bc-\u00be\u2070-\u2089\u2150-\u2189\u2460-\u249b]", _other_number)


_RULES = tuple(_rules())
_ANY = re.compile(
    "|".join(f"(?:(?i:{p.pattern}))" if p.flags & re.IGNORECASE else f"(?:{p.pattern})" for p, _ in _RULES)
)
